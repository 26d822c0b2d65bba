"""A federated training gives the bits of the simulated one, whoever of its clients survives."""

import re

import numpy as np
import pytest

flower = pytest.importorskip("tacit.federation.flower", exc_type=ImportError)

from tacit.corpus.people_ledger import PeopleLedger  # noqa: E402
from tacit.federation.orders import Answer, public_fields  # noqa: E402
from tacit.federation.participations import FILE, Participations  # noqa: E402
from tacit.mechanisms.fixed_point import WHOLE_WEIGHT, Contribution  # noqa: E402
from tacit.privacy.ledger import Ledger  # noqa: E402
from tacit.runs.session import Session  # noqa: E402
from tacit.train import train  # noqa: E402
from tests.federation.small import (  # noqa: E402
    CalledClients,
    World,
    charges_of,
    federated,
    models_of,
    simulated,
)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path / "world")


def took_part(run, round, attempt=0):
    return Participations(run / "private" / FILE).of(round, attempt)


def assert_like_its_simulation(world, run, tmp_path):
    other = tmp_path / "simulated"
    simulated(world.simulated, other, like=run)
    assert models_of(run) == models_of(other)
    assert charges_of(run) == charges_of(other)


def test_all_clients_together_give_the_bits_of_the_simulation(world, tmp_path):
    run, alone = tmp_path / "run", tmp_path / "alone"
    federated(world, run, CalledClients(world))
    train(world.simulated, alone, progress=False)
    assert models_of(run) == models_of(alone)
    assert charges_of(run) == charges_of(alone)
    everybody = [client for round in (0, 1) for client in took_part(run, round)]
    assert sorted(everybody) == sorted(world.people)


def test_clients_that_are_absent_count_as_zero(world, tmp_path):
    absent = set(world.people[:3])
    clients = CalledClients(world, lambda one, order, content: None if one in absent else content)
    federated(world, tmp_path / "run", clients)
    assert not absent & {one for round in range(4) for one in took_part(tmp_path / "run", round)}
    assert_like_its_simulation(world, tmp_path / "run", tmp_path)


def test_a_round_that_nobody_answers_is_released_as_noise(world, tmp_path):
    clients = CalledClients(world, lambda client, order, content: None)
    federated(world, tmp_path / "run", clients)
    assert len(charges_of(tmp_path / "run")) == 5  # the tokenizer, and every round
    assert_like_its_simulation(world, tmp_path / "run", tmp_path)


def answered(order, width=5, **changes):
    size = len(order.weights)
    parts = {"round": order.round, "attempt": order.attempt} | changes
    contribution = parts.pop(
        "contribution", Contribution(np.zeros(size, np.int64), WHOLE_WEIGHT, np.zeros(0, np.int64))
    )
    return Answer(contribution=contribution, **parts).to_content(width)


def too_long(order):
    units = np.full(len(order.weights), 2**35, np.int64)
    return Contribution(units, WHOLE_WEIGHT, np.zeros(0, np.int64))


def not_a_number(order, content):
    content["update"] = flower.ArrayRecord(
        {"units": flower.Array(np.full(len(order.weights), np.nan, np.float32))}
    )
    return content


BAD = {
    "not a number": not_a_number,
    "a norm above the bound": lambda o, c: answered(o, contribution=too_long(o)),
    "another shape": lambda o, c: answered(
        o, contribution=Contribution(np.zeros(3, np.int64), WHOLE_WEIGHT, np.zeros(0, np.int64))
    ),
    "a weight above one": lambda o, c: answered(
        o,
        contribution=Contribution(
            np.zeros(len(o.weights), np.int64), 2 * WHOLE_WEIGHT, np.zeros(0, np.int64)
        ),
    ),
    "clip bits that nobody asked for": lambda o, c: answered(
        o,
        contribution=Contribution(
            np.zeros(len(o.weights), np.int64), WHOLE_WEIGHT, np.ones(4, np.int64)
        ),
    ),
    "of an earlier round": lambda o, c: answered(o, round=o.round - 1),
    "of another attempt": lambda o, c: answered(o, attempt=o.attempt + 1),
    "nothing": lambda o, c: flower.RecordDict(),
}


