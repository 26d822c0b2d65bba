"""rdp and pld against reference figures, the PRV accountant and exact closed forms."""

from __future__ import annotations

import math

import pytest
from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

from tacit.privacy.accountants import accountant_named
from tacit.privacy.events import Composition, FixedSizeGaussian, PoissonGaussian
from tacit.privacy.profiles import Remove
from tests.oracles import prv
from tests.privacy.figures import CASES, REFERENCE, case_id


def poisson(case) -> Composition:
    return Composition.of([(PoissonGaussian(case["C"] / case["K"], case["z"]), case["rounds"])])


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_moments_match_the_reference(case):
    epsilon = accountant_named("moments").epsilon(poisson(case), case["delta"])
    assert epsilon == pytest.approx(case["ma_eps"], rel=1e-9)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_rdp_matches_the_reference(case):
    epsilon = accountant_named("rdp").epsilon(poisson(case), case["delta"])
    assert epsilon == pytest.approx(case["rdp_eps"], rel=1e-3)


@pytest.mark.parametrize("case", [c for c in CASES if "wor_eps" in c], ids=case_id)
def test_fixed_size_rdp_of_noise_zS_matches_the_reference(case):
    event = FixedSizeGaussian(case["K"], case["C"], case["z"] / 2)
    composition = Composition.of([(event, case["rounds"])])
    epsilon = accountant_named("rdp").epsilon(composition, case["delta"])
    assert epsilon == pytest.approx(case["wor_eps"], rel=1e-3)
    # The PLD of Poisson sampling under replace-one is a lower bound on it.
    assert epsilon >= case["pld_replace_eps"]


def check_pld(case):
    """Within 0.1% of the reference, or lower and confirmed by the independent accountant.

    The default is an upper bound: never below the precise figure, nor below the confirmed one.
    """
    precise = accountant_named("pld", precise=True).epsilon(poisson(case), case["delta"])
    default = accountant_named("pld").epsilon(poisson(case), case["delta"])
    assert precise <= case["pld_eps"] * 1.001
    assert precise <= default <= precise * 1.001
    if precise < case["pld_eps"] * (1 - 1e-5):
        q = case["C"] / case["K"]
        confirmed = prv.epsilon(q, case["z"], case["rounds"], case["delta"])
        assert precise == pytest.approx(confirmed, rel=3e-5)
        assert default >= confirmed * (1 - 1e-5)


# A cell of every row of table 1 but that of the smallest q, which takes long, and half of table 2.
QUICK = [c for c in CASES if c["rounds"] == 1000 and c["K"] < 10**9] + REFERENCE["table2"][:3]
REST = [c for c in CASES if c not in QUICK]


@pytest.mark.parametrize("case", QUICK, ids=case_id)
def test_pld_matches_the_reference_or_prv(case):
    check_pld(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", REST, ids=case_id)
def test_pld_matches_the_reference_or_prv_in_all_other_cells(case):
    check_pld(case)


@pytest.mark.parametrize("case", [c for c in CASES if "exact_one_round_eps" in c], ids=case_id)
def test_one_round_is_exact(case):
    precise = accountant_named("pld", precise=True).epsilon(poisson(case), case["delta"])
    assert precise == pytest.approx(case["exact_one_round_eps"], rel=1e-5)
    assert precise >= case["exact_one_round_eps"] * (1 - 1e-9)


@pytest.mark.parametrize(
    ("q", "z", "rounds", "delta"),
    [
        (0.01, 1.0, 100, 1e-6),
        (0.0065, 1.0, 5000, 1e-9),
        (0.05, 2.0, 1000, 1e-7),
        (0.2, 4.0, 300, 1e-5),
    ],
)
def test_pld_lies_within_the_interval_of_the_prv_package(q, z, rounds, delta):
    package = PRVAccountant(
        prvs=PoissonSubsampledGaussianMechanism(noise_multiplier=z, sampling_probability=q),
        max_self_compositions=rounds,
        eps_error=0.02,
        delta_error=delta * 1e-3,
    )
    low, _, high = package.compute_epsilon(delta=delta, num_self_compositions=rounds)
    ours = accountant_named("pld").epsilon(Composition.of([(PoissonGaussian(q, z), rounds)]), delta)
    assert low <= ours <= high


@pytest.mark.parametrize("name", ["thakkar", "bagdasaryan"])
@pytest.mark.parametrize(
    ("accountant", "key"), [("pld", "z_pld"), ("rdp", "z_rdp"), ("moments", "z_ma")]
)
def test_calibrated_noise_of_the_papers(name, accountant, key):
    case = REFERENCE["calibration"][name]
    at_reference = Composition.of([(PoissonGaussian(case["q"], case[key]), case["T"])])
    epsilon = accountant_named(accountant).epsilon(at_reference, case["delta"])
    assert epsilon == pytest.approx(case["eps"], rel=2e-3)


def test_the_profile_of_one_round_is_the_textbook_integral():
    """delta(epsilon) by brute-force quadrature of (p - e^epsilon q)_+."""
    from scipy.integrate import quad
    from scipy.stats import norm

    q, z, epsilon = 0.1, 0.8, 0.5

    def positive_part(x: float) -> float:
        base = norm.pdf(x, 0, z)
        mixture = (1 - q) * base + q * norm.pdf(x, 1, z)
        return max(mixture - math.exp(epsilon) * base, 0.0)

    import numpy as np

    expected = quad(positive_part, -10, 12, limit=400, points=[1.0])[0]
    assert Remove(q, z).delta(np.array([epsilon]))[0] == pytest.approx(expected, rel=1e-6)
