"""A user's update is added to the sum with the bits of clip, weigh, quantise and add."""

import math
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.mechanisms import summing
from tacit.mechanisms.clipping import FlatClip, NoClip, PerLayerClip, QuantileClip
from tacit.mechanisms.estimators import FixedDenominator, UserWeighting
from tacit.mechanisms.noise import IndependentNoise
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.samplers import PoissonSampler
from tacit.privacy import native

LARGE = 40_001  # values: enough for C++


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch):
    monkeypatch.delenv("TACIT_KERNEL", raising=False)
    summing._in_cpp.cache_clear()
    yield
    summing._in_cpp.cache_clear()


@pytest.fixture(scope="module")
def library():
    found = summing._in_cpp()
    if found is None:
        pytest.skip("no compiler")
    return found


def values_of(size, kind="float32", *, seed=0, share=0.3, scale=1.0):
    """Values of many magnitudes, most of them zero, as those of a sampled softmax are."""
    generator = np.random.default_rng(seed)
    values = generator.normal(size=size) * 10.0 ** generator.integers(-12, 1, size) * scale
    values[np.repeat(generator.random(size // 100 + 1) > share, 100)[:size]] = 0.0
    return values.astype(kind)


@pytest.mark.usefixtures("library")
@given(
    size=st.integers(0, 3 * 1024 + 70),
    kind=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 99),
    share=st.sampled_from([0.0, 0.3, 1.0]),
    scale=st.sampled_from([1e-20, 1.0, 1e6]),
)
def test_both_forms_have_the_same_bits(size, kind, seed, share, scale):
    values = values_of(size, kind, seed=seed, share=share, scale=scale)
    total = np.random.default_rng(seed).integers(-(2**40), 2**40, size)
    expected = total.copy()
    functions = summing._in_cpp()
    square, add = (getattr(functions, f"tacit_{verb}_{kind}") for verb in ("square", "add"))
    assert square(values.ctypes.data, size) == summing._square_in_numpy(values)
    add(total.ctypes.data, values.ctypes.data, size, 0.7, 2.0**30)
    summing._add_in_numpy_(expected, values, 0.7, 2.0**30)
    np.testing.assert_array_equal(total, expected)


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_the_sum_of_squares_is_right_to_rounding(kind):
    values = values_of(LARGE, kind)
    exact = math.fsum(float(value) ** 2 for value in values)
    assert summing.square_of(values) == pytest.approx(exact, rel=LARGE * 2.0**-52)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [0, 1023, 1024, LARGE - 1])
def test_what_is_not_finite_is_seen(bad, index):
    values = values_of(LARGE)
    values[index] = bad
    assert not math.isfinite(summing.square_of(values))


def test_memory_that_cpp_cannot_read_is_left_to_numpy():
    values, total = values_of(2 * LARGE)[::2], np.zeros(LARGE, np.int64)
    summing.add_truncated_(total, values, 1.0, 2.0**20)
    np.testing.assert_array_equal(total, np.trunc(values.astype(float) * 2**20).astype(np.int64))
    assert summing.square_of(values) == summing.square_of(values.copy())


@pytest.mark.usefixtures("library")
def test_a_library_that_computes_wrongly_is_as_good_as_none(monkeypatch):
    in_numpy = summing._square_in_numpy
    monkeypatch.setattr(summing, "_square_in_numpy", lambda values: in_numpy(values) * (1 + 1e-15))
    assert summing._in_cpp() is None


def test_without_a_compiler_numpy_is_used(monkeypatch):
    values = values_of(LARGE)
    before = summing.square_of(values)
    summing._in_cpp.cache_clear()
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    assert summing.square_of(values) == before
    assert summing._in_cpp() is None


def test_several_threads_build_once(monkeypatch):
    builds = []
    monkeypatch.setattr(native, "build", builds.append)
    threads = [threading.Thread(target=summing.square_of, args=(values_of(LARGE),))] * 1
    threads += [threading.Thread(target=summing.square_of, args=(values_of(LARGE),))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1


# A plan's `add` is `contribution`, added.

K = 1000


def plan(**fields):
    defaults = dict(
        population=K,
        sampler=PoissonSampler(0.1),
        clipper=FlatClip(1.0),
        estimator=FixedDenominator(float(K)),
        noise=IndependentNoise(1.2),
    )
    return RoundPlan(**(defaults | fields))


PLANS = {
    "flat": plan(),
    "adaptive": plan(adaptive=QuantileClip()),
    "weighted": plan(weighting=UserWeighting(50.0)),
    "weight-aware": plan(weighting=UserWeighting(50.0), weight_aware=True),
    "layers": plan(clipper=PerLayerClip.even(1.0, 2), layers=(LARGE // 2, LARGE - LARGE // 2)),
    "unclipped": plan(clipper=NoClip(), noise=None),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("in_cpp", [True, False])
@pytest.mark.parametrize(
    "update",
    [
        values_of(LARGE),
        values_of(LARGE, scale=1e-6),
        values_of(LARGE, "float64"),
        np.zeros(LARGE, np.float32),
        np.full(LARGE, np.nan, np.float32),
        np.full(LARGE, 3e38, np.float32),
        np.full(LARGE, 1e200),
    ],
    ids=["clipped", "within", "float64", "zero", "nan", "huge", "squares overflow"],
)
def test_adding_a_user_has_the_bits_of_its_contribution(name, update, in_cpp, monkeypatch):
    subject = PLANS[name]
    if not in_cpp:
        monkeypatch.setenv("TACIT_KERNEL", "torch")
    state = subject.initial_clip_state()
    if name == "unclipped" and np.abs(update).max() > 1e30:
        with pytest.raises(ValueError, match="integer sum cannot overflow"):
            subject.add(subject.empty(LARGE), update, 7, state)
        with pytest.raises(ValueError, match="integer sum cannot overflow"):
            subject.contribution(update, 7, state)
        return
    total, expected = subject.empty(LARGE), subject.empty(LARGE)
    for examples in (7, 80):
        subject.add(total, update, examples, state)
        expected += subject.contribution(update, examples, state)
    np.testing.assert_array_equal(total.update, expected.update)
    np.testing.assert_array_equal(total.bits, expected.bits)
    assert total.weight == expected.weight


def test_an_update_of_another_size_is_refused():
    subject = plan()
    total = subject.empty(LARGE)
    with pytest.raises(ValueError, match="same sizes"):
        subject.add(total, np.zeros(1, np.float32), 5, subject.initial_clip_state())
