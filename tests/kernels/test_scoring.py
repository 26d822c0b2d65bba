"""Scores in C++ are those in torch: ranks exactly, log-probabilities to rounding."""

import threading
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.kernels import scoring
from tacit.privacy import native


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch):
    monkeypatch.delenv("TACIT_KERNEL", raising=False)
    scoring._in_cpp.cache_clear()
    yield
    scoring._in_cpp.cache_clear()


@pytest.fixture(scope="module")
def function():
    found = scoring._in_cpp()
    if found is None:
        pytest.skip("no compiler")
    return found


def logits_of(rows, words, *, seed=0, steps=0.0, scale=4.0):
    """Random logits, rounded to multiples of `steps` so that they tie."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.empty(rows, words).normal_(std=scale, generator=generator)
    targets = torch.randint(words, (rows,), generator=generator)
    return (logits / steps).round() * steps if steps else logits, targets


def assert_same(function, logits, targets, never=None):
    found, *ranks = scoring._call(function, logits, targets, never)
    expected, *expected_ranks = scoring._in_torch(logits, targets, never)
    assert found.dtype == torch.float64
    assert len(ranks) == len(expected_ranks) == 2
    assert all(map(torch.equal, ranks, expected_ranks))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


@given(
    rows=st.integers(1, 9),
    words=st.integers(1, 300),
    steps=st.sampled_from([0.0, 0.5, 4.0, 100.0]),  # the last: all logits are equal
    special=st.lists(
        st.tuples(
            st.integers(0, 8),
            st.integers(0, 299),
            st.sampled_from([torch.nan, torch.inf, -torch.inf, -0.0, 3e38, -3e38, 1e-40]),
        ),
        max_size=4,
    ),
    never=st.none() | st.integers(0, 299),
    seed=st.integers(0, 99),
)
def test_scores_are_those_of_torch(function, rows, words, steps, special, never, seed):
    logits, targets = logits_of(rows, words, seed=seed, steps=steps)
    for row, word, value in special:
        logits[row % rows, word % words] = value
    assert_same(function, logits, targets, None if never is None else never % words)


@pytest.mark.parametrize("words", [*range(1, 20), 63, 64, 65, 127, 128, 129, 10_000, 10_007])
def test_every_word_may_be_the_target_and_any_number_of_words_is_fine(function, words):
    targets = torch.unique(torch.linspace(0, words - 1, 70).to(torch.int64))
    for steps in (0.0, 2.0):
        logits, _ = logits_of(len(targets), words, steps=steps)
        assert_same(function, logits, targets)
        assert_same(function, logits, targets, words // 2)


@pytest.mark.parametrize("form", ["C++", "torch"])
def test_a_word_that_may_not_be_chosen_still_counts_among_all(function, form):
    call = {"C++": lambda *given: scoring._call(function, *given), "torch": scoring._in_torch}[form]
    logits = torch.tensor([[1.0, 5.0, 3.0, 3.0], [1.0, 3.0, 3.0, 3.0], [9.0, 5.0, 3.0, 3.0]])
    targets = torch.tensor([3, 2, 1])
    _, ranks, of_all = call(logits, targets, 1)  # before the target, tied before it, the target
    assert ranks.tolist() == [1, 0, 1]
    assert of_all.tolist() == [2, 1, 1]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [0, 5, 500, 1001, 1002])
def test_one_bad_logit_anywhere_makes_the_row_predict_nothing(function, bad, place):
    logits, targets = logits_of(3, 1003)
    logits[1, place] = bad
    log_probs, ranks, of_all = scoring._call(function, logits, targets, None)
    assert log_probs.isinf().tolist() == [False, True, False]
    assert ranks[1] == of_all[1] == 1002
    assert_same(function, logits, targets)


def test_a_nan_of_any_bits_is_found(function):
    bits = np.array([0x7FC00001, 0xFFFFFFFF, 0x7F800001, 0x7FC001FF], np.uint32)
    logits, targets = logits_of(len(bits), 1003)
    logits[:, 77] = torch.from_numpy(bits.view(np.float32))
    log_probs, ranks, _ = scoring._call(function, logits, targets, None)
    assert log_probs.tolist() == [-torch.inf] * 4
    assert ranks.tolist() == [1002] * 4


@pytest.mark.parametrize("scale", [1e-3, 1.0, 40.0, 1e4, 1e37])
def test_log_probabilities_are_those_of_float64(function, scale):
    logits, targets = logits_of(20, 10_000, scale=scale)
    found, *_ = scoring._call(function, logits, targets, None)
    exact = torch.log_softmax(logits.double(), 1).gather(1, targets.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-6)


def test_rows_may_lie_apart(function):
    whole, targets = logits_of(6, 1100)
    assert_same(function, whole[::2, 50:1053], targets[::2] % 1003)


def test_what_cpp_cannot_read_is_left_to_torch(function):
    logits, targets = logits_of(4, 1003)
    expected = scoring._in_torch(logits.double(), targets)
    with mock.patch.object(scoring, "_call", side_effect=AssertionError):
        for found, wanted in zip(
            scoring.log_probs_and_ranks(logits.double(), targets), expected, strict=True
        ):
            assert torch.equal(found, wanted)
        scoring.log_probs_and_ranks(logits.t().contiguous().t(), targets)
        with pytest.raises((RuntimeError, IndexError)):
            scoring.log_probs_and_ranks(logits, targets + 1003)
        with pytest.raises(IndexError):
            scoring.log_probs_and_ranks(logits, targets, 1003)


def test_large_vocabularies_use_cpp_and_torch_if_asked_for(function, monkeypatch):
    logits, targets = logits_of(4, 1003)
    with mock.patch.object(scoring, "_call", wraps=scoring._call) as call:
        scoring.log_probs_and_ranks(logits, targets)
        assert call.call_count > 1  # the check of agreement is one
        scoring._in_cpp.cache_clear()
        call.reset_mock()
        monkeypatch.setenv("TACIT_KERNEL", "torch")
        scoring.log_probs_and_ranks(logits, targets)
        call.assert_not_called()


@pytest.mark.usefixtures("function")
@pytest.mark.parametrize("what", [0, 1, 2])
def test_a_function_that_computes_wrongly_is_as_good_as_none(monkeypatch, what):
    in_torch = scoring._in_torch

    def slightly_else(*arguments):
        result = in_torch(*arguments)
        result[what][-1] += (0.001, 1, 1)[what]
        return result

    monkeypatch.setattr(scoring, "_in_torch", slightly_else)
    assert scoring._in_cpp() is None
    logits, targets = logits_of(4, 1003)
    with mock.patch.object(scoring, "_call", side_effect=AssertionError):
        scoring.log_probs_and_ranks(logits, targets)


def test_without_a_compiler_or_the_sources_torch_is_used(monkeypatch, tmp_path):
    nowhere = replace(scoring.SOURCE, files=(tmp_path / "nowhere.cpp",))
    with mock.patch.object(scoring, "SOURCE", nowhere):
        assert scoring._in_cpp() is None
    scoring._in_cpp.cache_clear()
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    logits, targets = logits_of(4, 1003)
    _, ranks, _ = scoring.log_probs_and_ranks(logits, targets)
    assert torch.equal(ranks, scoring._in_torch(logits, targets)[1])


def test_several_threads_build_once(monkeypatch):
    builds = []
    monkeypatch.setattr(native, "build", builds.append)
    logits, targets = logits_of(2, 1003)
    threads = [
        threading.Thread(target=scoring.log_probs_and_ranks, args=(logits, targets))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
