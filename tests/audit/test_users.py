"""Scores by user equal one text at a time, and texts are those that training saw, or did not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.audit.users import _score_users, _user_texts
from tacit.corpus.source import IID, UserSource
from tacit.evaluation.baselines import Bigram
from tacit.tokenizers.cache import user_tokens
from tests.evaluation.tiny import SIZES, Table, tiny
from tests.tokenizers.fakes import FakeSource, tokenizer

BOS, EOS = 0, 1
TEXT = st.lists(st.integers(1, 6), min_size=1, max_size=8).map(lambda words: [BOS, *words])
USERS = st.dictionaries(st.text("abc", min_size=1), st.lists(TEXT, min_size=1, max_size=4))


def by_hand(model, text) -> float:
    """log p of one text, token by token, each from a fresh reading of all before it."""
    total = 0.0
    for place in range(1, len(text)):
        if text[place] == BOS:
            continue
        with torch.no_grad():
            logits, _ = model(torch.tensor([text[:place]]))
        total += torch.log_softmax(logits[0, -1].double(), 0)[text[place]].item()
    return total


@pytest.mark.parametrize("kind", list(SIZES))
@given(users=USERS.filter(bool))
@settings(max_examples=6, deadline=None)
def test_scores_equal_one_text_at_a_time(kind, users):
    model = tiny(kind).eval()
    found = _score_users([model, model], users, bos=BOS)
    totals = [sum(by_hand(model, text) for text in mine) for mine in users.values()]
    assert found.target == pytest.approx(totals, rel=1e-9)
    assert found.references.tolist() == [found.target.tolist()]
    assert found.tokens.tolist() == [sum(len(text) - 1 for text in own) for own in users.values()]
    assert found.texts.tolist() == [len(mine) for mine in users.values()]


def test_bos_within_a_text_is_no_target():
    uniform = Table(torch.zeros(7, 7))
    found = _score_users([uniform], {"a": [[BOS, 3, EOS, BOS, 4]]}, bos=BOS)
    assert found.tokens.tolist() == [3]
    assert found.target == pytest.approx([-3 * math.log(7)])


def test_some_users_are_scored_as_if_they_were_all():
    model = tiny("lstm")
    users = {"a": [[BOS, 3]], "b": [[BOS, 4, 5], [BOS, 2]], "c": [[BOS, 6, 6, 6]]}
    some = _score_users([model], users, bos=BOS).only(np.array([False, True, True]))
    alone = _score_users([model], {name: users[name] for name in "bc"}, bos=BOS)
    assert some.texts.tolist() == alone.texts.tolist() == [2, 1]
    assert some.target == pytest.approx(alone.target, rel=1e-12)
    assert some.tokens.tolist() == alone.tokens.tolist() == [3, 3]


def test_the_model_stays_in_the_mode_it_was_in():
    model = tiny("lstm").train()
    _score_users([model], {"a": [[BOS, 3]]}, bos=BOS)
    assert model.training


def test_a_model_with_nan_is_refused():
    model = tiny("lstm")
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(ValueError, match="the texts of 1 of 1 users no probability"):
        _score_users([model], {"a": [[BOS, 3], [BOS, 4]]}, bos=BOS)


def test_a_baseline_can_be_scored_as_well():
    bigram = Bigram.fit([[BOS, 3, EOS], [BOS, 4, EOS]], 7, bos=BOS)
    found = _score_users([bigram], {"a": [[BOS, 3, EOS]], "b": [[BOS, 5, EOS]]}, bos=BOS)
    assert found.target[0] > found.target[1]


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ({}, "no users to score"),
        ({"a": [[BOS, 3]], "b": []}, "1 of 2 users have no text"),
        ({"a": [[BOS]]}, "1 of 1 users have no text"),
        ({"a": [[BOS, 7]]}, "token 7"),
    ],
    ids=["nobody", "no texts", "only BOS", "other tokenizer"],
)
def test_bad_texts_are_one_sentence(users, message):
    with pytest.raises(ValueError, match=message):
        _score_users([tiny("lstm")], users, bos=BOS)


class Marked(UserSource):
    """Users whose last text is held out, if they have two."""

    def __init__(self, *users: tuple[str, ...]) -> None:
        self._source = FakeSource(users)

    def __len__(self):
        return len(self._source)

    def user_id(self, index):
        return self._source.user_id(index)

    def texts(self, index):
        return self._source.texts(index)

    @property
    def fingerprint(self):
        return self._source.fingerprint

    def held_out_mask(self, index):
        count = len(self.texts(index))
        return np.arange(count) == (count - 1 if count > 1 else count)


PEOPLE = Marked(
    ("the best of times", "the worst of times", "it was"),
    ("the times are changing",),
    ("isn't that the worst", "the best"),
    (),
)


def decoded(which, **options):
    """What `user_texts` chooses, as words, by the user's index."""
    found = _user_texts(PEOPLE, tokenizer(), which, **options)
    known = {PEOPLE.user_id(index): index for index in range(len(PEOPLE))}
    words = tokenizer()
    return {known[user]: [words.decode(text) for text in mine] for user, mine in found.items()}


def test_fresh_texts_are_those_held_out_and_training_texts_the_others():
    assert decoded("fresh") == {0: ["it was"], 2: ["the best"]}
    assert decoded("training") == {
        0: ["the best of times", "the worst of times"],
        1: ["the times are changing"],
        2: ["isn't that the worst"],
    }
    assert {index: len(mine) for index, mine in decoded("all").items()} == {0: 3, 1: 1, 2: 2}


@pytest.mark.parametrize("cap", [2, 3, 5, 6, 7, 8, 9, 11, 12, None])
def test_training_texts_are_cut_where_training_cuts_them(cap):
    found = _user_texts(PEOPLE, tokenizer(), "training", max_tokens=cap)
    for index in range(3):
        trained_on = user_tokens(PEOPLE.kept().texts(index), tokenizer(), cap)
        mine = [token for text in found[PEOPLE.user_id(index)] for token in text]
        # A lone BOS at the end is never scored, so it is left out.
        assert trained_on in (mine, [*mine, tokenizer().bos])


def test_as_many_users_with_texts_as_asked_for_in_an_order_by_the_seed():
    chosen = {frozenset(decoded("all", max_users=1, seed=seed)) for seed in range(20)}
    assert chosen == {frozenset({0}), frozenset({1}), frozenset({2})}
    assert decoded("all", max_users=2, seed=4) == decoded("all", max_users=2, seed=4)
    assert len(decoded("fresh", max_users=2)) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _user_texts(PEOPLE, tokenizer(), "stale"), "one of fresh, training, all"),
        (lambda: _user_texts(PEOPLE, tokenizer(), max_users=0), "max_users"),
        (lambda: _user_texts(PEOPLE, tokenizer(), max_tokens=1), "max_tokens"),
        (lambda: _user_texts(Marked(("it",)), tokenizer()), "none of 1 users has fresh texts"),
        (lambda: _user_texts(IID(PEOPLE), tokenizer()), "stand for nobody"),
        (lambda: _user_texts(FakeSource((("it",),)), tokenizer()), "which texts are held out"),
    ],
    ids=["which", "users", "tokens", "none", "iid", "unmarked"],
)
def test_bad_choices_are_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
