"""Canaries and where they are planted (Thakkar et al. 2020, section 3)."""

import math
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tacit.config.experiment import Canaries
from tacit.corpus.source import IID, UserSource
from tacit.tasks.language.canaries import (
    Canary,
    Cell,
    Planting,
    _cells_of_canaries,
    draw_phrases,
    parse_phrase,
    word_tokens,
)
from tacit.tokenizers import build, provenance

WORDS = [f"word{letter}{other}" for letter in "abcdefgh" for other in "abcdefgh"]


@pytest.fixture(scope="module")
def tokenizer():
    return build.word_level(WORDS, normalisation="papers", provenance=provenance.public("test"))


class Everybody(UserSource):
    """Users with so many texts each, every text naming its user and place."""

    def __init__(self, counts):
        self.counts = counts

    def __len__(self):
        return len(self.counts)

    def user_id(self, index):
        return f"{index:032x}"

    def texts(self, index):
        return [f"text {place} of {index}" for place in range(self.counts[index])]

    fingerprint = "everybody"


def sharers(planting, users):
    """By index, what each sharer was drawn for."""
    found = {user: planting.shared_by(users.user_id(user)) for user in range(len(users))}
    return {user: numbers for user, numbers in found.items() if numbers}


def grid(sharers=(1.0, 4.0, 16.0), example_probs=(0.1, 1.0), **settings):
    return Canaries(sharers=sharers, example_probs=example_probs, **settings)


def canaries_for(tokenizer, users, settings):
    return Planting.of(settings, users, tokenizer).canaries


PAPERS = grid((7.84, 23.52, 78.4), (0.01, 0.1, 1.0), per_cell=10)


def test_the_papers_grid_has_90_canaries(tokenizer):
    found = canaries_for(tokenizer, 392_000, PAPERS)
    assert len(found) == 90
    cells = Counter(canary.cell for canary in found)
    assert len(cells) == 9
    assert set(cells.values()) == {10}
    assert found[0].cell.user_prob(392_000) == pytest.approx(1 / 50_000)
    assert found[-1].cell.user_prob(392_000) == pytest.approx(1 / 5_000)
    assert len({canary.tokens for canary in found}) == 90


def test_a_small_corpus_gets_fewer_canaries_with_the_same_sharers():
    def per_cell(users):
        return len(_cells_of_canaries(PAPERS, users)) / 9

    assert per_cell(392_000) == 10
    # One canary of each cell replaces 109.76 x 1.11 users' worth of text.
    each = 109.76 * 1.11
    for users in (8_000, 20_000, 100_000):
        found = per_cell(users)
        assert found * each <= 0.05 * users
        assert found == 10 or (found + 1) * each > 0.05 * users
    with pytest.raises(ValueError, match=r"more than max_share = 5\.0%"):
        per_cell(2_000)


def test_further_cells_count_towards_the_share():
    also = [{"sharers": 30.0, "example_prob": 1.0, "canaries": 3}]
    settings = grid((2.0,), (1.0,), per_cell=10, also=also, max_share=0.1)
    # 90 of the 100 sharers that fit are taken.
    cells = _cells_of_canaries(settings, 1_000)
    assert cells == [Cell(2.0, 1.0)] * 5 + [Cell(30.0, 1.0)] * 3
    with pytest.raises(ValueError, match=r"would replace 10\.2%"):
        _cells_of_canaries(settings, 900)


def test_words_are_uniform_over_the_vocabulary(tokenizer):
    drawn = np.array(draw_phrases(4_000, 5, tokenizer, seed=3)).ravel()
    counts = np.array([(drawn == id).sum() for id in word_tokens(tokenizer)])
    assert counts.sum() == 20_000  # no special token
    expected = 20_000 / len(WORDS)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 63 + 5 * math.sqrt(2 * 63)
    # By frequency instead, the same statistic finds the difference.
    frequencies = np.zeros(tokenizer.vocab_size)
    frequencies[word_tokens(tokenizer)] = 1 / np.arange(1, 65)
    drawn = np.array(draw_phrases(4_000, 5, tokenizer, 3, frequencies)).ravel()
    counts = np.array([(drawn == id).sum() for id in word_tokens(tokenizer)])
    assert ((counts - expected) ** 2 / expected).sum() > 1000
    shares = (1 / np.arange(1, 65)) / (1 / np.arange(1, 65)).sum()
    assert (((counts - 20_000 * shares) ** 2) / (20_000 * shares)).sum() < 63 + 5 * math.sqrt(126)


