"""A tokenizer from sampled text: its words, its size, its provenance."""

import json

import pytest

from tacit.tokenizers import build
from tacit.tokenizers.learn import _normalisation_of, from_samples
from tacit.tokenizers.tokenizer import Tokenizer
from tests.tokenizers.fakes import KINDS, NORMALISATIONS, PUBLIC, tokenizer

SAMPLES = ["The zebra saw a zebra", "a zebra", "THE zebra"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_it_is_what_learning_from_the_texts_gives_with_the_old_normalisation(kind, normalisation):
    old = tokenizer("word", normalisation)
    found = from_samples(iter(SAMPLES), old, kind=kind, size=280, of="run 1, round 7").tokenizer
    wanted = build.learn(
        kind,
        SAMPLES,
        280,
        normalisation=normalisation,
        provenance="post-processing: run 1, round 7",
    )
    assert found == wanted
    assert found.kind == kind
    assert found.why_void is None
    assert _normalisation_of(found) == normalisation


def test_its_dictionary_is_the_samples_most_frequent_words():
    found = from_samples(SAMPLES, tokenizer("bpe"), kind="word", size=5, of="a run").tokenizer
    assert [found.token(id) for id in range(3, 5)] == ["zebra", "a"]  # 4; 2, before "the" with 2
    as_written = from_samples(
        SAMPLES, tokenizer("bpe", "none"), kind="word", size=8, of="a run"
    ).tokenizer
    assert [as_written.token(id) for id in range(3, 8)] == ["zebra", "a", "THE", "The", "saw"]


def test_bpe_learns_the_samples_words_as_tokens_and_reads_any_text():
    old = tokenizer("bpe")
    found = from_samples(SAMPLES * 5, old, kind="bpe", size=300, of="a run").tokenizer
    assert len(found.encode("a zebra")) == 4  # BOS, "a", " zebra", EOS
    assert len(old.encode("a zebra")) > 4
    assert found.decode(found.encode("naïve 漢字 \U0001f980")) == "naïve 漢字 \U0001f980"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_the_normalisation_is_known_from_the_file_of_every_kind(kind, normalisation):
    old = tokenizer(kind, normalisation)
    assert _normalisation_of(Tokenizer.from_json(old.to_json())) == normalisation


@pytest.mark.parametrize("mark", ["oracle", "unknown"])
def test_what_voids_the_guarantee_of_the_old_voids_that_of_the_new(mark):
    old = build.learn("word", PUBLIC, 50, provenance=mark)
    found = from_samples(SAMPLES, old, kind="word", size=50, of="a run").tokenizer
    assert found.provenance == mark
    assert found.why_void is not None


def test_a_normaliser_of_others_is_refused():
    document = json.loads(tokenizer("word").to_json())
    document["normalizer"] = {"type": "Lowercase"}
    special = document["post_processor"]["special_tokens"]
    for name in [name for name in special if name.startswith("tacit.")]:
        del special[name]
    foreign = Tokenizer.of(document)
    with pytest.raises(ValueError, match="neither of tacit's normalisations"):
        from_samples(SAMPLES, foreign, kind="word", size=50, of="a run")


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([], {}, "texts must have words to learn a tokenizer from, and these 0 have none"),
        (["", " \n\u3000"], {}, "and these 2 have none"),
        ("zebra", {}, "texts must be many strings, got one"),
        ([b"zebra"], {}, "texts must be strings, and text 0 is bytes"),
        (SAMPLES, {"size": 257}, r"at least 258 for kind 'bpe' \(BOS, EOS and the 256 bytes\)"),
        (SAMPLES, {"size": True}, "size must be a whole number"),
        (SAMPLES, {"kind": "word", "size": 3}, "size must be at least 4 for kind 'word', got 3"),
        (SAMPLES, {"kind": "letters"}, "kind must be one of word, bpe, wordpiece, char"),
        (SAMPLES, {"of": ""}, "provenance must be one of"),
        (SAMPLES, {"of": "two\nlines"}, "provenance must be one of"),
    ],
    ids=["none", "blank", "one", "bytes", "bpe", "flag", "word", "kind", "nameless", "lines"],
)
def test_bad_input_is_one_sentence(texts, options, message):
    arguments = {"kind": "bpe", "size": 300, "of": "a run", **options}
    with pytest.raises(ValueError, match=message) as caught:
        from_samples(texts, tokenizer("bpe"), **arguments)
    assert "\n" not in str(caught.value)
