"""One contract for every accountant, the limits, and the traps that are known of the library."""

from __future__ import annotations

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant as LibraryPld
from dp_accounting.rdp import RdpAccountant as LibraryRdp
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy.accountants import NAMES, accountant_named, default_accountant, sound_accountants
from tacit.privacy.calibration import noise_for_epsilon
from tacit.privacy.events import (
    Adjacency,
    Composition,
    FixedSizeGaussian,
    Gaussian,
    Lapse,
    NonPrivate,
    PoissonGaussian,
    PostProcessing,
    PureDP,
    TruncatedPoissonGaussian,
)
from tacit.privacy.pld import _gaussian_delta, epsilon_of_rounds, gaussian_epsilon
from tacit.privacy.profiles import Remove

EVENTS = {
    "gaussian": Gaussian(2.0),
    "poisson": PoissonGaussian(0.01, 1.1),
    "truncated": TruncatedPoissonGaussian(10_000, 0.01, 160, 1.1),
    "fixed": FixedSizeGaussian(10_000, 100, 0.55),
    "pure": PureDP(0.3),
}
SOUND = [
    (name, kind)
    for name in NAMES
    for kind in EVENTS
    if accountant_named(name).refusal(EVENTS[kind]) is None
]


@pytest.mark.parametrize(("name", "kind"), SOUND)
class TestContract:
    """What every accountant promises about every event that it accounts."""

    delta = 1e-6

    def epsilon(self, name, events):
        return accountant_named(name).epsilon(Composition.of(events), self.delta)

    def test_composing_n_is_composing_n_times(self, name, kind):
        event = EVENTS[kind]
        accountant = accountant_named(name)
        step_by_step = Composition()
        for _ in range(7):
            step_by_step = step_by_step.followed_by(Composition.of([event]))
        assert accountant.epsilon(step_by_step, self.delta) == self.epsilon(name, [(event, 7)])

    def test_two_parts_are_the_whole(self, name, kind):
        """Nearly equal events that cannot merge must cost what merged ones cost."""
        event = EVENTS[kind]
        key = "epsilon" if kind == "pure" else "noise_multiplier"
        import dataclasses

        twin = dataclasses.replace(event, **{key: getattr(event, key) * (1 + 1e-9)})
        whole = self.epsilon(name, [(event, 40)])
        assert self.epsilon(name, [(event, 25), (twin, 15)]) == pytest.approx(whole, rel=2e-4)

    def test_more_rounds_cost_more(self, name, kind):
        costs = [self.epsilon(name, [(EVENTS[kind], n)]) for n in (1, 10, 100, 1000)]
        assert costs == sorted(costs)
        assert costs[0] < costs[-1]

    def test_a_smaller_delta_costs_more(self, name, kind):
        composition = Composition.of([(EVENTS[kind], 50)])
        costs = [accountant_named(name).epsilon(composition, d) for d in (1e-3, 1e-6, 1e-9, 1e-12)]
        assert costs == sorted(costs)

    def test_epsilon_and_delta_are_inverse(self, name, kind):
        accountant = accountant_named(name)
        composition = Composition.of([(EVENTS[kind], 30)])
        epsilon = accountant.epsilon(composition, self.delta)
        assert accountant.delta(composition, epsilon) == pytest.approx(self.delta, rel=0.02)

    def test_nothing_costs_nothing_and_no_noise_costs_everything(self, name, kind):
        event = EVENTS[kind]
        accountant = accountant_named(name)
        assert accountant.epsilon(Composition(), self.delta) == 0
        assert accountant.delta(Composition(), 1.0) == 0
        free = Composition.of([PostProcessing("sampled from the model")])
        assert accountant.epsilon(free, self.delta) == 0
        ruined = Composition.of([event, NonPrivate("no noise")])
        assert accountant.epsilon(ruined, self.delta) == np.inf
        assert accountant.delta(ruined, 100.0) == 1

    @pytest.mark.parametrize("delta", [0.0, 1.0, -1e-6, float("nan"), 2.0])
    def test_a_delta_outside_0_1_is_refused(self, name, kind, delta):
        with pytest.raises(ValueError, match="delta must be strictly between 0 and 1"):
            accountant_named(name).epsilon(Composition.of([EVENTS[kind]]), delta)

    def test_tighter_accountants_come_first(self, name, kind):
        sound, _ = sound_accountants(Composition.of([EVENTS[kind]]))
        costs = [a.epsilon(Composition.of([(EVENTS[kind], 50)]), self.delta) for a in sound]
        if kind != "gaussian":  # zcdp's conversion may beat the 32 moments
            assert costs == sorted(costs)
        assert costs[0] == min(costs)
        assert default_accountant(Composition.of([EVENTS[kind]])).name == sound[0].name


