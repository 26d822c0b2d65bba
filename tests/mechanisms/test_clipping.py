import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tacit.mechanisms.clipping import Clipper, FlatClip, NoClip, PerLayerClip, clip_
from tests.oracles.estimators import squared_norm

CLIP_NORMS = st.floats(1e-30, 1e30) | st.sampled_from([1.0, 20.0, 7.9, 0.1, 1 / 3])
FINITE = st.floats(allow_nan=False, allow_infinity=False)
FINITE32 = st.floats(allow_nan=False, allow_infinity=False, width=32)
VECTORS = hnp.arrays(np.float64, st.integers(1, 8), elements=FINITE) | hnp.arrays(
    np.float32, st.integers(1, 8), elements=FINITE32
)


@st.composite
def near_the_bound(draw):
    """(update, S) with a norm within a few units in the last place of S, on either side."""
    clip_norm = draw(st.floats(1e-3, 1e3))
    direction = draw(
        hnp.arrays(np.float64, st.integers(1, 8), elements=st.floats(-1, 1)).filter(
            lambda x: np.linalg.norm(x) > 1e-100
        )
    )
    ulps = draw(st.integers(-16, 16))
    return direction * (clip_norm / np.linalg.norm(direction) * (1 + ulps * 2.0**-52)), clip_norm


@given(VECTORS, CLIP_NORMS)
def test_flat_clip_never_exceeds_its_norm_in_exact_arithmetic(update, clip_norm):
    clipped = FlatClip(clip_norm).clip(update)
    assert squared_norm(clipped.values) <= Fraction(clip_norm) ** 2
    assert clipped.values.dtype == np.float64


@given(near_the_bound())
def test_flat_clip_never_exceeds_its_norm_next_to_the_bound(case):
    update, clip_norm = case
    clipped = FlatClip(clip_norm).clip(update)
    assert squared_norm(clipped.values) <= Fraction(clip_norm) ** 2
    assert clipped.within == (bool(np.array_equal(clipped.values, update)),)


@given(near_the_bound())
def test_clipping_keeps_the_direction_and_nearly_all_of_the_norm(case):
    update, clip_norm = case
    clipped = FlatClip(clip_norm).clip(1e6 * update)
    np.testing.assert_allclose(clipped.values, update, rtol=1e-13, atol=1e-300)
    assert clipped.within == (False,)


@given(
    hnp.arrays(np.float64, 6, elements=FINITE),
    st.tuples(CLIP_NORMS, CLIP_NORMS, CLIP_NORMS),
)
def test_per_layer_clip_bounds_each_layer_and_the_whole_exactly(update, clip_norms):
    clipper = PerLayerClip(clip_norms)
    values = clipper.clip(update, (1, 3, 2)).values
    blocks = (values[:1], values[1:4], values[4:])
    for block, norm in zip(blocks, clip_norms, strict=True):
        assert squared_norm(block) <= Fraction(norm) ** 2
    assert squared_norm(values) <= Fraction(clipper.total_norm) ** 2


@given(CLIP_NORMS.filter(lambda s: 1e-20 < s < 1e20), st.integers(1, 40))
def test_even_split_has_the_given_total(clip_norm, layers):
    clipper = PerLayerClip.even(clip_norm, layers)
    assert clipper.norms == (clip_norm / math.sqrt(layers),) * layers
    assert clipper.total_norm == pytest.approx(clip_norm, rel=1e-15)


@given(VECTORS, CLIP_NORMS, st.sampled_from([0.0, math.nan, math.inf, 1e200]))
def test_clipping_in_place_gives_the_bits_of_flat_clip(update, clip_norm, odd):
    values = np.append(update, odd).astype(np.float64)
    expected = FlatClip(clip_norm).clip(values.copy()).values
    found = clip_(values, clip_norm)
    assert found is values
    np.testing.assert_array_equal(found, expected)


def test_per_layer_with_one_layer_is_flat():
    update = np.array([3.0, -4.0, 12.0])
    flat, per_layer = FlatClip(2.0).clip(update), PerLayerClip((2.0,)).clip(update, (3,))
    np.testing.assert_array_equal(flat.values, per_layer.values)
    assert flat.within == per_layer.within == (False,)


