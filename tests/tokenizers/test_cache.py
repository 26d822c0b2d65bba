"""The token cache: what is in it is what encoding afresh gives, and damage is noticed."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import pickle
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.corpus.builtin import load_corpus
from tacit.tokenizers import build
from tacit.tokenizers import cache as caches_module
from tacit.tokenizers.cache import TokenCache, user_tokens
from tacit.tokenizers.tokenizer import Tokenizer
from tests.tokenizers.fakes import KINDS, NORMALISATIONS, PUBLIC, FakeSource, texts, tokenizer

USERS = (
    ("It was the best of times.", "", "the worst?"),
    (),
    ("the thesis",) * 5,
    ("",),
    tuple(PUBLIC),
)
SOURCE = FakeSource(USERS)


def expected(users, index, cap, ours) -> list[int]:
    """By the definition: each text from BOS to EOS, one after the other, cut."""
    return [id for text in users[index] for id in ours.encode(text)][:cap]


def verify(cache: TokenCache) -> None:
    """Read every user's tokens."""
    for index in range(len(cache)):
        cache.tokens(index)


# What is in it


@given(
    users=st.lists(st.lists(texts, max_size=4).map(tuple), max_size=5).map(tuple),
    kind=st.sampled_from(KINDS),
    cap=st.one_of(st.none(), st.integers(1, 30)),
)
def test_the_cache_equals_encoding_afresh(users, kind, cap, tmp_path_factory):
    folder = tmp_path_factory.mktemp("caches")
    ours = tokenizer(kind)
    for _ in ("built", "opened"):
        cache = TokenCache.open_or_build(FakeSource(users), ours, folder, max_tokens_per_user=cap)
        assert len(cache) == len(users)
        for index in range(len(users)):
            assert cache.tokens(index).tolist() == expected(users, index, cap, ours)
            assert user_tokens(list(users[index]), ours, cap) == expected(users, index, cap, ours)
        assert cache.lengths().tolist() == [len(cache.tokens(i)) for i in range(len(users))]
        verify(cache)
    shutil.rmtree(folder)


_WORDS = st.sampled_from(
    ["a", "the", "dont'", "naïve", "“so”", "一二", "long" * 9, "x.y", "\x1c", "…"]
)
_SPACES = st.sampled_from([" ", "  ", "\n", "\u3000 ", "\t"])


@given(
    parts=st.lists(st.tuples(_WORDS, _SPACES), min_size=1, max_size=60),
    kind=st.sampled_from(KINDS),
    normalisation=st.sampled_from(NORMALISATIONS),
    cap=st.integers(1, 40),
)
def test_the_beginning_of_a_long_text_has_its_first_tokens(parts, kind, normalisation, cap):
    text = "".join(word + space for word, space in parts)
    ours = build.learn(kind, PUBLIC, 300, normalisation=normalisation)
    texts = [text, "in between", text]
    assert user_tokens(texts, ours, cap) == expected([texts], 0, cap, ours)


def test_little_more_is_tokenized_than_the_cap_needs(tmp_path, monkeypatch):
    random = np.random.default_rng(5)
    words = np.array(
        ["a", "the", "of", "court", "petitioner", "it's", "so,", "well...", "Why?", "é"]
    )

    def post() -> str:
        return " ".join(random.choice(words, random.integers(1, 400)))

    users = tuple(tuple(post() for _ in range(random.integers(1, 60))) for _ in range(60))
    for kind in ("word", "bpe"):
        ours = build.learn(kind, PUBLIC, 300)
        made = []
        encode_batch = Tokenizer.encode_batch

        def counting(self, texts, made=made, encode_batch=encode_batch):
            encoded = encode_batch(self, texts)
            made.append(sum(map(len, encoded)))
            return encoded

        monkeypatch.setattr("tacit.tokenizers.cache._CHUNK_TEXTS", 200)
        monkeypatch.setattr(Tokenizer, "encode_batch", counting)
        cache = TokenCache.open_or_build(FakeSource(users), ours, tmp_path)
        monkeypatch.undo()
        for index in range(len(users)):
            assert cache.tokens(index).tolist() == expected(users, index, 1600, ours)
        assert sum(made) <= 1.2 * int(cache.lengths().sum())
        assert sum(len(ours.encode(text)) for own in users for text in own) > 2 * sum(made)