def test_bad_answers_cost_their_own_update_only(world, tmp_path):
    """In each round a client sends something else; all others are summed as if it were absent."""
    kinds, told = list(BAD), []

    def change(client, order, content):
        number = world.people.index(client)
        return BAD[kinds[number]](order, content) if order.round < 2 else content

    clients = CalledClients(world, change)
    federated(world, tmp_path / "run", clients, told.append)
    assert len(told) == len(world.people) == len(kinds)
    assert all("is left out" in line for line in told)
    run = tmp_path / "run"
    assert [len(took_part(run, round)) for round in (0, 1)] == [0, 0]
    assert sum(len(took_part(run, round)) for round in (2, 3)) == len(world.people)
    assert_like_its_simulation(world, run, tmp_path)


class Killed(BaseException):
    """As if by kill -9: nothing after it is done."""


def kill(monkeypatch, method, leg):
    """Let the session die in a phase of a round, once."""
    original = getattr(Session, method)

    def dying(self, *arguments):
        if self.leg == leg:
            monkeypatch.setattr(Session, method, original)
            raise Killed
        return original(self, *arguments)

    monkeypatch.setattr(Session, method, dying)


@pytest.mark.parametrize(("method", "leg"), [("charge", 2), ("accept", 2), ("save", 3)])
def test_a_server_that_was_killed_goes_on_with_the_same_bits(
    world, tmp_path, monkeypatch, method, leg
):
    """Before the charge, after it, and before the checkpoint: clients that are still there answer
    the same order in the same way, so nothing is charged twice."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    kill(monkeypatch, method, leg)
    with pytest.raises(Killed):
        federated(world, run, CalledClients(world))
    federated(world, run, CalledClients(world), resume=True)
    train(world.simulated, whole, progress=False)
    assert models_of(run) == models_of(whole)
    assert charges_of(run) == charges_of(whole)


def test_other_survivors_after_a_kill_are_a_charged_second_attempt(world, tmp_path, monkeypatch):
    """The sum is another one, so the noise is too, and a horizon begins anew: it costs more."""
    run = tmp_path / "run"
    kill(monkeypatch, "accept", 2)
    with pytest.raises(Killed):
        federated(world, run, CalledClients(world))
    gone = took_part(run, 2)[0]
    clients = CalledClients(world, lambda one, order, content: None if one == gone else content)
    federated(world, run, clients, resume=True)
    rounds = [(e.round, e.attempt) for e in Ledger.read(run / "ledger.jsonl").entries[1:]]
    assert rounds == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0)]
    assert gone not in took_part(run, 2, 1)
    horizons = [e.event.horizon for e in Ledger.read(run / "ledger.jsonl").entries[1:]]
    assert horizons == ["main 0.0"] * 3 + ["main 2.1"] * 2


def test_a_run_without_its_record_of_participations_is_not_gone_on_with(
    world, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    kill(monkeypatch, "charge", 2)
    with pytest.raises(Killed):
        federated(world, run, CalledClients(world))
    (run / "private" / FILE).unlink()
    with pytest.raises(ValueError, match="nobody knows who may take part again"):
        federated(world, run, CalledClients(world), resume=True)


def test_every_message_of_a_training_has_the_fields_of_an_order(world, tmp_path):
    clients = CalledClients(world)
    federated(world, tmp_path / "run", clients)
    assert len(clients.sent) == 2 * len(world.people)
    assert {str(public_fields(content)) for _, content in clients.sent} == {
        str(public_fields(clients.sent[0][1]))
    }
    seeds = [content["own"]["seed"] for _, content in clients.sent]
    assert len(set(seeds)) == len(seeds)


def test_a_training_with_a_secret_key_is_charged_to_its_peoples_ledger_and_says_what_it_excludes(
    world, tmp_path
):
    """The group of people is the one that the corpus has, so that what was spent adds up."""
    world.federated = world.federated.changed(seed=None)
    run = federated(world, tmp_path / "run", CalledClients(world))
    claim = run.guarantee().claim
    assert re.search("no sampling assumed .*at most twice.* at least 2 rounds apart", claim), claim
    assert "the server, which sees every client's clipped update before the noise" in claim
    assert "who is enrolled, who is connected when" in claim
    known = PeopleLedger.open(world.corpus.identity)
    assert list(known.runs()) == [run.ledger.header.run_id]


def test_enrolled_people_cannot_be_trained_on_without_a_federation(world, tmp_path):
    with pytest.raises(ValueError, match="tacit federate server"):
        train(world.federated, tmp_path / "run", progress=False)
