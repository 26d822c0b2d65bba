"""Exposure of known cases."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.audit.exposure import exposure, sampled_exposure, sampled_rank


def test_third_and_a_half_of_sixteen_references_is_exposed_by_two_bits():
    assert sampled_rank(3.5, range(1, 17)) == 4
    assert sampled_exposure(3.5, range(1, 17)) == 2.0


@pytest.mark.parametrize(
    ("log_perplexity", "bits"), [(0.5, 4.0), (1.5, 3.0), (1.0, 3.0), (7.5, 1.0), (99.0, 0.0)]
)
def test_exposure_among_sixteen_references(log_perplexity, bits):
    assert sampled_exposure(log_perplexity, range(1, 17)) == bits


def test_first_of_all_suffixes_of_three_words_out_of_ten_thousand():
    assert exposure(1, 10_000.0**3) == pytest.approx(39.863137, abs=1e-6)
    assert exposure(10_000.0**3, 10_000.0**3) == 0


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.floats(0, 100))
def test_exposure_is_the_logarithm_of_the_share_that_is_as_likely(references, own):
    share = min(1 + sum(value <= own for value in references), len(references)) / len(references)
    assert sampled_exposure(own, references) == pytest.approx(-np.log2(share))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exposure(0.5, 16), "rank must be a finite number of at least 1, got 0.5"),
        (lambda: exposure(float("nan"), 16), "rank must be"),
        (lambda: exposure(1, 0), "possible must be a finite number of at least 1, got 0"),
        (lambda: exposure(1, float("inf")), "possible must be"),
        (lambda: exposure(17, 16), "rank must be at most the 16 possible, got 17"),
        (lambda: sampled_exposure(1.0, []), "references must be a list of at least one"),
        (lambda: sampled_exposure(1.0, [1.0, float("nan")]), "references must be finite"),
        (lambda: sampled_exposure(float("nan"), [1.0]), "log_perplexity must be a finite"),
    ],
    ids=range(8),
)
def test_nonsense_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
