"""`tacit ingest` and `tacit corpus` on good and bad input."""

import gzip
import json
from pathlib import Path

import pytest

from tacit.cli import main as entry
from tacit.corpus.store import Corpus

ROWS = "author,body\nann,hello there\nbob,hi\nann,bye\n"


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command line in a fresh folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(line):
        with pytest.raises(SystemExit) as stop:
            entry.main(line.split())
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return call


@pytest.fixture
def chats(run, tmp_path):
    """A corpus made at the command line."""
    (tmp_path / "chats.csv").write_text(ROWS)
    code, _, _ = run("ingest chats.csv --out corpora/chats --held-out-fraction 0")
    assert code == 0
    return run


def test_ingest_says_what_it_made_and_how_fast(run, tmp_path):
    (tmp_path / "chats.csv").write_text(ROWS)
    code, out, err = run("ingest chats.csv --user-column author --text-column body --out c")
    assert (code, err) == (0, "")
    assert "2 users" in out
    assert "3 texts" in out
    assert "rows a second" in out
    assert len(Corpus.open(tmp_path / "c")) == 2


def test_ingest_prints_json_and_nothing_else(run, tmp_path):
    (tmp_path / "chats.csv").write_text(ROWS + ",nobody\n")
    code, out, _ = run("ingest chats.csv --out c --skip-bad-rows --max-words 1 --json")
    facts = json.loads(out)
    assert code == 0
    assert (facts["users"], facts["words"]) == (2, 2)
    assert facts["input"]["skipped_rows"] == {"without_user": 1, "without_text": 0}
    assert facts["rows_per_second"] > 0
    assert "salt" not in facts


def test_ingest_takes_globs_folders_and_built_in_corpora(run, tmp_path):
    (tmp_path / "many").mkdir()
    for name in "ab":
        (tmp_path / "many" / f"{name}.txt").write_text("one\ntwo\n")
    assert run("ingest many --out c1 --json")[0] == 0
    assert run("ingest many/*.txt --out c2 --json")[0] == 0
    assert run("ingest synthetic:users=20,words=10 --out c3 --json")[0] == 0
    assert [len(Corpus.open(tmp_path / f"c{i}")) for i in (1, 2, 3)] == [2, 2, 20]


MISTAKES = [
    ("ingest nothing.csv --out c", "there is no file 'nothing.csv'"),
    ("ingest chats.csv", "Missing option '--out'"),
    ("ingest --out c", "Missing argument"),
    ("ingest chats.csv --out chats.csv", "exists already"),
    ("ingest chats.csv --out c --user-column x", "its columns are 'author', 'body'"),
    ("ingest chats.csv --out c --text-column x", "no column 'x' for the text"),
    ("ingest chats.csv --out c --format xls", "--format must be one of csv"),
    ("ingest chats.csv --out c --max-texts 0", "--max-texts must be at least 1, got 0"),
    ("ingest chats.csv --out c --max-texts some", "'some' is not a whole number"),
    ("ingest chats.csv --out c --test-fraction nan", "--test-fraction must be"),
    ("ingest chats.csv --out c --salt-file chats.csv", "must be readable by its owner alone"),
    ("ingest chats.csv --out c --salt-file secret", "'secret' must hold 32 hexadecimal digits"),
    ("ingest chats.csv --out c --salt-file nowhere", "nowhere"),
    ("ingest chats.csv --out c --delimiter ab", "--delimiter must be one character"),
    ("ingest chats.csv --out c --memory-limit much", "--memory-limit must be a size"),
    ("ingest odd.csv --out c", "name one with --user-column; its columns are 'user_column', 'b'"),
    ("ingest bad.csv --out c", "leave them out with --skip-bad-rows"),
    ("ingest chats.csv --out c --min-words 99", "no user has at least"),
    ("ingest bad.csv --out c", "1 of 2 rows have no user (0) or no text (1)"),
    ("ingest latin.csv --out c", "line 2 of 'latin.csv' is not UTF-8: byte 0xe4 at position 3"),
    ("ingest synthetic:users=x --out c", "has no number"),
    ("corpus info nowhere", "there is no corpus 'nowhere'"),
    ("corpus info chats.csv", "'chats.csv' is not a corpus"),
    ("corpus head synthetic --part some", "part must be one of all, train, test"),
    ("corpus head synthetic --texts some", "texts must be one of all, kept, held-out"),
    ("corpus export synthetic out.csv", "must end in .jsonl or .jsonl.gz"),
    ("corpus export synthetic old.jsonl", "'old.jsonl' exists already"),
    ("corpus export synthetic deep/out.jsonl", "in a folder that does not exist"),
]


@pytest.mark.parametrize(("line", "message"), MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2(run, tmp_path, line, message):
    (tmp_path / "chats.csv").write_text(ROWS)
    (tmp_path / "odd.csv").write_text("user_column,b\na,b\n")
    (tmp_path / "secret").write_text("no digits")
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "bad.csv").write_text("user,text\na,b\nc,\n")
    (tmp_path / "latin.csv").write_bytes(b"user,text\na,\xe4\n")
    (tmp_path / "old.jsonl").write_text("precious")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    code, out, err = run(line)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("tacit: ")
    assert err.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_info_shows_counts_and_no_text(chats):
    code, out, err = chats("corpus info corpora/chats")
    assert (code, err) == (0, "")
    assert "users" in out
    assert "hello" not in out
    facts = json.loads(chats("corpus info corpora/chats --json")[1])
    assert (facts["users"], facts["texts"], facts["words"]) == (2, 3, 4)
    assert facts["words_per_user"] == {"least": 1, "median": 1, "90%": 3, "most": 3}
    assert "salt" not in facts
    assert json.loads(chats("corpus info synthetic --json")[1])["users"] == 1000


