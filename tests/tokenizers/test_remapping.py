"""The map from one vocabulary to another, against Algorithm 1 written out."""

from __future__ import annotations

import json
import time
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.tokenizers import build
from tacit.tokenizers.remapping import Remapping
from tacit.tokenizers.tokenizer import Tokenizer
from tests.tokenizers.fakes import KINDS, NORMALISATIONS, spelled, texts, token_bytes, tokenizer
from tests.tokenizers.test_spelling import changed, merging


def matrix_of(remapping: Remapping) -> scipy.sparse.csr_array:
    """Algorithm 1's `map`: new x old, and every row sums to 1."""
    shares = scipy.sparse.diags_array(1 / np.array([len(each) for each in remapping.sources]))
    return (shares @ remapping._occurrences).tocsr()


def is_identity(remapping: Remapping) -> bool:
    """Whether every token is its own and only source."""
    return remapping.sources == tuple((id,) for id in range(remapping.old_size))


PAIRS = [(old, new) for old in KINDS for new in KINDS if old != "bpe" or new == "bpe"]
each_pair = pytest.mark.parametrize(("old_kind", "new_kind"), PAIRS)
each_kind = pytest.mark.parametrize("kind", KINDS)

small_texts = st.lists(
    st.one_of(texts, st.text("abé ", max_size=30), st.text("ab 漢字", max_size=20)), max_size=6
)


def trained(kind, lines, room: int, normalisation="papers") -> Tokenizer:
    least = 258 if kind == "bpe" else 5
    return build.learn(kind, lines, least + room, normalisation=normalisation)


def sources_of(remapping: Remapping, old: Tokenizer, new: Tokenizer, token: str) -> list[str]:
    return [old.token(id) for id in remapping.sources[new.token_id(token)]]


# Algorithm 1, literally


def merged_slowly(text: bytes, merges: list[tuple[bytes, bytes]]) -> list[bytes]:
    """BPE as Sennrich et al. have it: the earliest merge that applies, everywhere, and again."""
    parts = [text[i : i + 1] for i in range(len(text))]
    while True:
        pairs = set(pairwise(parts))
        best = next((pair for pair in merges if pair in pairs), None)
        if best is None:
            return parts
        joined, i = [], 0
        while i < len(parts):
            if tuple(parts[i : i + 2]) == best:
                joined.append(parts[i] + parts[i + 1])
                i += 2
            else:
                joined.append(parts[i])
                i += 1
        parts = joined


def remap_slowly(old: Tokenizer, new: Tokenizer, tokenise) -> np.ndarray:
    """REMAP, a dense matrix, one token at a time; `tokenise` splits bytes into old tokens."""
    vocabulary = {text: id for id, text in enumerate(token_bytes(old)) if text is not None}
    matrix = np.zeros((new.vocab_size, old.vocab_size))
    for id, token in enumerate(token_bytes(new)):
        if token is None:
            role = next(role for role in ("bos", "eos", "unk") if getattr(new, role) == id)
            matrix[id, getattr(old, role)] = 1
            continue
        parts = [token] if token in vocabulary else tokenise(token)
        for part in parts:
            matrix[id, vocabulary.get(part, old.unk)] += 1 / len(parts)
    return matrix


@settings(max_examples=20)
@given(before=small_texts, after=small_texts, rooms=st.tuples(*[st.integers(0, 40)] * 2))
def test_bpe_to_bpe_is_algorithm_1(before, after, rooms):
    for normalisation in NORMALISATIONS:
        old = trained("bpe", before, rooms[0], normalisation)
        new = trained("bpe", after, rooms[1], normalisation)
        old_bytes = token_bytes(old)
        bytes_of = {old.token(id): text for id, text in enumerate(old_bytes)}
        merges = [
            (bytes_of[left], bytes_of[right])
            for left, right in json.loads(old.to_json())["model"]["merges"]
        ]
        expected = remap_slowly(old, new, lambda text: merged_slowly(text, merges))  # noqa: B023
        remapping = Remapping.between(old, new)
        np.testing.assert_allclose(matrix_of(remapping).toarray(), expected, atol=1e-15)
        for id, token in enumerate(token_bytes(new)):
            if token is not None:
                assert b"".join(old_bytes[each] for each in remapping.sources[id]) == token


@settings(max_examples=20)
@given(before=small_texts, after=small_texts, room=st.integers(0, 40))
def test_characters_to_words_is_algorithm_1(before, after, room):
    old, new = trained("char", before, room), trained("word", after, room)
    expected = remap_slowly(old, new, lambda text: [each.encode() for each in text.decode()])
    np.testing.assert_allclose(
        matrix_of(Remapping.between(old, new)).toarray(), expected, atol=1e-15
    )


