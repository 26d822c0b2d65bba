"""A client: one person's text, which stays here, and what it agrees to.

It runs the code that is installed with it.  An order names a model, an update and a plan by public
values; anything that this installation does not know is refused.  The contribution is clipped,
weighed and put on the grid here, given its share of the noise where clients share it, and is all
that leaves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tacit.corpus.source import UserSource
from tacit.federated.cohort import one_thread, user_result
from tacit.federation.bounds import Bound
from tacit.federation.connection import Connection, Unreachable
from tacit.federation.flower import ClientApp, Context, Message, RecordDict
from tacit.federation.orders import Answer, Order, width_of
from tacit.federation.own_ledger import OwnLedger, Refused
from tacit.federation.own_noise import OwnNoise, SimulatedNoise
from tacit.kernels.local_sgd import LocalSGD, local_sgd_for
from tacit.models import registry
from tacit.models.base import ModelConfig, parameter_count
from tacit.tokenizers.cache import user_tokens

Tell = Callable[[str], None]

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds between two tries to reach a server


class Person:
    """Whose text it is: one user of a corpus, without the held-out texts."""

    def __init__(self, user_id: str, source: UserSource, index: int) -> None:
        self.id = user_id
        self._source, self._index = source.kept(), index
        self._read: tuple[bytes, int | None, NDArray[np.uint32]] | None = None

    @classmethod
    def of(cls, user_id: str, corpus: UserSource, named: str | None = None) -> Person:
        """The only user of a corpus, or the one with the hashed id that is `named`."""
        if named is None:
            if len(corpus) != 1:
                raise ValueError(
                    f"a client is one person, and the corpus has {len(corpus):,} users: name one by"
                    " the hashed id with --user, or make the key of a silo with --silo"
                )
            return cls(user_id, corpus, 0)
        index = next((i for i in range(len(corpus)) if corpus.user_id(i) == named), None)
        if index is None:
            raise ValueError(f"the corpus has no user {named!r}")
        return cls(user_id, corpus, index)

    def read(self, order: Order) -> None:
        """Cut the text into the order's tokens, unless it was the last time."""
        how = (order.tokenizer, order.max_tokens_per_user)
        if self._read is None or self._read[:2] != how:
            tokenizer = order.read_tokenizer()
            if tokenizer.vocab_size != order.model.vocab_size:
                raise Refused("the order's tokenizer is not the one of its model")
            tokens = user_tokens(self._source.texts(self._index), tokenizer, how[1])
            self._read = (*how, np.array(tokens, np.uint32))

    # As `CohortUsers` has it.

    def __len__(self) -> int:
        return 1

    def tokens(self, index: int) -> NDArray[np.uint32]:
        assert self._read is not None, "an order has to be read first"
        return self._read[2]

    def key(self, index: int) -> str:
        return self.id


class BuiltModel:
    """The model of orders, which is built once for all that have the same one."""

    def __init__(self) -> None:
        self._built: tuple[ModelConfig, LocalSGD, int] | None = None

    def of(self, order: Order) -> tuple[LocalSGD, int]:
        """The local steps of the order's model, and how many weights that has."""
        if self._built is None or self._built[0] != order.model:
            model = registry.build(order.model)
            self._built = (order.model, local_sgd_for(model), parameter_count(model))
        _, sgd, size = self._built
        if order.weights.shape != (size,):
            raise Refused(f"the order's model must have {size} weights, got {order.weights.shape}")
        return sgd, size


class Answering(Protocol):
    """What answers orders: for one person, or for a silo."""

    @property
    def people(self) -> int:
        """How many an answer may be of, as the server knows it."""

    def answer(self, order: Order) -> Answer:
        """The contribution that is asked for, on record before it is made; or `Refused`."""

    def answer_in_the_clear(self, order: Order) -> Answer:
        """The same for a server that sees it alone."""


@dataclass
class Trainer:
    """Computes a person's contributions."""

    person: Person
    ledger: OwnLedger
    noise: OwnNoise | SimulatedNoise | None = None  # where clients share the noise
    _model: BuiltModel = field(default_factory=BuiltModel)

    @property
    def people(self) -> int:
        """One: the person."""
        return 1

    def answer(self, order: Order) -> Answer:
        """The contribution that is asked for, on record before it is made; or `Refused`."""
        sgd, size = self._model.of(order)
        self.person.read(order)
        self.ledger.give(order)
        task = order.task(self.person)
        with one_thread():
            result = user_result(task, order, 0, sgd)
        own = partial(self.noise.stream, order, self.person.id) if self.noise else None
        contribution = order.plan.empty(size)
        order.plan.add(contribution, result.update, result.examples, order.clip_state, own)
        return Answer(order.round, order.attempt, contribution)

    def answer_in_the_clear(self, order: Order) -> Answer:
        """The same for a server that sees it alone."""
        if order.plan.shared_noise is not None:
            raise Refused("a share of the noise hides an update in a secure sum only")
        return self.answer(order)


def client_app(trainer: Answering, tell: Tell) -> ClientApp:
    """The app that answers orders; an order that is refused has an answer without content."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        try:
            order = Order.read(message.content)
            answer = trainer.answer_in_the_clear(order)
        except ValueError as refusal:
            tell(f"refused: {refusal}")
            return Message(RecordDict(), reply_to=message)
        bound = Bound(order.plan, order.clip_state, len(order.weights), trainer.people)
        tell(f"round {order.round}, attempt {order.attempt}: answered")
        content = answer.to_content(width_of(bound.limit), trainer.people)
        return Message(content, reply_to=message)

    return app


def serve(
    app: ClientApp,
    connect: Callable[[], Connection],
    tell: Tell,
    *,
    poll: float = 1.0,
    patience: float | None = None,
) -> None:
    """Answer orders as they come, for as long as the server is there.

    A server that cannot be reached is tried again, for `patience` seconds; None stands for ever.
    """
    connection = connect()
    context = Context(0, 0, {}, RecordDict(), {})
    is_open, pause, missed_since = False, _SHORTEST_PAUSE, time.monotonic()
    answer: Message | None = None  # until the server has it, or does not want it
    try:
        while True:
            try:
                if not is_open:
                    connection.open()
                    tell("connected")
                    is_open, pause = True, _SHORTEST_PAUSE
                missed_since = time.monotonic()
                if answer is not None:
                    if not connection.hand_in(answer):
                        tell("the server does not wait for this answer any more")
                    answer = None
                elif (order := connection.take()) is not None:
                    answer = app(order, context)
                else:
                    time.sleep(poll)
            except Unreachable as problem:
                if is_open:
                    tell(str(problem))
                if patience is not None and time.monotonic() > missed_since + patience:
                    raise
                time.sleep(pause)
                is_open, pause = False, min(2 * pause, _LONGEST_PAUSE)
    finally:
        connection.close()
