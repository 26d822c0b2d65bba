"""eDP-SGD as a method of training: shares of several micro-batches, draws, and charges."""

import math

import numpy as np
import pytest
from scipy import stats

from tacit.mechanisms.edp_sgd import CalibratedEdpSgd, NoiseDecay, PaperEdpSgd
from tacit.mechanisms.layer_scaling import LayerScaling
from tacit.mechanisms.method import Plain, Work
from tacit.mechanisms.samplers import PoissonSampler
from tacit.privacy.events import Gaussian, NonPrivate, PoissonGaussian
from tacit.privacy.randomness import RunKey

SIZE = 40_000
KEY = RunKey.from_seed(5)


def streams(purpose, round, index=0):
    return KEY.stream(branch="main", round=round, attempt=0, purpose=purpose, index=index)


class Fixed:
    """Record i has the gradient rows[i]."""

    def __init__(self, rows):
        self.rows = np.asarray(rows, np.float32)

    def mean(self, units):
        return self.rows[units].mean(axis=0)


def method(micro_batches, workers, *, z=1.0, C=1.0, size=SIZE, decay=None):
    return CalibratedEdpSgd(
        workers,
        C,
        z,
        LayerScaling.none((size,)),
        decay or NoiseDecay(),
        sampler=PoissonSampler(0.25),
        micro_batches=micro_batches,
        steps=8,
    )


def update(chosen, gradients, step=0, batches=None):
    if batches is None:
        [batches] = chosen.draws(range(step, step + 1), len(gradients.rows), streams)
    shares = [
        chosen.noise_(
            chosen.share(Work(step, worker, batches, gradients)),
            step,
            worker,
            streams("noise", step, worker),
        )
        for worker in range(chosen.workers)
    ]
    return chosen.update(step, np.sum(shares, axis=0))


@pytest.mark.parametrize(("micro_batches", "workers"), [(2, 2), (8, 1), (8, 2), (9, 4)])
def test_the_noise_on_the_sum_is_the_claimed_one_however_it_is_shared(micro_batches, workers):
    """False alarms: 1e-6 each.  sqrt(2) more or less is rejected."""
    chosen = method(micro_batches, workers, z=0.7)
    empty = [np.empty(0, np.int64)] * micro_batches
    noise = update(chosen, Fixed(np.zeros((1, SIZE))), batches=empty) * micro_batches
    for scale, fits in ((1.0, True), (math.sqrt(2), False), (math.sqrt(0.5), False)):
        p = stats.chi2.sf(np.sum((noise / (0.7 * scale)) ** 2), SIZE)
        assert (5e-7 < p < 1 - 5e-7) == fits, scale
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 5 / math.sqrt(SIZE)


def test_one_record_moves_the_sum_by_twice_the_clip_norm_and_no_more():
    chosen = method(4, 2, z=0.0, C=1.0, size=3)
    big = Fixed([[100.0, 0, 0], [-300.0, 0, 0], [0, 5.0, 0]])
    with_it = [np.array([0, 1]), np.array([2]), np.empty(0, np.int64), np.empty(0, np.int64)]
    without = [np.array([0]), *with_it[1:]]
    moved = 4 * (update(chosen, big, batches=with_it) - update(chosen, big, batches=without))
    assert np.linalg.norm(moved) == pytest.approx(2.0)
    assert chosen.sensitivity == 2.0


def test_without_noise_the_workers_do_not_matter():
    rows = np.random.default_rng(0).normal(size=(40, 6))
    one, three = (update(method(6, workers, z=0.0, size=6), Fixed(rows)) for workers in (1, 3))
    np.testing.assert_allclose(one, three, rtol=1e-12)


def test_one_micro_batch_without_clip_and_noise_is_the_mean_gradient():
    rows = np.random.default_rng(1).normal(size=(9, 5))
    everybody = [np.arange(9)]
    found = update(method(1, 1, z=0.0, C=1e9, size=5), Fixed(rows), batches=everybody)
    np.testing.assert_allclose(found, rows.mean(axis=0), rtol=1e-5)


