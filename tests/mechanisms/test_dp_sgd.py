"""Statistical tests here have a false-alarm rate of one in a million each."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from tacit.mechanisms.clipping import FlatClip
from tacit.mechanisms.method import RESERVE, DpSgd, Plain, Work
from tacit.mechanisms.samplers import PoissonSampler
from tacit.privacy.events import Gaussian, NonPrivate, PoissonGaussian
from tacit.privacy.randomness import RunKey
from tests.oracles.dp_sgd import dp_sgd, noise_pieces

FALSE_ALARM = 1e-6
NOBODY = np.empty(0, np.int64)


class Given:
    """Records whose gradients are known: the rows of a matrix."""

    def __init__(self, rows):
        self.rows = np.asarray(rows, np.float64)

    def __len__(self):
        return len(self.rows)

    def mean(self, units):
        return self.rows[units].mean(axis=0).astype(np.float32)

    def clipped_sum(self, units, clip_norm):
        total = np.zeros(self.rows.shape[1])
        for unit in units:
            total += FlatClip(clip_norm).clip(self.rows[unit]).values
        return total


def streams(purpose, round, index=0):
    key = RunKey.from_seed(11)
    return key.stream(branch="main", round=round, attempt=0, purpose=purpose, index=index)


def method(*, workers=1, C=0.5, z=1.5, q=0.1, population=200):
    return DpSgd(workers, C, z, PoissonSampler(q), population)


def shares_of(dp, batches, gradients, step=0):
    """What all workers give, each with its noise."""
    shares = [dp.share(Work(step, i, batches, gradients)) for i in range(dp.workers)]
    return [dp.noise_(share, step, i, streams("noise", step, i)) for i, share in enumerate(shares)]


def total_of(dp, batches, gradients, step=0):
    """The sum of all workers' shares."""
    return sum(shares_of(dp, batches, gradients, step))


def step_of(dp, batches, gradients, step=0):
    return dp.update(step, total_of(dp, batches, gradients, step))


def split(units, workers):
    return np.array_split(np.asarray(units, np.int64), workers)


def p_value(values, stddev):
    """Two-sided: is this the spread of independent normal values of the given deviation?"""
    statistic = float(np.sum((np.asarray(values) / stddev) ** 2))
    law = stats.chi2(len(values))
    return 2 * min(law.cdf(statistic), law.sf(statistic))


# The step.


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    lot=st.integers(0, 7),
    workers=st.integers(1, 4),
    C=st.floats(0.01, 100),
    z=st.sampled_from([0.0, 0.3, 2.0]),
    q=st.floats(0.01, 1),
)
def test_a_step_is_algorithm_1(seed, lot, workers, C, z, q):
    rows = np.random.default_rng(seed).normal(0, 5, (7, 6))
    dp = method(workers=workers, C=C, z=z, q=q, population=300)
    parts = split(np.arange(lot), workers)
    found = step_of(dp, parts, Given(rows), step=3)
    expected = dp_sgd(
        rows[:lot].tolist(),
        draws=[  # each worker's piece of the vector
            float(draw)
            for i, piece in enumerate(noise_pieces(6, workers))
            for draw in streams("noise", 3, i).normal(piece.stop - piece.start)
        ],
        C=C / (1 + RESERVE),
        z=z * (1 + RESERVE),
        L=q * 300,
    )
    # The grid has at least 2^27 steps in the noise, and 2^35 in the clip norm.
    atol = C * max(z * 2**-27, 2**-40) / (q * 300)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=atol)


def test_without_clip_and_noise_it_is_plain_sgd_on_the_same_draws():
    rows = np.random.default_rng(0).normal(size=(200, 9)).astype(np.float32)
    gradients, q = Given(rows), 0.2
    dp, plain = method(workers=3, C=1e30, z=0.0, q=q), Plain(3, batch_size=40)
    steps = range(5)
    for step, batches in zip(steps, dp.draws(steps, 200, streams), strict=True):
        shares = (plain.share(Work(step, i, batches, gradients)) for i in range(3))
        mean = plain.update(step, sum(shares))
        drawn = sum(map(len, batches))
        # The mean over those drawn, but over the number that is expected.
        np.testing.assert_allclose(
            step_of(dp, batches, gradients, step), mean * drawn / (q * 200), rtol=2e-6, atol=1e-7
        )


