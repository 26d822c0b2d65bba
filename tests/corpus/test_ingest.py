"""Ingest against a slow oracle, in all formats, in all orders."""

import random
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.corpus import grouping
from tacit.corpus.grouping import Spool, UserOptions
from tacit.corpus.ingest import ingest, ingest_records
from tacit.corpus.store import Corpus
from tests.corpus.writing import COMPRESSION, FORMATS, content, packed, write
from tests.oracles.grouping import grouped

SALT = bytes(range(16))
HEX = SALT.hex()

# All of Unicode but what no UTF-8 file holds, and NUL, by which binary files are told.
letters = st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\ufeff")
texts = st.text(letters, min_size=1, max_size=12).filter(lambda text: text.strip())
users = st.sampled_from(["ann", "Bob", "7", "ä ö", "x,y", 'q"q']) | texts
rows = st.lists(st.tuples(users, texts), min_size=1, max_size=25)
fractions = st.sampled_from([0.0, 0.1, 0.5, 1.0])


def records(rows):
    return [(user, [text], 0) for user, text in rows]


@given(
    rows=rows,
    format=st.sampled_from(FORMATS),
    compression=st.sampled_from(COMPRESSION),
    pieces=st.integers(1, 3),
    held_out=fractions,
    test=fractions,
    max_texts=st.none() | st.integers(2, 4),
    min_texts=st.integers(0, 2),
    min_words=st.integers(0, 3),
)
@settings(max_examples=60)
def test_ingest_agrees_with_the_oracle_in_every_format(
    rows, format, compression, pieces, held_out, test, max_texts, min_texts, min_words
):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for piece in range(pieces):
            part = rows[piece::pieces]
            write(folder, f"in{piece}.{format}", part, compression=compression)
        if pieces > len(rows) and format == "jsonl":  # a file without any row is an empty file
            return
        expected = grouped(
            records(rows),
            SALT,
            max_texts=max_texts,
            min_texts=min_texts,
            min_words=min_words,
            held_out=held_out,
            test=test,
        )
        options = UserOptions(test, held_out, min_texts, max_texts, min_words)
        out = folder / "made" / "corpus"
        pattern = str(folder / f"in*.{format}*")
        if not expected:
            with pytest.raises(ValueError, match="no user has at least"):
                ingest(pattern, out, salt=HEX, options=options)
            assert not out.parent.exists()
            return
        corpus = ingest(pattern, out, salt=HEX, options=options)
        assert content(corpus) == expected
        assert corpus.info()["words"] == sum(len(t.split()) for _, ts, _ in expected for t, _ in ts)
        assert corpus.word_counts().sum() == corpus.info()["words"]


@given(
    records=st.lists(
        st.tuples(users, st.lists(texts, min_size=1, max_size=4)), min_size=1, max_size=8
    ),
    format=st.sampled_from(["jsonl", "parquet"]),
)
@settings(max_examples=25)
def test_a_line_with_several_texts_keeps_their_order(records, format):
    with tempfile.TemporaryDirectory() as name:
        path = write(Path(name), f"in.{format}", records, columns=("user", "texts"))
        corpus = ingest(path, Path(name) / "out", salt=HEX)
        assert content(corpus) == grouped([(u, t, 0) for u, t in records], SALT)
        again = ingest_records(records, Path(name) / "again", salt=HEX)
        assert again.fingerprint == corpus.fingerprint


@given(
    rows=st.lists(st.tuples(users, texts, st.integers(-50, 2000)), min_size=1, max_size=20),
    format=st.sampled_from(FORMATS),
)
@settings(max_examples=25)
def test_an_order_column_orders_by_value(rows, format):
    with tempfile.TemporaryDirectory() as name:
        path = write(Path(name), f"in.{format}", rows, columns=("user", "text", "at"))
        corpus = ingest(path, Path(name) / "out", order_column="at", salt=HEX)
        assert content(corpus) == grouped([(u, [t], at) for u, t, at in rows], SALT)


@given(
    files=st.dictionaries(
        st.sampled_from(["ann", "bob.b", "sub/cy", "d"]),
        st.lists(texts.filter(lambda t: len(t.splitlines()) == 1 and "\n" not in t), min_size=1),
        min_size=1,
    ),
    suffix=st.sampled_from([".txt", "", ".txt.gz"]),
)
@settings(max_examples=25)
def test_a_folder_with_a_text_file_per_user(files, suffix):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "people"
        (folder / "sub").mkdir(parents=True)
        for user, lines in files.items():
            data = packed("\n\n".join(lines).encode(), ".gz" if suffix.endswith("gz") else "")
            (folder / f"{user}{suffix}").write_bytes(data)
        corpus = ingest(folder, Path(name) / "out", salt=HEX)
        assert content(corpus) == grouped([(u, lines, 0) for u, lines in files.items()], SALT)


