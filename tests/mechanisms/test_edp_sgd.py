"""Statistical tests here have a false-alarm rate of one in a million each."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from tacit.mechanisms.edp_sgd import CalibratedEdpSgd, NoiseDecay, PaperEdpSgd
from tacit.mechanisms.layer_scaling import LayerScaling
from tacit.mechanisms.method import Work, _split_among
from tacit.mechanisms.samplers import FixedSizeSampler, PoissonSampler
from tacit.privacy.randomness import RunKey
from tacit.privacy.stream import LARGEST_NORMAL
from tests.oracles.dp_sgd import noise_pieces
from tests.oracles.edp_sgd import edp_sgd

FALSE_ALARM = 1e-6
SIZES = (3, 1, 4)
SCALING = LayerScaling((0.25, 3.0, 1.0), SIZES, "public batch")
FROM_PRIVATE = dataclasses.replace(SCALING, source="private gradients")
DECAYS = [NoiseDecay(), NoiseDecay("linear", 0.3), NoiseDecay("exponential", 0.1)]


def streams(purpose, round, index=0):
    key = RunKey.from_seed(11)
    return key.stream(branch="main", round=round, attempt=0, purpose=purpose, index=index)


class Given:
    """Micro-batch i has this mean gradient."""

    def __init__(self, gradients):
        self.gradients = gradients

    def mean(self, units):
        return self.gradients[units[0]]


def shares(method, gradients, step=0):
    """What every worker makes of its micro-batch's mean gradient; None: it has no records."""
    batches = [np.array([i] * (g is not None), np.int64) for i, g in enumerate(gradients)]
    return [
        method.noise_(
            method.share(Work(step, worker, batches, Given(gradients))),
            step,
            worker,
            streams("noise", step, worker),
        )
        for worker in range(method.workers)
    ]


def update(method, gradients, step=0):
    return method.update(step, sum(shares(method, gradients, step)))


def calibrated(*, q=0.1, workers=4, C=0.5, z=1.5, scaling=SCALING, decay=None):
    return CalibratedEdpSgd(
        workers, C, z, scaling, decay or NoiseDecay(), sampler=PoissonSampler(q), steps=100
    )


def paper(*, workers=4, C=0.5, z=1.5, scaling=FROM_PRIVATE, decay=None):
    # With a record for each worker, a step is an epoch.
    return PaperEdpSgd(
        workers, C, z, scaling, decay or NoiseDecay(), batch_size=workers, units=workers
    )


def p_value(values, stddev):
    """Two-sided: is this the spread of independent normal values of the given deviation?"""
    statistic = float(np.sum((np.asarray(values) / stddev) ** 2))
    law = stats.chi2(len(values))
    return 2 * min(law.cdf(statistic), law.sf(statistic))


def in_layers(vector, sizes=SIZES):
    return [part.tolist() for part in np.split(vector, np.cumsum(sizes)[:-1])]


# The printed algorithm.


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    workers=st.integers(1, 5),
    C=st.floats(0.01, 100),
    z=st.floats(0, 3),
    decay=st.sampled_from(DECAYS),
    epoch=st.integers(0, 30),
)
def test_paper_step_is_algorithm_1(seed, workers, C, z, decay, epoch):
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 6, workers)
    examples = [rng.normal(0, 5, (count, sum(SIZES))) for count in counts]
    method = paper(workers=workers, C=C, z=z, decay=decay)
    expected = edp_sgd(
        [[in_layers(gradient) for gradient in batch] for batch in examples],
        draws=[in_layers(streams("noise", epoch, i).normal(sum(SIZES))) for i in range(workers)],
        z0=z,
        C=C,
        decay=decay.factor,
        alpha=SCALING.factors,
        epoch=epoch,
    )
    found = update(method, [batch.mean(axis=0) for batch in examples], epoch)
    # The sum is rounded to a grid of at least 2^27 steps in the noise, and 2^35 in the clip norm.
    relative = z * decay.factor(epoch) / math.sqrt(workers)
    atol = C * max(relative * 2**-27, SCALING.largest * 2**-35) + 1e-12
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-12, atol=atol)


