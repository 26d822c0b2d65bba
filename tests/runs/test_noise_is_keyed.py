"""The noise of a release follows from what it hides."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tacit.mechanisms.clipping import ClipState
from tacit.mechanisms.fixed_point import Contribution
from tacit.mechanisms.noise import NOISES, IndependentNoise
from tacit.runs.start import create
from tacit.train import train
from tests.runs.small import experiment

SIZE = 5
SUMS = st.lists(st.integers(-(2**40), 2**40), min_size=SIZE, max_size=SIZE)
WORLD = st.fixed_dictionaries(
    {
        "sum": SUMS,
        "weight": st.integers(0, 2**34),
        "bits": st.lists(st.integers(-8, 8), max_size=2),
        "round": st.integers(0, 3),
        "attempt": st.integers(0, 2),
        "norm": st.sampled_from([0.3, 0.30000000000000004, 1.0]),
        "model": st.integers(0, 2),
    }
)


@pytest.fixture(scope="module")
def session(folder, tmp_path_factory):
    opened = create(experiment(folder), tmp_path_factory.mktemp("noise") / "run")
    yield opened
    opened.close()


def noise_of(session, world):
    """The first words of the noise of a release in this world."""
    trainer = session.trainer
    trainer.clip_state = ClipState((world["norm"],), 0)
    weights = trainer.weights
    trainer.weights = weights + np.float32(world["model"])
    total = Contribution(
        np.array(world["sum"], np.int64), world["weight"], np.array(world["bits"], np.int64)
    )
    try:
        proof = trainer.proof(world["round"], world["attempt"], total)
        return session.trainer.noise(proof, "update-noise").words(4).tolist()
    finally:
        trainer.weights = weights


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(WORLD, WORLD)
def test_noise_is_the_same_exactly_if_all_that_it_hides_is(session, one, other):
    assert (noise_of(session, one) == noise_of(session, other)) == (one == other)
    assert noise_of(session, one) == noise_of(session, one)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(WORLD, st.sampled_from(["sum", "weight", "bits", "round", "attempt", "norm", "model"]))
def test_any_one_thing_that_differs_gives_other_noise(session, world, name):
    value = world[name]
    if name == "sum":
        other = [value[0] + 1, *value[1:]]
    elif name == "bits":
        other = [*value, 0]
    elif name == "norm":
        other = value * 2
    else:
        other = value + 1
    assert noise_of(session, world) != noise_of(session, world | {name: other})


def test_two_purposes_of_one_release_have_other_noise(session):
    total = Contribution(np.zeros(SIZE, np.int64), 0, np.zeros(0, np.int64))
    proof = session.trainer.proof(0, 0, total)
    draws = [
        session.trainer.noise(proof, purpose).words(4).tolist() for purpose in ("one", "other")
    ]
    assert draws[0] != draws[1]


def test_a_noise_with_a_state_is_refused_rather_than_run_without_it(folder, tmp_path, monkeypatch):
    class Remembering(IndependentNoise):
        def add(self, statistic, stddev, state, stream):
            return super().add(statistic, stddev, state, stream)[0], (np.zeros(1),)

    monkeypatch.setitem(NOISES, "remembering", Remembering)
    changed = experiment(folder, plan={"noise": "remembering"})
    with pytest.raises(ValueError, match="cannot remember the state of any other"):
        train(changed, tmp_path / "run")
