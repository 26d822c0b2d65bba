"""Strategies against explicit matrices, brute force and simulation.

Statistical tests here have a false-alarm rate of one in a million each.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.mechanisms import strategies
from tacit.mechanisms.noise import CorrelatedNoise
from tacit.mechanisms.participation import Participation
from tacit.mechanisms.samplers import MinSeparationSampler
from tacit.mechanisms.strategies import (
    INDEPENDENT,
    BandedToeplitz,
    BinaryTree,
    BufferedToeplitz,
    SquareRootToeplitz,
    Strategy,
    running_sum_errors,
)
from tacit.mechanisms.turns import Position
from tacit.privacy.randomness import RunKey

FALSE_ALARM = 1e-6
EXACT = 1e-12  # relative: what float64 sums of some dozens of values leave

EXAMPLES = [
    INDEPENDENT,
    BandedToeplitz((1.0, 0.6, 0.2)),
    BandedToeplitz((1.0, -0.4, 0.3)),
    BufferedToeplitz((0.9,), (0.5,)),
    BufferedToeplitz((0.95, 0.6, 0.1), (0.2, 0.3, 0.15)),
    SquareRootToeplitz(4),
    SquareRootToeplitz(40),
    BinaryTree(),
]


def names(strategy: Strategy) -> str:
    return f"{strategy.kind}-{abs(hash(strategy)) % 1000}"


every_strategy = pytest.mark.parametrize("strategy", EXAMPLES, ids=names)


# Drawn strategies.

shares = st.floats(0, 1, allow_subnormal=False)
falling = st.lists(shares, max_size=7).map(
    lambda values: BandedToeplitz((1.0, *sorted(values, reverse=True)))
)
of_either_sign = st.lists(st.floats(-2, 2, allow_subnormal=False), max_size=4).map(
    lambda values: BandedToeplitz((1.0, *values))
)
buffered = st.lists(
    st.tuples(st.floats(0.001, 0.999), st.floats(0, 1, allow_subnormal=False)),
    min_size=1,
    max_size=3,
).map(
    lambda pairs: BufferedToeplitz(
        tuple(decay for decay, _ in pairs), tuple(scale / 3.01 for _, scale in pairs)
    )
)
square_roots = st.integers(1, 9).map(SquareRootToeplitz)
participations = st.builds(
    Participation, st.integers(1, 9), st.one_of(st.none(), st.integers(1, 9))
)


def patterns(participation: Participation, rounds: int) -> Iterator[tuple[int, ...]]:
    """All sets of rounds that one user may take part in."""
    for size in range(rounds + 1):
        if participation.at_most is not None and size > participation.at_most:
            return
        for pattern in itertools.combinations(range(rounds), size):
            if all(b - a >= participation.separation for a, b in itertools.pairwise(pattern)):
                yield pattern


def largest_move(
    strategy: Strategy, participation: Participation, rounds: int
) -> tuple[float, float]:
    """Between which two numbers the largest |sum_s C_s u_s| is, over all patterns and |u_s| <= 1.

    With the Gram matrix G of a pattern's columns the square is the largest of sum G_st <u_s, u_t>.
    It is at least that of any signs along one direction, and at most sum |G_st|.
    """
    C = strategy.matrix(rounds)
    least = most = 0.0
    for pattern in patterns(participation, rounds):
        gram = C[:, pattern].T @ C[:, pattern]
        most = max(most, float(np.abs(gram).sum()))
        for signs in itertools.product((1, -1), repeat=max(len(pattern) - 1, 0)):
            u = np.array([1, *signs])[: len(pattern)]
            least = max(least, float(u @ gram @ u))
    return math.sqrt(least), math.sqrt(most)


# Sensitivities.


@settings(max_examples=60, deadline=None)
@given(st.one_of(falling, buffered, square_roots), participations, st.integers(1, 7))
def test_the_sensitivity_of_falling_coefficients_is_that_of_the_worst_pattern(
    strategy, participation, rounds
):
    least, most = largest_move(strategy, participation, rounds)
    assert least == pytest.approx(most, rel=EXACT)  # no column is against another
    assert strategy.sensitivity(participation, rounds) == pytest.approx(most, rel=EXACT)


@settings(max_examples=60, deadline=None)
@given(of_either_sign, participations, st.integers(1, 7))
def test_the_sensitivity_of_few_bands_is_that_of_the_worst_pattern_whatever_their_signs(
    strategy, participation, rounds
):
    fits = len(strategy.values) <= participation.separation
    assert strategy.fits_in(participation.separation) == fits
    falls = list(strategy.values) == sorted(np.abs(strategy.values), reverse=True)
    if not (fits or falls or participation.times(rounds) <= 1):
        with pytest.raises(ValueError, match="no sensitivity is proved"):
            strategy.sensitivity(participation, rounds)
        return
    least, most = largest_move(strategy, participation, rounds)
    assert least == pytest.approx(most, rel=EXACT)
    assert strategy.sensitivity(participation, rounds) == pytest.approx(most, rel=EXACT)


@pytest.mark.parametrize("values", [(1.0, 0.0, 0.9), (1.0, -0.9), (1.0, 2.0)])
def test_what_is_refused_has_a_worse_pattern_or_worse_signs_than_the_first(values):
    """The refusal is needed: for these the norm of the columns 0, b, 2b, ... is no bound."""
    strategy, participation, rounds = BandedToeplitz(values), Participation(1, at_most=2), 4
    with pytest.raises(ValueError, match=r"at most as many as separation, 1, got \d others"):
        strategy.sensitivity(participation, rounds)
    first = strategies.pattern_sum(strategy.coefficients(rounds), 1, 2)
    least, _ = largest_move(strategy, participation, rounds)
    if values[1] < 2:  # of two equal moves in a row; rising ones are worst at the start here
        assert least > 1.01 * float(np.linalg.norm(first))


@settings(max_examples=40, deadline=None)
@given(participations, st.integers(1, 10))
def test_the_sensitivity_of_a_tree_is_a_bound_and_exact_for_one_participation(
    participation, rounds
):
    tree = BinaryTree()
    _, most = largest_move(tree, participation, rounds)
    bound = tree.sensitivity(participation, rounds)
    assert bound >= most * (1 - EXACT)
    if participation.times(rounds) == 1 or participation.separation == 1 < rounds == 8:
        assert bound == pytest.approx(most, rel=EXACT)
    assert bound <= 1.3 * most  # not absurdly far above


@every_strategy
def test_the_largest_column_is_the_sensitivity_to_one_participation(strategy):
    for rounds in (1, 2, 3, 7, 16, 33):
        columns = np.linalg.norm(strategy.matrix(rounds), axis=0)
        assert strategy.largest_column(rounds) == pytest.approx(columns.max(), rel=EXACT)
        once = strategy.sensitivity(Participation(1, at_most=1), rounds)
        assert once == pytest.approx(columns.max(), rel=EXACT)


@settings(max_examples=40, deadline=None)
@given(st.one_of(falling, buffered, square_roots, st.just(BinaryTree())), participations)
def test_more_rounds_only_add(strategy, participation):
    """Exactly, and not up to rounding: a ledger refuses a charge that says less than the last."""
    costs = [strategy.sensitivity(participation, rounds) for rounds in range(1, 40)]
    assert costs == sorted(costs)
    assert costs[0] == 1


@every_strategy
def test_the_first_rounds_are_those_of_fewer_rounds(strategy):
    whole = strategy.matrix(23)
    assert np.array_equal(np.tril(whole), whole)
    assert np.all(np.diag(whole) == 1)
    for rounds in (0, 1, 2, 5, 22):
        assert np.array_equal(strategy.matrix(rounds), whole[:rounds, :rounds])


# Limits.


def test_one_band_is_independent_noise():
    for one in (BandedToeplitz((1.0,)), SquareRootToeplitz(1), BufferedToeplitz((0.5,), (0.0,))):
        assert np.array_equal(one.matrix(9), np.eye(9))
        assert one.sensitivity(Participation(3), 9) == math.sqrt(3)
        assert running_sum_errors(one, 9) == pytest.approx((math.sqrt(5), 3))
    assert INDEPENDENT.name == SquareRootToeplitz(1).name == "independent"
    assert INDEPENDENT.step(np.ones(3), ())[1] == ()
    assert INDEPENDENT.vectors(100) == 0


@every_strategy
def test_who_cannot_come_again_takes_part_once(strategy):
    for rounds in (1, 5, 16):
        once = strategy.largest_column(rounds)
        for rare in (Participation(rounds), Participation(rounds + 7), Participation(1, at_most=1)):
            assert rare.times(rounds) == 1
            assert strategy.sensitivity(rare, rounds) == pytest.approx(once, rel=EXACT)


@every_strategy
def test_a_single_round_is_the_gaussian_mechanism(strategy):
    fresh = np.array([0.5, -1.0, 2.0])
    noise, _ = strategy.step(fresh.copy(), ())
    assert np.array_equal(noise, fresh)
    assert strategy.sensitivity(Participation(1), 1) == 1
    assert running_sum_errors(strategy, 1) == (1, 1)


# Noise.


def simulate(strategy: Strategy, fresh: np.ndarray) -> np.ndarray:
    """The noise of every round, one per row."""
    state: strategies.State = ()
    rows = []
    for z in fresh:
        noise, state = strategy.step(z.copy(), state)
        rows.append(noise.copy())
        assert sum(vector.size > 0 for vector in state) <= strategy.vectors(len(rows))
    return np.array(rows)


@every_strategy
@pytest.mark.parametrize("rounds", [1, 2, 7, 16, 37])
def test_the_noise_solves_the_matrix(strategy, rounds):
    fresh = np.random.default_rng(rounds).normal(size=(rounds, 5))
    noise = simulate(strategy, fresh)
    assert strategy.matrix(rounds) @ noise == pytest.approx(fresh, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.one_of(falling, of_either_sign, buffered, square_roots), st.integers(1, 12))
def test_the_noise_of_any_strategy_solves_its_matrix(strategy, rounds):
    fresh = np.random.default_rng(1).normal(size=(rounds, 2))
    noise = simulate(strategy, fresh)
    scale = max(1.0, float(np.abs(noise).max()))
    assert strategy.matrix(rounds) @ noise == pytest.approx(fresh, abs=1e-11 * scale)


@every_strategy
def test_blocks_and_threads_do_not_change_a_bit(strategy, monkeypatch):
    fresh = np.random.default_rng(0).normal(size=(6, 203))
    whole = simulate(strategy, fresh)
    monkeypatch.setattr(strategies.os, "cpu_count", lambda: 4)
    for task, block, threads in ((100, 7, 4), (100, 100, 1), (202, 1000, 3)):
        monkeypatch.setattr(strategies, "_TASK", task)
        monkeypatch.setattr(strategies, "_BLOCK", block)
        monkeypatch.setattr(strategies, "_MAX_THREADS", threads)
        assert simulate(strategy, fresh).tobytes() == whole.tobytes()


@every_strategy
def test_what_is_returned_shares_no_memory_with_the_next_state(strategy):
    state: strategies.State = ()
    for _ in range(9):
        noise, state = strategy.step(np.ones(4), state)
        assert not any(np.shares_memory(noise, vector) for vector in state)


def test_a_state_of_another_size_is_refused():
    strategy = BufferedToeplitz((0.9,), (0.5,))
    _, state = strategy.step(np.ones(4), ())
    with pytest.raises(ValueError, match=r"state must have vectors of 5 values, got \[4\]"):
        strategy.step(np.ones(5), state)


@every_strategy
@pytest.mark.parametrize("rounds", [1, 6, 31])
def test_errors_are_those_of_the_explicit_matrices(strategy, rounds):
    inverse = np.linalg.inv(strategy.matrix(rounds))
    rows = np.linalg.norm(np.tril(np.ones((rounds, rounds))) @ inverse, axis=1)
    assert strategy.running_sum_variances(rounds) == pytest.approx(rows**2, rel=1e-9)
    mean, largest = running_sum_errors(strategy, rounds)
    assert mean == pytest.approx(math.sqrt(np.mean(rows**2)), rel=1e-9)
    assert largest == pytest.approx(rows.max(), rel=1e-9)
    noisiest = np.linalg.norm(inverse, axis=1).max()
    assert strategy.largest_row(rounds) == pytest.approx(noisiest, rel=1e-9)


# The law of what is added.


def noise_of(strategy: Strategy, rounds: int, *, forgets_after: int | None = None) -> np.ndarray:
    """Noise as a plan adds it to sums of nothing, in units of fresh noise."""
    key, stddev = RunKey.from_seed(3), 2.0**27
    part, state = CorrelatedNoise(1.0, strategy), ()
    rows = []
    for round in range(rounds):
        stream = key.stream(branch="main", round=round, attempt=0, purpose="update-noise")
        noisy, state = part.add(np.zeros(8_000, np.int64), stddev, state, stream)
        rows.append(noisy / stddev)
        if round + 1 == forgets_after:
            state = ()
    return np.array(rows)


def p_value(strategy: Strategy, noise: np.ndarray) -> float:
    """Are these columns draws of C^-1 z?  The likelihood ratio test of C x having covariance 1."""
    rounds, draws = noise.shape
    fresh = strategy.matrix(rounds) @ noise
    covariance = fresh @ fresh.T / draws
    _, log_determinant = np.linalg.slogdet(covariance)
    ratio = draws * (np.trace(covariance) - log_determinant - rounds)
    return float(stats.chi2(rounds * (rounds + 1) / 2).sf(ratio))


def without_a_buffer(strategy: BufferedToeplitz) -> BufferedToeplitz:
    return BufferedToeplitz(strategy.decays[:-1], strategy.scales[:-1])


@every_strategy
def test_simulated_noise_has_the_covariance_of_its_matrix(strategy):
    assert p_value(strategy, noise_of(strategy, 8)) > FALSE_ALARM


BUFFERS = BufferedToeplitz((0.95, 0.6, 0.1), (0.2, 0.3, 0.15))


@pytest.mark.parametrize(
    "wrong",
    [
        replace(BUFFERS, decays=(0.95, 0.5, 0.1)),
        replace(BUFFERS, scales=(0.2, 0.2, 0.15)),
        without_a_buffer(BUFFERS),
        INDEPENDENT,
    ],
    ids=["another decay", "another scale", "a missing buffer", "nothing taken back"],
)
def test_noise_of_a_wrong_buffer_is_noticed(wrong):
    assert p_value(BUFFERS, noise_of(wrong, 8)) < FALSE_ALARM


@pytest.mark.parametrize("strategy", [s for s in EXAMPLES if s != INDEPENDENT], ids=names)
def test_noise_that_forgets_what_it_has_to_take_back_is_noticed(strategy):
    assert p_value(strategy, noise_of(strategy, 8, forgets_after=4)) < FALSE_ALARM


# What is refused.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BufferedToeplitz((), ()), "one value for each buffer, got 0 and 0"),
        (lambda: BufferedToeplitz((0.5,), (0.1, 0.1)), "one value for each buffer, got 1 and 2"),
        (lambda: BufferedToeplitz((1.0,), (0.1,)), "decays must be strictly between 0 and 1"),
        (lambda: BufferedToeplitz((math.nan,), (0.1,)), "decays must be"),
        (lambda: BufferedToeplitz((0.5,), (-0.1,)), "scales must be"),
        (lambda: BufferedToeplitz((0.5,), (math.nan,)), "scales must be"),
        (lambda: BufferedToeplitz((0.5, 0.6), (0.5, 0.51)), "sum to at most 1, got 1.01"),
        (lambda: BandedToeplitz(()), r"values must begin with 1, got \(\)"),
        (lambda: BandedToeplitz((0.9, 0.1)), "values must begin with 1"),
        (lambda: BandedToeplitz((1.0, math.inf)), "values must be finite numbers, got inf"),
        (lambda: SquareRootToeplitz(0), "bands must be"),
        (lambda: Participation(0), "separation must be"),
        (lambda: Participation(1, at_most=0), "at_most must be"),
    ],
)
def test_a_strategy_without_a_guarantee_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@every_strategy
def test_a_strategy_survives_json(strategy):
    again = Strategy.from_json(json.loads(json.dumps(strategy.to_json())))
    assert again == strategy
    assert again.matrix(20).tobytes() == strategy.matrix(20).tobytes()


GROWING = BandedToeplitz((1.0, -3.0))  # its inverse has the coefficients 1, 3, 9, 27, ...


def test_noise_that_grows_is_refused_before_it_is_charged():
    """In round 29 it would be beyond 2^63, and the sum would be released as it is."""
    noise, turns = CorrelatedNoise(1.0, GROWING), MinSeparationSampler(2, 1.0)
    assert GROWING.sensitivity(Participation(2), 50) > 0  # which is all that the event needs
    noise.event(turns, 1.0, Position("main", 3))
    for rounds in (4, 1_000, 10_000):
        with pytest.raises(ValueError, match=r"at most 16 times as large as fresh noise, got"):
            noise.event(turns, 1.0, Position("main", rounds))


def test_noise_that_grows_is_never_added():
    with pytest.raises(ValueError, match="coefficients make noise that grows"):
        noise_of(GROWING, 20)


@every_strategy
def test_noise_of_a_strategy_in_use_does_not_grow(strategy):
    assert strategy.largest_row(2048) < 4