def test_a_text_of_another_librarys_splitting_is_tokenized_whole():
    document = json.loads(tokenizer("word").to_json())
    document["pre_tokenizer"] = None
    for name in [name for name in document["post_processor"]["special_tokens"] if "tacit" in name]:
        del document["post_processor"]["special_tokens"][name]
    foreign = Tokenizer.of(document)
    assert not foreign.splits_at_spaces
    text = "a b " * 3000
    assert user_tokens([text, "a"], foreign, 50) == [*foreign.encode(text), *foreign.encode("a")]


def test_many_users_go_through_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("tacit.tokenizers.cache._CHUNK_TEXTS", 3)
    source = FakeSource(USERS * 10)
    seen = []
    cache = TokenCache.open_or_build(
        source, tokenizer(), tmp_path, progress=lambda done, total: seen.append((done, total))
    )
    for index in range(len(source)):
        assert cache.tokens(index).tolist() == expected(source.users, index, None, tokenizer())
    assert seen[-1] == (50, 50)
    assert len(seen) > 10
    assert seen == sorted(set(seen))


@given(st.data())
def test_a_user_has_the_same_tokens_whoever_else_there_is(data):
    others = st.lists(st.lists(texts, max_size=3).map(tuple), max_size=3)
    mine = tuple(data.draw(st.lists(texts, max_size=3)))
    cohorts = [(*data.draw(others), mine) for _ in range(2)]
    seen = set()
    for users in cohorts:
        encoded = tokenizer("bpe").encode_batch([text for user in users for text in user])
        seen.add(tuple(map(tuple, encoded[len(encoded) - len(mine) :])))
    assert len(seen) == 1


def test_a_built_in_corpus_goes_in(tmp_path):
    corpus = load_corpus("synthetic:users=30,words=20").train
    for kind in KINDS:
        ours = build.oracle(corpus, kind, 300)
        cache = TokenCache.open_or_build(corpus, ours, tmp_path, max_tokens_per_user=15)
        assert len(cache) == len(corpus) > 0
        for index in range(len(corpus)):
            texts = corpus.texts(index)
            assert cache.tokens(index).tolist() == expected([texts], 0, 15, ours)


def test_the_papers_cap_is_the_default(tmp_path):
    cache = TokenCache.open_or_build(
        FakeSource((("a b " * 2000,), ("a",) * 900)), tokenizer(), tmp_path
    )
    assert cache.lengths().tolist() == [1600, 1600]
    assert cache.description.max_tokens_per_user == 1600


def test_a_long_user_is_not_encoded_beyond_the_cap(tmp_path):
    encoded = []

    class Counting(Tokenizer):
        def encode_batch(self, texts):
            encoded.extend(texts)
            return super().encode_batch(texts)

    counting = Counting.of(json.loads(tokenizer().to_json()))
    source = FakeSource((("the",) * 100_000,))
    cache = TokenCache.open_or_build(source, counting, tmp_path, max_tokens_per_user=11)
    assert len(encoded) <= 8  # texts of three tokens, the first of them twice
    assert len(cache.tokens(0)) == 11


def test_tokens_are_views_of_the_file_that_cannot_be_written(tmp_path):
    cache = TokenCache.open_or_build(SOURCE, tokenizer(), tmp_path)
    tokens = cache.tokens(4)
    assert tokens.dtype == np.uint16
    assert type(tokens) is np.ndarray
    assert not tokens.flags.owndata
    assert not tokens.flags.writeable
    assert np.shares_memory(tokens, cache.tokens(4))


def test_arrays_are_plain_npy_files(tmp_path):
    cache = TokenCache.open_or_build(SOURCE, tokenizer(), tmp_path)
    tokens = np.load(cache.path / "tokens.npy")
    offsets = np.load(cache.path / "offsets.npy")
    assert tokens[offsets[4] :].tolist() == expected(USERS, 4, None, tokenizer())


def test_a_large_vocabulary_takes_wider_numbers(tmp_path):
    words = [f"w{number}" for number in range(70_000)]
    ours = build.word_level(words)
    cache = TokenCache.open_or_build(FakeSource((("w0 w69999",),)), ours, tmp_path)
    assert cache.tokens(0).dtype == np.uint32
    assert cache.tokens(0).tolist() == [0, 3, 70_002, 1]
    small = build.word_level(words[: (1 << 16) - 3])
    cache = TokenCache.open_or_build(FakeSource((("w65532",),)), small, tmp_path)
    assert cache.tokens(0).dtype == np.uint16
    assert cache.tokens(0).tolist() == [0, 65_535, 1]


