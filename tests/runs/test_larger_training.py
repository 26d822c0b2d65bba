"""A delta of 1/K or more, and noise for a larger training: asked for by name, and then said."""

import json
import shutil

import pytest

from tacit.cli.requests import with_one_noise
from tacit.privacy.accountants import accountant_named
from tacit.privacy.claims import PROJECTED
from tacit.privacy.events import Composition, PoissonGaussian
from tacit.privacy.guarantee import Guarantee
from tacit.report.facts import gather
from tacit.runs.directory import digest_of_result
from tacit.runs.run import LanguageRun
from tacit.train import train
from tacit.verification.verifying import verify
from tests.runs import small

LARGE = "any one user, since delta is not below 1 in"
AT_A_MILLION = {"population": 1_000_000, "cohort": 5000.0, "delta": 1e-7, "target_epsilon": 2.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small.make_folder(tmp_path_factory.mktemp("larger") / "made")


@pytest.fixture(scope="module")
def projected(folder):
    """A run whose noise is that of a training with a million people."""
    wanted = small.experiment(folder, plan={"noise_multiplier": None}, projection=AT_A_MILLION)
    return train(wanted, folder / "projected")


def warnings_of(run) -> dict[str, str]:
    return {one["name"]: one["severity"] for one in gather(run)["warnings"]}


def test_a_large_delta_is_refused_unless_it_is_asked_for(folder, tmp_path):
    wanted = small.experiment(folder, rounds=1, privacy={"delta": 0.1})
    with pytest.raises(ValueError, match=r"accept_large_delta = true takes it all the same"):
        train(wanted, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    run = train(wanted.changed(privacy={"accept_large_delta": True}), tmp_path / "run")
    population = run.ledger.header.population
    assert f"{LARGE} {population:,}" in run.guarantee().claim
    assert warnings_of(run)["large-delta"] == "serious"
    assert verify(tmp_path / "run").differences == ()


def test_a_small_delta_says_nothing_of_it(projected):
    assert LARGE not in projected.guarantee().claim
    assert "large-delta" not in warnings_of(projected)


def test_the_noise_meets_the_target_in_the_larger_training_alone(projected):
    to, actual = projected.projection(), projected.guarantee()
    larger = actual.projected(to)
    assert larger.value == pytest.approx(2.0, rel=1e-3)
    assert larger.value <= 2.0
    assert actual.value > 10 * larger.value
    assert (larger.header.population, larger.delta) == (1_000_000, 1e-7)
    z = LanguageRun.open(projected.path).experiment.plan.noise_multiplier
    event = PoissonGaussian(5000 / 1_000_000, z * 5000 / 10)  # the same noise on the average
    assert accountant_named("rdp").epsilon(Composition.of([(event, 6)]), 1e-7) == pytest.approx(
        larger.value
    )


def test_the_projected_claim_stands_beside_the_actual_one_everywhere(projected, tmp_path):
    result = json.loads((projected.path / "result.json").read_text())
    assert PROJECTED in result["projected_claim"]
    assert PROJECTED not in result["claim"]
    facts = gather(projected, projection=projected.projection())
    assert facts["projected"]["sentence"] == result["projected_claim"]
    assert facts["claim"]["sentence"] == projected.guarantee().claim
    assert verify(projected.path).differences == ()
    forged = shutil.copytree(projected.path, tmp_path / "forged")
    better = result | {
        "projected_claim": result["projected_claim"].replace("level (1.", "level (0.")
    }
    assert better != result
    del better["sha256"]
    better["sha256"] = digest_of_result(better)
    (forged / "result.json").write_text(json.dumps(better))
    assert any("projected_claim" in one for one in verify(forged).differences)


def test_a_projection_with_a_large_delta_says_so(projected):
    to = projected.projection()
    large = type(to)(to.cohort, to.population, 1e-5)
    facts = gather(projected, projection=large)
    assert f"{LARGE} 1,000,000" in facts["projected"]["sentence"]
    [text] = [one["text"] for one in facts["warnings"] if one["name"] == "projected"]
    assert "given away whole" in text
    header = projected.ledger.header
    assert LARGE not in Guarantee.for_releases(header, projected.guarantee().parts).claim


def test_what_is_set_wins_over_the_noise_of_a_larger_training(folder):
    larger = small.experiment(folder, plan={"noise_multiplier": None}, projection=AT_A_MILLION)
    set_here = with_one_noise(
        larger.changed(plan={"noise_multiplier": 0.5}), ["plan.noise_multiplier=0.5"]
    )
    assert (set_here.noise_target, set_here.projection.population) == (None, 1_000_000)
    own = larger.changed(privacy={"target_epsilon": 8.0})
    assert own.noise_target == 8.0
    with pytest.raises(ValueError, match=r"projection\.target_epsilon solves for the noise"):
        with_one_noise(larger, ["plan.noise_multiplier=0.5", "projection.target_epsilon=2.0"])


def test_runs_without_noise_or_people_project_nothing(folder, tmp_path):
    plan = {"clipping": "none", "clip_norm": None, "noise_multiplier": None}
    without = {"population": 1_000_000, "cohort": 5000.0}
    for name, changes in {
        "plain": {"plan": plan},
        "iid": {"corpus": {"view": "iid"}},
    }.items():
        wanted = small.experiment(folder, rounds=1, projection=without).changed(**changes)
        run = train(wanted, tmp_path / name)
        assert run.projection() is None
        assert "projected_claim" not in json.loads((run.path / "result.json").read_text())
