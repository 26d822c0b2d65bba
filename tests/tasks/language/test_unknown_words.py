"""Text that a tokenizer does not know is noticed on test users, before anything is spent."""

from __future__ import annotations

import random
import warnings

import pytest

from tacit.corpus.builtin import load_corpus
from tacit.corpus.grouping import UserOptions
from tacit.corpus.ingest import ingest_records
from tacit.tasks.language.unknown_words import Unknown, check_unknown_rate, unknown_tokens
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
    assert unknown_tokens(corpora["german"], german).rate < 0.05
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_unknown_rate(corpora["german"], german)
        check_unknown_rate(corpora["chinese"], build.learn("bpe", ["a"], 300))


def test_text_without_spaces_is_refused_and_pieces_suggested(corpora):
    with pytest.raises(ValueError, match=r"no spaces between words; take tokenizer.kind=bpe"):
        check_unknown_rate(corpora["chinese"], PublicSource("chatterbot").tokenizer("word", 500))


def test_a_third_unknown_is_a_warning(corpora):
    some = build.word_level([*sorted(set(GERMAN))[:20], "."], provenance="public: a test")
    assert 0.2 < unknown_tokens(corpora["german"], some).rate < 0.5
    with pytest.warns(UserWarning, match=r"does not know [2-4]\d% of the test users' words"):
        check_unknown_rate(corpora["german"], some)


def test_training_users_are_not_looked_at(corpora, monkeypatch):
    corpus = corpora["german"]
    monkeypatch.setattr(type(corpus), "train", property(lambda self: pytest.fail("looked at")))
    unknown_tokens(corpus, build.word_level(["ich"]))


def test_made_up_users_are_left_alone():
    check_unknown_rate(load_corpus("synthetic:users=60,words=40"), build.word_level(["xyzzy"]))


SMALL = {
    "german": (
        [
            "Morgen fahre ich mit meiner Schwester nach Hamburg.",
            "Hast du schon gesehen, wie teuer die Karten geworden sind?",
            "Wir treffen uns am besten gegen halb neun vor dem Bahnhof.",
        ],
        "source=wordfreq:de",
    ),
    "chinese": (
        ["明天我和姐姐一起去上海。", "你看过那部新电影了吗?", "我们八点半在车站前面见。"],
        "no spaces between words",
    ),
}


def corpus_of(folder, texts, users=12):
    """A few users who have written a few sentences each; about half of them are test users."""
    records = [(f"u{n}", texts) for n in range(users)]
    return ingest_records(records, folder / "corpus", options=HALF_TEST, new_people=True)


@pytest.fixture(scope="module")
def english():
    return PublicSource("wordfreq:en").tokenizer("word", 10_000)


@pytest.mark.parametrize("language", SMALL)
def test_a_small_corpus_in_another_language_is_refused(tmp_path, english, language):
    texts, advice = SMALL[language]
    corpus = corpus_of(tmp_path, texts)
    assert unknown_tokens(corpus, english).tokens < 300
    with pytest.raises(ValueError, match=advice):
        check_unknown_rate(corpus, english)


@pytest.mark.parametrize("users", [4, 12])
def test_a_handful_of_unknown_words_in_little_english_is_no_reason_to_stop(
    tmp_path, english, users
):
    """Names and slang: a fifth of the tokens, and too few of them to be sure of anything."""
    texts = ["I met Zbigniew at the old harbour yesterday.", "Frobnicate it, he said, and left!"]
    corpus = corpus_of(tmp_path, texts, users)
    assert unknown_tokens(corpus, english).count > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_unknown_rate(corpus, english)


def test_a_corpus_without_test_users_is_not_judged(tmp_path):
    nobody = UserOptions(test_fraction=0.0)
    records = [(f"u{n}", SMALL["german"][0]) for n in range(5)]
    corpus = ingest_records(records, tmp_path / "corpus", options=nobody, new_people=True)
    check_unknown_rate(corpus, build.word_level(["xyzzy"]))


class TestTheShareThatIsCertain:
    def test_it_is_the_share_itself_of_much_text(self):
        assert Unknown(1_020, 2_000).at_least == 0.51

    def test_it_is_less_of_less_text(self):
        shares = [Unknown(6 * n // 10, n).at_least for n in (10, 100, 1_000, 2_000)]
        assert shares == sorted(shares)
        assert 0 < shares[0] < 0.25

    def test_it_is_what_wilson_s_formula_gives(self):
        from scipy.stats import binomtest

        exact = binomtest(70, 100).proportion_ci(0.99, method="wilson").low
        assert Unknown(70, 100).at_least == pytest.approx(exact, abs=1e-4)

    @pytest.mark.parametrize("tokens", [0, 1, 3])
    def test_next_to_nothing_is_never_refused(self, tokens):
        assert Unknown(tokens, tokens).at_least <= 0.5


def test_a_training_is_refused_before_anything_is_made(corpora, tmp_path):
    run, small = tmp_path / "run", ["--set", "plan.cohort=2", "--rounds", "1"]
    where = ["--corpus", corpora["german"].path, "--run", run]
    message = refused("mcmahan2018", *where, "--quiet", *small)
    assert "wordfreq:de" in message
    assert not run.exists()
