"""BERT's pieces: the ids that HuggingFace's tokenizer gives, and none that a text smuggles in."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertTokenizer

from tacit.tokenizers.wordpiece import SPECIAL, PieceVocabulary

TEXTS = [
    "Show me the flights from Boston to Denver, don't wait!",
    "the cat sees the dog and the dog sees the cat",
    "Wake me up at 7:30 on Mondays; café closes at noon.",
] * 3


@pytest.fixture(scope="module")
def vocabulary():
    return PieceVocabulary.learn(TEXTS, 120, provenance="public: made up")


@pytest.fixture(scope="module")
def theirs(vocabulary):
    return BertTokenizer(vocab={piece: id for id, piece in enumerate(vocabulary.pieces)})


def test_pieces_depend_on_counts_and_not_on_the_order_of_texts(vocabulary):
    shuffled = random.Random(0).sample(TEXTS, len(TEXTS))
    assert PieceVocabulary.learn(shuffled, 120).pieces == vocabulary.pieces
    assert vocabulary.pieces[:5] == SPECIAL
    assert len(vocabulary) <= 120
    assert {"the", "sees", "t", "##t", "'"} <= set(vocabulary.pieces)


@given(st.lists(st.text(st.sampled_from("thecadogs fomB,.'7:é\tß中-"), max_size=30), max_size=5))
def test_ids_are_those_of_huggingfaces_tokenizer(vocabulary, theirs, texts):
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert vocabulary.cut(texts) == expected


def test_nobody_can_write_a_special_piece(vocabulary, theirs):
    special = {vocabulary.id(name) for name in SPECIAL if name != "[UNK]"}
    written = " ".join(SPECIAL) + " the[MASK]cat [mask]"
    assert special & set(theirs(written, add_special_tokens=False)["input_ids"])
    assert not special & set(vocabulary.cut([written])[0])


def test_both_files_that_huggingface_writes_are_read(vocabulary, theirs, tmp_path):
    theirs.save_pretrained(tmp_path)
    assert PieceVocabulary.load(tmp_path).pieces == vocabulary.pieces
    (tmp_path / "tokenizer.json").rename(tmp_path / "other.json")
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary.pieces) + "\n", encoding="utf-8")
    again = PieceVocabulary.load(tmp_path, provenance="public: a folder")
    assert (again.pieces, again.lower_case) == (vocabulary.pieces, True)
    assert (again.provenance, again.why_void) == ("public: a folder", None)


def test_a_vocabulary_with_capitals_leaves_capitals_as_they_are(tmp_path):
    pieces = (*SPECIAL, "A", "a", "##b")
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    cased = PieceVocabulary.load(tmp_path)
    assert not cased.lower_case
    assert cased.cut(["Ab a"]) == [[5, 7, 6]]
    BertTokenizer(vocab={p: i for i, p in enumerate(pieces)}, do_lower_case=False).save_pretrained(
        tmp_path
    )
    assert not PieceVocabulary.load(tmp_path / "tokenizer.json").lower_case


def test_an_unstated_provenance_voids_a_guarantee():
    assert PieceVocabulary(SPECIAL).why_void is not None
    with pytest.raises(ValueError, match="provenance must be one of"):
        PieceVocabulary(SPECIAL, True, "somewhere")


def changed(**changes):
    def change(document):
        for name, value in changes.items():
            document[name] = (document[name] or {}) | value if value else None

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(model={"type": "BPE"}), "its model is 'BPE', and BERT's is 'WordPiece'"),
        (changed(normalizer=None), "its normalizer is None, and BERT's is 'BertNormalizer'"),
        (changed(pre_tokenizer={"type": "Split"}), "its pre_tokenizer is 'Split'"),
        (changed(normalizer={"strip_accents": False}), "strips accents but does not lower-case"),
        (changed(model={"vocab": {"a": 0}}), r"the vocabulary has no \[PAD\], \[UNK\], \[CLS\]"),
        (changed(model={"vocab": {"a": 0, "b": 2}}), "not 0, 1, 2 and so on"),
        (changed(model={"continuing_subword_prefix": "@@"}), "its continuing_subword_prefix"),
        (lambda document: document.pop("model"), "is malformed: KeyError"),
    ],
)
def test_a_tokenizer_that_is_not_berts_is_refused(theirs, tmp_path, change, message):
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ValueError, match=message) as problem:
        PieceVocabulary.load(tmp_path)
    assert str(path) in str(problem.value)


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"there is no .*tokenizer\.json and no .*vocab\.txt"):
        PieceVocabulary.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"tokenizer\.json cannot be used: it is cut off or not valid JSON"
    ):
        PieceVocabulary.load(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"vocab.txt cannot be used: it is not UTF-8"):
        PieceVocabulary.load(tmp_path / "vocab.txt")
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, "a", "a"]), encoding="utf-8")
    with pytest.raises(ValueError, match="the piece 'a' is in the vocabulary twice"):
        PieceVocabulary.load(tmp_path / "vocab.txt")


def test_too_few_pieces_and_half_characters_are_refused(vocabulary):
    with pytest.raises(ValueError, match="size must be at least 7 for kind 'wordpiece', got 6"):
        PieceVocabulary.learn(TEXTS, 6)
    with pytest.raises(ValueError, match="half of a surrogate pair") as problem:
        vocabulary.cut(["secret \ud800"])
    assert "secret" not in str(problem.value)
