"""Who took part, by the server's record and by each client's own."""

import dataclasses

import pytest

pytest.importorskip("tacit.federation.flower", exc_type=ImportError)

from tacit.federation.own_ledger import Consent, OwnLedger, Refused
from tacit.federation.participations import Participations
from tacit.mechanisms.samplers import MinSeparationSampler, PoissonSampler
from tests.federation.test_bounds import plan
from tests.federation.test_orders import order


def at(round: int, attempt: int = 0, separation: int = 3, **changes):
    made = plan(layers=None, sampler=MinSeparationSampler(separation, 1.0))
    return order(**{"round": round, "attempt": attempt, "plan": made, "seed": bytes(32)} | changes)


def test_the_server_asks_nobody_again_within_the_separation(tmp_path):
    record = Participations(tmp_path / "record")
    record.record(4, 0, ["a", "b"])
    record.refuse_early(4, ["a"], 3)  # the same round again
    record.refuse_early(6, ["c"], 3)
    record.refuse_early(7, ["a"], 3)
    for again in (record, Participations(tmp_path / "record")):  # also after a restart
        with pytest.raises(ValueError, match="took part in round 4, and nobody may again within 3"):
            again.refuse_early(6, ["c", "a"], 3)


def test_a_round_that_was_computed_twice_counts_both_times(tmp_path):
    record = Participations(tmp_path / "record")
    record.record(4, 0, ["a"])
    record.record(4, 0, ["b"])
    assert record.of(4, 0) == ["b"]
    for client in ("a", "b"):
        with pytest.raises(ValueError, match="took part in round 4"):
            record.refuse_early(5, [client], 3)


def test_a_client_answers_when_it_is_its_turn(tmp_path):
    own = OwnLedger(tmp_path / "given", Consent())
    for round in (2, 5, 9):
        own.give(at(round))
    assert len(OwnLedger(tmp_path / "given", Consent())) == 3


def test_a_client_refuses_to_take_part_too_early_whatever_the_server_says(tmp_path):
    OwnLedger(tmp_path / "given", Consent()).give(at(2))
    own = OwnLedger(tmp_path / "given", Consent())  # after a restart
    with pytest.raises(Refused, match="round 4 comes too soon"):
        own.give(at(4))
    with pytest.raises(Refused, match="comes too soon"):
        own.give(at(3, separation=1))  # nor if the plan suddenly asks more often
    own.give(at(4, run="another run"))
    own.give(at(5))


def test_a_client_refuses_what_is_over(tmp_path):
    own = OwnLedger(tmp_path / "given", Consent())
    own.give(at(5))
    own.give(at(5, attempt=1))
    with pytest.raises(Refused, match="round 2 is over"):
        own.give(at(2))
    with pytest.raises(Refused, match="another order"):
        own.give(at(5, seed=b"1" * 32))


def test_the_same_order_again_costs_nothing_and_another_one_for_it_is_refused(tmp_path):
    own = OwnLedger(tmp_path / "given", Consent(most=1))
    own.give(at(5))
    own.give(at(5))
    assert len(own) == 1
    weights = at(5).weights + 1
    with pytest.raises(Refused, match="was answered before, to another order"):
        own.give(at(5, weights=weights))


def test_a_client_gives_no_more_than_its_cap_over_all_runs_and_attempts(tmp_path):
    own = OwnLedger(tmp_path / "given", Consent(most=3))
    own.give(at(0))
    own.give(at(0, attempt=1))
    own.give(at(0, run="another run"))
    with pytest.raises(Refused, match="has given all 3 contributions"):
        own.give(at(50))


def test_a_client_refuses_a_plan_that_it_did_not_agree_to(tmp_path):
    own = OwnLedger(tmp_path / "given", Consent(separation=5))
    with pytest.raises(Refused, match="answers after 5 at the earliest"):
        own.give(at(0))
    quiet = dataclasses.replace(at(0, separation=5), plan=plan(layers=None, noise=None))
    with pytest.raises(Refused, match="adds no noise"):
        own.give(quiet)
    poisson = plan(layers=None, sampler=PoissonSampler(0.1))
    with pytest.raises(Refused, match="after 1 rounds"):
        own.give(at(0, plan=poisson))
    assert len(own) == 0
