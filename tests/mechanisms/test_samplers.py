"""Statistical tests here have a false-alarm rate of one in a million each."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from tacit.mechanisms.samplers import (
    FixedSizeSampler,
    PoissonSampler,
    TruncatedPoissonSampler,
)
from tacit.privacy import events
from tacit.privacy.events import Adjacency
from tacit.privacy.randomness import RunKey
from tacit.privacy.stream import Stream
from tests.oracles import cohorts

FALSE_ALARM = 1e-6
DRAWS = 8_000


def stream(index=0, purpose="cohort"):
    key = RunKey.from_seed(2018)
    return key.stream(branch="main", round=0, attempt=0, purpose=purpose, index=index)


def draw_many(sampler, users, draws=DRAWS):
    one = stream(purpose=repr(sampler))
    return Counter(tuple(int(user) for user in sampler.draw(users, one)) for _ in range(draws))


def p_value(counts, law, draws=DRAWS):
    """Chi-square over all outcomes; rare ones are pooled, as the approximation needs."""
    assert sum(law.values()) == 1
    assert set(counts) <= set(law)
    common = [outcome for outcome in law if law[outcome] * draws >= 10]
    observed = [counts[outcome] for outcome in common]
    expected = [float(law[outcome] * draws) for outcome in common]
    if draws - sum(expected) >= 10:
        observed.append(draws - sum(observed))
        expected.append(draws - sum(expected))
    expected = np.array(expected) * (sum(observed) / sum(expected))
    return stats.chisquare(observed, expected).pvalue


Q = Fraction(3, 8)


@pytest.mark.parametrize(
    ("sampler", "users", "law", "wrong"),
    [
        (
            PoissonSampler(float(Q)),
            6,
            cohorts.poisson(6, Q),
            [cohorts.poisson(6, Q * Fraction(9, 10)), cohorts.poisson(6, Q * Fraction(11, 10))],
        ),
        (
            TruncatedPoissonSampler(6, float(Q), 3),
            6,
            cohorts.truncated_poisson(6, 6, Q, 3),
            [cohorts.truncated_poisson(6, 6, Q * Fraction(9, 10), 3), cohorts.poisson(6, Q)],
        ),
        (  # two of the slots are empty
            TruncatedPoissonSampler(6, float(Q), 3),
            4,
            cohorts.truncated_poisson(6, 4, Q, 3),
            [cohorts.truncated_poisson(4, 4, Q, 3)],
        ),
        (
            FixedSizeSampler(6, 2),
            6,
            cohorts.fixed_size(6, 6, 2),
            [cohorts.poisson(6, Fraction(1, 3))],
        ),
        (
            FixedSizeSampler(6, 4),
            5,
            cohorts.fixed_size(6, 5, 4),
            [cohorts.truncated_poisson(6, 5, Fraction(2, 3), 4)],
        ),
    ],
    ids=["poisson", "truncated", "truncated-empty-slots", "fixed-size", "fixed-size-empty-slots"],
)
def test_cohorts_follow_the_exact_law_and_no_other(sampler, users, law, wrong):
    # All subsets at once: inclusion, independence of pairs, sizes and uniform dropping.
    counts = draw_many(sampler, users)
    assert p_value(counts, law) > FALSE_ALARM
    for other in wrong:
        assert not set(counts) <= set(other) or p_value(counts, other) < FALSE_ALARM


@pytest.mark.parametrize("wrong", [0.9, 1.1])
def test_poisson_inclusion_frequencies_reject_another_probability(wrong):
    users, q, draws = 300, 0.2, 500
    sampler, one = PoissonSampler(q), stream()
    counts = np.zeros(users)
    for _ in range(draws):
        counts[sampler.draw(users, one)] += 1

    def two_sided(prob):
        chi_square = ((counts - draws * prob) ** 2 / (draws * prob * (1 - prob))).sum()
        return 2 * min(stats.chi2.cdf(chi_square, users), stats.chi2.sf(chi_square, users))

    assert two_sided(q) > FALSE_ALARM
    assert two_sided(wrong * q) < FALSE_ALARM


def test_pairs_join_independently_under_poisson_but_not_under_fixed_size():
    # The number of pairs in a cohort has a known variance if, and only if, users are independent.
    users, q, draws = 200, 0.25, 2_000

    def size_variance_p_value(sampler):
        one = stream()
        sizes = np.array([sampler.draw(users, one).size for _ in range(draws)])
        statistic = ((sizes - users * q) ** 2).sum() / (users * q * (1 - q))
        return 2 * min(stats.chi2.cdf(statistic, draws), stats.chi2.sf(statistic, draws))

    assert size_variance_p_value(PoissonSampler(q)) > FALSE_ALARM
    assert size_variance_p_value(FixedSizeSampler(users, 50)) < FALSE_ALARM


def test_cohorts_are_sorted_distinct_and_within_their_bounds():
    for index in range(50):
        fixed = FixedSizeSampler(100_000, 70).draw(100_000, stream(index))
        assert fixed.size == 70
        capped = TruncatedPoissonSampler(1_000, 0.5, 480).draw(1_000, stream(index))
        assert capped.size <= 480
        poisson = PoissonSampler(0.01).draw(1_000, stream(index))
        for cohort, users in ((fixed, 100_000), (capped, 1_000), (poisson, 1_000)):
            assert cohort.dtype == np.int64
            assert np.all(np.diff(cohort) > 0)
            assert not cohort.size or (cohort[0] >= 0 and cohort[-1] < users)


@pytest.mark.parametrize(
    "sampler",
    [
        PoissonSampler(0.5),
        TruncatedPoissonSampler(10, 0.5, 3),
        FixedSizeSampler(10, 3),
    ],
)
def test_no_users_make_an_empty_cohort(sampler):
    assert sampler.draw(0, stream()).size == 0


class CountingStream(Stream):
    """Counts the random words used for anything but the size of a cohort."""

    def __init__(self):
        super().__init__(bytes(32))
        self.used = 0

    def words(self, n):
        self.used += n
        return super().words(n)

    def binomial(self, n, p):
        before = self.used
        size = super().binomial(n, p)
        self.used = before
        return size


@pytest.mark.parametrize("population", [10_000, 10_000_000])
def test_drawing_uses_as_many_random_words_as_the_cohort_is_large(population):
    q = 100 / population
    for sampler in (
        PoissonSampler(q),
        TruncatedPoissonSampler(population, q, 120),
        FixedSizeSampler(population, 100),
    ):
        counting = CountingStream()
        cohort = sampler.draw(population, counting)
        assert cohort.size <= counting.used <= 1.1 * cohort.size + 2


@pytest.mark.parametrize(
    ("population", "q", "delta", "rounds"),
    [(763_430, 5000 / 763_430, 1e-9, 5000), (100, 0.5, 1e-6, 10), (10**8, 2e-4, 1e-9, 5000)],
)
def test_default_cap_is_the_smallest_with_its_tail_below_a_tenth_of_delta_per_round(
    population, q, delta, rounds
):
    sampler = TruncatedPoissonSampler.with_default_cap(population, q, delta=delta, rounds=rounds)
    tail = stats.binom(population, q).sf
    assert tail(sampler.max_cohort) < delta / (10 * rounds) <= tail(sampler.max_cohort - 1)


def test_default_cap_of_a_population_that_always_comes_is_the_population():
    sampler = TruncatedPoissonSampler.with_default_cap(20, 1.0, delta=1e-6, rounds=1)
    assert sampler.max_cohort == 20
    assert sampler.event(1.5) == events.Gaussian(1.5, Adjacency.ADD_REMOVE)


@pytest.mark.parametrize(
    ("sampler", "event"),
    [
        (PoissonSampler(0.1), events.PoissonGaussian(0.1, 1.5)),
        (PoissonSampler(1.0), events.Gaussian(1.5, Adjacency.ADD_REMOVE)),
        (
            TruncatedPoissonSampler(50, 0.1, 9),
            events.TruncatedPoissonGaussian(50, 0.1, 9, 1.5),
        ),
        (TruncatedPoissonSampler(50, 0.1, 50), events.PoissonGaussian(0.1, 1.5)),
        (FixedSizeSampler(50, 9), events.FixedSizeGaussian(50, 9, 1.5)),
        (FixedSizeSampler(50, 50), events.Gaussian(1.5, Adjacency.REPLACE)),
    ],
)
def test_event_names_the_sampler_and_its_adjacency(sampler, event):
    assert sampler.event(1.5) == event
    assert sampler.adjacency == event.adjacency


def test_only_samplers_over_slots_refuse_more_users_than_declared():
    for sampler in (FixedSizeSampler(10, 3), TruncatedPoissonSampler(10, 0.5, 3)):
        with pytest.raises(ValueError, match="population must be at least the number of users, 11"):
            sampler.draw(11, stream())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PoissonSampler(0.0), "sampling_prob must be above 0"),
        (lambda: PoissonSampler(1.1), "sampling_prob .* at most 1, got 1.1"),
        (lambda: PoissonSampler(float("nan")), "sampling_prob"),
        (lambda: TruncatedPoissonSampler(10, 0.5, 0), "max_cohort must be at least 1"),
        (lambda: TruncatedPoissonSampler(0, 0.5, 1), "population must be at least 1"),
        (lambda: FixedSizeSampler(10, 11), "cohort must be at most the population of 10, got 11"),
        (lambda: FixedSizeSampler(10, 2.5), "cohort must be a whole number"),
        (
            lambda: TruncatedPoissonSampler.with_default_cap(9, 0.5, delta=0.0, rounds=1),
            "delta must be strictly between 0 and 1",
        ),
    ],
)
def test_values_out_of_range_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()
