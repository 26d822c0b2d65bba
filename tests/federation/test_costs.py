"""What a round is said to cost, beside what goes over the wire in one."""

import threading
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tacit.federation.flower", exc_type=ImportError)

from tacit.federated.user_update import FedAvg
from tacit.federation.bounds import Bound
from tacit.federation.connection import Connection
from tacit.federation.costs import Traffic, round_traffic, secure_traffic
from tacit.federation.engine import InTheClear
from tacit.federation.flower import Message
from tacit.federation.kept_sum import KeptSum
from tacit.federation.orders import Answer, Order, width_of
from tacit.federation.secure_gathering import Masked
from tacit.federation.service import Address
from tacit.federation.training import federation
from tacit.mechanisms.clipping import FlatClip, QuantileClip
from tacit.mechanisms.estimators import FixedDenominator
from tacit.mechanisms.noise import IndependentNoise
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.samplers import MinSeparationSampler
from tacit.models.registry import make_config
from tests.federation.members import SecureWorld

WEIGHTS = 1_500_000  # two pieces of an array, as Flower cuts them
PEOPLE = 8


def order_of(weights: int, adaptive: bool) -> Order:
    plan = RoundPlan(
        population=PEOPLE,
        sampler=MinSeparationSampler(1, 1.0),
        clipper=FlatClip(1.0),
        estimator=FixedDenominator(float(PEOPLE)),
        noise=IndependentNoise(1.0),
        adaptive=QuantileClip(bit_noise_stddev=2.0) if adaptive else None,
    )
    return Order(
        run="0" * 32,
        round=3,
        attempt=0,
        model=make_config("lstm", 10_000),
        plan=plan,
        update=FedAvg(learning_rate=1.0),
        clip_state=plan.initial_clip_state(),
        bos=1,
        max_tokens_per_user=None,
        weights=np.random.default_rng(0).standard_normal(weights).astype(np.float32),
        tokenizer=b"x" * 100_000,
    )


class Silent(Connection):
    """Without signs of life, of which there may be any number in a round."""

    def _beat(self) -> None:
        self._closed.wait()


class Weighed:
    """A client that answers without training, and weighs what it sends and receives."""

    def __init__(self, server, key, member=None) -> None:
        self.traffic, self._member = Traffic(), member
        self._connection = Silent(str(server.address), key, insecure=False).open()
        self._connection._client._client.event_hooks = {"response": [self._weigh]}

    def _weigh(self, response) -> None:
        response.read()
        sent, received = len(response.content), len(response.request.content)
        self.traffic += Traffic(1, sent, received)

    def answer(self) -> None:
        before = self.traffic
        while (message := self._connection.take()) is None:
            self.traffic = before  # a look that finds nothing is no part of a round
        content = self._member.answer(message.content) if self._member else self._own(message)
        assert self._connection.hand_in(Message(content, reply_to=message))

    def _own(self, message):
        order = Order.read(message.content)
        limit = Bound(order.plan, order.clip_state, len(order.weights)).grid.limit
        return answer_to(order).to_content(width_of(limit))

    def close(self) -> None:
        self._connection.close()


def answer_to(order: Order) -> Answer:
    update = np.random.default_rng(1).standard_normal(len(order.weights)).astype(np.float32)
    return Answer(order.round, order.attempt, order.plan.contribution(update, 9, order.clip_state))


class Trainer:
    """What a member of a sum computes its contribution with."""

    answer = staticmethod(answer_to)


def weighed(world, order, trips, members=None, clients=1):
    """What each of some clients really sent and received in a round.

    Of two answers in the clear, parts that are the same may be sent once.
    """
    with federation(
        world.enrolled, Address("127.0.0.1", 0), insecure=False, deadline=60, silence=20
    ) as up:
        people = world.people[:clients]
        there = [Weighed(up, world.keys[one], members[one] if members else None) for one in people]
        threads = [
            threading.Thread(target=lambda one=one: [one.answer() for _ in range(trips)])
            for one in there
        ]
        for thread in threads:
            thread.start()
        gathering = InTheClear(up.clients, pytest.fail)
        if members is not None:
            kept = KeptSum(world.enrolled)
            gathering = Masked(up.clients, world.roster, kept, pytest.fail)
        _, took_part = gathering.gather(order, {one: bytes(32) for one in people}, None)
        for thread in threads:
            thread.join(20)
        taken = [one.traffic for one in there]
        for one in there:
            one.close()
        assert sorted(took_part) == sorted(people)
        return taken


def assert_foretold(foretold: Traffic, real: list[Traffic]) -> None:
    """But for a few bytes in numbers that are written in as many bytes as they need."""
    for one in real:
        assert one.requests == foretold.requests
        assert abs(one.sent - foretold.sent) <= 8 * one.requests
        assert abs(one.received - foretold.received) <= 8 * one.requests


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return SecureWorld(tmp_path_factory.mktemp("world"), 1)


@pytest.mark.parametrize(("weights", "adaptive"), [(WEIGHTS, False), (1000, True)])
def test_what_a_round_is_said_to_take_is_what_it_takes(world, weights, adaptive):
    order = order_of(weights, adaptive)
    assert_foretold(round_traffic(order), weighed(world, order, trips=1))


def test_what_a_secure_sum_is_said_to_take_is_what_it_takes(world):
    order, members = order_of(2000, False), world.members()
    for member in members.values():
        member.trainer = Trainer()
    real = weighed(world, order, 5, members, clients=PEOPLE)
    assert_foretold(secure_traffic(order, PEOPLE), real)


def test_bytes_grow_with_the_weights_and_for_a_secure_sum_with_the_group():
    small, large = (round_traffic(order_of(size, False)) for size in (1000, 2000))
    assert large.sent - small.sent == 4 * 1000
    assert large.received - small.received == 4 * 1000
    order = order_of(1000, False)
    few, more = (secure_traffic(order, clients) for clients in (10, 20))
    assert few.requests == more.requests
    assert 10 * 300 < more.sent - few.sent < 10 * 400  # what a client hears of each other one
    assert secure_traffic(replace(order, weights=order.weights[:1]), 10).sent < few.sent