@given(rows=rows, seed=st.integers(0, 99))
@settings(max_examples=20)
def test_rows_in_another_order_and_another_salt_give_the_same_users_texts_and_splits(rows, seed):
    shuffled = random.Random(seed).sample(rows, len(rows))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = ingest(write(folder, "a.csv", rows), folder / "a")
        again = ingest(write(folder, "b.jsonl", shuffled), folder / "b")
        assert [row[1:] for row in content(first)] == [row[1:] for row in content(again)]
        assert first.fingerprint == again.fingerprint
        assert first.user_id(0) != again.user_id(0)  # random salts


@given(rows=rows, more=st.lists(texts, min_size=1, max_size=3))
@settings(max_examples=20)
def test_adding_a_user_changes_nobody_else(rows, more):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = UserOptions(test_fraction=0.5, max_texts=2)
        before = ingest(write(folder, "a.csv", rows), folder / "a", salt=HEX, options=options)
        added = [*rows, *(("somebody else entirely", text) for text in more)]
        after = ingest(write(folder, "b.csv", added), folder / "b", salt=HEX, options=options)
        kept = {row[0]: row for row in content(after)}
        assert all(kept[row[0]] == row for row in content(before))
        assert len(after) == len(before) + 1
        assert before.fingerprint != after.fingerprint


def test_the_fingerprint_does_not_depend_on_how_rows_are_cut_into_blocks(tmp_path, monkeypatch):
    made = [(f"user {i % 300}", [f"text {i}", "again"]) for i in range(900)]
    whole = ingest_records(made, tmp_path / "whole")
    texts = [whole.texts(i) for i in range(300)]
    monkeypatch.setattr("tacit.corpus.grouping._ROWS_PER_CHUNK", 7)
    cut = ingest_records(reversed(made), tmp_path / "cut")
    assert cut.fingerprint == whole.fingerprint
    assert [cut.texts(i) for i in range(300)] == texts


def test_a_user_with_more_rows_than_a_block_stays_one_user(tmp_path, monkeypatch):
    monkeypatch.setattr("tacit.corpus.grouping._ROWS_PER_CHUNK", 7)
    made = [(f"user {i % 3}", [f"text {i}"]) for i in range(3000)]
    corpus = ingest_records(made, tmp_path / "out")
    assert sorted(corpus.text_counts().tolist()) == [1000, 1000, 1000]


def test_max_words_cuts_within_a_text_and_counts_what_is_left(tmp_path):
    made = [("a", ["one  two", "three four\tfive six", "seven"]), ("b", ["one"])]
    corpus = ingest_records(made, tmp_path / "out", options=UserOptions(max_words=4))
    assert sorted(corpus.texts(i) for i in range(2)) == [["one"], ["one  two", "three four"]]
    assert corpus.info()["words"] == 5
    assert sorted(corpus.word_counts().tolist()) == [1, 4]


@given(
    users=st.lists(st.lists(texts, min_size=1, max_size=5), min_size=1, max_size=5),
    max_texts=st.none() | st.integers(1, 4),
    max_words=st.none() | st.integers(1, 6),
)
@settings(max_examples=20)
def test_caps_keep_the_first_texts_and_words(users, max_texts, max_words):
    options = UserOptions(max_texts=max_texts, max_words=max_words)
    with tempfile.TemporaryDirectory() as name:
        made = [(str(i), whole) for i, whole in enumerate(users)]
        corpus = ingest_records(made, Path(name) / "out", options=options, salt=HEX)
        ids = {grouped([(user, ["x"], 0)], SALT)[0][0]: whole for user, whole in made}
        for i in range(len(corpus)):
            kept, whole = corpus.texts(i), ids[corpus.user_id(i)]
            assert " ".join(kept).split() == " ".join(whole[:max_texts]).split()[:max_words]
            assert all(old.startswith(new) for new, old in zip(kept, whole, strict=False))


@given(text=st.text("ab \t\n\x1c\u2003"), count=st.integers(1, 5))
def test_first_words_are_those_of_split(text, count):
    cut = grouping._first_words(text, count)
    assert cut.split() == text.split()[:count]
    assert text.startswith(cut)


def test_whole_files_are_one_text_each(tmp_path):
    (tmp_path / "ann.txt").write_text("one\n\ntwo\n")
    corpus = ingest(tmp_path / "ann.txt", tmp_path / "out", whole_files=True)
    assert corpus.texts(0) == ["one\n\ntwo"]


