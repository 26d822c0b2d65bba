"""Accuracy and perplexity equal brute force, whatever the batch, and count what they say."""

import math
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.evaluation import scoring as subject
from tacit.evaluation.accuracy import Metrics, evaluate, perplexity
from tacit.evaluation.scoring import batches, score
from tacit.models.registry import build
from tests.evaluation.tiny import SIZES, Table, tiny
from tests.oracles import scoring

BOS, EOS, UNK = 0, 1, 2
SEQUENCES = st.lists(st.lists(st.integers(0, 6), max_size=9), max_size=8)


def rows_at_a_time(rows):
    """Logits of this many targets at a time."""
    return mock.patch.object(subject, "_ROWS", rows)


def test_a_case_counted_by_hand():
    # After 0: 3, then 4, then 5.  After anything else: 1, then 3, then 4.
    table = torch.zeros(6, 6)
    table[0] = torch.tensor([0.0, 0, 0, 3, 2, 1])
    table[1:] = torch.tensor([0.0, 3, 0, 2, 1, 0])
    texts = [
        [BOS, 3, EOS],  # 3 is first; EOS is first
        [BOS, 5, 4, EOS],  # 5 is third; 4 is third; EOS is first
        [BOS, UNK, EOS],  # an unknown word is a mistake; EOS is first
        [BOS, 4, BOS, 3, 5],  # 4 is second; BOS does not count; 3 is first; 5 ties with 0, no UNK
        [BOS],
        [],
    ]
    found = evaluate(Table(table), texts, bos=BOS, unk=UNK)
    assert (found.targets, found.unknown) == (10, 1)
    assert (found.top1, found.top3, found.top5) == (5, 8, 9)
    assert found.accuracy_top1 == found.accuracy_top1_unk_competes == 0.5  # UNK is never first
    # After 0 it is sixth; after the rest it ties with 0 and 5, and comes before 5.
    assert (found.top3_unk_competes, found.top5_unk_competes) == (8, 8)
    assert found.unknown_rate == 0.1
    after_bos = sum(math.exp(value) for value in (0, 0, 0, 3, 2, 1))
    after_word = sum(math.exp(value) for value in (0, 3, 0, 2, 1, 0))
    logits_after_bos, logits_after_word = 3 + 1 + 0 + 2 + 3, 3 + 1 + 3 + 3 + 0
    expected = (
        logits_after_bos + logits_after_word - 5 * math.log(after_bos) - 5 * math.log(after_word)
    )
    assert found.log_prob == pytest.approx(expected, abs=1e-5)
    assert found.perplexity == pytest.approx(math.exp(-expected / 10), rel=1e-6)


@pytest.mark.parametrize("kind", list(SIZES))
@given(
    sequences=SEQUENCES, rows=st.sampled_from([1, 2, 3, 5, 128]), unk=st.sampled_from([UNK, None])
)
@settings(max_examples=25)
def test_evaluation_equals_one_sequence_at_a_time(kind, sequences, rows, unk):
    model = tiny(kind)
    expected = scoring.metrics(scoring.logits_of(model), sequences, BOS, unk)
    with rows_at_a_time(rows):
        found = evaluate(model, sequences, bos=BOS, unk=unk)
    for name in scoring.COUNTS:
        assert getattr(found, name) == expected[name], name
    assert found.log_prob == pytest.approx(expected["log_prob"], abs=1e-9)


@pytest.mark.parametrize("kind", list(SIZES))
def test_in_single_precision_only_rounding_differs(kind):
    model = build(kind, 7, **SIZES[kind])
    generator = np.random.default_rng(1)
    sequences = [generator.integers(0, 7, size) for size in (4, 30, 1, 12, 12, 2, 0, 7)]
    with rows_at_a_time(8):
        together = score(model, sequences)
    for index, sequence in enumerate(sequences):
        alone = score(model, [sequence])
        place = slice(*together.first[index : index + 2])
        assert together.targets[place].tolist() == sequence[1:].tolist()
        assert np.array_equal(together.ranks[place], alone.ranks)
        assert np.allclose(together.log_probs[place], alone.log_probs, rtol=0, atol=1e-6)