def printed(micro_batches, workers, *, z=1.0, C=1.0, scaling=None, size=SIZE):
    return PaperEdpSgd(
        workers,
        C,
        z,
        scaling or LayerScaling.none((size,)),
        micro_batches=micro_batches,
        batch_size=24,
        units=24,
    )


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_the_printed_algorithm_has_the_same_n_on_any_number_of_workers(workers):
    """Equation by equation: the mean of N clipped means, without noise."""
    rows = np.random.default_rng(2).normal(size=(24, 6))
    scaling = LayerScaling((0.5, 2.0), (2, 4), "private gradients")
    chosen = printed(8, workers, z=0.0, scaling=scaling)
    [batches] = chosen.draws(range(1), 24, streams)
    assert [len(batch) for batch in batches] == [3] * 8
    alpha = np.repeat([0.5, 2.0], [2, 4])
    expected = np.zeros(6)
    for batch in batches:
        scaled = rows[batch].mean(axis=0) / alpha
        expected += alpha * scaled * min(1, 1 / np.linalg.norm(scaled)) / 8
    found = update(chosen, Fixed(rows), batches=batches)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    if workers < 8:  # as many micro-batches as workers are something else
        other = printed(None, workers, z=0.0, scaling=scaling)
        assert not np.allclose(update(other, Fixed(rows)), expected, atol=1e-3)


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_the_printed_noise_is_that_of_n_micro_batches_on_any_number_of_workers(workers):
    """C z / N^1.5 on the average, as N workers have it.  False alarms: 1e-6 each."""
    chosen = printed(8, workers, z=0.7)
    noise = update(chosen, Fixed(np.zeros((24, SIZE))), batches=[np.arange(3)] * 8)
    by_workers = workers**-1.5  # if N were the number of workers
    for scale, fits in ((8**-1.5, True), (1.1 * 8**-1.5, False), (8**-1, False)):
        p = stats.chi2.sf(np.sum((noise / (0.7 * scale)) ** 2), SIZE)
        assert (5e-7 < p < 1 - 5e-7) == fits, scale
    if workers < 8:
        assert stats.chi2.cdf(np.sum((noise / (0.7 * by_workers)) ** 2), SIZE) < 1e-6


def test_the_printed_algorithm_is_charged_for_its_n():
    scaling = LayerScaling((2.0,), (SIZE,), "public batch")
    [(_, event)] = printed(8, 2, z=4.0, scaling=scaling).charges(range(1))
    assert event.noise_multiplier == pytest.approx(4.0 / (2 * math.sqrt(8) * 2.0))
    assert printed(8, 2).steps_of_epoch(24 + 7) == 1
    assert printed(8, 2).steps_of_epoch(24 + 8) == 2


@pytest.mark.parametrize("make", [method, printed])
def test_fewer_micro_batches_than_workers_are_refused(make):
    with pytest.raises(ValueError, match="micro_batches must be at least the number of workers"):
        make(2, 3)


def test_each_step_is_charged_for_its_own_noise():
    chosen = method(2, 2, z=4.0, decay=NoiseDecay("exponential", 0.5))
    charges = chosen.charges(range(4, 8))
    assert [step for step, _ in charges] == [4, 5, 6, 7]
    for step, event in charges:
        assert event == PoissonGaussian(0.25, 2 * math.exp(-0.5 * 0.25 * step))


def test_reshuffled_epochs_have_every_record_once():
    chosen = Plain(2, 8)
    batches = list(chosen.draws(range(6), 20, streams))
    assert chosen.steps_of_epoch(20) == 3
    orders = [
        np.concatenate([batch for step in epoch for batch in step]).tolist()
        for epoch in (batches[:3], batches[3:])
    ]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert orders[0] != orders[1]


def test_resumed_draws_are_the_same():
    chosen = Plain(2, 8)
    whole = list(chosen.draws(range(6), 20, streams))
    later = list(chosen.draws(range(4, 6), 20, streams))
    for one, other in zip(whole[4:], later, strict=True):
        assert [batch.tolist() for batch in one] == [batch.tolist() for batch in other]


def test_the_printed_algorithm_leaves_out_a_batch_that_is_too_small():
    scaling = LayerScaling((1.0,), (SIZE,), "private gradients")
    printed = PaperEdpSgd(4, 1.0, 1.0, scaling, batch_size=8, units=18)
    assert printed.steps_of_epoch(18) == 2  # the last 2 have not a record for each of 4 workers
    assert printed.steps_of_epoch(20) == 3
    [(step, event)] = printed.charges(range(2, 4))
    assert step == 2
    assert isinstance(event, NonPrivate)


def test_the_printed_algorithm_with_public_factors_is_a_gaussian_per_epoch():
    scaling = LayerScaling((2.0, 1.0), (10, 10), "architecture")
    printed = PaperEdpSgd(
        4, 1.0, 3.0, scaling, NoiseDecay("exponential", 0.1), batch_size=8, units=16
    )
    [(_, event)] = printed.charges(range(2, 4))  # the second epoch
    assert isinstance(event, Gaussian)
    assert event.noise_multiplier == pytest.approx(3.0 * math.exp(-0.1) / (2 * 2 * 2.0))
