"""S that follows a quantile of the users' norms, in a training with all that goes with it."""

import pytest

from tacit.runs.checkpoints import Checkpoints
from tacit.runs.run import Run
from tacit.tasks.language.trainer import LanguageTrainer
from tacit.train import train
from tests.runs.small import experiment, files_of
from tests.runs.test_resume import Died, dies

# A cohort of 20: by default bits have a noise of 20 / 20, which leaves room for z below 2.
TARGET, FIRST = 6.0, 0.01


def adaptive(folder, **plan):
    return experiment(
        folder,
        plan={
            "cohort": 20,
            "clip_norm": FIRST,
            "noise_multiplier": None,
            "adaptive": {"target_quantile": 0.7, "learning_rate": 1.0},
        }
        | plan,
        server={
            "optimizer": "adam",
            "learning_rate": 0.02,
            "schedule": {"kind": "cosine"},
            "averaging": {"kind": "tail"},
        },
        privacy={"target_epsilon": TARGET, "accountant": None},
        evaluation={"every": 1, "snapshot_every": 1},
    )


@pytest.fixture(scope="module")
def run(folder):
    return train(adaptive(folder), folder / "adaptive")


def test_the_bound_rises_from_far_below_and_the_noise_with_it(run):
    norms = [row["clip_norm"] for row in run.metrics()]
    assert norms[0] == FIRST
    assert norms[-1] > 3 * FIRST
    [plan] = run.plans()
    states = [
        Checkpoints(run.path / "checkpoints").read(round).facts["clip_norms"] for round in (0, 6)
    ]
    assert [norm for [norm] in states] == [norms[0], norms[-1]]
    assert plan.bit_noise_stddev == pytest.approx(1.0)
    assert plan.update_noise_multiplier > plan.noise_multiplier


def test_update_and_bits_together_meet_the_target(run):
    epsilon = run.guarantee().epsilon["pld"]
    assert 0.99 * TARGET < epsilon <= TARGET
    assert {entry.estimator for entry in run.ledger.entries if entry.kind == "round"} == {
        "fixed-denominator, adaptive"
    }


@pytest.mark.parametrize("call", [2, 6])
def test_a_run_that_dies_goes_on_with_the_same_bounds_and_bits(
    run, folder, call, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        dies(patch, LanguageTrainer, "run", call=call, after=True)
        with pytest.raises(Died):
            train(adaptive(folder), tmp_path / "run")
    Run.open(tmp_path / "run")
    train(adaptive(folder), tmp_path / "run", resume=True)
    assert files_of(tmp_path / "run") == files_of(run.path)


def test_bits_that_leave_no_room_for_the_update_are_refused_with_what_would_do(folder, tmp_path):
    settings = {"cohort": 4, "noise_multiplier": 1.0}
    one = adaptive(folder, **settings).changed(privacy={"target_epsilon": None})
    with pytest.raises(ValueError, match=r"bit_noise_stddev must be above 0\.5 .* got 0\.2"):
        train(one, tmp_path / "run")
    assert not (tmp_path / "run").exists()
