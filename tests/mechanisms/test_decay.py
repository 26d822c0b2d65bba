import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.mechanisms.edp_sgd import NoiseDecay

RATES = st.floats(1e-3, 2.0)
TIMES = st.floats(0, 200)
DECAYS = st.one_of(
    st.just(NoiseDecay()), st.builds(NoiseDecay, st.sampled_from(["linear", "exponential"]), RATES)
)


@pytest.mark.parametrize(
    ("decay", "time", "factor"),
    [
        (NoiseDecay(), 7, 1.0),
        (NoiseDecay("linear", 0.5), 0, 1.0),
        (NoiseDecay("linear", 0.5), 2, 0.5),
        (NoiseDecay("linear", 0.02), 25.0, 1 / 1.5),
        (NoiseDecay("exponential", 0.5), 0, 1.0),
        (NoiseDecay("exponential", 0.5), 2, 1 / math.e),
        (NoiseDecay("exponential", 0.1), 2.5, math.exp(-0.25)),
    ],
)
def test_factors_are_those_of_the_paper(decay, time, factor):
    assert decay.factor(time) == pytest.approx(factor, rel=1e-15)


@given(decay=DECAYS, one=TIMES, two=TIMES)
def test_noise_never_rises(decay, one, two):
    early, late = sorted([one, two])
    assert 1 == decay.factor(0) >= decay.factor(early) >= decay.factor(late) > 0


@given(rate=RATES, time=st.floats(0.1, 200))
def test_exponential_decay_is_faster_than_linear(rate, time):
    assert NoiseDecay("exponential", rate).factor(time) < NoiseDecay("linear", rate).factor(time)


@pytest.mark.parametrize(
    ("name", "rate", "message"),
    [
        ("cubic", 0.1, "decay must be one of none, linear, exponential, got 'cubic'"),
        ("none", 0.1, "decay none has no rate, got a rate of 0.1"),
        ("linear", None, "decay linear needs a rate"),
        ("exponential", -1.0, "rate must be a finite number above 0, got -1.0"),
    ],
)
def test_a_setting_that_names_no_decay_is_refused(name, rate, message):
    with pytest.raises(ValueError, match=message):
        NoiseDecay(name, rate)


@pytest.mark.parametrize("rate", [0.0, -0.1, math.nan, math.inf])
@pytest.mark.parametrize("shape", ["linear", "exponential"])
def test_a_rate_that_is_no_decay_is_refused(shape, rate):
    with pytest.raises(ValueError, match="rate must be a finite number above 0"):
        NoiseDecay(shape, rate)


@pytest.mark.parametrize("time", [-1, math.nan, math.inf])
def test_a_time_before_the_first_is_refused(time):
    with pytest.raises(ValueError, match="time must be a finite number of at least 0"):
        NoiseDecay("linear", 0.1).factor(time)
