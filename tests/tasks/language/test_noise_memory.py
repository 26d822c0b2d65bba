"""What a run remembers of its noise: where in its horizon it is, and a state that is never kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tacit.mechanisms.plan import UPDATE_NOISE, RoundPlan
from tacit.mechanisms.planning import PlanSettings, round_plan
from tacit.mechanisms.turns import Position
from tacit.privacy.events import Composition
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Charge, Header
from tacit.privacy.randomness import RunKey
from tacit.tasks.language.noise_memory import NoiseMemory

SIZE = 11
KEY = RunKey.from_seed(4)


def plan(noise: str) -> RoundPlan:
    settings = PlanSettings(
        population=100,
        cohort=10,
        clip_norm=0.5,
        noise_multiplier=1.0,
        noise=noise,
        sampling="min-separation",
        separation=4,
    )
    return round_plan(settings, delta=1e-6, rounds=20)


class Run:
    """The part of a training that has to do with noise: proofs, charges, noise and checkpoints."""

    def __init__(self, path: Path, noise: str) -> None:
        self.plan = plan(noise)
        self.ledger = Ledger.create(path, Header("run-1", "user", 100, 1e-6))
        self.proofs: dict[tuple[int, int], bytes] = {}
        self.memory = NoiseMemory()

    def round(self, leg: int, attempt: int = 0, text: bytes = b"") -> bytes:
        """Charge an attempt and draw its noise; the text is what it is made from."""
        ahead = self.memory.next(self.ledger, leg, attempt)
        facts = repr((leg, attempt, ahead.horizon, ahead.rounds)).encode()
        proof = KEY.hmac(facts, ahead.proof, text)
        self.proofs[leg, attempt] = proof
        event = self.plan.event(ahead.position)
        self.ledger.charge([Charge("round", leg, attempt, event, self.plan.hash())])
        stddev = self.plan.noise_steps(self.plan.initial_clip_state())
        stream = KEY.hiding_stream(proof, UPDATE_NOISE)
        noise, state = self.plan.noise.next(SIZE, stddev, ahead.state, stream)
        drawn = noise.tobytes()
        self.memory = ahead.after(proof, tuple(vector.copy() for vector in state))
        return drawn

    def recalled(self) -> NoiseMemory:
        """The memory as a process has it that opens the run at this moment."""
        return NoiseMemory.recalled(
            self.memory.facts(),
            self.plan,
            self.plan.initial_clip_state(),
            SIZE,
            self.ledger,
            KEY,
            lambda leg, attempt: self.proofs.get((leg, attempt)),
        )


@pytest.fixture(params=["blt", "banded", "square-root", "tree"])
def run(request, tmp_path) -> Run:
    return Run(tmp_path / "ledger.jsonl", request.param)


def bits(memory: NoiseMemory) -> tuple[object, ...]:
    state = tuple(np.asarray(vector).tobytes() for vector in memory.state)
    return memory.horizon, memory.rounds, memory.proof, state


def test_a_memory_is_recalled_bit_for_bit_at_any_round(run):
    assert run.recalled() == NoiseMemory()
    for leg in range(9):
        run.round(leg)
        assert bits(run.recalled()) == bits(run.memory)
    assert run.memory.position == Position("main 0.0", 10)
    assert run.ledger.composition() == run.plan.releases(9)


def test_noise_goes_on_after_a_recall_as_it_would_have(tmp_path):
    one, other = (Run(tmp_path / f"{name}.jsonl", "blt") for name in "ab")
    for leg in range(8):
        drawn = one.round(leg)
        assert other.round(leg) == drawn
        other.memory = other.recalled()


def test_noise_without_the_memory_is_another(tmp_path):
    one, other = (Run(tmp_path / f"{name}.jsonl", "blt") for name in "ab")
    for leg in range(3):
        assert one.round(leg) == other.round(leg)
    other.memory = NoiseMemory()
    assert one.round(3) != other.round(3)


def test_a_second_attempt_begins_a_horizon_that_is_paid_beside_the_first(run):
    for leg in range(3):
        run.round(leg)
    before = run.memory
    run.round(3, text=b"as it was")
    run.memory = before  # the checkpoint of the attempt was never written
    again = run.memory.next(run.ledger, 3, 1)
    assert again == NoiseMemory("main 3.1")
    run.round(3, 1, text=b"as it is now")
    run.round(4)
    assert run.memory.position == Position("main 3.1", 3)
    both = run.plan.releases(4).followed_by(run.plan.releases(2))
    assert run.ledger.composition() == both
    assert bits(run.recalled()) == bits(run.memory)


def test_the_same_attempt_goes_on_where_it_was(run):
    for leg in range(3):
        run.round(leg)
    before = run.memory
    run.round(3)
    assert bits(before.next(run.ledger, 3, 0)) == bits(before)


def test_a_run_that_went_back_two_rounds_repeats_both_or_neither(run):
    for leg in range(2):
        run.round(leg)
    before = run.memory
    for leg in (2, 3):
        run.round(leg)
    assert before.next(run.ledger, 2, 0) is before  # the round that was charged: the same noise
    assert before.next(run.ledger, 2, 1).horizon == "main 2.1"  # anything else
    # Round 3 in the old horizon was charged for what came out of round 2 at the time.
    run.memory = before
    run.round(2, 1)
    assert run.memory.next(run.ledger, 3, 0).horizon == "main 2.1"


def test_a_lost_proof_begins_a_new_horizon(run):
    for leg in range(4):
        run.round(leg)
    del run.proofs[1, 0]
    assert run.recalled() == NoiseMemory()
    run.memory = run.recalled()
    assert run.memory.next(run.ledger, 4, 0) == NoiseMemory("main 4.0")


def test_an_edited_proof_of_any_round_keys_other_noise(run):
    """The noise that is taken back would be other noise; the fresh one must not be the same."""
    for leg in range(4):
        run.round(leg)
    own = run.memory.proof
    for leg in range(4):
        kept = run.proofs[leg, 0]
        run.proofs[leg, 0] = bytes(32)
        assert run.recalled().proof != own
        run.proofs[leg, 0] = kept
    assert run.recalled().proof == own
    run.proofs[1, 0], run.proofs[2, 0] = run.proofs[2, 0], run.proofs[1, 0]
    assert run.recalled().proof != own


def test_a_horizon_of_the_run_that_a_branch_left_is_not_gone_on_with(run, tmp_path):
    for leg in range(4):
        run.round(leg)
    run.ledger.close()
    parent, path = run.ledger, tmp_path / "branch.jsonl"
    run.ledger = Ledger.branch(path, parent, 3, "b-3", run_id="b", round=3)
    assert run.recalled() == NoiseMemory()
    run.memory = run.recalled()
    run.round(3)
    assert run.memory.horizon == "b-3 3.0"
    expected = run.plan.releases(3).followed_by(run.plan.releases(1))
    assert run.ledger.composition() == expected


def test_a_plan_without_turns_remembers_nothing():
    settings = PlanSettings(population=100, cohort=10, clip_norm=0.5, noise_multiplier=1.0)
    one = round_plan(settings, delta=1e-6, rounds=9)
    assert not one.has_horizon
    facts = {"horizon": "main 0.0", "horizon_rounds": 2}
    recalled = NoiseMemory.recalled(facts, one, one.initial_clip_state(), 3, None, KEY, None)
    assert recalled == NoiseMemory()
    assert recalled.facts() == {}
    assert one.releases(2) == Composition.of([(one.event(), 2)])


def test_a_checkpoint_says_where_the_noise_is_and_not_what_it_is(run):
    for leg in range(2):
        run.round(leg)
    assert run.memory.facts() == {"horizon": "main 0.0", "horizon_rounds": 2}
