"""Where a tokenizer comes from: it is told once, and no way of handling it changes it."""

from __future__ import annotations

import copy
import itertools
import json
import pickle

import pytest
import tokenizers as plain

from tacit.tokenizers import build, provenance
from tacit.tokenizers.tokenizer import Tokenizer
from tests.tokenizers.fakes import KINDS, PUBLIC, FakeSource, tokenizer

ORACLE = build.oracle(FakeSource((("secret word", "a word"), ("a secret",))), "word", 10)
MARKS = ("tacit.provenance", "tacit.fingerprint")


def through_plain_library(tokenizer: Tokenizer) -> Tokenizer:
    return Tokenizer.from_json(plain.Tokenizer.from_str(tokenizer.to_json()).to_str())


def rewritten(tokenizer: Tokenizer) -> Tokenizer:
    text = json.dumps(json.loads(tokenizer.to_json()), sort_keys=True, separators=(",", ":"))
    return Tokenizer.from_json(text)


WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda tokenizer: pickle.loads(pickle.dumps(tokenizer)),
    "JSON": lambda tokenizer: Tokenizer.from_json(tokenizer.to_json()),
    "the plain library": through_plain_library,
    "other formatting": rewritten,
}


# An oracle stays one


def test_an_oracle_voids_the_guarantee():
    assert ORACLE.provenance == "oracle"
    assert ORACLE.why_void == "its vocabulary was learnt from the users' own text"
    assert ORACLE.words("secret") == ["secret"]
    assert ORACLE.encode("secret")[1] > 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_provenance_and_fingerprint_survive(kind, way):
    oracle = build.oracle(FakeSource((tuple(PUBLIC),)), kind, 300)
    for before in (oracle, tokenizer(kind)):
        after = WAYS[way](before)
        assert (after.provenance, after.fingerprint) == (before.provenance, before.fingerprint)
    assert oracle.provenance == "oracle"


@pytest.mark.parametrize("name", ["provenance", "fingerprint", "kind", "vocab_size", "other"])
def test_nothing_can_be_assigned(name):
    with pytest.raises(AttributeError):
        setattr(ORACLE, name, "public: a list")


def test_an_oracle_and_a_public_tokenizer_with_the_same_words_differ():
    words = [ORACLE.token(id) for id in range(3, ORACLE.vocab_size)]
    same = build.word_level(words, provenance="public: a list")
    assert same.encode("a secret word") == ORACLE.encode("a secret word")
    assert same != ORACLE


def marked(tokenizer: Tokenizer, change) -> str:
    """The file after `change` was made to its document and to the table that has the marks."""
    data = json.loads(tokenizer.to_json())
    change(data, data["post_processor"]["special_tokens"])
    return json.dumps(data)


def call_it_public(_, table):
    table["tacit.provenance"]["tokens"] = ["public: a list"]


def drop_provenance(_, table):
    del table["tacit.provenance"]


def drop_fingerprint(_, table):
    del table["tacit.fingerprint"]


def empty_provenance(_, table):
    table["tacit.provenance"] |= {"tokens": [], "ids": []}


def add_a_word(data, _):
    data["model"]["vocab"]["new"] = len(data["model"]["vocab"])


def keep_case(data, _):
    data["normalizer"] = None


def borrow_marks(_, table):
    public = json.loads(build.word_level(["a"], provenance="public: a list").to_json())
    for mark in MARKS:
        table[mark] = public["post_processor"]["special_tokens"][mark]


@pytest.mark.parametrize(
    "change",
    [
        call_it_public,
        drop_provenance,
        drop_fingerprint,
        empty_provenance,
        add_a_word,
        keep_case,
        borrow_marks,
    ],
)
def test_a_changed_file_is_refused(change, tmp_path):
    (tmp_path / "tokenizer.json").write_text(marked(ORACLE, change))
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be used: it was changed after"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("before", [ORACLE, tokenizer("bpe")])
def test_without_its_marks_a_tokenizer_is_unknown_for_good_and_voids_the_guarantee(
    before, tmp_path
):
    bare = marked(before, lambda _, table: [table.pop(mark) for mark in MARKS])
    (tmp_path / "bare.json").write_text(bare)
    unknown = Tokenizer.load(tmp_path / "bare.json")
    assert unknown.provenance == "unknown"
    assert unknown.why_void == "nobody knows where its vocabulary comes from"
    assert unknown.fingerprint != before.fingerprint
    assert unknown.encode("a secret") == before.encode("a secret")
    unknown.save(tmp_path / "again")
    assert Tokenizer.load(tmp_path / "again") == unknown


def test_a_document_is_not_marked_again_with_another_provenance():
    with pytest.raises(ValueError, match="cannot be changed"):
        Tokenizer.of(json.loads(ORACLE.to_json()), "public: a list")


def test_unsaid_provenance_is_unknown():
    assert build.word_level(["a"]).provenance == "unknown"
    for kind in KINDS:
        assert build.learn(kind, PUBLIC, 300).why_void is not None


# Fingerprints


def test_fingerprints_differ_with_all_that_changes_ids_or_provenance():
    public = "public: a list"
    variants = [
        build.word_level(["a", "b"], provenance=public),
        build.word_level(["b", "a"], provenance=public),
        build.word_level(["a"], provenance=public),
        build.word_level(["a", "b", "c"], provenance=public),
        build.word_level(["a", "b"], provenance=public, normalisation="none"),
        build.word_level(["a", "b"], provenance="public: another list"),
        build.word_level(["a", "b"], provenance="post-processing: a list"),
        build.word_level(["a", "b"], provenance="oracle"),
        build.word_level(["a", "b"]),
        build.learn("char", list("ab"), 1000, provenance=public),
        build.learn("char", list("ab"), 1000, provenance=public, normalisation="none"),
        *(tokenizer(kind) for kind in KINDS),
        tokenizer("bpe", size=280),
    ]
    for one, other in itertools.combinations(variants, 2):
        assert one.fingerprint != other.fingerprint
        assert one != other


def test_a_fingerprint_is_stable():
    ours = build.word_level(["a", "b"], provenance="public: a list")
    assert ours == build.word_level(["a", "b"], provenance="public: a list")
    assert ours.fingerprint == ("d42f9583eb3f30916d58d5f7df60794e2affdc59fb12c0462c31991b0c06760b")


# The kinds of provenance


@pytest.mark.parametrize("good", ["public: a", "private: a b", "post-processing: run 3"])
def test_a_named_provenance_lets_a_guarantee_stand(good):
    assert provenance.check(good) == good
    assert provenance.why_void(good) is None
    assert provenance.public("x") == "public: x"


@pytest.mark.parametrize(
    "bad", ["", "public", "public:", "public: ", "public:a", "Public: a", "oracle: a", "public: \n"]
)
def test_any_other_provenance_is_refused(bad):
    with pytest.raises(ValueError, match="provenance must be one of 'public: NAME'"):
        build.word_level(["a"], provenance=bad)
