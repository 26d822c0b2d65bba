"""Clients of `bench/federation.py`, which compute nothing: many in one process."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import numpy as np

THREADS = 24  # of all clients


def answer_all(kind: str, clients: int, folder: Path, pipe: Pipe) -> None:
    """All clients of a server: they make their keys, connect, and answer when it is time."""
    from tacit.federation import keys
    from tacit.federation.roster import Roster

    enrolment = keys.make_server(folder, ["127.0.0.1"], about_people=False)
    authority = (folder / "ca.pem").read_text(encoding="ascii")
    made = [keys.ClientKey.generate(authority) for _ in range(clients)]
    roster = Roster.of(enrolment.add([key.enrolled() for key in made]))
    pipe.send("enrolled")
    server = f"127.0.0.1:{pipe.recv()}"
    members = [Member(kind, key, server, roster, folder) for key in made]
    in_threads(members, lambda own: [one.connection.open() for one in own])
    pipe.send("connected")
    trips = 5 if kind == "secure" else 1
    while pipe.recv() is not None:
        in_threads(members, lambda own: [one.answer() for _ in range(trips) for one in own])
        pipe.send("answered")


def in_threads(members: list[Member], act: Callable[[list[Member]], object]) -> None:
    """Let each of a few threads act for its share; whatever goes wrong there is raised here."""
    problems: list[BaseException] = []

    def run(own: list[Member]) -> None:
        try:
            act(own)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(members[n::THREADS],)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for problem in problems:
        raise problem


class Member:
    """A client that computes nothing."""

    def __init__(self, kind: str, key: Any, server: str, roster: Any, folder: Path) -> None:
        from tacit.federation.connection import Connection, Unreachable
        from tacit.federation.secure_client import SumMember
        from tacit.federation.sum_ledger import SumLedger

        class Quiet(Connection):
            def _beat(self) -> None:
                """No sign of life is needed between a round and the next."""
                self._closed.wait()

            def _pull(self, run_id: int, object_id: str) -> bytes:
                """Flower's messages are there before their parts."""
                while True:
                    with suppress(Unreachable):
                        return super()._pull(run_id, object_id)
                    time.sleep(0.05)

        self._kind = kind
        self.connection = Quiet(server, key, insecure=False)
        self._draw = np.random.default_rng(int(key.id[:8], 16))
        ledger = SumLedger(folder / f"{key.id}.sums.jsonl")
        self._member = SumMember(self, key, roster, ledger)  # type: ignore[arg-type]
        self._contribution: Any = None

    def answer(self) -> None:
        """Take the order that waits, and hand in an answer."""
        from tacit.federation.connection import Unreachable
        from tacit.federation.flower import Message

        while (message := self.connection.take()) is None:
            time.sleep(0.05)
        reply = Message(getattr(self, self._kind)(message), reply_to=message)
        while True:
            with suppress(Unreachable):
                assert self.connection.hand_in(reply)
                break
            time.sleep(0.05)
        self.connection._objects.clear()  # thousands of models would be kept

    def tacit(self, message: Any) -> Any:
        from tacit.federation.bounds import Bound
        from tacit.federation.orders import Order, width_of

        order = Order.read(message.content)
        limit = Bound(order.plan, order.clip_state, order.weights.size).grid.limit
        return self._answer_to(order).to_content(width_of(limit))

    def secure(self, message: Any) -> Any:
        class Trainer:
            answer = staticmethod(self._answer_to)

        self._member.trainer = Trainer()  # type: ignore[assignment]
        return self._member.answer(message.content)

    def flower(self, message: Any) -> Any:
        from flwr.app import MetricRecord
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

        from tacit.federation.flower import Array, ArrayRecord, RecordDict

        own = self.connection
        own._client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=own._node,
                run_id=message.metadata.run_id,
                message_object_id=message.metadata.message_id,
            )
        )
        update = self._values(message.content["arrays"]["weights"].numpy().size)
        metrics = MetricRecord({"num-examples": 1})
        arrays = ArrayRecord({"weights": Array(update)})
        return RecordDict({"arrays": arrays, "metrics": metrics})

    def _answer_to(self, order: Any) -> Any:
        from tacit.federation.orders import Answer

        update = self._values(order.weights.size)
        contribution = order.plan.contribution(update, 100, order.clip_state)
        return Answer(order.round, order.attempt, contribution)

    def _values(self, size: int) -> np.ndarray[Any, Any]:
        """An update of full precision, another one each time, made at once."""
        return np.roll(drawn(size), int(self._draw.integers(size)))


@functools.cache
def drawn(size: int) -> np.ndarray[Any, Any]:
    """Values of a normal distribution, for all clients."""
    return np.random.default_rng(0).standard_normal(size).astype(np.float32)