def test_an_index_outside_is_refused(tmp_path):
    cache = TokenCache.open_or_build(SOURCE, tokenizer(), tmp_path)
    for index in (-1, 5):
        with pytest.raises(IndexError, match=f"user {index} of 5"):
            cache.tokens(index)


def test_a_cache_goes_to_another_process(tmp_path):
    cache = TokenCache.open_or_build(SOURCE, tokenizer(), tmp_path)
    again = pickle.loads(pickle.dumps(cache))
    assert again.tokens(0).tolist() == cache.tokens(0).tolist()
    assert len(pickle.dumps(cache)) < 1000


# One per tokenizer, source and cap


class Unreadable(FakeSource):
    def texts(self, index: int) -> list[str]:
        raise AssertionError("the cache should have been found")


def test_an_existing_cache_is_found_without_reading_a_text(tmp_path):
    TokenCache.open_or_build(SOURCE, tokenizer(), tmp_path)
    cache = TokenCache.open_or_build(Unreadable(USERS), tokenizer(), tmp_path)
    assert cache.tokens(0).tolist() == expected(USERS, 0, None, tokenizer())


def test_each_tokenizer_source_and_cap_has_its_own(tmp_path):
    paths = {
        TokenCache.open_or_build(source, ours, tmp_path, max_tokens_per_user=cap).path
        for source in (SOURCE, FakeSource((*USERS, ("new",))))
        for ours in (tokenizer("word"), tokenizer("bpe"))
        for cap in (10, 20, None)
    }
    assert len(paths) == 12


@pytest.mark.parametrize("bad", [0, -5, 1.5, float("nan")])
def test_a_cap_that_is_no_positive_number_is_refused(bad, tmp_path):
    with pytest.raises(ValueError, match="max_tokens_per_user"):
        TokenCache.open_or_build(SOURCE, tokenizer(), tmp_path, max_tokens_per_user=bad)


# Damage


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0\0")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garble_start(path: Path) -> None:
    path.write_bytes(b"garbage!" + path.read_bytes()[8:])


@pytest.mark.parametrize("name", ["tokens.npy", "offsets.npy", "sums.npy", "cache.json"])
@pytest.mark.parametrize("damage", [cut, lengthen, empty, garble_start, Path.unlink])
def test_a_damaged_cache_is_refused_and_built_again(name, damage, tmp_path):
    cache = TokenCache.open_or_build(SOURCE, tokenizer(), tmp_path)
    whole = {file.name: file.read_bytes() for file in cache.path.iterdir()}
    damage(cache.path / name)
    message = "cannot be used: .*; delete it to have it built again"
    with pytest.raises(ValueError, match=message):
        TokenCache.open(cache.path)
    verify(TokenCache.open_or_build(SOURCE, tokenizer(), tmp_path))
    assert {file.name: file.read_bytes() for file in cache.path.iterdir()} == whole


@pytest.mark.parametrize(
    "change",
    [
        {"users": -1},
        {"users": "5"},
        {"dtype": "object"},
        {"total_tokens": 10**12},
        {"format": "tacit-tokens-0"},
        {"more": 1},
    ],
)
def test_a_description_that_does_not_fit_is_refused(change, tmp_path):
    path = TokenCache.open_or_build(SOURCE, tokenizer(), tmp_path).path / "cache.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match="cannot be used"):
        TokenCache.open(path.parent)