@pytest.mark.parametrize(
    ("name", "kind", "instead"),
    [
        ("moments", "fixed", "rdp"),
        ("pld", "fixed", "rdp"),
        ("zcdp", "fixed", "rdp"),
        ("moments", "truncated", "pld"),
        ("rdp", "truncated", "pld"),
        ("zcdp", "truncated", "pld"),
        ("zcdp", "poisson", "pld"),
    ],
)
def test_unsound_pairs_are_refused_with_what_to_use_instead(name, kind, instead):
    with pytest.raises(ValueError, match=f"use the {instead} accountant"):
        accountant_named(name).epsilon(Composition.of([EVENTS[kind]]), 1e-6)


def test_every_pair_is_either_sound_or_refused_here():
    assert len(SOUND) + 7 == len(NAMES) * len(EVENTS)


def test_mixed_adjacencies_are_refused():
    mixed = Composition.of([PoissonGaussian(0.1, 1.0), FixedSizeGaussian(100, 10, 1.0)])
    with pytest.raises(ValueError, match="mix add/remove-one and replace-one"):
        accountant_named("rdp").epsilon(mixed, 1e-5)


def test_an_unknown_accountant_is_named_with_the_nearest():
    with pytest.raises(ValueError, match="got 'moment'; did you mean 'moments'"):
        accountant_named("moment")


# Lapses: what may happen with a small probability is taken from delta first.


@pytest.mark.parametrize(("name", "kind"), SOUND)
def test_lapses_are_spent_from_delta_before_anything_else(name, kind):
    accountant = accountant_named(name)
    rest = Composition.of([(EVENTS[kind], 20)])
    whole = rest.followed_by(Composition.of([Lapse(3e-7), (Lapse(1e-7), 2)]))
    assert accountant.epsilon(whole, 1e-6) == pytest.approx(accountant.epsilon(rest, 5e-7))
    assert accountant.epsilon(whole, 1e-6) >= accountant.epsilon(rest, 1e-6)
    if kind != "pure":  # whose epsilon hardly depends on delta
        assert accountant.epsilon(whole, 1e-6) > accountant.epsilon(rest, 1e-6)
    assert accountant.delta(whole, 2.0) == pytest.approx(accountant.delta(rest, 2.0) + 5e-7)
    epsilon = accountant.epsilon(whole, 1e-6)
    found = accountant.delta(whole, epsilon)
    assert found <= 1.02e-6
    if kind != "pure":
        assert found >= 0.98e-6
    for used_up in (5e-7, 4e-7, 1e-12):
        assert accountant.epsilon(whole, used_up) == np.inf
    assert accountant.delta(rest.followed_by(Composition.of([(Lapse(0.4), 3)])), 1.0) == 1
    ruined = whole.followed_by(Composition.of([NonPrivate("no noise")]))
    assert (accountant.epsilon(ruined, 0.5), accountant.delta(ruined, 9.0)) == (np.inf, 1)


@pytest.mark.parametrize("name", NAMES)
def test_a_lapse_alone_costs_its_probability_and_no_epsilon(name):
    accountant = accountant_named(name)
    alone = Composition.of([(Lapse(1e-6), 3), PostProcessing("sampled")])
    assert accountant.refusal(Lapse(1e-6)) is None
    assert accountant.epsilon(alone, 3.1e-6) == 0
    assert accountant.epsilon(Composition.of([Lapse(1e-6)]), 1e-6) == 0
    assert accountant.epsilon(alone, 2.9e-6) == np.inf
    assert accountant.delta(alone, 0.0) == pytest.approx(3e-6)


def test_the_sum_of_lapses_is_never_below_the_exact_profile():
    """Gaussian with a lapse: (1 - p) delta + p, and two lapses, by hand."""
    gaussian = _gaussian_delta(1.0, 1.5)
    for count in (1, 2):
        exact = 1 - (1 - 0.01) ** count * (1 - gaussian)
        found = accountant_named("pld").delta(
            Composition.of([Gaussian(1.0), (Lapse(0.01), count)]), 1.5
        )
        assert found == pytest.approx(gaussian + count * 0.01, rel=1e-12)
        assert exact <= found <= exact * 1.1


