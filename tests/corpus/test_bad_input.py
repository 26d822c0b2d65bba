"""Every foreseeable mistake is one sentence, and leaves everything as it was."""

import errno
import fcntl
import gzip
import os
import subprocess
import sys

import pyarrow as pa
import pytest

from tacit.corpus.grouping import UserOptions
from tacit.corpus.ingest import ingest, ingest_records
from tacit.corpus.writer import output_folder
from tests.corpus.writing import as_bytes, packed, write

ROWS = [("ann", "hello there"), ("bob", "hi")]


def refused(tmp_path, inputs, message, **options):
    """Check that ingest refuses the inputs in one sentence and leaves nothing behind."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=message) as caught:
        ingest(inputs, tmp_path / "made" / "out", **options)
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def put(folder, name, data):
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder / name


CSV = as_bytes(ROWS, ("user", "text"), "csv")
PARQUET = as_bytes(ROWS, ("user", "text"), "parquet")
MANY = as_bytes([("ann", f"{i} {i * i}") for i in range(5000)], ("user", "text"), "csv")

FILES = [
    ("in.csv", "", r"'.*in.csv' is empty"),
    ("in.jsonl", "", r"'.*in.jsonl' is empty"),
    ("in.jsonl", "\n\n", r"'.*in.jsonl' is empty"),
    ("in.parquet", "", r"'.*in.parquet' is empty"),
    ("in.txt", "", r"'.*in.txt' is empty"),
    ("in.csv.gz", gzip.compress(b"", mtime=0), r"'.*in.csv.gz' is empty"),
    ("in.csv", "user,text\n", r"no rows with a user and a text among 0 rows"),
    ("in.csv", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", r"in.csv' is binary"),
    ("in.csv", "user,text\na,b\n".encode("utf-16"), r"in.csv' is binary \(or UTF-16\)"),
    ("in.parquet", b"PAR1 not really", r"in.parquet' is not a whole Parquet file"),
    ("in.parquet", PARQUET[:-20], r"in.parquet' is not a whole Parquet file"),
    ("in.parquet", b"user,text\na,b\n", r"in.parquet' is not a whole Parquet file"),
    ("in.parquet.gz", gzip.compress(PARQUET[:-9], mtime=0), r"is not a whole Parquet file"),
    ("in.csv.gz", gzip.compress(MANY, mtime=0)[:-2000], r"in.csv.gz' is cut short"),
    ("in.csv.gz", gzip.compress(MANY, mtime=0)[:-20], r"in.csv.gz' is cut short"),
    ("in.csv.zst", packed(MANY, ".zst")[:-2000], r"in.csv.zst' is cut short"),
    ("in.csv.gz", CSV, r"in.csv.gz' is not gzip data, though its name says so"),
    ("in.csv.zst", CSV, r"in.csv.zst' is not zstd data, though its name says so"),
    (
        "in.csv.gz",
        gzip.compress(MANY, mtime=0)[:100] + b"\xff" * 999,
        r"in.csv.gz' is (damaged|cut short)",
    ),
    ("in.csv", b"user,text\na,b\nc,\xff\xfe\n", r"line 3 of '.*in.csv' is not UTF-8: byte 0xff"),
    ("in.txt", b"good\nb\xe4d\n", r"line 2 of '.*in.txt' is not UTF-8: byte 0xe4 at position 2"),
    ("in.jsonl", b'{"user": "a", "text": "\xff"}\n', r"line 1 of '.*in.jsonl' is not UTF-8"),
    ("in.jsonl", '{"user": "a", "text": "\\ud800"}\n', r"line 1 .* half of a surrogate pair"),
    ("in.jsonl", '{"user": "a", "text": "x"}\n{"user": "b", "te', r"line 2 of '.*' is not JSON"),
    ("in.json", '[{"user": "a", "text": "x"}]\n', r"line 1 of '.*' is JSON, but not an object"),
    ("in.jsonl", "[" * 100_000 + "\n", r"line 1 of '.*' is not JSON"),
    ("in.jsonl", '{"user": {}, "text": "x"}', r"line 1 .* has a user of type dict"),
    ("in.jsonl", '{"user": 1.5, "text": "x"}', r"line 1 .* has a user of type float"),
    ("in.jsonl", '{"user": "a", "text": 5}', r"line 1 .* has a text of type int"),
    ("in.csv", "user,text\na,b,c\n", r"line 2 of '.*' has 3 fields, and the header has 2"),
    ("in.csv", "user,text\na\n", r"line 2 of '.*' has 1 fields"),
    ("in.csv", 'user,text\na,"b\nc', r"line 3 of '.*in.csv' cannot be read"),
    ("in.csv", "who,what\na,b\n", r"name one with user_column; its columns are 'who', 'what'"),
    ("in.csv", "user,what\na,b\n", r"name one with text_column; its columns are 'user', 'what'"),
    ("in.csv", "user,user,text\na,b,c\n", r"more than one column 'user'"),
    ("in.jsonl", '{"who": "a", "what": "b"}', r"its columns are 'who', 'what'"),
    (
        "in.csv",
        "user,text\n,b\na,\na,  \nb,c\n",
        r"3 of 4 rows have no user \(1\) or no text \(2",
    ),
    ("in.jsonl", '{"user": "a", "text": "b"}\n{"text": "c"}', r"1 of 2 rows .* line 2 of"),
    ("in.jsonl", '{"user": "a", "texts": ["b", null, ""]}', r"2 of 3 rows"),
    ("in.jsonl", '{"user": "a", "texts": []}', r"1 of 1 rows"),
    ("in.xyz", "hello", r"cannot tell the format of '.*in.xyz' by its name"),
]


@pytest.mark.parametrize(("name", "data", "message"), FILES)
def test_a_bad_file_is_refused(tmp_path, name, data, message):
    refused(tmp_path, put(tmp_path, name, data), message)


def test_inputs_that_are_not_there(tmp_path):
    (tmp_path / "hollow").mkdir()
    refused(tmp_path, tmp_path / "nothing.csv", "there is no file '.*nothing.csv'")
    refused(tmp_path, str(tmp_path / "*.csv"), "no file matches")
    refused(tmp_path, tmp_path / "hollow", "has no files in it")
    refused(tmp_path, [], "no input")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_a_file_without_permission(tmp_path):
    put(tmp_path, "in.csv", CSV).chmod(0)
    refused(tmp_path, tmp_path / "in.csv", "cannot read '.*in.csv': Permission denied")


def test_a_missing_column_lists_those_there_are(tmp_path):
    for format in ("csv", "jsonl", "parquet"):
        path = write(tmp_path, f"in.{format}", ROWS)
        listed = "its columns are 'user', 'text'"
        refused(tmp_path, path, f"no column 'nick' for the user; {listed}", user_column="nick")
        refused(tmp_path, path, f"no column 'tekst' for the text; {listed}", text_column="tekst")
        refused(tmp_path, path, f"no column 'at' for the order; {listed}", order_column="at")
        refused(tmp_path, path, "are both 'user'", text_column="user")


def test_two_files_with_different_columns(tmp_path):
    for format in ("csv", "parquet"):
        write(tmp_path, f"a.{format}", ROWS)
        write(tmp_path, f"b.{format}", ROWS, columns=("user", "body"))
        pattern = str(tmp_path / f"*.{format}")
        refused(tmp_path, pattern, r"a\.\w+' and '.*b\.\w+' have different columns: .*'body', 'tex")
    write(tmp_path, "a.jsonl", ROWS)
    write(tmp_path, "b.jsonl", ROWS, columns=("author", "body"))
    pattern = str(tmp_path / "*.jsonl")
    refused(tmp_path, pattern, r"b.jsonl' has no column 'user' .* columns are 'author', 'body'")


def test_two_formats_at_once_and_two_files_of_one_user(tmp_path):
    write(tmp_path, "a.csv", ROWS)
    write(tmp_path, "b.jsonl", ROWS)
    refused(tmp_path, tmp_path, "is CSV and .* is JSON Lines: ingest files of one format")
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        put(tmp_path / folder, "ann.txt", "hi")
    files = [tmp_path / "x" / "ann.txt", tmp_path / "y" / "ann.txt"]
    refused(tmp_path, files, "would be the same user 'ann'")
    assert len(ingest(str(tmp_path / "*" / "ann.txt"), tmp_path / "out")) == 2


def test_bad_rows_are_left_out_on_demand_and_counted(tmp_path):
    path = put(tmp_path, "in.csv", "user,text\n,b\na,\na,  \nb,c\n")
    corpus = ingest(path, tmp_path / "out", skip_bad_rows=True)
    assert len(corpus) == 1
    assert corpus.info()["input"]["rows"] == 4
    assert corpus.info()["input"]["skipped_rows"] == {"without_user": 1, "without_text": 2}


def test_an_output_that_exists_stays_as_it_is(tmp_path):
    path = put(tmp_path, "in.csv", CSV)
    for make in (lambda out: out.mkdir(), lambda out: out.write_text("precious")):
        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        make(out)
        with pytest.raises(ValueError, match="exists already: choose another"):
            ingest(path, out)
        assert out.exists()
    with pytest.raises(ValueError, match=r"is a file, so .* cannot be in it"):
        ingest(path, path / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_fraction": 1.5}, "test_fraction must be"),
        ({"test_fraction": float("nan")}, "got nan"),
        ({"held_out_fraction": -0.1}, "held_out_fraction must be"),
        ({"max_texts": 0}, "max_texts must be at least 1"),
        ({"min_words": -1}, "min_words must be at least 0"),
        ({"min_texts": 5, "max_texts": 4}, "max_texts must be at least min_texts = 5"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        UserOptions(**options)


def test_settings_out_of_range(tmp_path):
    path = put(tmp_path, "in.csv", CSV)
    refused(tmp_path, path, "salt must be 16 bytes as 32 hex", salt="abc")
    refused(tmp_path, path, "memory_limit must be a size", memory_limit="lots")
    refused(tmp_path, path, "format must be one of csv", format="xls")
    refused(tmp_path, path, "no user has at least", options=UserOptions(min_words=100))


def test_an_interruption_at_any_time_leaves_nothing(tmp_path):
    path = write(tmp_path, "in.csv", [(f"user {i}", "text") for i in range(3000)])
    before = sorted(tmp_path.rglob("*"))
    for step in ("reading", "sorting", "writing"):

        def report(now, *_, step=step):
            if now == step:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            ingest(path, tmp_path / "deep" / "out", report=report)
        assert sorted(tmp_path.rglob("*")) == before


INTERRUPTED = """
import os, signal, sys, threading
from tacit.corpus.ingest import ingest_records
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background run ignores it
def report(step, *_):
    if step == "sorting":
        threading.Timer(float(sys.argv[2]), os.kill, (os.getpid(), signal.SIGINT)).start()
