"""45:5:50 by digest, folds, and the parts a set comes with."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.corpus.hashing import is_test, user_key
from tacit.tasks.nlu.data import NLUData, Utterance


def said(text: str, user: str | None = None) -> Utterance:
    return Utterance((text,), ("O",), "ask", user)


def places(data: NLUData) -> list[tuple[str, str]]:
    return sorted(
        (part, utterance.tokens[0])
        for part in ("train", "valid", "test")
        for utterance in getattr(data, part)
    )


def test_shares_are_those_of_the_paper_on_average():
    data = NLUData.by_digest("set", (said(f"w{i}") for i in range(20_000)))
    # Five standard deviations: 5 sqrt(p (1 - p) 20,000), a false alarm in 10^6.
    assert abs(len(data.train) - 9000) < 352
    assert abs(len(data.valid) - 1000) < 155
    assert abs(len(data.test) - 10_000) < 354
    assert len(data.train) + len(data.valid) + len(data.test) == 20_000
    assert data.split == "45:5:50 by digest"


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=12), st.randoms())
def test_taking_an_utterance_away_moves_no_other(words, chance: random.Random):
    anchors = [said(f"anchor{i}") for i in range(40)]  # so that no part is empty
    every = anchors + [said(word) for word in words]
    gone = chance.choice(words)
    fewer = list(every)
    fewer.remove(said(gone))
    chance.shuffle(fewer)
    before, after = places(NLUData.by_digest("set", every)), places(NLUData.by_digest("set", fewer))
    for place in after:
        before.remove(place)
    [(_, word)] = before
    assert word == gone


def test_copies_are_drawn_apart_unless_they_are_to_stay_together():
    every = [said(f"w{i % 200}") for i in range(4000)]
    apart, together = (
        NLUData.by_digest("set", every),
        NLUData.by_digest("set", every, together=True),
    )
    assert abs(len(apart.test) - 2000) < 159  # five standard deviations of 4000 draws

    def words(part):
        return {utterance.tokens for utterance in part}

    assert words(apart.train) & words(apart.test)
    assert not words(together.train) & words(together.test)
    assert together.split == "45:5:50 by digest, equal utterances together"


def test_the_second_copy_is_drawn_independently_of_the_first():
    data = NLUData.by_digest("set", [said(f"w{i}") for i in range(1000)] * 2)
    times = Counter(utterance.tokens for utterance in data.test)
    both = sum(count == 2 for count in times.values())
    assert abs(both - 250) < 69  # a quarter, within five standard deviations; together it is half


def test_a_users_utterances_stay_together_and_follow_the_corpus_test_users():
    every = [said(f"w{i}", user=f"user{i % 97}") for i in range(2000)]
    data = NLUData.by_digest("set", every)
    testers = {utterance.user for utterance in data.test}
    assert testers == {u.user for u in every if is_test(user_key(u.user), 0.5)}
    assert not testers & {utterance.user for utterance in data.train}
    kept = [utterance for utterance in every if utterance.user != "user3"]
    less = NLUData.by_digest("set", kept)
    assert places(less) == [place for place in places(data) if place[1] in word_set(kept)]


def word_set(utterances):
    return {utterance.tokens[0] for utterance in utterances}


def test_tags_and_intent_are_part_of_what_decides():
    bare = [Utterance((f"w{i}",), ("O",), "ask") for i in range(64)]
    tagged = [Utterance((f"w{i}",), ("B-x",), "ask") for i in range(64)]
    assert places(NLUData.by_digest("set", bare)) != places(NLUData.by_digest("set", tagged))


FOLDS = {"10": [said("j")], "1": [said("a")], "2": [said("b")], "3": [said("c")]}


@pytest.mark.parametrize(
    ("test_fold", "valid", "test"), [(None, "b", "a"), ("3", "j", "c"), ("10", "a", "j")]
)
def test_one_fold_tests_the_next_chooses_the_others_train(test_fold, valid, test):
    data = NLUData.by_fold("set", FOLDS, test_fold)
    assert [u.tokens[0] for u in data.test] == [test]
    assert [u.tokens[0] for u in data.valid] == [valid]
    assert {u.tokens[0] for u in data.train} == set("abcj") - {valid, test}
    assert data.split.startswith(f"fold {test_fold or 1} of 4 to test")


def test_a_fold_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="no fold '4': test_fold is one of 1, 2, 3, 10"):
        NLUData.by_fold("set", FOLDS, "4")
    with pytest.raises(ValueError, match="has 2 folds"):
        NLUData.by_fold("set", {"1": [said("a")], "2": [said("b")]})


def test_given_parts_stay_as_they_are():
    data = NLUData.of_parts("set", {"test": [said("b")], "train": [said("a")]})
    assert places(data) == [("test", "b"), ("train", "a")]
    assert data.split == "the set's own"
