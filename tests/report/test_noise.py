"""The picture of correlated noise: what is drawn is what was run."""

import math

import numpy as np
import pytest

from tacit.mechanisms.clipping import FlatClip
from tacit.mechanisms.estimators import FixedDenominator
from tacit.mechanisms.noise import CorrelatedNoise, IndependentNoise
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.samplers import CyclicPoissonSampler, MinSeparationSampler
from tacit.mechanisms.strategies import BandedToeplitz, BufferedToeplitz
from tacit.privacy.accountants import accountant_named
from tacit.report.facts import gather
from tacit.report.noise import noise_facts
from tacit.report.page import render
from tacit.runs.run import Run

BUFFERED = BufferedToeplitz((0.9, 0.5), (0.3, 0.2))
BANDED = BandedToeplitz((1.0, 0.5, -0.25))


def plan(sampler, noise):
    return RoundPlan(
        population=100,
        sampler=sampler,
        clipper=FlatClip(0.5),
        estimator=FixedDenominator(100.0),
        noise=noise,
    )


@pytest.mark.parametrize(
    ("sampler", "strategy"),
    [
        (MinSeparationSampler(3, 1.0), BUFFERED),
        (MinSeparationSampler(4, 0.5, replace_one=True), BANDED),
        (CyclicPoissonSampler(4, 0.2), BANDED),
    ],
    ids=["turns", "replace-one", "cyclic"],
)
def test_independent_noise_in_the_picture_costs_the_same(sampler, strategy):
    """Its error after one round is its multiplier; a plan with that one has the same epsilon."""
    right = plan(sampler, CorrelatedNoise(2.0, strategy))
    facts = noise_facts(right.noise_picture(12))
    z = facts["independent_errors"][0]
    assert facts["independent_errors"][-1] == pytest.approx(z * math.sqrt(12), rel=1e-3)
    pld = accountant_named("pld")
    costs = [
        pld.epsilon(each.releases(12), 1e-5) for each in (right, plan(sampler, IndependentNoise(z)))
    ]
    assert costs[0] == pytest.approx(costs[1], rel=2e-3)


@pytest.mark.parametrize("strategy", [BUFFERED, BANDED], ids=["blt", "banded"])
def test_errors_and_matrix_are_those_of_the_running_sum(strategy):
    one = plan(MinSeparationSampler(3, 1.0), CorrelatedNoise(2.0, strategy))
    facts = noise_facts(one.noise_picture(40))
    matrix = strategy.matrix(40)
    sums = np.tril(np.ones((40, 40))) @ np.linalg.inv(matrix)
    expected = 2.0 * np.linalg.norm(sums, axis=1)[np.array(facts["after"]) - 1]
    assert facts["errors"] == pytest.approx(expected.tolist(), rel=1e-3)
    assert (facts["after"][0], facts["after"][-1]) == (1, 40)
    assert len(facts["matrix"]) == 32
    for row, values in enumerate(facts["matrix"]):
        assert values == pytest.approx(matrix[row, : row + 1].tolist(), rel=1e-3)


def test_independent_noise_has_no_picture():
    assert plan(MinSeparationSampler(3, 1.0), IndependentNoise(2.0)).noise_picture(12) is None


def test_a_report_shows_the_noise_of_a_run_that_has_it_and_of_no_other(run_of):
    facts = gather(Run.open(run_of("turns")))
    sentence = facts["claim"]["sentence"]
    assert "no sampling assumed (each user at most 3 times, at least 2 rounds apart)" in sentence
    assert "correlated (blt) Gaussian noise" in sentence
    page = render(facts)
    for name in ("chart-noise-matrix-1", "chart-noise-error-1"):
        assert f'id="{name}"' in page
    assert "5 rows; the last one is" in page  # for those who do not see it
    other = render(gather(Run.open(run_of("private"))))
    assert "noise-matrix" not in other
    assert "takes back" not in other
