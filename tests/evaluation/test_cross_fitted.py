"""Baselines of the test users: each text is scored by what the other half of them wrote."""

import pytest

from tacit.evaluation import cross_fitted as subject
from tacit.evaluation.accuracy import evaluate
from tacit.evaluation.baselines import Bigram
from tacit.evaluation.cross_fitted import cross_fitted_baselines
from tacit.evaluation.held_out import held_out_texts
from tacit.tokenizers import build, provenance

WORDS = build.word_level("a b c d".split(), provenance=provenance.public("tests"))


class Users:
    """Test users in memory."""

    def __init__(self, *texts):
        self._texts = texts

    def __len__(self):
        return len(self._texts)

    def texts(self, user):
        return list(self._texts[user])


def test_texts_are_scored_by_the_other_half():
    users = Users(["a b", "a b"], ["c d", "c d"], ["a a b"], ["c c d"])
    held_out = held_out_texts(users, WORDS, 1000)
    measured = cross_fitted_baselines(users, WORDS, held_out)
    expected = 0
    for half in (0, 1):
        own = [WORDS.encode(text) for user in (half, half + 2) for text in users.texts(user)]
        other = [
            [token for text in users.texts(user) for token in WORDS.encode(text)]
            for user in (1 - half, 3 - half)
        ]
        bigram = Bigram.fit(other, WORDS.vocab_size, bos=WORDS.bos)
        expected += evaluate(bigram, own, bos=WORDS.bos, unk=WORDS.unk).log_prob
    assert measured["bigram"].log_prob == pytest.approx(expected)
    whole = [WORDS.encode(text) for user in range(4) for text in users.texts(user)]
    own_text = evaluate(
        Bigram.fit(whole, WORDS.vocab_size, bos=WORDS.bos), whole, bos=WORDS.bos, unk=WORDS.unk
    )
    assert measured["bigram"].targets == own_text.targets  # the same texts as a model's own figures
    assert measured["bigram"].perplexity > own_text.perplexity  # but nobody is scored by themselves


def test_who_wrote_a_text_is_known():
    users = Users(["a"], ["b", "c"], ["d"])
    held_out = held_out_texts(users, WORDS, 1000)
    for sequence, user in zip(held_out.sequences, held_out.users, strict=True):
        assert sequence in [WORDS.encode(text) for text in users.texts(user)]


def test_a_single_user_has_no_other_half():
    users = Users(["a b c"])
    assert cross_fitted_baselines(users, WORDS, held_out_texts(users, WORDS, 100)) == {}
    silent = Users(["a b c"], [])
    assert cross_fitted_baselines(silent, WORDS, held_out_texts(silent, WORDS, 100)) == {}


def test_no_more_is_read_than_a_baseline_needs(monkeypatch):
    users = Users(*[["a b c d"] * 3] * 40)
    held_out = held_out_texts(users, WORDS, 50)
    read = []
    texts = Users.texts
    monkeypatch.setattr(Users, "texts", lambda self, user: read.append(user) or texts(self, user))
    monkeypatch.setattr(subject, "_MOST_TOKENS", 30)
    assert cross_fitted_baselines(users, WORDS, held_out)
    assert len(read) == 4  # two of each half, of 18 tokens each


def test_the_cap_holds_for_them_as_well(monkeypatch):
    users = Users(["a b c d"] * 3, ["a b c d"] * 3)
    fitted = []
    monkeypatch.setattr(Bigram, "fit", lambda tokens, *_, **__: fitted.extend(tokens) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cross_fitted_baselines(users, WORDS, held_out_texts(users, WORDS, 100), 5)
    assert [len(tokens) for tokens in fitted] == [5]
