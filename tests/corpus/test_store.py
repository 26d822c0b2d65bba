"""A corpus directory: what is opened is what was written, and damage is noticed."""

import json
import pickle

import numpy as np
import pyarrow as pa
import pytest

from tacit.corpus import store
from tacit.corpus.grouping import UserOptions
from tacit.corpus.ingest import ingest_records
from tacit.corpus.source import UserSource
from tacit.corpus.store import Corpus

MADE = [(f"user {i}", [f"text {j} of {i}" for j in range(i % 7 + 1)]) for i in range(200)]


def ids(source):
    return [source.user_id(i) for i in range(len(source))]


def cut(path):
    path.write_bytes(path.read_bytes()[:-8])


def blank(path):
    path.write_bytes(b"\0" * path.stat().st_size)


def swap(path):
    data = (path / store.TEXTS).read_bytes()
    (path / store.USERS).write_bytes(data)
    edit(path, bytes={store.USERS: len(data), store.TEXTS: len(data)})


def edit(path, **changes):
    meta = json.loads((path / store.META).read_text()) | changes
    meta = {name: value for name, value in meta.items() if value is not None}
    (path / store.META).write_text(json.dumps(meta))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return ingest_records(
        MADE, tmp_path_factory.mktemp("store") / "out", options=UserOptions(0.25, 0.3)
    )


def test_a_corpus_and_its_parts_are_user_sources(corpus):
    for source in (corpus, corpus.train, corpus.test, corpus.kept(), corpus.train.held_out()):
        assert isinstance(source, UserSource)
        assert not source.is_synthetic_users
        assert len(source.fingerprint) == 64


def test_train_and_test_divide_the_users(corpus):
    parts = [*ids(corpus.train), *ids(corpus.test)]
    assert len(corpus.train) + len(corpus.test) == len(corpus) == 200
    assert set(parts) == set(ids(corpus))
    assert 20 < len(corpus.test) < 80  # 50 expected; 5 standard deviations are 31


def test_kept_and_held_out_divide_the_texts(corpus):
    for i in range(len(corpus)):
        both = corpus.kept().texts(i) + corpus.held_out().texts(i)
        assert sorted(both) == sorted(corpus.texts(i))
    total = sum(corpus.held_out().text_counts())
    assert total == corpus.info()["held_out_texts"]
    assert 0.2 < total / corpus.info()["texts"] < 0.4
    train = corpus.train
    counts = [sum(view.text_counts()) for view in (train.kept(), train.held_out(), train)]
    assert counts[0] + counts[1] == counts[2]


def test_single_texts_and_counts_agree_with_whole_users(corpus):
    for source in (corpus, corpus.train, corpus.kept(), corpus.test.held_out()):
        counts = source.text_counts()
        for i in range(0, len(source), 9):
            texts = source.texts(i)
            assert [source.text(i, j) for j in range(counts[i])] == texts
            assert counts[i] == len(texts) == len(source.held_out_mask(i))


def test_indices_may_be_numpy_and_must_be_in_range(corpus):
    assert corpus.texts(np.int64(3)) == corpus.texts(3)
    for source in (corpus, corpus.train):
        for index in (-1, len(source)):
            with pytest.raises(IndexError):
                source.texts(index)
    with pytest.raises(IndexError):
        corpus.text(0, 99)


def test_another_process_can_be_given_a_corpus(corpus):
    again = pickle.loads(pickle.dumps(corpus.train.kept()))
    assert again.texts(5) == corpus.train.kept().texts(5)


def test_the_salt_is_stored_and_not_shown(corpus):
    assert "salt" not in corpus.info()
    assert len(json.loads((corpus.path / store.META).read_text())["salt"]) == 32


def test_both_tables_are_one_record_batch_and_plain_arrow(corpus):
    for name, rows in ((store.USERS, 200), (store.TEXTS, corpus.info()["texts"])):
        with pa.memory_map(str(corpus.path / name)) as file:
            reader = pa.ipc.open_file(file)
            assert reader.num_record_batches == 1
            batch = reader.get_batch(0)
            batch.validate(full=True)
            assert len(batch) == rows
            del batch, reader


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: (p / store.TEXTS).unlink(), r"texts.arrow' is damaged: it has 0 bytes"),
        (lambda p: cut(p / store.USERS), r"users.arrow' is damaged: it has"),
        (lambda p: blank(p / store.TEXTS), r"texts.arrow' is damaged: it does not hold its table"),
        (swap, r"users.arrow' is damaged: it does not hold its table"),
        (lambda p: (p / store.META).unlink(), r"is not a corpus: it has no corpus.json"),
        (lambda p: (p / store.META).write_text("{"), r"corpus.json is damaged: it is not JSON"),
        (
            lambda p: (p / store.META).write_text("[]"),
            r"corpus.json is damaged: it must be an object",
        ),
        (lambda p: edit(p, version=99), r"has format version 99; this tacit reads version 2"),
        (lambda p: edit(p, users=None), r"corpus.json is damaged: users is missing"),
    ],
)
def test_damage_is_one_sentence(tmp_path, change, message):
    path = ingest_records([("a", ["b"])], tmp_path / "out").path
    change(path)
    with pytest.raises(ValueError, match=message):
        Corpus.open(path)


def test_a_path_that_is_no_corpus(tmp_path):
    with pytest.raises(ValueError, match="there is no corpus at"):
        Corpus.open(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is not a corpus"):
        Corpus.open(tmp_path / "file")