def test_an_unknown_target_is_a_mistake_even_if_unk_is_predicted():
    always_unk = torch.zeros(4, 4)
    always_unk[:, UNK] = 9
    found = evaluate(Table(always_unk), [[BOS, UNK, UNK, 3]], bos=BOS, unk=UNK)
    assert (found.targets, found.unknown, found.top1) == (3, 2, 0)
    suggested = always_unk.clone()
    suggested[:, 3] = 5  # behind UNK, which nobody is shown
    found = evaluate(Table(suggested), [[BOS, UNK, UNK, 3]], bos=BOS, unk=UNK)
    assert (found.targets, found.unknown, found.top1) == (3, 2, 1)
    assert (found.top1_unk_competes, found.top3_unk_competes) == (0, 1)
    without_unk = evaluate(Table(always_unk), [[BOS, UNK, UNK, 3]], bos=BOS, unk=None)
    assert (without_unk.unknown, without_unk.top1) == (0, 2)
    assert without_unk.top1_unk_competes == 2


def test_which_of_two_models_is_right_more_often_depends_on_whether_unk_competes():
    """One knows the words, and UNK is likelier still; the other guesses, and never says UNK."""
    knows = torch.full((6, 6), -9.0)
    knows[:, UNK] = 2.0
    for before, after in ((BOS, 3), (3, 4), (4, 5)):
        knows[before, after] = 1.0
    knows[5, EOS] = 3.0
    guesses = torch.full((6, 6), -9.0)
    guesses[[BOS, 3], 3] = guesses[[4, 5], EOS] = 1.0
    texts = [[BOS, 3, 4, 5, EOS], [BOS, UNK]]
    by_knowing, by_guessing = (
        evaluate(Table(table), texts, bos=BOS, unk=UNK) for table in (knows, guesses)
    )
    assert (by_knowing.accuracy_top1, by_guessing.accuracy_top1) == (4 / 5, 2 / 5)
    assert by_knowing.accuracy_top1_unk_competes == 1 / 5
    assert by_guessing.accuracy_top1_unk_competes == 2 / 5


@given(sequences=SEQUENCES, seed=st.integers(0, 9))
def test_accuracy_is_never_larger_if_unk_competes(sequences, seed):
    table = Table(torch.randn(7, 7, generator=torch.Generator().manual_seed(seed)))
    found = evaluate(table, sequences, bos=BOS, unk=UNK)
    for k in (1, 3, 5):
        assert getattr(found, f"top{k}_unk_competes") <= getattr(found, f"top{k}")
    without = evaluate(table, sequences, bos=BOS, unk=None)
    assert without.top3_unk_competes == without.top3


@given(SEQUENCES, SEQUENCES)
def test_metrics_of_two_parts_add_up(some, others):
    model = Table(torch.randn(7, 7, generator=torch.Generator().manual_seed(0)))
    parts = [evaluate(model, part, bos=BOS, unk=UNK) for part in (some, others)]
    whole = evaluate(model, [*some, *others], bos=BOS, unk=UNK)
    total = parts[0] + parts[1]
    assert (total.targets, total.unknown) == (whole.targets, whole.unknown)
    assert all(getattr(total, name) == getattr(whole, name) for name in scoring.COUNTS)
    assert total.log_prob == pytest.approx(whole.log_prob)


def test_a_model_that_is_equally_unsure_scores_the_same_everywhere():
    found = evaluate(Table(torch.zeros(8, 8)), [[BOS, 1, 3, 5, 7]], bos=BOS, unk=None)
    assert (found.top1, found.top3, found.top5) == (0, 1, 2)  # ids 0, 1, ... come first
    assert found.perplexity == pytest.approx(8)


