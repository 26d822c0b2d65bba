"""`tacit train --noise` as a user meets it: what is said, what is claimed, what is refused."""

from __future__ import annotations

import pytest

from tacit.runs.run import Run
from tests.cli.training import TINY, refused, train

QUICK = ["mcmahan2018", *TINY, "--rounds", "3", "--quiet"]


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        (["--noise", "blt", "--min-separation", "2"], "min-separation", "1 vector of"),
        (["--min-separation", "2"], "min-separation", ""),
        (["--noise", "tree"], "min-separation", "2 vectors of"),
        (
            ["--noise", "banded", "--min-separation", "2", "--set", "plan.sampling=cyclic-poisson"],
            "cyclic-poisson",
            "1 vector of",
        ),
        (["--noise", "independent"], "poisson", ""),
        (["--noise", "distributed", "--set", "plan.survivors=6"], "min-separation", ""),
    ],
    ids=["blt", "turns alone", "tree", "cyclic", "independent", "distributed"],
)
def test_a_recipe_gets_the_noise_that_is_asked_for(tmp_path, options, kind, said):
    code, _, err = train(*QUICK, "--run", tmp_path / "run", *options)
    assert code == 0
    run = Run.open(tmp_path / "run")
    assert run.experiment.plan.sampling == kind
    assert said in err
    assert bool(said) == ("the noise of earlier rounds stays in memory" in err)


def test_noise_in_turns_meets_an_epsilon(tmp_path):
    words = _without(QUICK, "plan.noise_multiplier=1")
    run = tmp_path / "run"
    code, _, _ = train(*words, "--run", run, "--epsilon", "7", "--noise", "blt")
    assert code == 0
    assert 6.9 < min(Run.open(run).guarantee().epsilon.values()) <= 7


def _without(words: list[str], setting: str) -> list[str]:
    """The words without one --set."""
    place = words.index(setting)
    return words[: place - 1] + words[place + 1 :]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--noise", "bltt"], "noise must be one of independent, blt"),
        (["--noise", "blt", "--min-separation", "50"], "separation of 50 rounds leaves turns of"),
        (
            ["--noise", "distributed", "--rounds", "4", "--set", "plan.survivors=10"],
            "8 users, and the noise that they share is made for 10 at least",
        ),
        (
            ["--noise", "distributed", "--set", "plan.survivors=99"],
            "survivors must be more than the 1 colluding and at most all",
        ),
        (["--noise", "distributed", "--set", "plan.estimator=clipped"], 'plan.estimator = "fixed"'),
        (
            ["--noise", "distributed", "--set", "plan.sampling=poisson"],
            "everybody whose turn it is",
        ),
        (["--noise", "distributed", "--set", "plan.width=20"], "width must be a multiple of 8"),
        (["--set", "plan.survivors=3"], "survivors is a setting of distributed noise, got 3 with"),
        (["--noise", "blt", "--set", "plan.bands=3"], "bands are a setting of banded and"),
        (["--noise", "blt", "--set", "plan.buffers=99"], "buffers must be at most 32, got 99"),
        (["--noise", "blt", "--set", "plan.sampling=poisson"], "blt noise needs users who take"),
        (["--min-separation", "2", "--set", "plan.sampling=fixed"], "a separation of 2 is for"),
        (
            ["--noise", "blt", "--set", "plan.adaptive.target_quantile=0.5"],
            "needs a clip norm that stays the same",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_and_nothing_is_left(tmp_path, options, message):
    assert message in refused(*QUICK, "--run", tmp_path / "run", *options)
    assert not (tmp_path / "run").exists()


def test_no_privacy_and_a_kind_of_noise_contradict_each_other(tmp_path):
    words = _without(QUICK, "plan.noise_multiplier=1")
    told = refused(*words, "--run", tmp_path / "run", "--no-privacy", "--noise", "blt")
    assert "--no-privacy adds no noise, and plan.noise asks for it" in told
