"""One tokenizer: its ids are the plain library's, and its words are those of every other kind."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import tokenizers as plain
from hypothesis import given
from hypothesis import strategies as st

from tacit.tokenizers import build
from tacit.tokenizers.normalisation import WHITE_SPACE, normalised
from tacit.tokenizers.tokenizer import BOS, EOS, UNK, Tokenizer
from tests.tokenizers.fakes import KINDS, NORMALISATIONS, PUBLIC, texts, tokenizer

each_kind = pytest.mark.parametrize("kind", KINDS)
each_normalisation = pytest.mark.parametrize("normalisation", NORMALISATIONS)


@cache
def in_plain_library(kind, normalisation) -> plain.Tokenizer:
    return plain.Tokenizer.from_str(tokenizer(kind, normalisation).to_json())


# Ids


@each_kind
@each_normalisation
@given(text=texts)
def test_ids_and_decoding_are_those_of_the_plain_library(kind, normalisation, text):
    ours, theirs = tokenizer(kind, normalisation), in_plain_library(kind, normalisation)
    ids = ours.encode(text)
    assert ids == theirs.encode(text).ids
    assert ours.decode(ids) == theirs.decode(ids)


@each_kind
def test_the_saved_file_loads_in_the_plain_library(kind, tmp_path):
    path = tokenizer(kind).save(tmp_path)
    assert path == tmp_path / "tokenizer.json"
    theirs = plain.Tokenizer.from_file(str(path))
    assert theirs.get_vocab_size() == tokenizer(kind).vocab_size
    for text in [*PUBLIC, "unheard-of \N{SNOWMAN}"]:
        assert theirs.encode(text).ids == tokenizer(kind).encode(text)


@each_kind
@each_normalisation
@given(text=texts)
def test_a_text_is_between_bos_and_eos_and_cannot_spell_them(kind, normalisation, text):
    ours = tokenizer(kind, normalisation)
    first, *inner, last = ours.encode(text)
    assert (first, last) == (ours.bos, ours.eos) == (0, 1)
    assert not {ours.bos, ours.eos} & set(inner)
    assert all(0 <= id < ours.vocab_size for id in inner)


@each_kind
@given(batch=st.lists(texts, max_size=5))
def test_a_text_in_a_batch_has_the_ids_it_has_alone(kind, batch):
    ours = tokenizer(kind)
    assert ours.encode_batch(batch) == [ours.encode(text) for text in batch]


def test_what_is_not_in_the_dictionary_is_unknown():
    ours = build.word_level(["the", "best"])
    assert ours.vocab_size == 5
    assert ours.encode("The very best!") == [0, 3, 2, 4, 2, 1]
    assert ours.decode([0, 3, 2, 4, 2, 1]) == f"the {UNK} best {UNK}"
    assert ours.encode(f"{BOS} {EOS} {UNK}") == [0, *[2] * 9, 1]


def test_fixed_ids():
    for kind in KINDS:
        ours = tokenizer(kind)
        assert (ours.kind, ours.bos, ours.eos) == (kind, 0, 1)
        assert ours.unk == (None if kind == "bpe" else 2)
        assert [ours.token(0), ours.token(1)] == [BOS, EOS]
        assert ours.token(2) == (UNK if kind != "bpe" else "!")
        assert ours.token_id("no such token") is None


# Back to text


@given(texts)
def test_byte_level_bpe_gives_any_text_back(text):
    ours = tokenizer("bpe", "none")
    assert ours.decode(ours.encode(text)) == text


@given(texts)
def test_byte_level_bpe_gives_the_normalised_text_back(text):
    ours = tokenizer("bpe", "papers")
    assert [ours.decode(ours.encode(text))] == list(normalised([text], "papers"))


@given(texts)
def test_characters_give_back_any_text_of_the_alphabet(text):
    ours = build.learn("char", [text], 1000, normalisation="none")
    assert ours.decode(ours.encode(text)) == text


@given(texts)
def test_words_of_the_dictionary_come_back_with_single_spaces(text):
    for normalisation in NORMALISATIONS:
        ours = build.learn("word", [text], 1000, normalisation=normalisation)
        assert ours.decode(ours.encode(text)) == " ".join(ours.words(text))


def test_an_id_that_does_not_exist_is_refused():
    ours = tokenizer("word")
    for bad in (-1, ours.vocab_size):
        with pytest.raises(ValueError, match=f"from 0 to {ours.vocab_size - 1}, got {bad}"):
            ours.decode([bad])
        with pytest.raises(ValueError, match=f"from 0 to {ours.vocab_size - 1}, got {bad}"):
            ours.token(bad)


@each_kind
def test_half_of_a_surrogate_pair_is_refused(kind):
    for encode in (tokenizer(kind).encode, tokenizer(kind).words, tokenizer(kind).word_ids):
        with pytest.raises(ValueError, match="half of a surrogate pair"):
            encode("a\ud800")
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        tokenizer(kind).encode_batch(["fine", "a\ud800"])


# Words


@each_normalisation
@given(text=texts)
def test_words_are_the_same_for_every_kind(normalisation, text):
    [words] = {tuple(tokenizer(kind, normalisation).words(text)) for kind in KINDS}
    assert all(words)


@each_kind
@each_normalisation
@given(text=texts)
def test_every_token_belongs_to_the_word_it_came_from(kind, normalisation, text):
    ours = tokenizer(kind, normalisation)
    words = ours.words(text)
    ids, owners = ours.word_ids(text)
    assert ids == ours.encode(text)
    assert len(owners) == len(ids)
    inner = owners[1:-1]
    assert owners[0] == owners[-1] == -1
    outside = len(inner) - inner.index(-1) if -1 in inner else 0
    assert inner[len(inner) - outside :] == [-1] * outside
    owned = inner[: len(inner) - outside]
    assert sorted(owned) == owned
    assert set(owned) == set(range(len(words)))
    for index, word in enumerate(words):
        mine = [id for id, owner in zip(ids, owners, strict=True) if owner == index]
        if ours.unk not in mine:
            assert ours.decode(mine).lstrip(WHITE_SPACE) == word
    tail = [id for id, owner in zip(ids[1:-1], inner, strict=True) if owner == -1]
    if ours.unk not in tail:
        assert ours.decode(tail).strip(WHITE_SPACE) == ""


# Files


@each_kind
@each_normalisation
def test_a_tokenizer_is_the_same_after_saving_and_loading(kind, normalisation, tmp_path):
    ours = tokenizer(kind, normalisation)
    for path in (tmp_path / "run", tmp_path / "mine.json"):
        saved = ours.save(path)
        again = Tokenizer.load(path)
        assert again == ours
        assert hash(again) == hash(ours)
        assert (again.kind, again.provenance, again.unk) == (ours.kind, ours.provenance, ours.unk)
        assert again.to_json() == saved.read_text(encoding="utf-8")
    assert Tokenizer.load(tmp_path / "run" / "tokenizer.json") == ours
    assert {path.name for path in tmp_path.iterdir()} == {"run", "mine.json"}


def test_saving_never_replaces_another_tokenizer(tmp_path):
    path = tokenizer("word").save(tmp_path)
    before = path.read_bytes()
    assert tokenizer("word").save(tmp_path) == path
    with pytest.raises(FileExistsError, match=r"tokenizer\.json exists already"):
        tokenizer("bpe").save(tmp_path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def spoilt(change) -> str:
    document = json.loads(build.word_level(["a", "b"]).to_json())
    for name in ("tacit.provenance", "tacit.fingerprint"):
        del document["post_processor"]["special_tokens"][name]
    change(document)
    return json.dumps(document)


def added_token(document) -> None:
    theirs = plain.Tokenizer.from_str(json.dumps(document))
    theirs.add_special_tokens(["<pad>"])
    document.clear()
    document.update(json.loads(theirs.to_str()))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cut off or not valid JSON"),
        (tokenizer("word").to_json()[:-50], "cut off or not valid JSON"),
        ("[]", "not a tokenizer of HuggingFace tokenizers"),
        ("{}", "not a tokenizer of HuggingFace tokenizers"),
        ('{"model": {"type": "Unigram"}}', "its model is 'Unigram'"),
        ('{"model": {"type": "BPE"}}', "missing or malformed"),
        (spoilt(lambda d: d.pop("post_processor")), "no template"),
        (spoilt(lambda d: d["post_processor"].update(single=[])), "between BOS and EOS"),
        (spoilt(lambda d: d["post_processor"].pop("special_tokens")), "missing or malformed"),
        (spoilt(lambda d: d["model"]["vocab"].update(b=7)), "ids of its vocabulary are not 0, 1"),
        (spoilt(lambda d: d["model"]["vocab"].update(b="b")), "missing or malformed"),
        (spoilt(lambda d: d["model"].update(unk_token="?")), "unknown words, '\\?', has no id"),
        (spoilt(lambda d: d.update(padding={"pad_id": 1})), "truncates or pads"),
        (spoilt(lambda d: d.update(normalizer={"type": "?"})), "tokenizers cannot read it"),
        (spoilt(added_token), "added tokens \\('<pad>'\\)"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(content, message, tmp_path):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=f"tokenizer.json cannot be used: .*{message}"):
        Tokenizer.load(tmp_path)


def test_a_missing_or_binary_file_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"there is no tokenizer at .*run/tokenizer\.json"):
        Tokenizer.load(tmp_path / "run")
    (tmp_path / "a.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"a\.json cannot be used: it is not UTF-8"):
        Tokenizer.load(Path(tmp_path / "a.json"))


def test_randomly_dropped_merges_are_refused():
    document = json.loads(tokenizer("bpe").to_json())
    document["model"]["dropout"] = 0.1
    with pytest.raises(ValueError, match="dropout"):
        Tokenizer.of(document)