def test_raw_ids_are_nowhere_in_the_corpus(tmp_path):
    corpus = ingest_records([("raw-name@example.org", ["hello"])], tmp_path / "out")
    for file in corpus.path.iterdir():
        assert b"raw-name" not in file.read_bytes()
    assert (corpus.path.stat().st_mode & 0o777) == 0o700


def test_columns_are_guessed_in_any_case_and_named_ones_win(tmp_path):
    rows = [("t1", "ann", "x", "bob")]
    path = write(tmp_path, "in.csv", rows, columns=("Body", "Author", "when", "nick"))
    assert (
        ingest(path, tmp_path / "a", salt=HEX).user_id(0)
        == grouped([("ann", ["t1"], 0)], SALT)[0][0]
    )
    named = ingest(path, tmp_path / "b", user_column="nick", salt=HEX)
    assert named.user_id(0) == grouped([("bob", ["t1"], 0)], SALT)[0][0]


def test_whole_numbers_are_users_in_json_and_parquet(tmp_path):
    for format in ("jsonl", "parquet"):
        path = write(tmp_path, f"in.{format}", [(7, "x")])
        corpus = ingest(path, tmp_path / format, salt=HEX)
        assert corpus.user_id(0) == grouped([("7", ["x"], 0)], SALT)[0][0]


def test_tab_separated_text_with_bare_quotes_is_read_with_no_quotes(tmp_path):
    path = tmp_path / "in.tsv"
    path.write_text('user\ttext\na\t"hello" she said\n')
    with pytest.raises(ValueError, match=r"line 2 of .*no quotes"):
        ingest(path, tmp_path / "out")
    assert ingest(path, tmp_path / "out", quotes=False).texts(0) == ['"hello" she said']


def test_a_byte_order_mark_is_not_part_of_the_first_column(tmp_path):
    path = tmp_path / "in.csv"
    path.write_bytes(b"\xef\xbb\xbfuser,text\r\na,b\r\n")
    assert ingest(path, tmp_path / "out").texts(0) == ["b"]


def test_sorting_in_parts_that_fit_into_memory_changes_nothing(tmp_path, monkeypatch):
    made = [(f"user {i % 300}", [f"{i} " * 50]) for i in range(3000)]
    seen = []
    deal = Spool._buckets
    monkeypatch.setattr(Spool, "_buckets", lambda self: (seen.append(t) or t for t in deal(self)))
    whole = ingest_records(made, tmp_path / "a")
    assert len(seen) == 1
    monkeypatch.setattr(grouping, "_SORT_MEMORY", 1000)
    parts = ingest_records(made, tmp_path / "b", memory_limit="64MB")
    assert len(seen) == 1 + 16
    assert parts.fingerprint == whole.fingerprint
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.slow
def test_input_of_many_times_the_memory_limit_is_sorted(tmp_path):
    made = ((f"user {i % 997}", [f"{i} " * 300]) for i in range(150_000))  # 300 MB
    corpus = ingest_records(made, tmp_path / "out", memory_limit="48MB")
    assert len(corpus) == 997
    assert corpus.info()["texts"] == 150_000


@pytest.mark.parametrize(
    ("size", "bytes"), [("64MB", 64 * 10**6), ("1.5GiB", 3 << 29), ("2 KiB", 2048)]
)
def test_sizes_are_read(size, bytes):
    assert grouping._parse_size(size) == bytes


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_progress_counts_rows_and_never_goes_back(tmp_path, format):
    seen = []
    rows = [(f"user {i}", random.Random(i).randbytes(100).hex()) for i in range(5000)]
    path = write(tmp_path, f"in.{format}", rows, compression=".gz")
    ingest(path, tmp_path / "out", report=lambda *step: seen.append(step))
    assert [step for step in dict.fromkeys(s[0] for s in seen)] == ["reading", "sorting", "writing"]
    reading = [done for step, done, _, _ in seen if step == "reading"]
    assert reading == sorted(reading)
    assert len(set(reading)) > 1
    assert seen[-1] == ("writing", 5000, 5000, 5000)


def test_string_views_and_dictionaries_in_parquet_are_text(tmp_path):

    table = pa.table(
        {"user": pa.array(["a", "b", "a"]).dictionary_encode(), "text": ["x", "y", "z"]}
    )
    pq.write_table(table, tmp_path / "in.parquet")
    corpus = Corpus.open(ingest(tmp_path / "in.parquet", tmp_path / "out").path)
    assert sorted(corpus.text_counts().tolist()) == [1, 2]