def test_the_printed_algorithms_sum_lies_on_a_public_grid():
    """C = z = 1 and alpha_k <= 4: 2^28 steps in the noise of 1 / sqrt(4), or coarser."""
    scaling = LayerScaling((4.0, 1.0, 0.5), SIZES, "public batch")
    rng = np.random.default_rng(3)
    for z, on_grid in ((1.0, True), (0.0, False)):
        method = paper(workers=4, C=1.0, z=z, scaling=scaling)
        in_steps = update(method, rng.normal(size=(4, 8))) * 4 * 2**29
        assert (in_steps == np.rint(in_steps)).all() == on_grid


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_noise_of_the_printed_algorithm_is_smaller_than_the_paper_says(workers):
    C, z = 0.5, 1.5
    scaling = LayerScaling.none((20_000,))
    method = paper(workers=workers, C=C, z=z, scaling=scaling)
    zero = np.zeros(20_000)
    noise = update(method, [zero] * workers)
    assert p_value(noise, C * z / workers**1.5) > FALSE_ALARM
    if workers > 1:
        assert p_value(noise, C * z / workers) < FALSE_ALARM
    assert p_value(noise, 1.1 * C * z / workers**1.5) < FALSE_ALARM


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_effective_multiplier_of_the_printed_algorithm_by_simulation(workers):
    """Measured noise over the measured move, in the layer of the largest alpha_k."""
    size = 20_000
    scaling = LayerScaling((0.5, 2.0), (size, size), "public batch")
    method = paper(workers=workers, C=0.5, z=1.5, scaling=scaling)
    silent = dataclasses.replace(method, noise_multiplier=0.0)
    base = np.zeros(2 * size)
    base[size] = 100.0  # far outside of the clip norm, in the second layer
    # One record turns the mean of the first worker around.
    one, other = (update(silent, [first] + [base] * (workers - 1)) for first in (base, -base))
    moved = np.linalg.norm(one - other)
    assert moved == pytest.approx(2 * 0.5 * 2.0 / workers, rel=1e-9)

    noise = update(method, [0 * base] * workers)
    claimed = 1.5 / (2 * math.sqrt(workers) * scaling.largest)
    assert p_value(noise / moved, claimed) > FALSE_ALARM
    assert p_value(noise / moved, 1.05 * claimed) < FALSE_ALARM
    assert p_value(noise / moved, 1.5) < FALSE_ALARM  # what the paper accounts


def test_paper_splits_a_batch_evenly_and_in_order():
    pieces = paper(workers=3).split(np.arange(10, 18))
    assert [piece.tolist() for piece in pieces] == [[10, 11, 12], [13, 14, 15], [16, 17]]


def test_paper_refuses_a_batch_smaller_than_the_number_of_workers():
    with pytest.raises(ValueError, match="at least one record for each of 4 workers, got 3"):
        paper().split(np.arange(3))


def test_a_record_that_leaves_shifts_the_others_of_a_contiguous_split():
    """Why the printed algorithm has no figure under add/remove-one."""
    method = paper(workers=4)
    before = method.split(np.arange(12))
    after = method.split(np.arange(1, 12))
    changed = sum(set(a) - {0} != set(b) for a, b in zip(before, after, strict=True))
    assert changed > 1


# The calibrated algorithm.


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), workers=st.integers(1, 5), z=st.sampled_from([0.0, 1e-6, 2]))
def test_calibrated_step_is_scale_clip_noise_sum_rescale(seed, workers, z):
    rng = np.random.default_rng(seed)
    gradients = [rng.normal(0, rng.choice([0.01, 5]), sum(SIZES)) for _ in range(workers)]
    method = calibrated(workers=workers, C=0.7, z=z, q=0.25, decay=NoiseDecay("linear", 0.4))
    step = 10  # t = 2.5, so d(t) = 1/2
    alpha = np.repeat(SCALING.factors, SIZES)
    total = np.zeros(sum(SIZES))
    for gradient in gradients:
        scaled = gradient / alpha
        total += scaled * min(1, 0.7 / np.linalg.norm(scaled))
    for i, piece in enumerate(noise_pieces(sum(SIZES), workers)):
        draws = streams("noise", step, i).normal(piece.stop - piece.start)
        total[piece] += draws * 0.7 * (z / 2)
    # Every worker rounds to the grid once, and its noise once; the update is in float32.
    grid = method.grid(step)
    atol = 1e-12 if grid is None else 2 * grid.step * SCALING.largest
    found = update(method, gradients, step)
    np.testing.assert_allclose(found, alpha * total / workers, rtol=2**-23, atol=atol)