@each_pair
@settings(max_examples=10)
@given(before=small_texts, after=small_texts, room=st.integers(0, 60))
def test_rows_are_means_of_the_tokens_that_spell_them(old_kind, new_kind, before, after, room):
    old, new = trained(old_kind, before, room), trained(new_kind, after, room)
    remapping = Remapping.between(old, new)
    assert (remapping.old_size, remapping.new_size) == (old.vocab_size, new.vocab_size)
    matrix = matrix_of(remapping)
    assert matrix.shape == (new.vocab_size, old.vocab_size)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-12)
    assert (matrix.data > 0).all()
    values = np.random.default_rng(0).standard_normal((old.vocab_size, 3))
    np.testing.assert_allclose(remapping.apply(values), matrix @ values, atol=1e-12)
    last = new.vocab_size - 1
    if (text := token_bytes(new)[last]) is not None:
        assert list(remapping.sources[last]) == spelled(old, text)
    assert list(np.flatnonzero(remapping.copied)) == [
        id for id, sources in enumerate(remapping.sources) if len(sources) == 1
    ]


@each_kind
@settings(max_examples=10)
@given(lines=small_texts, room=st.integers(0, 60))
def test_a_tokenizer_onto_itself_is_the_identity(kind, lines, room):
    for normalisation in NORMALISATIONS:
        ours = trained(kind, lines, room, normalisation)
        remapping = Remapping.between(ours, ours)
        assert is_identity(remapping)
        assert (matrix_of(remapping).toarray() == np.eye(ours.vocab_size)).all()
        noise = np.random.default_rng(1).integers(0, 2**32, (ours.vocab_size, 2), np.uint32)
        assert (remapping.apply(noise.view(np.float32)).view(np.uint32) == noise).all()


# Between kinds


@cache
def cats(kind) -> Tokenizer:
    lines = ["the cat sat", "a cat is sad", "cat cat cat the the"] * 3
    return build.learn(kind, lines, 290)


@pytest.mark.parametrize(
    ("old_kind", "new_kind", "token", "expected"),
    [
        ("word", "bpe", "Ġcat", ["cat"]),
        ("word", "bpe", "cat", ["cat"]),  # the same word at the start of a text
        ("word", "bpe", "Ġ", ["⟨unk⟩"]),
        ("word", "bpe", "Ã", ["⟨unk⟩"]),
        ("word", "wordpiece", "cat", ["cat"]),
        ("word", "char", "a", ["a"]),
        ("word", "char", "c", ["⟨unk⟩"]),
        ("wordpiece", "bpe", "Ġcat", ["cat"]),
        ("wordpiece", "bpe", "t", ["##t"]),
        ("wordpiece", "word", "the", ["the"]),
        ("wordpiece", "char", "s", ["##s"]),
        ("wordpiece", "char", "c", ["c"]),  # no word of these texts goes on with it
        ("char", "word", "cat", [" ", "c", "a", "t"]),
        ("char", "bpe", "cat", ["c", "a", "t"]),
        ("char", "wordpiece", "##t", ["t"]),
    ],
)
def test_every_kind_is_spelled_in_every_other(old_kind, new_kind, token, expected):
    old, new = cats(old_kind), cats(new_kind)
    assert sources_of(Remapping.between(old, new), old, new, token) == expected


def test_half_characters_and_tokens_with_spaces():
    old = merging(("Ã", "©"), ("Ġ", "c"), extra=("Ã©Ġc",))
    new = merging(("Ġ", "c"), ("c", "Ã"), ("Ã", "©"), extra=("ĠĠc", "©Ġc", "Ã©Ġc", "cc", "ccc"))
    remapping = Remapping.between(old, new)
    for token, expected in [
        ("Ġc", ["Ġc"]),
        ("cÃ", ["c", "Ã"]),  # "c" and half of "é"
        ("Ã©", ["Ã©"]),
        ("ĠĠc", ["Ġ", "Ġc"]),
        ("©Ġc", ["©", "Ġc"]),
        ("Ã©Ġc", ["Ã©Ġc"]),  # two words in one token, which no merge reaches
        ("ccc", ["c", "c", "c"]),
    ]:
        assert sources_of(remapping, old, new, token) == expected
    # Algorithm 1 would have 1/3 here and not 1.
    assert matrix_of(remapping)[new.token_id("ccc"), old.token_id("c")] == pytest.approx(1)
    row = matrix_of(remapping).toarray()[new.token_id("©Ġc")]
    assert row[[old.token_id("©"), old.token_id("Ġc")]].tolist() == [0.5, 0.5]


