"""From utterances to batches: every word, character and label in its place, and nothing else."""

import gzip
import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.tasks.nlu.data import Utterance
from tacit.tasks.nlu.encoding import Labels, Ragged, WordEncoder, encode
from tacit.tokenizers import provenance

LABELS = Labels(("ask", "tell"), ("O", "B-city", "I-city"))

ALPHABET = "".join(map(chr, range(33, 127)))  # printable ASCII, without the space


def said(text: str, tags: str | None = None, intent: str = "ask") -> Utterance:
    tokens = tuple(text.split())
    return Utterance(tokens, tuple(tags.split()) if tags else ("O",) * len(tokens), intent)


def public(*words: str, **fields) -> WordEncoder:
    return WordEncoder(words, "public: a list", **fields)


tokens = st.text(st.sampled_from("abXYé'9"), min_size=1, max_size=6)
utterances = st.lists(
    st.lists(tokens, min_size=1, max_size=6).map(lambda words: said(" ".join(words))),
    min_size=1,
    max_size=6,
)


def literal(encoder: WordEncoder, utterance: Utterance, time: int, letters: int):
    """One row of a batch, written down place by place."""
    words = [0] * time
    characters = [[0] * letters for _ in range(time)]
    for place, token in enumerate(utterance.tokens):
        if token.lower() in encoder.words:
            words[place] = 1 + encoder.words.index(token.lower())
        for at, letter in enumerate(token[: encoder.longest_word]):
            characters[place][at] = 2 + ALPHABET.index(letter) if letter in ALPHABET else 1
    return words, characters


@given(utterances, st.data())
@settings(max_examples=60, deadline=None)
def test_a_batch_is_its_utterances_padded_to_the_longest(given_utterances, data):
    encoder = public("a", "xy", "b9", "é", longest_word=4)
    encoded = encode(encoder, LABELS, given_utterances)
    places = st.integers(0, len(given_utterances) - 1)
    indices = data.draw(st.lists(places, min_size=1, max_size=8))
    batch = encoded.batch(indices)
    chosen = [given_utterances[index] for index in indices]
    time = max(len(each.tokens) for each in chosen)
    letters = min(4, max(len(token) for each in chosen for token in each.tokens))
    rows = [literal(encoder, each, time, letters) for each in chosen]
    assert batch.inputs["words"].tolist() == [words for words, _ in rows]
    assert batch.inputs["characters"].tolist() == [characters for _, characters in rows]
    assert batch.mask.tolist() == [[at < len(u.tokens) for at in range(time)] for u in chosen]
    assert len(batch) == len(indices)


def test_labels_of_a_batch_are_ids_in_the_order_of_the_names():
    both = [said("to new york", "O B-city I-city", "tell"), said("hello")]
    batch = encode(public("to"), LABELS, both).batch([1, 0])
    assert batch.tags.tolist() == [[0, 0, 0], [0, 1, 2]]
    assert batch.intents.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            said("x", intent="shout"),
            "utterance 2: the intent 'shout' is none of the model's 2: ask",
        ),
        (said("x y", "O B-date"), "utterance 2: the tag 'B-date' is none of the model's 3: O"),
    ],
)
def test_a_label_that_the_model_does_not_have_is_named(wrong, message):
    assert LABELS.ids(said("x"))
    with pytest.raises(ValueError, match="is none of the model's"):
        LABELS.ids(wrong)
    with pytest.raises(ValueError, match=message):
        encode(public(), LABELS, [said("x"), wrong])


@pytest.mark.parametrize(
    ("intents", "tags", "message"),
    [
        ((), ("O",), "intents must have at least one name"),
        (("a",), (), "tags must have at least one name"),
        (("a", "b", "a"), ("O",), "intents must differ from each other, got 'a' twice"),
        (("a", ""), ("O",), "intents must be strings that are not empty"),
        (("a", 3), ("O",), "intents must be strings that are not empty"),
    ],
)
def test_labels_that_make_no_schema_are_refused(intents, tags, message):
    with pytest.raises(ValueError, match=message):
        Labels(intents, tags)


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=7), min_size=1, max_size=9))
def test_ragged_rows_come_back_as_they_were(rows):
    values, mask = Ragged.of(rows).padded(np.arange(len(rows)))
    assert [row[here].tolist() for row, here in zip(values, mask, strict=True)] == rows
    assert (values[~mask] == 0).all()
    assert values.shape[1] == max(map(len, rows))


def test_capitals_are_lowered_for_words_and_kept_for_characters():
    encoder = public("paris")
    [[word]] = encode(encoder, LABELS, [said("Paris")]).batch([0]).inputs["words"].tolist()
    assert word == 1
    spelt = encode(encoder, LABELS, [said("Paris"), said("paris")]).batch([0, 1])
    first, second = spelt.inputs["characters"][:, 0].tolist()
    assert first != second
    assert first[1:] == second[1:]


def test_every_character_has_an_id_below_the_count():
    encoder = public()
    word = string.printable.split()[0] + "~!é漢"
    batch = encode(encoder, LABELS, [said(word[:20]), said("~!é漢")]).batch([0, 1])
    characters = batch.inputs["characters"]
    assert 0 <= characters.min() <= characters.max() == encoder.sizes["characters"] - 1
    assert characters[1, 0, 2] == characters[1, 0, 3] == 1  # both are unknown


def test_words_of_the_training_text_are_an_oracle():
    encoder = WordEncoder.oracle([said("to Paris to"), said("from paris to rome")])
    assert encoder.words == ("to", "paris", "from", "rome")
    assert encoder.provenance == provenance.ORACLE
    assert provenance.why_void(encoder.provenance)
    assert WordEncoder.oracle([said("a a b b b c")], size=2).words == ("b", "a")


def test_public_words_say_which_text_they_are_from(tmp_path):
    path = tmp_path / "list.tsv.gz"
    words = "".join(f"{word}\t{weight}\n" for word, weight in [("of", 5), ("The", 9), ("a.m.", 7)])
    path.write_bytes(gzip.compress(words.encode()))
    encoder = WordEncoder.from_public(path, size=40)
    assert encoder.words[:2] == ("the", "of")
    assert encoder.provenance.startswith("public: list.tsv.gz (sha256 ")
    assert provenance.why_void(encoder.provenance) is None
    spoken = WordEncoder.from_public("chatterbot", size=500)
    assert spoken.provenance == "public: chatterbot"
    assert len(spoken.words) == 500
    assert "you" in spoken.words


@pytest.mark.parametrize(
    ("words", "origin", "longest", "message"),
    [
        (("a", "b", "a"), "public: x", 20, "words must differ from each other, got 'a' twice"),
        (("a", ""), "public: x", 20, "words must be strings that are not empty"),
        (("a",), "somewhere", 20, "provenance must be one of"),
        (("a",), "public: x", 0, "longest_word must be at least 1, got 0"),
    ],
)
def test_an_encoder_that_makes_no_sense_is_refused(words, origin, longest, message):
    with pytest.raises(ValueError, match=message):
        WordEncoder(words, origin, longest)


def test_an_encoder_survives_json():
    encoder = public("a", "é", "don't", longest_word=7)
    assert WordEncoder.from_json(encoder.to_json()) == encoder