def test_without_clip_noise_and_scaling_it_is_the_mean_of_the_workers_gradients():
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(3, sum(SIZES)))
    method = calibrated(workers=3, C=1e30, z=0.0, scaling=LayerScaling.none(SIZES))
    np.testing.assert_allclose(
        update(method, gradients), gradients.mean(axis=0), rtol=1e-15, atol=1e-15
    )


@pytest.mark.parametrize("decay", DECAYS, ids=lambda decay: decay.shape)
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_calibrated_noise_is_what_it_claims_in_every_layer(workers, decay):
    C, z, q, step, size = 0.5, 1.5, 0.1, 25, 20_000
    scaling = LayerScaling((0.2, 4.0), (size, size), "public batch")
    method = calibrated(q=q, workers=workers, C=C, z=z, scaling=scaling, decay=decay)
    noise = update(method, [None] * workers, step)
    claimed = C * z * decay.factor(step * q) / workers  # in the scaled space, on the average
    assert method.noise_stddev(step) / workers == pytest.approx(claimed, rel=1e-14)
    for layer, alpha in zip(np.split(noise, 2), scaling.factors, strict=True):
        assert p_value(layer, alpha * claimed) > FALSE_ALARM
        assert stats.kstest(layer / (alpha * claimed), "norm").pvalue > FALSE_ALARM
        assert p_value(layer, 0.95 * alpha * claimed) < FALSE_ALARM
        assert p_value(layer, 1.05 * alpha * claimed) < FALSE_ALARM
        assert p_value(layer, claimed) < FALSE_ALARM  # noise after rescaling
        if workers > 1:
            # Noise as the paper divides it, and the whole of it from every worker.
            assert p_value(layer, alpha * claimed / math.sqrt(workers)) < FALSE_ALARM
            assert p_value(layer, alpha * claimed * math.sqrt(workers)) < FALSE_ALARM


def test_the_same_tests_reject_the_noise_of_the_printed_algorithm():
    size, workers = 20_000, 8
    scaling = LayerScaling((0.2, 4.0), (size, size), "public batch")
    printed = paper(workers=workers, scaling=scaling)
    zero = np.zeros(2 * size)
    noise = update(printed, [zero] * workers)
    claimed = calibrated(workers=workers, scaling=scaling).noise_stddev(0) / workers
    for layer, alpha in zip(np.split(noise, 2), scaling.factors, strict=True):
        assert p_value(layer, alpha * claimed) < FALSE_ALARM
        assert p_value(layer, claimed) < FALSE_ALARM
        assert p_value(layer, claimed / math.sqrt(workers)) > FALSE_ALARM


def test_workers_draw_the_noise_of_different_places_and_independently():
    method = calibrated(workers=2, scaling=LayerScaling.none((40_000,)))
    one, two = shares(method, [None, None])
    assert one[:20_000].all()
    assert two[20_000:].all()
    assert not one[20_000:].any()
    assert not two[:20_000].any()
    assert abs(stats.pearsonr(one[:20_000], two[20_000:]).statistic) < 5 / math.sqrt(20_000)
    assert abs(stats.pearsonr(one, shares(method, [None, None], 1)[0]).statistic) < 5 / 200


FLOATS = st.floats(-1e9, 1e9) | st.sampled_from([math.nan, math.inf, 1e308])
GRADIENTS = st.none() | hnp.arrays(np.float64, sum(SIZES), elements=FLOATS)


@settings(max_examples=100, deadline=None)
@given(others=st.lists(GRADIENTS, min_size=2, max_size=2), one=GRADIENTS, two=GRADIENTS)
def test_no_change_of_one_micro_batch_moves_the_sum_by_more_than_the_sensitivity(others, one, two):
    method = calibrated(workers=3, C=0.37, z=0.0)
    with_one, with_two = (sum(shares(method, [mine, *others])) for mine in (one, two))
    moved = np.linalg.norm(with_one - with_two)
    assert moved <= method.sensitivity * (1 + 1e-12)