made = ((f"user {i * 7919 % 9999}", ["word " * 100 + str(i)]) for i in range(30_000))
try:
    ingest_records(made, sys.argv[1], memory_limit="64MB", report=report)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("delay", ["0", "0.02"])
def test_ctrl_c_while_sorting_is_an_interruption(tmp_path, delay):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path / "out"), delay],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "interrupted\n", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_cleared_and_a_live_one_is_respected(tmp_path):
    left = tmp_path / ".out.partial"
    left.mkdir()
    (left / "rows.parquet").write_text("half")
    with (tmp_path / ".out.partial.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another process is writing"):
            ingest_records([("a", ["b"])], tmp_path / "out")
        assert left.exists()
    ingest_records([("a", ["b"])], tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


FULL = """
import resource, signal, sys
from tacit.corpus.ingest import ingest_records
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    ingest_records(((f"user {i}", [f"{i} " * 50]) for i in range(20_000)), sys.argv[1],
                   memory_limit="32MB")
except ValueError as mistake:
    print(mistake)
"""


@pytest.mark.parametrize("room", [10_000, 1_000_000, 5_000_000])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, room):
    """Files that cannot grow past some size stand for a disk that is full at some point."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "out"), str(room)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "is full" in done.stdout, done.stderr
    assert done.stdout.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_no_space_is_told_apart_from_other_trouble(tmp_path):
    for problem, kind, message in (
        (OSError(errno.ENOSPC, "No space left on device"), ValueError, "is full"),
        (pa.lib.ArrowInvalid("odd"), pa.lib.ArrowInvalid, "odd"),
        (OSError(errno.EIO, "broken"), OSError, "broken"),
    ):
        with pytest.raises(kind, match=message), output_folder(tmp_path / "out"):
            raise problem
        assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_one_long_header_is_refused_in_a_short_sentence(tmp_path):
    """Its columns may be people's text: a message quotes a few, and little of each."""
    said = put(tmp_path, "in.csv", ",".join(f"{n} {'secret ' * 50}" for n in range(500)))
    with pytest.raises(ValueError, match=r"no column .* and 470 others$") as caught:
        ingest(said, tmp_path / "out")
    assert len(str(caught.value)) < 2000