def test_an_epoch_has_as_many_steps_as_a_record_waits_for_on_average():
    assert method(q=0.25).steps_of_epoch(999) == 4
    assert method(q=0.3).steps_of_epoch(999) == 4
    assert method(q=1.0).steps_of_epoch(999) == 1


# Noise and sensitivity.


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_the_noise_is_what_it_claims_however_many_workers_there_are(workers):
    C, z, q, K, size = 0.5, 1.5, 0.1, 200, 40_000
    dp = method(workers=workers, C=C, z=z, q=q, population=K)
    noise = step_of(dp, [NOBODY] * workers, Given(np.zeros((1, size))))
    claimed = C * z / (q * K)
    assert p_value(noise, claimed) > FALSE_ALARM
    assert stats.kstest(noise / claimed, "norm").pvalue > FALSE_ALARM
    assert p_value(noise, 0.96 * claimed) < FALSE_ALARM
    assert p_value(noise, 1.04 * claimed) < FALSE_ALARM
    if workers > 1:  # the whole of it from every worker, and an N-th of it
        assert p_value(noise, math.sqrt(workers) * claimed) < FALSE_ALARM
        assert p_value(noise, claimed / math.sqrt(workers)) < FALSE_ALARM


@pytest.mark.parametrize("workers", [1, 4])
def test_measured_noise_over_the_measured_move_is_the_multiplier_that_is_charged(workers):
    size = 40_000
    dp = method(workers=workers, C=0.7, z=1.3, q=0.1, population=500)
    silent = dataclasses.replace(dp, noise_multiplier=0.0)
    rows = np.zeros((5, size))
    rows[:, :5] = 1e3 * np.eye(5)
    gradients = Given(rows)
    everybody, without_one = split(range(5), workers), split(range(4), workers)
    move = step_of(silent, everybody, gradients) - step_of(silent, without_one, gradients)
    noise = step_of(dp, [NOBODY] * workers, gradients)
    [(_, event)] = dp.charges(range(7, 8))
    assert isinstance(event, PoissonGaussian)
    assert event.sampling_prob == 0.1
    ratio = noise / np.linalg.norm(move)
    assert p_value(ratio, event.noise_multiplier) > FALSE_ALARM
    assert p_value(ratio, 1.04 * event.noise_multiplier) < FALSE_ALARM
    # Of the clip norm, a part is kept for what rounding may do to the sum of the others.
    assert np.linalg.norm(move) * 0.1 * 500 * (1 + RESERVE) == pytest.approx(0.7, rel=1e-9)
    assert p_value(ratio, event.noise_multiplier / 2) < FALSE_ALARM  # if it could move by 2 C


ROWS = hnp.arrays(
    np.float64, (4, 5), elements=st.floats(-1e9, 1e9) | st.sampled_from([math.nan, math.inf])
)


@given(rows=ROWS, gone=st.integers(0, 3), workers=st.integers(1, 3))
def test_a_record_moves_the_sum_by_at_most_the_clip_norm(rows, gone, workers):
    dp = method(workers=workers, C=0.37, z=0.0)
    everybody = [np.arange(4)[np.arange(4) % workers == i] for i in range(workers)]
    others = [mine[mine != gone] for mine in everybody]
    gradients = Given(rows)
    move = total_of(dp, everybody, gradients) - total_of(dp, others, gradients)
    alone = FlatClip(dp.own_clip_norm).clip(rows[gone]).values
    assert np.linalg.norm(move) <= 0.37 / (1 + RESERVE) * (1 + 1e-12)
    np.testing.assert_allclose(move, alone, atol=1e-14)


