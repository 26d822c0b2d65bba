"""Word-level figures, counted by hand where a word has two tokens, and equal across batches."""

import itertools
import math

import pytest
import torch

from tacit.evaluation.accuracy import Metrics, evaluate
from tacit.evaluation.scoring import score
from tacit.tokenizers.build import learn, word_level
from tests.evaluation.tiny import Table, evaluate_words

BOS, EOS, UNK = 0, 1, 2
# Words of two tokens each: ab, ac, bb.
PIECES = {"a": 3, "b": 4, "c": 5}


class TwoTokensPerWord:
    """Spells each word letter by letter; a letter that is not among the pieces is UNK."""

    bos, unk = BOS, UNK

    def word_ids(self, text: str) -> tuple[list[int], list[int]]:
        words = text.split()
        letters = [(PIECES.get(letter, UNK), i) for i, word in enumerate(words) for letter in word]
        ids, owners = zip(*letters, strict=True) if letters else ((), ())
        return [BOS, *ids, EOS], [-1, *owners, -1]


def table() -> torch.Tensor:
    """After BOS, b or c comes a; after a comes b."""
    logits = torch.zeros(6, 6)
    logits[[BOS, 4, 5], 3] = 2.0
    logits[3, 4] = 2.0
    return logits


def test_a_word_counts_if_all_of_its_tokens_are_predicted_in_turn():
    found = evaluate_words(Table(table()), TwoTokensPerWord(), ["ab ac", "bb ab"])
    # ab: a after BOS, b after a: right.  ac: a after b right, c after a wrong.
    # bb: b after BOS wrong (and then b after b wrong).  ab: a after b, b after a: right.
    assert (found.words, found.right_words, found.unknown_words) == (4, 2, 0)
    assert found.word_accuracy == 0.5
    assert found.targets == 10  # eight letters, and EOS twice


def test_perplexity_per_word_is_equation_2():
    found = evaluate_words(Table(table()), TwoTokensPerWord(), ["ab ac", "bb ab"])
    likely = math.exp(2) / (math.exp(2) + 5)
    unlikely = 1 / (math.exp(2) + 5)
    # ab ac EOS: likely x3, then c and EOS (after c, where a is likely) unlikely.
    # bb ab EOS: b, b unlikely; a, b likely; EOS after b unlikely.
    log_prob = 5 * math.log(likely) + 5 * math.log(unlikely)
    assert found.log_prob == pytest.approx(log_prob, rel=1e-6)
    assert found.perplexity_per_word == pytest.approx(math.exp(-log_prob / 4), rel=1e-6)


def test_an_unknown_piece_makes_the_word_a_mistake_even_if_unk_is_predicted():
    logits = torch.zeros(6, 6)
    logits[:, UNK] = 9
    found = evaluate_words(Table(logits), TwoTokensPerWord(), ["zz az"])
    assert (found.words, found.right_words, found.unknown_words) == (2, 0, 2)
    assert found.unknown == 3  # z, z and z; a is known


def test_a_word_is_a_mistake_where_unk_competes_and_comes_first():
    logits = table()
    logits[3, UNK] = 3.0  # after a, before b
    found = evaluate_words(Table(logits), TwoTokensPerWord(), ["ab ac", "bb ab"])
    assert (found.right_words, found.right_words_unk_competes) == (2, 0)
    assert (found.word_accuracy, found.word_accuracy_unk_competes) == (0.5, 0.0)
    logits[3, UNK] = 1.0  # behind b
    found = evaluate_words(Table(logits), TwoTokensPerWord(), ["ab ac", "bb ab"])
    assert (found.right_words, found.right_words_unk_competes) == (2, 2)


def test_a_text_without_words_counts_its_end_only():
    found = evaluate_words(Table(torch.zeros(6, 6)), TwoTokensPerWord(), ["", "ab"])
    assert (found.words, found.targets) == (1, 4)
    assert found.log_prob == pytest.approx(-4 * math.log(6), rel=1e-6)


def test_word_metrics_add_up():
    texts = ["ab ac", "", "bb", "ca cc ab"]
    model, tokenizer = Table(table()), TwoTokensPerWord()
    parts = [evaluate_words(model, tokenizer, [text]) for text in texts]
    whole = evaluate_words(model, tokenizer, texts)
    total = sum(parts, Metrics())
    assert (total.words, total.right_words) == (whole.words, whole.right_words)
    assert total.right_words_unk_competes == whole.right_words_unk_competes
    assert total.targets == whole.targets
    assert total.log_prob == pytest.approx(whole.log_prob)


def test_figures_of_nothing_are_not_numbers():
    assert "perplexity_per_word" not in Metrics(targets=2).as_row()
    assert math.isnan(Metrics().perplexity_per_word)
    assert math.isnan(Metrics().word_accuracy)


def test_for_a_word_dictionary_the_words_are_the_targets_but_eos():
    tokenizer = word_level(["a", "b", "c"], provenance="public: test")
    model = Table(torch.randn(6, 6, generator=torch.Generator().manual_seed(3)))
    texts = ["a b c", "c c a", "b zebra"]
    tokens = tokenizer.encode_batch(texts)
    by_token = evaluate(model, tokens, bos=tokenizer.bos, unk=tokenizer.unk)
    by_word = evaluate_words(model, tokenizer, texts)
    scores = score(model, tokens)
    ends = int(((scores.targets == tokenizer.eos) & (scores.ranks == 0)).sum())
    assert by_word.words == by_token.targets - len(texts)
    assert by_word.right_words == by_token.top1 - ends
    assert by_word.unknown_words == by_token.unknown == 1
    assert by_word.log_prob == by_token.log_prob


def test_a_real_bpe_tells_which_word_a_token_belongs_to():
    tokenizer = learn("bpe", ["low lower lowest"] * 5, 262, provenance="public: test")
    text = "lower low"
    ids, owners = tokenizer.word_ids(text)
    assert len(ids) > 2 + 2  # more tokens than words
    certain = torch.full((tokenizer.vocab_size, tokenizer.vocab_size), -5.0)
    for before, after in itertools.pairwise(ids):
        certain[before, after] = 20 - 0.01 * after
    found = evaluate_words(Table(certain), tokenizer, [text])
    scores = score(Table(certain), [ids])
    assert found.words == 2
    by_hand = sum(
        all(scores.ranks[place - 1] == 0 for place, owner in enumerate(owners) if owner == word)
        for word in (0, 1)
    )
    assert found.right_words == by_hand
