"""Held-out texts: as ever for dictionaries, and the same words for every other tokenizer."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.evaluation.accuracy import evaluate
from tacit.evaluation.held_out import held_out_texts
from tacit.evaluation.scoring import score
from tacit.tokenizers import build
from tacit.tokenizers.normalisation import WHITE_SPACE
from tacit_papers.bagdasaryan2022.rows import whole_texts
from tests.evaluation.tiny import Table, evaluate_words
from tests.tokenizers.fakes import KINDS, NORMALISATIONS, FakeSource, texts, tokenizer

people = st.lists(st.lists(texts, max_size=5).map(tuple), max_size=6).map(
    lambda users: FakeSource(tuple(users))
)


def held_out_sequences(*arguments, **options):
    """The tokens alone."""
    return held_out_texts(*arguments, **options).sequences


def by_tokens(users, tokenizer, max_tokens, seed=0):
    """How texts were cut when only dictionaries mattered: after so many tokens."""
    sequences = []
    left, share = max_tokens, max(1, max_tokens // 10)
    for user in np.random.default_rng(seed).permutation(len(users)):
        mine = share
        for tokens in tokenizer.encode_batch(users.texts(int(user))):
            if mine <= 0 or left <= 0:
                break
            kept = tokens[: min(mine, left) + 1]
            sequences.append(kept)
            mine -= len(kept) - 1
            left -= len(kept) - 1
        if left <= 0:
            break
    return sequences


def words_of(tokenizer, sequence, owners):
    """The words that the tokens of a text spell, one by one."""
    spelled = {}
    for token, word in zip(sequence, owners, strict=True):
        if word >= 0:
            spelled.setdefault(word, []).append(token)
    assert list(spelled) == list(range(len(spelled)))
    return [tokenizer.decode(tokens).strip(WHITE_SPACE) for tokens in spelled.values()]


@given(people, st.integers(0, 60), st.integers(0, 3))
def test_for_a_dictionary_the_texts_are_cut_by_tokens(users, limit, seed):
    for normalisation in NORMALISATIONS:
        words = tokenizer("word", normalisation)
        expected = by_tokens(users, words, limit, seed)
        assert held_out_sequences(users, words, limit, seed) == expected


@given(people, st.integers(1, 60), st.sampled_from(NORMALISATIONS))
def test_every_kind_of_tokenizer_is_measured_on_the_same_words(users, limit, normalisation):
    every = [text for user in users.users for text in user]
    # A dictionary of all the words there are, so that none is lost in UNK.
    dictionary = build.learn("word", every, 10_000, normalisation=normalisation)
    characters = build.learn("char", every, 10_000, normalisation=normalisation)
    bpe = tokenizer("bpe", normalisation)
    spelled, ended = [], []
    for one in (dictionary, characters, bpe):
        found = held_out_texts(users, one, limit)
        pairs = list(zip(found.sequences, found.owners, strict=True))
        assert all(len(tokens) == len(owners) for tokens, owners in pairs)
        spelled.append([words_of(one, tokens, owners) for tokens, owners in pairs])
        ended.append([tokens[-1] == one.eos for tokens, _ in pairs])
    assert spelled[0] == spelled[1] == spelled[2]
    assert ended[0] == ended[1] == ended[2]
    pieces = held_out_texts(users, tokenizer("wordpiece", normalisation), limit)
    assert [max(owners) + 1 for owners in pieces.owners] == [len(words) for words in spelled[0]]


@given(people, st.integers(1, 60))
def test_texts_are_beginnings_of_texts_as_word_ids_has_them(users, limit):
    for kind in KINDS:
        one = tokenizer(kind)
        whole = {tuple(map(tuple, one.word_ids(text))) for user in users.users for text in user}
        found = held_out_texts(users, one, limit)
        for tokens, owners in zip(found.sequences, found.owners, strict=True):
            size = len(tokens)
            starts = [
                w for w in whole if w[0][:size] == tuple(tokens) and w[1][:size] == tuple(owners)
            ]
            assert starts
            assert size > 1
            # Never in the middle of a word, for at least one of the texts that begin so.
            assert any(size == len(w[1]) or w[1][size] != owners[-1] for w in starts)


def test_the_cut_is_after_the_last_word_that_fits_by_hand():
    letters = tokenizer("char")
    users = FakeSource((("the best best of",) * 20,))
    found = held_out_texts(users, letters, 60)  # so 6 for the only user: 4 + 1, and then 1
    assert [letters.decode(tokens) for tokens in found.sequences] == ["the best best of", "the"]
    assert [tokens[-1] == letters.eos for tokens in found.sequences] == [True, False]
    assert found.owners[1] == [-1, 0, 0, 0]


def test_all_words_without_the_end_if_only_the_end_does_not_fit():
    letters = tokenizer("char")
    users = FakeSource((("the best", "of"),))
    [tokens] = held_out_sequences(users, letters, 20)
    assert letters.decode(tokens) == "the best"
    assert tokens[-1] != letters.eos


def test_white_space_at_the_end_goes_with_the_end():
    plain = tokenizer("bpe", "none")
    users = FakeSource((("the best \n ",), ("the best \n ",)))
    cut, _ = held_out_sequences(users, plain, 20)
    assert plain.decode(cut) == "the best"
    whole, _ = held_out_sequences(users, plain, 30)
    assert plain.decode(whole) == "the best \n "


def test_no_user_gives_more_than_a_tenth_and_all_together_no_more_than_the_limit():
    users = FakeSource(tuple((f"{'the best of ' * 40}",) * 9 for _ in range(30)))
    for kind in KINDS:
        found = held_out_texts(users, tokenizer(kind), 300)
        ends = [tokens[-1] == tokenizer(kind).eos for tokens in found.sequences]
        sizes = [max(owners) + 1 + end for owners, end in zip(found.owners, ends, strict=True)]
        assert sizes == [30] * 10


def test_few_words_are_enough_for_any_seed_and_no_user_is_read_in_vain():
    read = []

    class Watched(FakeSource):
        def texts(self, index):
            read.append(index)
            return super().texts(index)

    users = Watched(tuple(("the best of times",) * 3 for _ in range(1000)))
    assert held_out_sequences(users, tokenizer("bpe"), 100, seed=1)
    assert len(read) == len(set(read)) == 10
    first = list(read)
    held_out_sequences(users, tokenizer("word"), 100, seed=2)
    assert read[10:] != first


def test_nothing_to_measure_on_gives_nothing():
    assert held_out_sequences(FakeSource(()), tokenizer("bpe"), 100) == []
    assert held_out_sequences(FakeSource(((), ())), tokenizer("bpe"), 100) == []
    assert held_out_sequences(FakeSource((("the",),)), tokenizer("bpe"), 0) == []


@pytest.mark.parametrize("kind", KINDS)
def test_one_scoring_serves_token_and_word_metrics_of_cut_texts(kind):
    one = tokenizer(kind)
    draw = random.Random(4)
    said = "it was the best of times isn't open zebra !".split()
    every = tuple(tuple(" ".join(draw.choices(said, k=12)) for _ in range(3)) for _ in range(20))
    found = held_out_texts(FakeSource(every), one, 200)
    assert any(tokens[-1] != one.eos for tokens in found.sequences)
    noise = torch.randn(one.vocab_size, one.vocab_size, generator=torch.Generator().manual_seed(1))
    for text in ("the", "was"):  # predicted where a text begins with it, so that words are right
        *start, _ = one.encode(text)
        noise[start[:-1], start[1:]] += 50
    model = Table(noise)
    scores = score(model, found.sequences, never=one.unk)
    by_token = evaluate(model, found.sequences, bos=one.bos, unk=one.unk)
    by_word = evaluate(model, found.sequences, bos=one.bos, unk=one.unk, owners=found.owners)
    of_words = ("words", "right_words", "right_words_unk_competes", "unknown_words")
    assert by_token == replace(by_word, **dict.fromkeys(of_words, 0))
    assert by_word.words == sum(max(owners) + 1 for owners in found.owners)
    assert by_word.log_prob == scores.log_probs.sum()
    right = unknown = right_of_all = 0
    for text, (tokens, owners) in enumerate(zip(found.sequences, found.owners, strict=True)):
        for word in range(max(owners) + 1):
            places = [place for place, owner in enumerate(owners) if owner == word]
            is_unknown = any(tokens[place] == one.unk for place in places)
            ranks = [scores.ranks[scores.first[text] + place - 1] for place in places]
            of_all = [scores.ranks_of_all[scores.first[text] + place - 1] for place in places]
            unknown += is_unknown
            right_of_all += not is_unknown and not any(of_all)
            right += not is_unknown and not any(ranks)
    assert (by_word.right_words, by_word.unknown_words) == (right, unknown)
    assert by_word.right_words_unk_competes == right_of_all
    assert 0 < right < by_word.words


def test_whole_texts_have_the_figures_of_evaluate_words():
    one = tokenizer("bpe")
    said = ["it was the best of times", "the theatre, isn't it?", "zebra"]
    users = FakeSource(tuple((text,) for text in said))
    found = held_out_texts(users, one, 1000)
    model = Table(torch.randn(one.vocab_size, one.vocab_size))
    expected = evaluate_words(model, one, said)
    ours = evaluate(model, found.sequences, bos=one.bos, unk=one.unk, owners=found.owners)
    assert replace(ours, log_prob=0.0) == replace(expected, log_prob=0.0)
    assert ours.perplexity_per_word == pytest.approx(expected.perplexity_per_word, rel=1e-9)


def test_whole_texts_come_from_the_same_users_and_are_never_cut():
    users = FakeSource(tuple((f"user {n} has said", "it was", "the best") for n in range(40)))
    found = whole_texts(users, 50, seed=3)  # five for each user: 4 words, and then 2
    bpe = tokenizer("bpe")
    first = [bpe.decode(tokens) for tokens in held_out_sequences(users, bpe, 50, seed=3)]
    assert found[::2] == first[:9]
    assert found[1::2] == ["it was"] * (len(found) // 2)
    assert sum(len(text.split()) for text in found) == 52
    assert whole_texts(users, 50, seed=4) != found
    assert whole_texts(FakeSource(()), 50) == whole_texts(users, 0) == []


def test_texts_without_words_do_not_make_it_go_on_for_ever():
    assert whole_texts(FakeSource((("", " "),)), 10) == ["", " "]