def test_the_update_lies_on_a_public_grid_before_it_is_averaged():
    dp = method(C=1.0, z=1.0, q=0.5, population=256)  # so that the average is over 128
    rows = np.random.default_rng(3).normal(size=(3, 50))
    in_steps = step_of(dp, [np.arange(3)], Given(rows)) * 128 * 2**28
    np.testing.assert_array_equal(in_steps, np.rint(in_steps))
    silent = dataclasses.replace(dp, noise_multiplier=0.0)
    in_steps = step_of(silent, [np.arange(3)], Given(rows)) * 128 * 2**28
    assert (in_steps != np.rint(in_steps)).any()


def test_workers_and_steps_have_noise_of_their_own():
    dp, gradients = method(workers=2), Given(np.zeros((1, 20_000)))
    found = [
        share for step in range(2) for share in shares_of(dp, [NOBODY, NOBODY], gradients, step)
    ]
    mine = [share[share != 0] for share in found]  # each worker has the noise of half of the places
    assert [len(noise) for noise in mine] == [10_000] * 4
    correlations = np.corrcoef(mine)[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 5.5 / math.sqrt(10_000)


def test_a_share_has_no_noise_before_it_is_asked_for():
    dp, gradients = method(workers=2), Given(np.zeros((1, 30)))
    assert dp.adds_noise
    assert not dp.share(Work(0, 0, [NOBODY, NOBODY], gradients)).any()
    assert not method(z=0.0).adds_noise


# Draws.


@pytest.mark.parametrize("workers", [1, 3])
def test_every_record_joins_by_itself_and_goes_to_one_worker(workers):
    dp, units, steps = method(workers=workers, q=0.2), 400, 200
    joined = np.zeros((steps, units), int)
    sizes = np.zeros(workers, int)
    for step, batches in enumerate(dp.draws(range(steps), units, streams)):
        assert len(batches) == workers
        for worker, batch in enumerate(batches):
            np.add.at(joined[step], batch, 1)
            sizes[worker] += len(batch)
    assert joined.max() == 1
    assert stats.binomtest(int(joined.sum()), joined.size, 0.2).pvalue > FALSE_ALARM
    assert stats.binomtest(int(joined.sum()), joined.size, 0.22).pvalue < FALSE_ALARM
    # The number of those drawn varies as that of independent coins does.
    spread = joined.sum(axis=1).var(ddof=1) / (units * 0.2 * 0.8)
    law = stats.chi2(steps - 1)
    assert law.ppf(FALSE_ALARM) < spread * (steps - 1) < law.ppf(1 - FALSE_ALARM)
    if workers > 1:
        assert stats.chisquare(sizes).pvalue > FALSE_ALARM


def test_the_draws_of_a_step_do_not_depend_on_where_one_begins():
    dp = method(workers=2, q=0.3)
    whole = list(dp.draws(range(6), 50, streams))
    later = list(dp.draws(range(4, 6), 50, streams))
    for one, two in zip(whole[4:], later, strict=True):
        for mine, again in zip(one, two, strict=True):
            np.testing.assert_array_equal(mine, again)


def test_a_step_with_nobody_is_noised_and_charged_like_any_other():
    dp, gradients = method(), Given(np.ones((1, 1000)))
    assert step_of(dp, [NOBODY], gradients).all()
    assert len(dp.charges(range(10, 14))) == 4


# The account.


def test_every_step_is_charged_with_its_sampling_and_noise():
    assert method(z=0.8, q=0.05).charges(range(2, 4)) == [
        (2, PoissonGaussian(0.05, 0.8)),
        (3, PoissonGaussian(0.05, 0.8)),
    ]
    assert method(z=0.8, q=1.0).charges(range(1)) == [(0, Gaussian(0.8))]


def test_without_noise_nothing_is_claimed():
    [(step, event)] = method(z=0.0).charges(range(3, 9))
    assert step == 3
    assert isinstance(event, NonPrivate)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"workers": 0}, "workers must be"),
        ({"population": 0}, "population must be"),
        ({"C": 0.0}, "clip_norm must be between"),
        ({"C": math.nan}, "clip_norm must be between"),
        ({"z": -1.0}, "noise_multiplier must be"),
        ({"z": math.nan}, "noise_multiplier must be"),
        ({"q": 0.0}, "sampling_prob must be"),
        ({"q": math.nan}, "sampling_prob must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        method(**fields)