def test_a_text_comes_in_pieces_without_padding():
    model = Table(torch.zeros(3, 3))
    with rows_at_a_time(4):
        score(model, [np.zeros(6, np.int64), np.zeros(3, np.int64)])
    assert model.calls == [(2, 2), (1, 3)]  # tokens given are tokens that predict a target


def test_a_model_without_state_gets_texts_whole():
    model = Table(torch.zeros(3, 3), carry=False)
    texts = [np.zeros(size, np.int64) for size in (9, 3, 20, 3)]
    with rows_at_a_time(4):
        score(model, texts)
    assert model.calls == [(1, 19), (2, 8), (1, 2)]


def test_no_dropout_and_no_gradient_and_the_mode_is_left_as_it_was():
    model = Table(torch.zeros(3, 3))
    modes = []
    model.register_forward_hook(lambda module, _, out: modes.append((module.training, out[0])))
    model.train()
    evaluate(model, [[0, 1, 2]], bos=0, unk=None)
    assert model.training
    assert [(training, logits.requires_grad) for training, logits in modes] == [(False, False)]
    assert torch.is_grad_enabled()


def test_a_chunk_that_is_never_finished_leaves_gradients_on():
    [chunks] = batches(Table(torch.zeros(3, 3)), [np.zeros(4, np.int64)])
    next(chunks)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_figures_of_nothing_are_not_numbers():
    nothing = evaluate(Table(torch.zeros(3, 3)), [], bos=0, unk=None)
    assert nothing == Metrics()
    assert math.isnan(nothing.perplexity)
    assert nothing.as_row()["perplexity"] is None


def test_probability_zero_and_broken_weights_give_infinite_perplexity():
    logits = torch.zeros(3, 3)
    logits[0, 2] = -torch.inf
    assert evaluate(Table(logits), [[0, 2]], bos=0, unk=None).perplexity == math.inf
    broken = evaluate(Table(logits * torch.nan), [[0, 2], [0, 1]], bos=0, unk=None)
    assert (broken.top1, broken.perplexity) == (0, math.inf)
    assert broken.as_row()["perplexity"] is None
    assert perplexity(1e9) == math.inf


@pytest.mark.parametrize(("token", "named"), [(3, "token 3"), (-1, "token -1")])
def test_a_token_out_of_range_is_named(token, named):
    with pytest.raises(ValueError, match=named) as mistake:
        evaluate(Table(torch.zeros(3, 3)), [[0, 1], [0, token]], bos=0, unk=None)
    assert "sequence 1" in str(mistake.value)
    assert "does not fit the model" in str(mistake.value)


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(ValueError, match="sequence 0 must be a flat list"):
        evaluate(Table(torch.zeros(3, 3)), [[[0, 1]]], bos=0, unk=None)


@pytest.mark.parametrize("kind", ["lstm", "transformer-14m"])
def test_the_number_of_threads_changes_no_figure_and_is_left_as_it_was(kind):
    model = build(kind, 7, **SIZES[kind])
    generator = np.random.default_rng(1)
    sequences = [generator.integers(0, 7, size) for size in generator.integers(0, 20, 60)]
    with rows_at_a_time(8):
        alone = score(model, sequences)
    torch.set_num_threads(3)
    try:
        with rows_at_a_time(8):
            together = score(model, sequences)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    assert np.array_equal(alone.ranks, together.ranks)
    assert np.array_equal(alone.ranks_of_all, together.ranks_of_all)
    assert np.array_equal(alone.log_probs, together.log_probs)


def test_what_goes_wrong_in_a_thread_arrives():
    class Broken(Table):
        def forward(self, *_):
            raise RuntimeError("broken inside")

    model = Broken(torch.zeros(3, 3))
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError, match="broken inside"):
            evaluate(model, [[0, 1, 2]] * 500, bos=0, unk=None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert model.training