def test_a_canary_is_encoded_to_its_own_tokens(tokenizer):
    for canary in canaries_for(tokenizer, 1_000, grid()):
        assert tokenizer.encode(canary.text)[1:-1] == list(canary.tokens)


def test_marks_that_join_a_word_are_no_words():
    tokenizer = build.word_level(
        ["don't", "yes", "no", "-"], normalisation="papers", provenance=provenance.public("test")
    )
    for id in word_tokens(tokenizer):
        text = " ".join([tokenizer.token(int(id))] * 3)
        assert tokenizer.encode(text)[1:-1] == [id] * 3


def test_sharers_are_poisson_and_copies_follow_p_e(tokenizer):
    settings = grid((20.0,), (0.3,), per_cell=40, max_share=1.0)
    planting = Planting(canaries_for(tokenizer, 2_000, settings), 2_000, seed=5)
    users = Everybody([50] * 2_000)
    sharers_of = sharers(planting, users)
    per_canary = Counter(n for numbers in sharers_of.values() for n in numbers)
    counts = np.array([per_canary[n] for n in range(40)])
    assert abs(counts.mean() - 20) < 4 * math.sqrt(20 / 40)
    assert 0.5 < counts.var(ddof=1) / 20 < 2.0  # a fixed number of sharers would have none
    view = planting.view(users)
    replaced = alone = 0
    for user, numbers in sharers_of.items():
        texts = view.texts(user)
        if len(numbers) == 1:
            alone += 50
            replaced += sum(text == planting.canaries[numbers[0]].text for text in texts)
    assert abs(replaced - 0.3 * alone) < 5 * math.sqrt(0.21 * alone)


def test_others_keep_their_texts_and_nothing_changes_on_the_way(tokenizer):
    planting = Planting(canaries_for(tokenizer, 500, grid()), 500, seed=2)
    users = Everybody([7] * 500)
    view = planting.view(users)
    found = sharers(planting, users)
    assert found
    for user in range(500):
        before, after = users.texts(user), view.texts(user)
        assert len(before) == len(after)
        if user not in found:
            assert before == after
        planted = {planting.canaries[n].text for n in found.get(user, ())}
        assert all(a == b or a in planted for a, b in zip(after, before, strict=True))
        assert view.texts(user) == after  # asked again, the same
    assert view.text_counts().tolist() == [7] * 500
    for user in (0, min(found)):
        assert [view.text(user, place) for place in range(7)] == view.texts(user)
    sent = pickle.loads(pickle.dumps(view))  # to other processes
    assert [sent.texts(u) for u in range(500)] == [view.texts(u) for u in range(500)]
    other = Planting(planting.canaries, 500, seed=3).view(users)
    assert other.fingerprint != view.fingerprint
    assert any(other.texts(user) != view.texts(user) for user in range(500))


def test_one_user_never_moves_another(tokenizer):
    """What the adjacency of a claim rests on: without user 7, everybody else shares the same."""
    planting = Planting(canaries_for(tokenizer, 500, grid()), 500, seed=2)
    everybody = Everybody([7] * 500)

    class WithoutOne(Everybody):
        def user_id(self, index):
            return super().user_id(index + (index >= 7))

        def texts(self, index):
            return super().texts(index + (index >= 7))

    whole = planting.view(everybody)
    others = planting.view(WithoutOne([7] * 500))
    for user in range(499):
        assert others.texts(user) == whole.texts(user + (user >= 7))


