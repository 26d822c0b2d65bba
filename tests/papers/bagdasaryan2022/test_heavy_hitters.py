"""Heavy hitters: words that stand out, from as many reports as people are declared."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from tacit.privacy.accountants import accountant_named
from tacit.privacy.events import Adjacency, Composition, PureDP
from tacit.privacy.stream import Stream
from tacit.tokenizers import word_counts
from tacit.tokenizers.normalisation import index_words
from tacit_papers.bagdasaryan2022.heavy_hitters import NOTHING, CountMeanSketch, HeavyHitters
from tests.tokenizers.fakes import FakeSource, Named

KEY = b"s" * 32
CANDIDATES = ["the", "court", "of", *(f"rare{i}" for i in range(100))]
SMALL = {"hashes": 32, "width": 64}


def people(*texts: str, times: int = 1) -> FakeSource:
    return FakeSource(tuple((text,) for text in texts) * times)


def reported(users, population=None, key=KEY, **fields):
    learner = HeavyHitters(**(SMALL | fields))
    index = index_words(CANDIDATES)
    return learner._reported(users, index, population or len(users), key)


# What is found


def test_frequent_words_are_found_with_their_number_of_reports_and_little_else():
    users = people("The court", "the the Court!", "nothing here", times=400)
    found = HeavyHitters(epsilon=24.0, **SMALL).learn(users, CANDIDATES, 1200, KEY)
    assert {"the", "court"} <= set(found.counts)
    # About one of the 101 words that nobody uses is expected; more than 5 have probability 0.001.
    assert len(found.counts) <= 7
    # 800 people draw 3 words each, half and two thirds of them "the".
    assert found.counts["the"] == pytest.approx(1200 * (1 / 2 + 2 / 3), rel=0.15)
    assert found.counts["court"] == pytest.approx(1200 * (1 / 2 + 1 / 3), rel=0.15)
    assert all(count > 0 for count in found.counts.values())


def test_about_one_word_that_nobody_uses_is_expected():
    """40 releases of nothing: about a Poisson number of false words, of mean 1 each."""
    users = people("unheard", times=30)
    learner = HeavyHitters(**SMALL)
    totals = [len(learner.learn(users, CANDIDATES, 30, bytes([i]) * 32).counts) for i in range(40)]
    assert 15 < sum(totals) < 72  # about 5 standard deviations
    strict = HeavyHitters(threshold=6.0, **SMALL)
    assert not strict.learn(users, CANDIDATES, 30, KEY).counts


@pytest.mark.parametrize(
    ("candidates", "deviations"), [(1, 0.0), (2, 0.0), (100, 2.3263), (28_000, 3.9715)]
)
def test_the_default_threshold(candidates, deviations):
    assert HeavyHitters().deviations(candidates) == pytest.approx(deviations, abs=1e-3)
    assert HeavyHitters(threshold=2.5).deviations(candidates) == 2.5
    if candidates > 2:
        assert candidates * stats.norm.sf(HeavyHitters().deviations(candidates)) == pytest.approx(1)


def test_the_same_key_repeats_the_release_and_another_does_not():
    users = people("the court of the", times=50)
    learner = HeavyHitters(**SMALL)
    first = learner.learn(users, CANDIDATES, 60, KEY)
    assert learner.learn(users, CANDIDATES, 60, KEY) == first
    assert learner.learn(users, CANDIDATES, 60, b"t" * 32).counts != first.counts


# What a user reports


def test_words_are_drawn_by_occurrence_from_candidates_only():
    """Each draw is "the" with probability 3/4; within 5 standard errors of 3,000 draws."""
    drawn = reported(people("the the xyz the court", times=1000))
    share = np.mean(drawn == 0)
    assert abs(share - 0.75) < 5 * math.sqrt(0.75 * 0.25 / 3000)
    assert set(drawn.tolist()) == {0, 1}


def test_what_a_user_reports_depends_on_that_user_alone():
    text = "the court of the rare1 rare2 rare3 rare4"
    alone = Named((("court",), (text,)), names=("a", "b"))
    others = Named((("of of",), ("the",), (text,)), names=("x", "y", "b"))
    assert reported(alone)[3:].tolist() == reported(others)[6:].tolist()
    assert reported(others, key=b"z" * 32)[6:].tolist() != reported(others)[6:].tolist()


# Nobody's presence shows in the number of reports


@pytest.mark.parametrize(
    "users",
    [
        people(),
        people("the court"),
        people("no candidate at all"),
        people("the", times=9),
        FakeSource(((), ("the",))),
    ],
    ids=["nobody", "one", "without words", "everybody", "without text"],
)
def test_the_number_of_reports_never_depends_on_the_users(users, monkeypatch):
    seen = []
    collect = CountMeanSketch.collect

    def spy(self, words, reported, stream):
        sketch = collect(self, words, reported, stream)
        seen.append((len(reported), int(sketch.in_row.sum()), sketch.in_row.tolist()))
        return sketch

    monkeypatch.setattr(CountMeanSketch, "collect", spy)
    HeavyHitters(**SMALL).learn(users, CANDIDATES, 9, KEY)
    HeavyHitters(**SMALL).learn(people("of"), CANDIDATES, 9, KEY)
    assert seen[0][:2] == (27, 27)
    assert seen[0] == seen[1]  # and the rows are the same too: they are drawn without the words


def test_the_absent_and_those_without_words_report_nothing():
    drawn = reported(people("the", "unheard", "court"), population=5).reshape(5, 3)
    assert drawn[0].tolist() == [0, 0, 0]
    assert drawn[1].tolist() == [NOTHING] * 3
    assert drawn[2].tolist() == [1, 1, 1]
    assert np.all(drawn[3:] == NOTHING)


# What it costs


def test_the_event_is_the_whole_local_epsilon_and_each_report_has_its_share():
    learner = HeavyHitters()
    assert learner.learn(people("the"), CANDIDATES, 1, KEY).events == (
        PureDP(8.0, Adjacency.ADD_REMOVE),
    )
    assert learner.sketch.epsilon == pytest.approx(8 / 3)
    p = learner.sketch.flip_prob
    # Exactly: a person who leaves turns 3 words into nothing, one entry each; a person replaced
    # changes two entries in each of 3 reports.
    log_ratio = math.log((1 - p) / p)
    assert 3 * 1 * log_ratio == pytest.approx(8.0 / 2)
    assert 3 * 2 * log_ratio == pytest.approx(8.0)
    for name in ("pld", "rdp", "moments", "zcdp"):
        epsilon = accountant_named(name).epsilon(Composition.of([learner.event]), 1e-12)
        assert epsilon >= 7.9
    pld = accountant_named("pld").epsilon(Composition.of([learner.event]), 1e-12)
    assert pld == pytest.approx(8.0, rel=1e-3)


def test_how_it_was_made_is_said():
    found = HeavyHitters().learn(people("the"), CANDIDATES, 1, KEY)
    assert found.how == ("heavy hitters (count-mean sketch, local epsilon 8 for 3 words per user)")


# Bad input


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be a finite number above 0, got 0.0"),
        ({"epsilon": math.inf}, "epsilon must be a finite number above 0, got inf"),
        ({"words_per_user": 0}, "words_per_user must be at least 1, got 0"),
        ({"hashes": 0}, "hashes must be at least 1"),
        ({"width": 12}, "width must be a power of two"),
        ({"hash_seed": -1}, "hash_seed must be at least 0"),
        ({"threshold": -1.0}, "threshold must be a finite number of at least 0, got -1.0"),
        ({"threshold": math.nan}, "threshold must be a finite number"),
    ],
)
def test_bad_parameters_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        HeavyHitters(**fields)


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ([], "candidates must be a public list of words, got none"),
        (["the", "The"], "candidate 'The' must be one word as the normalisation 'papers'"),
        (["two words"], "candidate 'two words' must be one word"),
        ([""], "candidate '' must be one word"),
        (["the", "of", "the"], "candidate 'the' is in the list twice"),
        ("the", "texts must be many strings"),
        ([3], "texts must be strings"),
    ],
)
def test_bad_candidates_are_refused(candidates, message):
    with pytest.raises(ValueError, match=message):
        HeavyHitters(**SMALL).learn(people("the"), candidates, 5, KEY)


@pytest.mark.parametrize(
    ("population", "key", "message"),
    [
        (2, KEY, "population must be at least the 3 users there are, got 2"),
        (0, KEY, "population must be at least 1, got 0"),
        (3.0, KEY, "population must be a whole number, got 3.0"),
        (3, b"short", "key must be 32 secret bytes, got 5"),
        (3, "s" * 32, "key must be 32 secret bytes, got str"),
    ],
)
def test_bad_populations_and_keys_are_refused(population, key, message):
    with pytest.raises(ValueError, match=message):
        HeavyHitters(**SMALL).learn(people("the", times=3), CANDIDATES, population, key)


def test_streams_of_two_purposes_differ():
    words = {
        tuple(Stream(word_counts.derive_key(KEY, purpose, of)).words(2).tolist())
        for purpose, of in [("reports", ""), ("reports", "a"), ("a user's words", "a")]
    }
    assert len(words) == 3