def test_per_layer_bits_say_which_layers_were_within():
    clipped = PerLayerClip((1.0, 1.0)).clip(np.array([0.5, 3.0, 4.0]), (1, 2))
    assert clipped.within == (True, False)
    np.testing.assert_allclose(clipped.values, [0.5, 0.6, 0.8], rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("clipper", [FlatClip(1.0), PerLayerClip((1.0, 1.0))], ids=lambda c: c.kind)
def test_clipping_never_writes_to_the_callers_array(clipper, dtype):
    for values in ([3.0, 4.0, 0.5], [1e300, 1.0, 0.0], [np.nan, 1.0, 2.0]):
        with np.errstate(over="ignore"):
            update = np.array(values).astype(dtype)
        before = update.tobytes()
        clipper.clip(update, (1, 2))
        assert update.tobytes() == before


def test_an_update_within_the_bound_is_not_touched():
    update = np.array([0.3, -0.4])
    clipped = FlatClip(1.0).clip(update)
    np.testing.assert_array_equal(clipped.values, update)
    assert clipped.within == (True,)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "clipper", [FlatClip(1.0), PerLayerClip((1.0, 1.0)), NoClip()], ids=lambda c: c.kind
)
def test_one_value_that_is_not_finite_makes_the_whole_update_zero(clipper, bad, dtype):
    update = np.array([50.0, 1.0, bad], dtype)
    clipped = clipper.clip(update, (2, 1))
    np.testing.assert_array_equal(clipped.values, np.zeros(3))
    assert clipped.within == (True,) * len(clipper.norms)
    assert np.isnan(update[2]) == np.isnan(bad), "the caller's array is left alone"


@pytest.mark.parametrize("clip_norm", [1e-30, 3e-24, 1.0, 1e30])
def test_updates_whose_squares_overflow_are_clipped_and_not_dropped(clip_norm):
    clipped = FlatClip(clip_norm).clip(np.array([3e300, -4e300, 5e-324]))
    np.testing.assert_allclose(clipped.values[:2], [0.6 * clip_norm, -0.8 * clip_norm], rtol=1e-14)
    assert squared_norm(clipped.values) <= Fraction(clip_norm) ** 2
    assert clipped.within == (False,)


def test_a_float32_norm_of_a_large_update_would_exceed_the_clip_norm():
    # The size of the papers' LSTM.  Summing squares one by one in float32 loses the small terms.
    n, clip_norm = 1_350_000, 1.0
    update = np.full(n, 1e-2, np.float32)
    naive = np.sqrt(np.cumsum(update * update, dtype=np.float32)[-1])
    true = math.sqrt(n) * float(update[0])
    naively_clipped = true * (clip_norm / float(naive))
    assert naively_clipped > 1.0001 * clip_norm
    values = FlatClip(clip_norm).clip(update).values
    # Equal values have an exact norm: n * value^2.
    assert n * Fraction(float(values[0])) ** 2 <= Fraction(clip_norm) ** 2
    assert np.all(values == values[0])
    assert n * float(values[0]) ** 2 == pytest.approx(1.0, rel=1e-8)


@given(st.integers(0, 1000))
def test_norm_is_the_same_bits_at_any_alignment_in_memory(seed):
    rng = np.random.default_rng(seed)
    update = rng.normal(size=301)
    buffer = np.empty(320)
    results = set()
    for offset in range(8):
        view = buffer[offset : offset + update.size]
        view[:] = update
        results.add(FlatClip(1.0).clip(view).values.tobytes())
    assert len(results) == 1


def test_no_clip_leaves_finite_updates_alone():
    update = np.array([1e300, -2.0])
    np.testing.assert_array_equal(NoClip().clip(update).values, update)
    assert NoClip().total_norm == math.inf


@pytest.mark.parametrize("clipper", [FlatClip(2.0), PerLayerClip((1.0, 2.0)), NoClip()])
def test_clipper_with_its_own_norms_is_itself(clipper: Clipper):
    assert clipper.with_norms(clipper.norms) == clipper


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FlatClip(0.0), "clip_norm must be between 1e-30 and 1e\\+30, got 0.0"),
        (lambda: FlatClip(-1.0), "clip_norm .* got -1.0"),
        (lambda: FlatClip(math.nan), "clip_norm .* got nan"),
        (lambda: FlatClip(math.inf), "clip_norm .* got inf"),
        (lambda: PerLayerClip((1.0, 0.0)), "clip_norms\\[1\\] .* got 0.0"),
        (lambda: PerLayerClip(()), "clip_norms must have one norm per layer"),
        (lambda: PerLayerClip.even(1.0, 0), "layers must be at least 1, got 0"),
        (lambda: PerLayerClip.even(math.nan, 3), "clip_norm"),
        (lambda: PerLayerClip((1.0, 1.0)).clip(np.ones(3)), "sizes of 2 layers, .* got none"),
        (lambda: PerLayerClip((1.0, 1.0)).clip(np.ones(3), (1, 1, 1)), "2 layers, .* got 3"),
        (lambda: PerLayerClip((1.0, 1.0)).clip(np.ones(3), (1, 1)), "size, 3, got 2"),
        (lambda: FlatClip(1.0).clip(np.ones((2, 2))), "flat vector .* 2 dimensions"),
        (lambda: FlatClip(1.0).clip(np.ones(2, np.float16)), "float32 or float64, .* float16"),
        (lambda: FlatClip(1.0).clip(np.ones(2, np.int64)), "float32 or float64, .* int64"),
    ],
)
def test_bad_values_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()
