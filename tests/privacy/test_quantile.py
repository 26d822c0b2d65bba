"""The table of polynomials is right, and both forms that use it give the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtri

from tacit.privacy import native, quantile
from tests.oracles import normal_quantile

Words = NDArray[np.uint64]

SIGN = np.uint64(2**63)


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TACIT_KERNEL", raising=False)
    quantile._in_cpp.cache_clear()
    yield
    quantile._in_cpp.cache_clear()


def edges() -> Words:
    """The first and the last words of every interval, and those around what is deep."""
    starts = [(64 + 2 * segment) << (depth - 6) for depth in range(53, 63) for segment in range(32)]
    starts.append(2**63)
    around = [start + step for start in starts for step in (-1025, -513, -1, 0, 1, 512, 1024)]
    return np.array([word for word in around if 0 <= word < 2**63], np.uint64)


def in_numpy(words: Words) -> NDArray[np.float64]:
    values = words.copy()
    quantile._in_numpy_(values)
    return values.view(np.float64)


@pytest.mark.slow
def test_the_table_is_that_of_fifty_digits() -> None:
    np.testing.assert_array_equal(normal_quantile.table(), quantile.TABLE)


def test_values_are_as_precise_as_the_guarantee_says() -> None:
    """|Phi(t) / u - 1| <= (1 + t^2) 2^-51, against 60 digits, in every interval and at its ends."""
    generator = np.random.default_rng(0)
    inside = [
        generator.integers(2**depth, 2 ** (depth + 1), 64, np.uint64) for depth in range(53, 63)
    ]
    words = np.concatenate([edges(), *inside])
    words = words[(words >= quantile.DEEP) & (words < SIGN)]
    with mpmath.workdps(60):
        for word, value in zip(words.tolist(), in_numpy(words).tolist(), strict=True):
            t, u = mpmath.mpf(value), mpmath.mpf(float(word)) / 2**64
            error = abs(mpmath.erfc(-t / mpmath.sqrt(2)) / 2 / u - 1)
            assert error <= (1 + t**2) * mpmath.mpf(2) ** -51, (word, value)


def test_values_agree_with_scipy_and_those_of_a_shifted_table_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = np.random.default_rng(1).integers(2**53, 2**63, 100_000, dtype=np.uint64)
    expected = ndtri(words.astype(np.float64) * 2.0**-64)
    np.testing.assert_allclose(in_numpy(words), expected, rtol=1e-15, atol=1e-15)
    np.testing.assert_array_equal(in_numpy(words ^ SIGN), -in_numpy(words))
    shifted = tuple(np.roll(column, 1) for column in quantile.TABLE.T)
    monkeypatch.setattr(quantile, "_COLUMNS", shifted)
    assert np.abs(in_numpy(words) - expected).max() > 1e-3


@pytest.mark.parametrize("sign", [0, SIGN])
def test_both_forms_give_the_same_bits_and_leave_deep_words_alone(sign: np.uint64) -> None:
    if quantile._in_cpp() is None:
        pytest.skip("no compiler")
    few = np.arange(2000, dtype=np.uint64)
    many = np.random.default_rng(2).integers(0, 2**63, 1 << 18, dtype=np.uint64)
    words = np.concatenate([edges(), few, many]) | np.uint64(sign)
    built, plain = words.copy(), words.copy()
    deep = quantile.to_normal_(built)
    np.testing.assert_array_equal(deep, quantile._in_numpy_(plain))
    np.testing.assert_array_equal(built, plain)
    np.testing.assert_array_equal(deep, np.flatnonzero((words & ~SIGN) < quantile.DEEP))
    np.testing.assert_array_equal(built[deep], words[deep])


def test_a_build_with_other_bits_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = tuple(flag.replace("=off", "=fast") for flag in quantile.SOURCE.flags)
    source = replace(quantile.SOURCE, flags=fused)
    if native.build(source) is None:
        pytest.skip("no compiler")
    monkeypatch.setattr(quantile, "SOURCE", source)
    processor = Path("/proc/cpuinfo")
    if not (processor.exists() and "fma" in processor.read_text(encoding="utf-8")):
        pytest.skip("a processor without fused operations")
    assert quantile._in_cpp() is None


def test_without_a_compiler_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    words = np.random.default_rng(3).integers(0, 2**64, 1 << 15, dtype=np.uint64)
    expected = in_numpy(words)
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    assert quantile._in_cpp() is None
    quantile.to_normal_(words)
    np.testing.assert_array_equal(words, expected.view(np.uint64))


def test_it_can_be_left_out_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_KERNEL", "torch")
    assert quantile._in_cpp() is None