def permuted(ours: Tokenizer, order: np.ndarray) -> Tokenizer:
    """The same vocabulary under other ids; BOS, EOS and UNK are permuted too."""

    def change(document):
        vocabulary = document["model"]["vocab"]
        for token, id in vocabulary.items():
            vocabulary[token] = int(order[id])
        table = document["post_processor"]["special_tokens"]
        for entry in table.values():
            entry["ids"] = [int(order[id]) for id in entry["ids"]]

    return changed(ours.kind, change)


@each_kind
def test_permuted_ids_are_found_and_come_back(kind):
    ours = tokenizer(kind)
    order = np.random.default_rng(5).permutation(ours.vocab_size)
    other = permuted(ours, order)
    there, back = Remapping.between(ours, other), Remapping.between(other, ours)
    assert not is_identity(there)
    assert there.copied.all()
    values = np.random.default_rng(6).standard_normal((ours.vocab_size, 4)).astype(np.float32)
    assert (there.apply(values)[order] == values).all()
    assert back.apply(there.apply(values)).tobytes() == values.tobytes()


@each_kind
def test_tokens_of_both_vocabularies_come_back_bit_for_bit(kind):
    old = tokenizer(kind)
    new = build.learn(kind, ["the best cats, and the dogs of the theatre"] * 4, 280)
    shared = set(token_bytes(new)) | {None}
    both = [id for id, text in enumerate(token_bytes(old)) if text in shared]
    assert 3 < len(both) < old.vocab_size
    values = np.random.default_rng(7).standard_normal((old.vocab_size, 5))
    away = Remapping.between(old, new).apply(values)
    again = Remapping.between(new, old).apply(away)
    assert again[both].tobytes() == values[both].tobytes()


# Special tokens


def renamed(document):
    """BOS, EOS and UNK with other names and places."""
    names = {"⟨bos⟩": "<s>", "⟨eos⟩": "</s>", "⟨unk⟩": "<unk>"}
    places = {"<s>": 5, "</s>": 2, "<unk>": 0}
    model, template = document["model"], document["post_processor"]
    entries = [token for token in model["vocab"] if token not in names]
    for token, place in sorted(places.items(), key=lambda item: item[1]):
        entries.insert(place, token)
    model["vocab"] = {token: id for id, token in enumerate(entries)}
    model["unk_token"] = "<unk>"
    template["single"] = json.loads(
        json.dumps(template["single"])
        .replace("\\u27e8bos\\u27e9", "<s>")
        .replace("\\u27e8eos\\u27e9", "</s>")
    )
    template["special_tokens"] = {
        name: {"id": name, "ids": [places[name]], "tokens": [name]} for name in ("<s>", "</s>")
    }


def test_special_tokens_go_by_what_they_are_for():
    ours, other = tokenizer("word"), changed("word", renamed)
    assert (other.bos, other.eos, other.unk) == (5, 2, 0)
    there = Remapping.between(ours, other)
    assert [there.sources[id] for id in (5, 2, 0)] == [(0,), (1,), (2,)]
    back = Remapping.between(other, ours)
    assert back.sources[:3] == ((5,), (2,), (0,))
    assert there.copied.all()
    assert back.copied.all()


def test_unk_is_dropped_by_bytes_and_cannot_be_made_up():
    assert tokenizer("word").unk is not None
    dropped = Remapping.between(tokenizer("word"), tokenizer("bpe"))
    assert dropped.sources[:2] == ((0,), (1,))
    for kind in ("word", "wordpiece", "char"):
        with pytest.raises(
            ValueError, match=f"the new {kind} tokenizer has a token for unknown words .* kind bpe"
        ):
            Remapping.between(tokenizer("bpe"), tokenizer(kind))


@each_kind
def test_different_normalisations_are_refused(kind):
    with pytest.raises(ValueError, match="normalisation 'none' and the new one 'papers': their"):
        Remapping.between(tokenizer(kind, "none"), tokenizer(kind, "papers"))

    def compatible(document):
        document["normalizer"] = {"type": "NFKC"}

    with pytest.raises(ValueError, match="normalisation 'papers' and the new one of another lib"):
        Remapping.between(tokenizer(kind, "papers"), changed(kind, compatible))


def test_a_token_that_nothing_spells_is_refused():
    def empty(document):
        document["model"]["vocab"][""] = len(document["model"]["vocab"])

    new = changed("bpe", empty)
    last = new.vocab_size - 1
    with pytest.raises(ValueError, match=f"needs a source, and token {last} has none"):
        Remapping.between(tokenizer("bpe"), new)