def test_head_prints_text_and_says_so(chats):
    code, out, err = chats("corpus head corpora/chats")
    assert code == 0
    assert "people's text" in err
    assert "hello there" in out
    shown = json.loads(chats("corpus head corpora/chats --json --users 1 --each 1")[1])
    assert [len(row["texts"]) for row in shown] == [1]
    assert (
        json.loads(chats("corpus head corpora/chats --json --texts held-out")[1])[0]["texts"] == []
    )


def test_export_writes_what_can_be_ingested_again(chats, tmp_path):
    for name in ("out.jsonl", "out.jsonl.gz"):
        code, out, err = chats(f"corpus export corpora/chats {name} --json")
        assert code == 0
        assert json.loads(out) == {"file": name, "users": 2}
        assert "people's text" in err
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        assert chats(f"ingest {name} --out again-{name}")[0] == 0
        again, corpus = Corpus.open(tmp_path / f"again-{name}"), Corpus.open("corpora/chats")
        assert sorted(map(again.texts, range(2))) == sorted(map(corpus.texts, range(2)))
    lines = gzip.decompress((tmp_path / "out.jsonl.gz").read_bytes()).decode().splitlines()
    assert [set(json.loads(line)) for line in lines] == [{"user", "texts"}] * 2
    assert not list(tmp_path.glob(".*"))


def test_export_takes_one_part_of_users_and_texts(run, tmp_path):
    assert run("corpus export synthetic:users=200 t.jsonl --part test --texts held-out")[0] == 0
    lines = Path("t.jsonl").read_text().splitlines()
    assert 0 < len(lines) < 50
    assert sum(len(json.loads(line)["texts"]) for line in lines) < 100


@pytest.mark.parametrize(
    ("command", "example"),
    [
        ("ingest", "tacit ingest chats.parquet --user-column author --text-column body --out"),
        ("corpus info", "tacit corpus info corpora/chats"),
        ("corpus head", "tacit corpus head corpora/chats --users 2"),
        ("corpus export", "tacit corpus export corpora/chats chats.jsonl.gz --part train"),
    ],
)
def test_help_has_an_example_and_says_what_prints_text(run, command, example):
    code, out, _ = run(f"{command} --help")
    assert code == 0
    assert example in " ".join(out.split())
    says = "people's text" in " ".join(out.split())
    assert says or command == "corpus info"


def test_corpus_alone_shows_its_commands(run):
    code, out, err = run("corpus")
    assert (code, err) == (0, "")
    assert all(name in out for name in ("info", "head", "export"))


def test_people_who_come_again_are_told_and_carried_over(chats, tmp_path):
    said = chats("ingest chats.csv --out again")[1]
    assert "these are the people of an earlier corpus" in said
    assert "say --new-people" in said
    assert Corpus.open("again").identity == Corpus.open("corpora/chats").identity


def test_declared_new_people_are_others(chats):
    code, out, _ = chats("ingest chats.csv --out others --new-people")
    first = Corpus.open("corpora/chats").identity
    assert code == 0
    assert f"look like the people {first} of an earlier corpus, and were declared to be" in out
    assert "what was spent on them is carried over" not in out
    assert Corpus.open("others").identity != first
    facts = json.loads(chats("ingest chats.csv --out more --new-people --json")[1])
    assert facts["new_people"] == first
    assert facts["known_people"] is False


def test_people_in_two_corpora_are_reported(run, tmp_path):
    for name, start in (("a", 0), ("b", 15)):
        rows = "".join(f"u{i},hello\n" for i in range(start, start + 20))
        (tmp_path / f"{name}.csv").write_text("user,text\n" + rows)
    assert "are in both" not in run("ingest a.csv --out a")[1]
    assert "25% of them, or of the people" in run("ingest b.csv --out b")[1]
    [[people, share]] = json.loads(run("ingest b.csv --out c --json")[1])["overlaps"]
    assert (people, share) == (Corpus.open("a").identity, 0.25)


def test_ids_that_differ_in_case_or_blanks_are_counted_and_not_shown(run, tmp_path):
    (tmp_path / "chats.csv").write_text("user,text\nAnnLee,a\nann lee,b\nbob,c\n")
    code, out, err = run("ingest chats.csv --out c")
    assert code == 0
    assert "2 user ids differ from another one in case or blanks only" in out
    assert "lee" not in (out + err).lower()
    assert json.loads(run("ingest chats.csv --out d --json")[1])["input"]["lookalike_ids"] == 2


def test_a_generated_corpus_that_is_ingested_is_about_nobody(run):
    for name in ("a", "b"):
        code, out, _ = run(f"ingest synthetic:users=20,words=10 --out {name}")
        assert code == 0
        assert "people of an earlier corpus" not in out
        assert not Corpus.open(name).about_people


def test_a_state_folder_that_cannot_be_written_to_is_one_sentence(run, tmp_path, monkeypatch):
    (tmp_path / "chats.csv").write_text(ROWS)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TACIT_STATE", str(tmp_path / "file"))
    code, out, err = run("ingest chats.csv --out c")
    assert (code, out) == (2, "")
    assert "set TACIT_STATE to a folder that can be written to" in err
    assert not (tmp_path / "c").exists()
