"""What kinds of noise cost in the setting of the README, by `tacit plan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tacit.cli.main import main
from tacit.mechanisms.noise_comparison import Compared
from tacit.mechanisms.planning import Question, answers

PAPER = "--population 763430 --cohort 5000 --rounds 5000 --noise-multiplier 1 --delta 1e-9".split()
RECORDED = Path(__file__).parents[1] / "mechanisms" / "jax_privacy_strategies.json"


@pytest.fixture(scope="module")
def noises() -> dict[tuple[str, str], dict]:
    """Every kind of noise that leaves the running sum as noisy as z = 1 does."""
    with pytest.MonkeyPatch.context() as patch:
        written: list[str] = []
        patch.setattr("sys.stdout.write", written.append)
        with pytest.raises(SystemExit) as stop:
            main(["plan", *PAPER, "--noise", "independent", "--json"])
    assert stop.value.code == 0
    [row] = json.loads("".join(written))
    return {(one["noise"], one["sampler"]): one for one in row["noises"]}


@pytest.mark.parametrize(
    ("noise", "sampler", "epsilon"),
    [
        ("independent", "poisson", 3.90),
        ("independent", "min-separation", 50.3),
        ("square-root", "min-separation", 4.34),
    ],
)
def test_epsilons_with_and_without_a_claim_of_sampling(noises, noise, sampler, epsilon):
    """Bands that take back noise are worth nearly as much as a sampling that nobody can check."""
    found = noises[noise, sampler]
    assert found["epsilon"] == pytest.approx(epsilon, rel=0.01)
    assert found["running_sum_error"] == pytest.approx(1.0)
    assert found["separation"] == (None if sampler == "poisson" else 152)


def test_what_is_searched_for_beats_the_square_root_and_amplified_bands_beat_all(noises):
    bands, root = (noises[kind, "min-separation"] for kind in ("banded", "square-root"))
    assert bands["epsilon"] < 0.9 * root["epsilon"]
    buffers = noises["blt", "min-separation"]
    assert buffers["epsilon"] < 4.05  # with 4 vectors for 151
    assert buffers["vectors"] <= 4
    amplified = noises["banded", "cyclic-poisson"]
    assert amplified["epsilon"] < 0.8 * noises["independent", "poisson"]["epsilon"]
    assert amplified["epsilon"] == min(one["epsilon"] for one in noises.values())


@pytest.mark.parametrize("row", json.loads(RECORDED.read_text("utf-8"))["amplified"])
def test_amplified_bands_are_those_of_jax_privacy_and_cheaper_by_pld(row):
    """It accounts by Renyi divergences: by the same accountant the figure is the same."""
    question = Question(
        population=row["population"],
        cohort=row["cohort"],
        rounds=row["rounds"],
        noise_multiplier=None,
        target_epsilon=row["epsilon"],
        delta=row["delta"],
        noise="banded",
        sampling="cyclic-poisson",
        separation=row["bands"],
    )
    independent = ((row["rounds"] + 1) / 2) ** 0.5  # the error of independent noise with z = 1
    errors = {
        name: Compared.of(answers(question, name)[0][0]).error * independent
        for name in ("rdp", "pld")
    }
    assert errors["rdp"] == pytest.approx(row["mean"], rel=0.01)
    assert errors["pld"] < 0.97 * errors["rdp"]


def test_noise_that_users_add_is_solved_for_and_stands_beside_the_others(capsys):
    """By Renyi divergences it costs a little more than a server's, for another adjacency."""
    words = "--population 1234 --cohort 100 --rounds 36 --epsilon 8 --delta 1e-5".split()
    with pytest.raises(SystemExit) as stop:
        main(["plan", *words, "--noise", "distributed", "--json"])
    assert stop.value.code == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["accountant"], row["adjacency"]) == ("rdp", "zero-out-one")
    assert 7.99 < row["epsilon"] <= 8
    assert row["cohort"] == pytest.approx(1234 / 12)  # everybody whose turn it is
    first, *others = row["noises"]
    assert first["noise"] == "distributed"
    [server] = [
        one for one in others if (one["noise"], one["sampler"]) == ("independent", "min-separation")
    ]
    assert 1.05 < first["noise_multiplier"] / server["noise_multiplier"] < 1.1
    # It is made for the fewest survivors, and more add more: 103 in place of 69 less one.
    assert first["running_sum_error"] / server["running_sum_error"] > 1.05 * (103 / 68) ** 0.5