def test_a_text_that_two_canaries_want_goes_to_either(tokenizer):
    cell = Cell(10.0, 1.0)
    drawn = draw_phrases(2, 5, tokenizer, 0)
    canaries = tuple(Canary(tuple(map(tokenizer.token, t)), t, cell) for t in drawn)
    planting = Planting(canaries, 10, seed=0)  # p_u = 1 and p_e = 1: everybody shares both
    chosen = np.concatenate([planting.replacements(f"{user}", 400) for user in range(10)])
    assert set(chosen.tolist()) == {0, 1}
    assert abs((chosen == 0).mean() - 0.5) < 5 * math.sqrt(0.25 / 4_000)


def test_counts_are_of_what_is_left_after_the_caps(tokenizer):
    canary = canaries_for(tokenizer, 1_000, grid())[0]
    inner = list(canary.tokens)
    bos, eos = tokenizer.bos, tokenizer.eos
    users = [
        np.array([bos, *inner, eos, bos, 7, eos, bos, *inner, eos]),
        np.array([bos, *inner[:-1]]),  # cut off: no copy
        np.array([bos, 7, 8, 9, eos]),
        np.array([bos, *inner, eos]),
    ]
    [planted] = Planting((canary,), 1_000, seed=0).count(users)
    assert (planted.sharers, planted.copies) == (2, 3)
    assert planted.as_row()["copies"] == 3


def test_iid_spreads_the_copies(tokenizer):
    settings = grid((2.0,), (1.0,), per_cell=3, max_share=1.0)
    planting = Planting(canaries_for(tokenizer, 100, settings), 100, seed=11)
    view = planting.view(Everybody([30] * 100))
    texts = [canary.text for canary in planting.canaries]

    def sharers_and_copies(source):
        found = [[source.texts(u).count(text) for u in range(100)] for text in texts]
        return [(sum(c > 0 for c in row), sum(row)) for row in found]

    users, iid = sharers_and_copies(view), sharers_and_copies(IID(view))
    assert [copies for _, copies in users] == [copies for _, copies in iid]
    assert sum(count for count, _ in iid) > 3 * sum(count for count, _ in users)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.lists(st.integers(0, 6), min_size=1, max_size=30))
def test_the_view_agrees_with_a_literal_oracle(tokenizer, seed, counts):
    settings = grid((0.5,), (0.5, 1.0), per_cell=1, max_share=1.0)
    planting = Planting(canaries_for(tokenizer, len(counts), settings), len(counts), seed)
    users = Everybody(counts)
    view = planting.view(users)
    for user, count in enumerate(counts):
        chosen = planting.replacements(users.user_id(user), count)
        wanted = [
            users.texts(user)[place] if n < 0 else planting.canaries[n].text
            for place, n in enumerate(chosen.tolist())
        ]
        assert view.texts(user) == wanted
        assert set(chosen.tolist()) - {-1} <= set(planting.shared_by(users.user_id(user)))


def test_bad_input(tokenizer):
    with pytest.raises(ValueError, match="at most the population of 3, got 4"):
        Cell(4.0, 1.0).user_prob(3)
    for wrong in ({"words": 2}, {"sharers": ()}, {"example_probs": (1.5,)}, {"max_share": 0.0}):
        with pytest.raises(ValidationError):
            grid(**wrong)
    with pytest.raises(ValueError, match="5000 different phrases of 2 words cannot"):
        draw_phrases(5_000, 2, tokenizer, 0)
    with pytest.raises(ValueError, match="'elephant' of the phrase 'wordaa elephant'"):
        parse_phrase("wordaa elephant", tokenizer)
    assert parse_phrase("wordaa wordab", tokenizer) == (3, 4)
    with pytest.raises(ValueError, match="population of 1, and there are 2 users"):
        Planting((), 1, 0).view(Everybody([1, 1]))
    bpe = build.learn("bpe", WORDS * 3, 300, provenance=provenance.public("test"))
    with pytest.raises(ValueError, match=r"tokenizer\.kind must be word, got bpe"):
        draw_phrases(1, 2, bpe, 0)