def test_a_budget_is_calibrated_around_a_lapse():
    lapse, settings = Lapse(5e-6), {"target_epsilon": 2.0, "accountant": accountant_named("pld")}

    def both(z: float) -> Composition:
        return Composition.of([lapse, Gaussian(z)])

    plain = noise_for_epsilon(lambda z: Composition.of([Gaussian(z)]), delta=5e-6, **settings)
    assert noise_for_epsilon(both, delta=1e-5, **settings) == pytest.approx(plain, rel=1e-6)
    with pytest.raises(ValueError, match="out of reach"):
        noise_for_epsilon(both, delta=5e-6, **settings)


# Limits.


@given(z=st.floats(0.5, 50), rounds=st.integers(1, 1000), power=st.floats(3, 12))
@settings(max_examples=40)
def test_q_of_1_is_the_plain_gaussian_mechanism(z, rounds, power):
    delta = 10**-power
    exact = gaussian_epsilon(np.sqrt(rounds) / z, delta)
    sampled = Composition.of([(PoissonGaussian(1.0, z), rounds)])
    plain = Composition.of([(Gaussian(z), rounds)])
    assert accountant_named("pld").epsilon(sampled, delta) == pytest.approx(exact, rel=1e-12)
    for name in ("rdp", "moments"):
        accountant = accountant_named(name)
        assert accountant.epsilon(sampled, delta) == accountant.epsilon(plain, delta)
        assert accountant.epsilon(plain, delta) >= exact * (1 - 1e-9)
    assert accountant_named("zcdp").epsilon(plain, delta) >= exact * (1 - 1e-9)
    assert _gaussian_delta(np.sqrt(rounds) / z, exact) <= delta * (1 + 1e-9)


@pytest.mark.parametrize("q", [0.9, 0.999, 1 - 1e-9])
def test_the_grid_reaches_the_closed_form_as_q_reaches_1(q):
    exact = gaussian_epsilon(np.sqrt(20) / 2.0, 1e-6)
    near = accountant_named("pld", precise=True).epsilon(
        Composition.of([(PoissonGaussian(q, 2.0), 20)]), 1e-6
    )
    assert near <= exact * (1 + 1e-4)
    if q > 0.9999:
        assert near == pytest.approx(exact, rel=1e-4)


def test_fixed_size_with_everybody_has_no_amplification():
    whole = Composition.of([(FixedSizeGaussian(500, 500, 0.8), 30)])
    plain = Composition.of([(Gaussian(0.8, Adjacency.REPLACE), 30)])
    rdp = accountant_named("rdp")
    assert rdp.epsilon(whole, 1e-6) == pytest.approx(rdp.epsilon(plain, 1e-6), rel=1e-6)


def test_a_cap_that_never_binds_is_plain_poisson_and_a_tight_one_costs_more():
    pld = accountant_named("pld")
    plain = pld.epsilon(Composition.of([(PoissonGaussian(0.01, 1.0), 100)]), 1e-6)
    costs = [
        pld.epsilon(Composition.of([(TruncatedPoissonGaussian(10_000, 0.01, cap, 1.0), 100)]), 1e-6)
        for cap in (10_000, 180, 120, 100)
    ]
    assert costs[0] == pytest.approx(plain, rel=1e-6)
    assert costs == sorted(costs)
    assert costs[-1] > 1.5 * plain


@pytest.mark.parametrize("cap", [100, pytest.param(150, marks=pytest.mark.slow), 170])
def test_truncated_poisson_agrees_with_the_library(cap):
    library = LibraryPld()
    library.compose(dp_accounting.TruncatedSubsampledGaussianDpEvent(100_000, 0.001, cap, 1.0), 500)
    event = TruncatedPoissonGaussian(100_000, 0.001, cap, 1.0)
    ours = accountant_named("pld").epsilon(Composition.of([(event, 500)]), 1e-6)
    assert ours == pytest.approx(library.get_epsilon(1e-6), rel=1e-3)