# Applying it


def test_means_are_taken_in_float64_and_single_sources_are_copied():
    remapping = Remapping(3, ((0, 1), (2,), (0, 0, 1), (1,)))
    large = np.float32(2**24)
    values = np.array([[large, 1.0], [1.0, 2.0], [-0.0, np.nan]], np.float32)
    found = remapping.apply(values)
    assert found.dtype == np.float32
    assert found[0].tolist() == [np.float32((2.0**24 + 1) / 2), 1.5]
    assert found[1].tobytes() == values[2].tobytes()  # also a negative zero and a NaN
    assert found[2].tolist() == [np.float32((2.0**25 + 1) / 3), np.float32(4 / 3)]
    assert found[3].tobytes() == values[1].tobytes()
    assert remapping.copied.tolist() == [False, True, False, True]
    assert values[0].tolist() == [large, 1.0]


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, np.int64, np.uint8, np.bool_]
)
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_any_axis_of_any_type(dtype, axis):
    shape = [2, 3, 4]
    shape[axis] = 5
    values = np.random.default_rng(3).integers(0, 9, shape).astype(dtype)
    remapping = Remapping(5, ((0, 1, 2), (4,), (1, 3), (3,)))
    found = remapping.apply(values, axis)
    assert found.dtype == dtype
    exact = np.moveaxis(
        np.tensordot(matrix_of(remapping).toarray(), values.astype(float), ([1], [axis])), 0, axis
    )
    assert found.shape == exact.shape
    tolerance = 0.5 + 1e-9 if dtype in (np.int64, np.uint8, np.bool_) else 1e-2
    np.testing.assert_allclose(found.astype(float), exact, atol=tolerance)
    some = np.moveaxis(found, axis, 0)[[1, 3]]
    assert some.tobytes() == np.moveaxis(values, axis, 0)[[4, 3]].tobytes()


def test_a_vector_of_biases_and_a_table_without_columns():
    remapping = Remapping(2, ((0, 1), (1,), (0,)))
    assert remapping.apply(np.array([1.0, 4.0])).tolist() == [2.5, 4.0, 1.0]
    assert remapping.apply(np.zeros((2, 0))).shape == (3, 0)
    assert not is_identity(remapping)
    assert not is_identity(Remapping(2, ((1,), (0,))))
    assert not is_identity(Remapping(2, ((0,),)))
    assert not is_identity(Remapping(2, ((0,), (1, 1))))
    assert is_identity(Remapping(2, ((0,), (1,))))


@given(st.data())
def test_means_of_what_is_not_negative_are_not_negative(data):
    rows = st.lists(st.integers(0, 3), min_size=1, max_size=6).map(tuple)
    remapping = Remapping(4, tuple(data.draw(st.lists(rows, min_size=1, max_size=5))))
    numbers = st.floats(0, 2.0**100, width=32)
    values = np.array(data.draw(st.lists(numbers, min_size=4, max_size=4)), np.float32)
    found = remapping.apply(values)
    assert (found >= 0).all()
    assert (found <= values.max()).all()


@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 4), 0), ((4,), 1), ((4,), -2), ((), 0), ((2, 3), 1)]
)
def test_values_of_another_vocabulary_are_refused(shape, axis):
    with pytest.raises(ValueError, match=f"axis {axis} of the values must count the 4 old tokens"):
        Remapping(4, ((0,), (1,))).apply(np.zeros(shape), axis)


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (((0,), ()), "each new token needs a source, and token 1 has none"),
        (((0,), (1, 2)), "sources must be from 0 to 1, got 0 to 2"),
        (((0,), (-1,)), "sources must be from 0 to 1, got -1 to 0"),
    ],
    ids=["none", "too large", "negative"],
)
def test_sources_must_be_old_tokens(sources, message):
    with pytest.raises(ValueError, match=message):
        Remapping(2, sources)


@pytest.mark.slow
def test_a_hundred_thousand_tokens_take_less_than_five_seconds():
    letters = "abcdefghijklmnopqrstuvwxyz"
    pairs = ["".join(pair) for pair in product(letters, repeat=2)]
    fours = list(product(pairs, repeat=2))
    simple = [(pair[0], pair[1]) for pair in pairs]
    old, new = (merging(*simple, *fours[start : start + 100_000]) for start in (0, 60_000))
    values = np.zeros((old.vocab_size, 96), np.float32)
    start = time.process_time()
    remapping = Remapping.between(old, new)
    remapping.apply(values)
    assert time.process_time() - start < 5
    assert remapping.new_size > 100_000
    assert 0.3 < remapping.copied.mean() < 0.5