@settings(max_examples=100, deadline=None)
@given(
    others=st.lists(GRADIENTS, min_size=2, max_size=2),
    one=GRADIENTS,
    two=GRADIENTS,
    z=st.sampled_from([1e-6, 1e-3, 1.0, 100.0]),
)
def test_neither_does_it_on_the_grid_to_the_last_unit(others, one, two, z):
    """In exact arithmetic, and in sums of three."""
    method = calibrated(workers=3, C=0.37, z=z)
    grid = method.grid(0)

    def in_all(gradients):
        units = [method.clipped_on(grid, values) for values in gradients if values is not None]
        return [sum(map(int, column)) for column in zip([0] * sum(SIZES), *units, strict=True)]

    apart = [a - b for a, b in zip(in_all([one, *others]), in_all([two, *others]), strict=True)]
    moved = sum(value**2 for value in apart) * Fraction(grid.step) ** 2
    assert moved <= Fraction(method.sensitivity) ** 2


@settings(max_examples=300, deadline=None)
@given(C=st.floats(1e-6, 1e6), workers=st.integers(1, 5000), z=st.floats(1e-9, 1e4))
def test_a_sum_of_shares_never_leaves_32_bits(C, workers, z):
    """All vectors along one axis, and the largest noise that there is on it."""
    method = calibrated(workers=workers, C=C, z=z)
    grid = method.grid(0)
    largest = Fraction(C) * workers + Fraction(LARGEST_NORMAL) * Fraction(C) * Fraction(z)
    assert largest / Fraction(grid.step) + 1 < 2**31
    assert largest / Fraction(grid.step) > 2**26  # and most of the bits are used