def test_pure_dp_composes_to_at_most_the_sum():
    composition = Composition.of([(PureDP(0.5), 10)])
    assert accountant_named("pld").epsilon(composition, 1e-12) == pytest.approx(5.0, rel=1e-6)
    assert accountant_named("pld").epsilon(composition, 1e-3) < 5.0


# Traps of dp-accounting 0.6.0, and of plain Fourier accounting.


def test_trap_the_librarys_rdp_does_not_double_the_sensitivity_under_replace_one_but_its_pld_does():
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    noise_zS = dp_accounting.GaussianDpEvent(1.0)
    rdp = LibraryRdp(neighboring_relation=relation).compose(noise_zS, 10).get_epsilon(1e-6)
    pld = LibraryPld(neighboring_relation=relation).compose(noise_zS, 10).get_epsilon(1e-6)
    assert rdp < pld  # the looser accountant reports less: it read another sensitivity
    ours = Composition.of([(Gaussian(0.5, Adjacency.REPLACE), 10)])
    assert accountant_named("rdp").epsilon(ours, 1e-6) > pld
    assert accountant_named("pld").epsilon(ours, 1e-6) == pytest.approx(pld, rel=1e-3)


def test_trap_the_librarys_grid_of_1e_4_is_loose_at_small_q():
    event = dp_accounting.PoissonSampledDpEvent(1e-5, dp_accounting.GaussianDpEvent(1.0))
    library = LibraryPld().compose(event, 1000).get_epsilon(1e-7)
    ours = accountant_named("pld").epsilon(
        Composition.of([(PoissonGaussian(1e-5, 1.0), 1000)]), 1e-7
    )
    assert ours < 0.75 * library


def test_trap_a_plain_fourier_transform_understates_epsilon_at_many_rounds_and_ours_does_not():
    """A million rounds that together are exactly one Gaussian with a known epsilon."""
    rounds, delta = 10**6, 1e-10
    exact = gaussian_epsilon(1.0, delta)
    step = 1e-5
    per_round = dp_accounting.pld.privacy_loss_distribution.from_gaussian_mechanism(
        1000.0, value_discretization_interval=step
    )
    library = per_round.self_compose(rounds).get_epsilon_for_delta(delta)
    assert library < exact * (1 - 1e-3)
    for resolution in (5.0, 20.0, 150.0):
        ours = epsilon_of_rounds([(Remove(1.0, 1000.0), rounds)], delta, resolution)
        assert exact <= ours <= exact * 1.005


@pytest.mark.parametrize("delta", [1e-6, 1e-12, 1e-20, 1e-50])
@pytest.mark.parametrize("rounds", [1, 1000, 10**6])
def test_a_finer_grid_is_tighter_and_never_below_the_exact_epsilon(rounds, delta):
    exact = gaussian_epsilon(1.0, delta)
    profile = Remove(1.0, float(np.sqrt(rounds)))
    found = [epsilon_of_rounds([(profile, rounds)], delta, f) for f in (5.0, 20.0, 80.0)]
    assert found == sorted(found, reverse=True)
    assert exact <= found[-1] <= exact * (1 + 1e-4)


def test_trap_moments_and_rdp_have_a_floor_at_small_q_that_pld_does_not_have():
    one = Composition.of([PoissonGaussian(1e-7, 1.0)])
    delta = 1e-9
    assert accountant_named("moments").epsilon(one, delta) > 0.9 * np.log(1 / delta) / 32
    assert accountant_named("rdp").epsilon(one, delta) > 0.01
    assert accountant_named("pld").epsilon(one, delta) < 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_trap_the_count_of_a_pure_dp_event_counts(name):
    """dp-accounting's RDP ignores the count of an exponential-mechanism event; we have our own."""
    accountant = accountant_named(name)
    one = accountant.epsilon(Composition.of([(PureDP(0.1), 1)]), 1e-6)
    many = accountant.epsilon(Composition.of([(PureDP(0.1), 400)]), 1e-6)
    assert many > 5 * one


def test_sampled_rounds_compose_with_a_release_of_hardly_any_noise():
    rounds, release = (PoissonGaussian(0.2, 1.0), 3), (Gaussian(0.04), 1)
    pld = accountant_named("pld")
    both = pld.epsilon(Composition.of([rounds, release]), 1e-5)
    alone = pld.epsilon(Composition.of([release]), 1e-5)
    assert alone <= both < 1.2 * alone
