"""Text that a tokenizer does not know is noticed on test users, before anything is spent."""

from __future__ import annotations

import random
import warnings

import pytest

from tacit.corpus.builtin import load_corpus
from tacit.corpus.grouping import UserOptions
from tacit.corpus.ingest import ingest_records
from tacit.tasks.language.unknown_words import check_unknown_rate, unknown_rate
from tacit.tokenizers import build
from tacit.tokenizers.public import PublicSource
from tests.cli.training import refused

GERMAN = (
    "ich habe das heute nicht gesehen aber wir können morgen wieder darüber sprechen und dann noch"
    " einmal schauen ob es wirklich so schlimm ist wie du gestern gesagt hast oder nicht"
).split()
CHINESE = ["今天天气很好我们去学校", "你昨天说的那本书我还没有看", "他们都不知道这是什么"]
HALF_TEST = UserOptions(test_fraction=0.5)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """A German and a Chinese corpus of forty users each."""
    folder, draw = tmp_path_factory.mktemp("corpora"), random.Random(1)
    german = [(f"u{n}", [" ".join(draw.choices(GERMAN, k=200)) + "."]) for n in range(40)]
    chinese = [(f"u{n}", draw.choices(CHINESE, k=200)) for n in range(40)]
    return {
        name: ingest_records(users, folder / name, options=HALF_TEST, new_people=True)
        for name, users in (("german", german), ("chinese", chinese))
    }


def test_text_of_another_language_is_refused_with_the_list_that_fits(corpora):
    english = PublicSource("wordfreq:en").tokenizer("word", 5000)
    with pytest.raises(ValueError, match=r"know [5-9]\d% of .*source=wordfreq:de, or .*bpe"):
        check_unknown_rate(corpora["german"], english)


def test_text_that_is_known_is_no_reason_to_warn(corpora):
    german = PublicSource("wordfreq:de").tokenizer("word", 5000)
    assert unknown_rate(corpora["german"], german) < 0.05
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_unknown_rate(corpora["german"], german)
        check_unknown_rate(corpora["chinese"], build.learn("bpe", ["a"], 300))


def test_text_without_spaces_is_refused_and_pieces_suggested(corpora):
    with pytest.raises(ValueError, match=r"no spaces between words; take tokenizer.kind=bpe"):
        check_unknown_rate(corpora["chinese"], PublicSource("chatterbot").tokenizer("word", 500))


def test_a_third_unknown_is_a_warning(corpora):
    some = build.word_level([*sorted(set(GERMAN))[:20], "."], provenance="public: a test")
    assert 0.2 < unknown_rate(corpora["german"], some) < 0.5
    with pytest.warns(UserWarning, match=r"does not know [2-4]\d% of the test users' words"):
        check_unknown_rate(corpora["german"], some)


def test_training_users_are_not_looked_at(corpora, monkeypatch):
    corpus = corpora["german"]
    monkeypatch.setattr(type(corpus), "train", property(lambda self: pytest.fail("looked at")))
    unknown_rate(corpus, build.word_level(["ich"]))


def test_made_up_users_and_very_little_text_are_left_alone(tmp_path):
    nobody = build.word_level(["xyzzy"])
    check_unknown_rate(load_corpus("synthetic:users=60,words=40"), nobody)
    few = [(f"u{n}", ["eins zwei drei"]) for n in range(20)]
    corpus = ingest_records(few, tmp_path / "few", options=HALF_TEST, new_people=True)
    check_unknown_rate(corpus, nobody)


def test_a_training_is_refused_before_anything_is_made(corpora, tmp_path):
    run, small = tmp_path / "run", ["--set", "plan.cohort=2", "--rounds", "1"]
    where = ["--corpus", corpora["german"].path, "--run", run]
    message = refused("mcmahan2018", *where, "--quiet", *small)
    assert "wordfreq:de" in message
    assert not run.exists()