@pytest.mark.parametrize("size", [1, 2, 50])
def test_one_record_reaches_the_sensitivity_whatever_the_size_of_its_micro_batch(size):
    method = calibrated(workers=1, C=0.37, z=0.0)
    others = np.tile(np.array([5.0] + [0.0] * 7), (size, 1))
    record = -1e6 * others[:1]
    [without] = shares(method, [others.mean(axis=0)])
    [joined] = shares(method, [np.concatenate([others, record]).mean(axis=0)])
    assert np.linalg.norm(joined - without) == pytest.approx(method.sensitivity, rel=1e-12)
    [alone], [nobody] = shares(method, [record[0]]), shares(method, [None])
    assert np.linalg.norm(alone - nobody) == pytest.approx(method.sensitivity / 2, rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_counts_as_none(bad):
    method = calibrated(workers=1)
    gradient = np.full(sum(SIZES), bad)
    np.testing.assert_array_equal(shares(method, [gradient]), shares(method, [None]))


def test_update_lies_on_a_public_grid_before_it_is_rescaled():
    method = calibrated(workers=2, C=1.0, z=1.0, scaling=LayerScaling.none(SIZES))
    rng = np.random.default_rng(3)
    in_steps = update(method, rng.normal(size=(2, 8))) * 2
    in_steps *= 2**27  # C = 1 and z = 1: a step of 2^-27 or coarser
    np.testing.assert_array_equal(in_steps, np.rint(in_steps))


def test_float32_gradients_are_clipped_in_float64_and_stay_as_they_are():
    method = calibrated(workers=1, z=0.0)
    gradient = np.linspace(-9, 9, 8, dtype=np.float32)
    before = gradient.copy()
    [share] = shares(method, [gradient])
    np.testing.assert_array_equal(gradient, before)
    np.testing.assert_array_equal(share, shares(method, [gradient.astype(np.float64)])[0])


def test_every_record_picks_its_worker_uniformly_and_by_itself():
    cohort = np.arange(0, 80_000, 2)
    batches = _split_among(4, cohort, streams("workers", 0))
    np.testing.assert_array_equal(np.sort(np.concatenate(batches)), cohort)
    counts = np.array([len(batch) for batch in batches])
    assert stats.chisquare(counts).pvalue > FALSE_ALARM
    assert len(set(counts)) > 1  # an even split would depend on who else is there
    worker = np.empty(len(cohort), int)
    for index, batch in enumerate(batches):
        worker[batch // 2] = index
    pairs = np.bincount(4 * worker[::2] + worker[1::2], minlength=16)  # of neighbours
    assert stats.chisquare(pairs).pvalue > FALSE_ALARM


def test_a_worker_without_records_is_there_all_the_same():
    batches = _split_among(4, np.array([5]), streams("workers", 0))
    assert sorted(len(batch) for batch in batches) == [0, 0, 0, 1]
    empty = _split_among(4, np.empty(0, np.int64), streams("workers", 0))
    assert [len(batch) for batch in empty] == [0, 0, 0, 0]


# Scaling.


def test_scaling_from_a_gradient_is_in_proportion_to_the_norms_of_its_layers():
    gradient = np.array([3.0, 4.0, 0.0, 10.0, 1.0, 1.0, 1.0, 1.0])
    scaling = LayerScaling.from_gradient(gradient, SIZES, source="public batch")
    mean = math.sqrt((25 + 100 + 4) / 3)
    np.testing.assert_allclose(scaling.factors, np.array([5, 10, 2]) / mean, rtol=1e-14)
    scaled = scaling.scaled(gradient)
    assert np.linalg.norm(scaled) == pytest.approx(np.linalg.norm(gradient), rel=1e-14)
    norms = [np.linalg.norm(part) for part in np.split(scaled, [3, 4])]
    np.testing.assert_allclose(norms, mean, rtol=1e-14)
    np.testing.assert_allclose(scaling.rescale_to(scaled, scaled, 1.0), gradient, rtol=1e-14)


def test_a_layer_without_a_gradient_keeps_a_small_factor():
    gradient = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    scaling = LayerScaling.from_gradient(gradient, SIZES, source="public batch")
    assert scaling.factors[0] == 1e-3


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_a_first_gradient_without_a_norm_is_refused(value):
    with pytest.raises(ValueError, match="first gradient must be finite and not 0 everywhere"):
        LayerScaling.from_gradient(np.full(8, value), SIZES, source="public batch")


@pytest.mark.parametrize(
    ("factors", "sizes", "source", "message"),
    [
        ((), (), "architecture", "factors must have one number for each"),
        ((1.0,), (1, 2), "architecture", "got 1 factors and 2 sizes"),
        ((0.0,), (1,), "architecture", "factors must be a finite number above 0, got 0.0"),
        ((math.nan,), (1,), "architecture", "factors must be a finite number above 0, got nan"),
        ((1.0,), (0,), "architecture", "sizes must be at least 1, got 0"),
        ((1.0,), (1,), "a guess", "source must be one of architecture, public batch"),
    ],
)
def test_a_scaling_that_makes_no_sense_is_refused(factors, sizes, source, message):
    with pytest.raises(ValueError, match=message):
        LayerScaling(factors, sizes, source)


def test_calibrated_refuses_factors_from_private_gradients():
    with pytest.raises(ValueError, match="scaling must be public for edp-sgd"):
        calibrated(scaling=FROM_PRIVATE)


def test_calibrated_refuses_other_samplers():
    with pytest.raises(ValueError, match="sampler must be a PoissonSampler for edp-sgd"):
        CalibratedEdpSgd(2, 1.0, 1.0, SCALING, sampler=FixedSizeSampler(100, 10))


@pytest.mark.parametrize("make", [calibrated, paper])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"workers": 2.0}, "workers must be a whole number, got 2.0"),
        ({"C": 0.0}, "clip_norm must be between"),
        ({"C": math.nan}, "clip_norm must be between"),
        ({"z": -1.0}, "noise_multiplier must be a finite number of at least 0, got -1.0"),
        ({"z": math.nan}, "noise_multiplier must be a finite number of at least 0, got nan"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, fields, message):
    with pytest.raises(ValueError, match=message):
        make(**fields)


def test_gradients_of_another_size_are_refused():
    for shape, said in (((7,), r"\(7,\)"), ((2, 4), r"\(2, 4\)")):
        with pytest.raises(ValueError, match=rf"flat vector of 8 values.* got the shape {said}"):
            shares(calibrated(workers=1), [np.zeros(shape)])