@given(position=st.integers(0, 10**6), bit=st.integers(0, 7), data=st.data())
def test_any_flipped_bit_is_noticed(position, bit, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("caches")
    path = TokenCache.open_or_build(SOURCE, tokenizer(), folder).path
    file = path / data.draw(st.sampled_from(["tokens.npy", "offsets.npy", "sums.npy"]))
    content = bytearray(file.read_bytes())
    content[position % len(content)] ^= 1 << bit
    file.write_bytes(content)
    with pytest.raises(ValueError, match="delete it to have it built again"):
        verify(TokenCache.open(path))
    shutil.rmtree(folder)


def test_another_cache_under_the_same_name_is_not_taken(tmp_path):
    one = TokenCache.open_or_build(SOURCE, tokenizer("word"), tmp_path)
    other = TokenCache.open_or_build(SOURCE, tokenizer("bpe"), tmp_path)
    shutil.rmtree(other.path)
    one.path.rename(other.path)
    again = TokenCache.open_or_build(SOURCE, tokenizer("bpe"), tmp_path)
    assert again.tokens(0).tolist() == expected(USERS, 0, None, tokenizer("bpe"))


# Whole or not at all


def visible(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space left")])
def test_nothing_is_left_of_a_build_that_is_interrupted(error, tmp_path, monkeypatch):
    monkeypatch.setattr("tacit.tokenizers.cache._CHUNK_TEXTS", 1)

    def stop(done: int, total: int) -> None:
        assert len(visible(tmp_path)) == 1
        if done == 3:
            raise error

    with pytest.raises((KeyboardInterrupt, OSError)):
        TokenCache.open_or_build(SOURCE, tokenizer(), tmp_path, progress=stop)
    assert visible(tmp_path) == set()


def test_what_a_killed_process_left_is_removed(tmp_path):
    cache = TokenCache.open_or_build(SOURCE, tokenizer(), tmp_path)
    name = cache.path.name
    shutil.rmtree(cache.path)
    for leftover in (f".{name}.partial", f".{name}.old"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "tokens.npy").write_bytes(b"half")
    TokenCache.open_or_build(SOURCE, tokenizer(), tmp_path)
    assert visible(tmp_path) == {name}


def test_a_text_that_is_not_unicode_names_its_user_and_leaves_nothing(tmp_path):
    source = FakeSource((("fine",), ("fine", "a\ud800")))
    with pytest.raises(ValueError, match="user 1 cannot be tokenized: a text has half of a surr"):
        TokenCache.open_or_build(source, tokenizer(), tmp_path)
    assert visible(tmp_path) == set()


def test_a_fingerprint_cannot_leave_the_folder(tmp_path):
    class Odd(FakeSource):
        fingerprint = "../../elsewhere"

    with pytest.raises(ValueError, match="fingerprint must be letters and digits"):
        TokenCache.open_or_build(Odd(USERS), tokenizer(), tmp_path)


def _build_in_child(folder: Path, is_building, is_late, queue) -> None:
    built = []

    def progress(*_) -> None:
        built.append(1)
        is_building.set()
        is_late.wait(60)
        time.sleep(0.5)  # the other one now either waits for us or builds too

    if is_building.is_set():
        is_late.set()
    TokenCache.open_or_build(SOURCE, tokenizer(), folder, progress=progress)
    queue.put(bool(built))


def test_of_processes_at_the_same_time_one_builds(tmp_path):
    context = multiprocessing.get_context("spawn")
    is_building, is_late, queue = context.Event(), context.Event(), context.Queue()
    arguments = (tmp_path, is_building, is_late, queue)
    first, late = (context.Process(target=_build_in_child, args=arguments) for _ in range(2))
    first.start()
    assert is_building.wait(60)
    late.start()
    built = [queue.get(timeout=300) for _ in range(2)]
    for child in (first, late):
        child.join(60)
    assert sorted(built) == [False, True]


def test_the_folder_is_for_its_owner_only(tmp_path):
    cache = TokenCache.open_or_build(SOURCE, tokenizer(), tmp_path)
    assert cache.path.stat().st_mode & 0o777 == 0o700


def test_opening_reads_the_same_however_many_users_there_are(tmp_path, monkeypatch):
    """Bytes read, which unlike time can be compared exactly; mapping reads none."""
    read = []
    real_open = open

    def counting_open(*arguments, **options):
        file = real_open(*arguments, **options)
        real_read = file.read

        class Counting:
            def __getattr__(self, name):
                return getattr(file, name)

            def __enter__(self):
                return self

            def __exit__(self, *_):
                file.close()

            def read(self, *size):
                data = real_read(*size)
                read.append(len(data))
                return data

        return Counting()

    caches = [
        TokenCache.open_or_build(FakeSource((("the best",),) * users), tokenizer(), tmp_path)
        for users in (10, 10_000)
    ]
    monkeypatch.setattr(caches_module, "open", counting_open, raising=False)
    sizes = []
    for cache in caches:
        read.clear()
        TokenCache.open(cache.path)
        sizes.append(list(read))
    assert sizes[0] == sizes[1] == [128, 128, 128]
    assert os.path.getsize(caches[1].path / "tokens.npy") > 10_000
