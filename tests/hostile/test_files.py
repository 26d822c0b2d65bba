"""Files that are not what they should be, and files that are left where others can get at them."""

import ctypes
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from tacit.audit.language import read_phrases
from tacit.cli.main import main
from tacit.corpus import people
from tacit.corpus.builtin import find_corpus, load_corpus
from tacit.corpus.files import input_files, sha256_of
from tacit.corpus.ingest import ingest_records
from tacit.corpus.people_ledger import PeopleLedger, leave_copy
from tacit.privacy import durable, native, scratch, trusted
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Head
from tacit.privacy.randomness import RunKey
from tacit.runs import start
from tacit.runs.checkpoints import Checkpoints
from tacit.runs.directory import RunDirectory
from tacit.tasks import recipes
from tacit.tasks.language.people import cache_folder
from tacit.tasks.task import State
from tacit.tokenizers.base import path_of
from tacit.tokenizers.public import PublicSource
from tacit.tokenizers.tokenizer import Tokenizer
from tests.runs.small import experiment, make_corpus, make_folder

UMASKS = [0o000, 0o022, 0o077, 0o777]


@pytest.fixture(params=UMASKS, ids=oct)
def any_umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """The rights of a folder and of all that is in it."""
    paths = [folder, *folder.rglob("*")]
    return {path.name: stat.S_IMODE(path.lstat().st_mode) for path in paths}


def refuse_rights_of_others(folder: Path) -> None:
    for name, mode in modes(folder).items():
        assert mode in (0o600, 0o700), f"{name} has mode {mode:o}"


# Rights.


@pytest.mark.usefixtures("any_umask")
def test_what_is_written_is_for_its_owner_only(tmp_path):
    folder = tmp_path / "folder"
    durable.make_folder(folder)
    durable.write_whole(folder / "file", b"x")
    durable.append_line(folder / "lines", {"a": 1})
    with durable.locked(folder / "lock"), durable.whole_folder(folder / "whole") as whole:
        (whole / "inside").mkdir()
        (whole / "inside" / "by another library").write_bytes(b"x")
    with scratch.folder() as temporary:
        refuse_rights_of_others(temporary)
    refuse_rights_of_others(folder)


def test_what_is_meant_for_others_is_readable_as_the_umask_allows_and_never_writable(
    tmp_path, any_umask
):
    with durable.whole_folder(tmp_path / "bundle", mode=durable.SHARED_FOLDER) as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700  # until it is whole
        durable.write_whole(folder / "model", b"x")
    durable.write_whole(tmp_path / "plot", b"x", mode=durable.SHARED)
    readable = 0o044 & ~any_umask
    assert modes(tmp_path / "bundle") == {
        "bundle": 0o700 | readable | 0o055 & ~any_umask,
        "model": 0o600 | readable,
    }
    assert modes(tmp_path / "plot") == {"plot": 0o600 | readable}


@pytest.mark.usefixtures("any_umask")
def test_corpora_caches_and_runs_are_for_their_owner_only(tmp_path):
    make_folder(folder := tmp_path / "mine")
    start.create(experiment(folder, seed=None), tmp_path / "run").close()
    corpus = load_corpus(folder / "corpus")
    leave_copy(corpus)
    refuse_rights_of_others(folder / "corpus")
    assert list((folder / "corpus").glob("tokens-*"))
    refuse_rights_of_others(tmp_path / "run")
    refuse_rights_of_others(people.state_folder(create=False))


# One writer of a path, and nothing left behind by those that are gone.


def test_of_two_writers_of_a_file_one_wins_and_the_other_is_told(tmp_path):
    path = tmp_path / "report.html"
    with durable.whole_file(path) as file:
        file.write(b"first")
        with pytest.raises(ValueError, match=r"another process is writing .*report\.html"):
            durable.write_whole(path, b"second")
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["report.html"]


def test_of_two_writers_of_a_folder_one_wins_and_the_other_is_told(tmp_path):
    path = tmp_path / "bundle"
    with durable.whole_folder(path) as folder:
        (folder / "weights").write_bytes(b"first")
        with (
            pytest.raises(ValueError, match=r"another process is writing .*bundle"),
            durable.whole_folder(path),
        ):
            pass
    assert (path / "weights").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["bundle"]


def test_a_folder_that_somebody_made_meanwhile_is_left_as_it_is(tmp_path):
    def fill() -> None:
        with durable.whole_folder(tmp_path / "run"):
            (tmp_path / "run").mkdir()
            (tmp_path / "run" / "theirs").touch()

    with pytest.raises(ValueError, match="was made by another process meanwhile"):
        fill()
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "theirs"]


KILLED = """
import os, signal, sys
from pathlib import Path
from tacit.privacy import durable, scratch
def end():
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "folder":
    with durable.whole_folder(Path(sys.argv[2])) as folder:
        durable.write_whole(folder / "weights", b"secret")
        end()
if sys.argv[1] == "whole folder":  # once it has its name
    out = Path(sys.argv[2])
    durable.sync = lambda path: end() if path == out.parent else None
    with durable.whole_folder(out):
        pass
if sys.argv[1] == "file":
    with durable.whole_file(Path(sys.argv[2])) as file:
        file.write(b"secret")
        file.flush()
        end()
with scratch.folder() as folder:
    (folder / "text").write_bytes(b"secret")
    end()
"""


def killed(kind: str, path: Path) -> None:
    command = [sys.executable, "-c", KILLED, kind, str(path)]
    environment = os.environ | {"TMPDIR": str(path.parent)}
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL


def test_the_next_start_clears_what_a_killed_one_left(tmp_path, monkeypatch):
    out, page = tmp_path / "out", tmp_path / "page.html"
    killed("folder", out)
    killed("file", page)
    assert len(os.listdir(tmp_path)) == 3  # what is half done, and a lock that nobody holds
    with durable.whole_folder(out):
        pass
    durable.write_whole(page, b"whole")
    assert sorted(os.listdir(tmp_path)) == ["out", "page.html"]
    killed("scratch", out)
    [left] = tmp_path.glob("tacit-scratch-*")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch.folder() as folder:
        assert not left.exists()
        with scratch.folder():
            assert folder.exists()  # that of a process that lives
    assert sorted(os.listdir(tmp_path)) == ["out", "page.html"]


def test_what_was_left_beside_a_whole_folder_is_cleared(tmp_path):
    killed("whole folder", out := tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == [".out.partial.lock", "out"]
    durable.clear_beside(out)
    assert os.listdir(tmp_path) == ["out"]
    other = tmp_path / "other"  # a process that lives is left alone
    with (
        durable.whole_folder(other),
        pytest.raises(ValueError, match="another process is writing"),
    ):
        durable.clear_beside(other)
    assert sorted(os.listdir(tmp_path)) == ["other", "out"]


def test_a_scratch_folder_that_was_killed_before_it_had_its_file_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "tacit-scratch-empty").mkdir()
    with scratch.folder() as folder:
        assert os.listdir(tmp_path) == [folder.name]


def test_whose_new_scratch_folder_was_taken_for_a_dead_one_makes_another(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make, made = tempfile.mkdtemp, []

    def taken_once(**options):
        made.append(make(**options))
        if len(made) == 1:
            scratch._clear()  # another process, at the worst moment
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", taken_once)
    with scratch.folder() as folder:
        assert [str(folder)] == made[1:]
        assert folder.is_dir()


def test_what_somebody_put_in_the_way_is_not_written_into(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    (tmp_path / ".key.partial").symlink_to(elsewhere / "precious")
    (tmp_path / ".run.partial").symlink_to(elsewhere)
    (tmp_path / ".run.partial.lock").symlink_to(elsewhere / "precious")
    RunKey.generate().save(tmp_path / "key")
    with durable.whole_folder(tmp_path / "run") as folder:
        (folder / "text").write_bytes(b"secret")
    assert [path.name for path in elsewhere.iterdir()] == ["precious"]
    assert not (elsewhere / "precious").read_bytes()
    assert not (tmp_path / "run").is_symlink()


# Our own code.


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "one.cpp"
    file.write_text('extern "C" int one() { return 1; }', encoding="utf-8")
    return native.Source("one", (file,), ("-shared", "-fPIC"))


def _plant(source: native.Source, cache: Path) -> Path:
    """What says 2 under the name of what says 1, in the cache."""
    compiler = native._compiler()
    if compiler is None:
        pytest.skip("there is no compiler")
    planted = cache / "kernels" / f"one-{native._digest_of(source, compiler)}.so"
    planted.parent.mkdir(parents=True, mode=0o700)
    other = cache / "two.cpp"
    other.write_text('extern "C" int one() { return 2; }', encoding="utf-8")
    subprocess.run([*compiler, *source.flags, str(other), "-o", str(planted)], check=True)
    planted.chmod(0o600)
    return planted


@pytest.mark.parametrize("planted", ["folder", "file", "owner", "nothing"])
def test_a_kernel_is_loaded_only_where_nobody_else_could_write_it(
    tmp_path, monkeypatch, source, planted
):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    path = _plant(source, tmp_path / "cache")
    if planted == "folder":
        path.parent.chmod(0o777)
    elif planted == "file":
        path.chmod(0o666)
    elif planted == "owner":
        if os.geteuid():
            pytest.skip("only root can give files away")
        os.chown(path, 65_532, 65_532)
    library = native.build(source)
    assert library.functions.one() == (2 if planted == "nothing" else 1)
    assert isinstance(library.functions, ctypes.CDLL)


def test_token_caches_go_only_where_nobody_else_can_leave_any(tmp_path):
    corpus = load_corpus(make_corpus(tmp_path / "corpus"))
    assert cache_folder(corpus, tmp_path / "private") == corpus.path
    corpus.path.chmod(0o777)
    assert cache_folder(corpus, tmp_path / "private") == tmp_path / "private"


# Regular files.


@contextmanager
def no_hang(seconds: int = 120):
    """Whoever waits for a pipe is woken up and fails."""

    def wake(number, frame):
        raise AssertionError(f"it was still waiting after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, wake)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refused(capsys, *words: object) -> str:
    """The one sentence of a command that is refused at once."""
    with no_hang(), pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert err.startswith("tacit: ")
    assert err.count("\n") == 1
    return err


READERS = {
    "an input": sha256_of,
    "a recipe": lambda path: recipes.load(str(path)),
    "a tokenizer": lambda path: Tokenizer.load(path.rename(path.with_suffix(".json"))),
    "a start": lambda path: path_of(str(path)),
    "a ledger": Ledger.read,
    "a key": RunKey.load,
    "phrases": read_phrases,
    "public text": lambda path: PublicSource(str(path)).lines,
}


@pytest.mark.parametrize("what", READERS)
def test_whatever_is_read_is_no_pipe(tmp_path, what):
    os.mkfifo(path := tmp_path / "pipe.toml")
    with no_hang(), pytest.raises(ValueError, match=r"pipe\.(toml|json)"):
        READERS[what](path)


def test_a_secret_and_what_is_known_of_people_are_no_pipes(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE", str(tmp_path))
    tmp_path.chmod(0o700)
    os.mkfifo(tmp_path / "secret")
    with no_hang(), pytest.raises(ValueError, match="secret' is a pipe and no file"):
        people.secret()
    os.mkfifo(copy := tmp_path / "ledger.jsonl")
    with no_hang(), pytest.raises(ValueError, match="is a pipe and no file"):
        PeopleLedger(tmp_path / "known").learn_from(copy)


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a socket", "a folder"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "odd"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path = Path("/dev/zero")
    elif kind == "a folder":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    for read in (trusted.read_bytes, trusted.read_text, trusted.refuse_irregular):
        with no_hang(), pytest.raises(ValueError, match=f"is {kind} and no file"):
            read(path)


@pytest.mark.parametrize("name", ["ledger.jsonl", "result.json", "private/key"])
def test_a_run_with_a_pipe_in_it_is_refused(tmp_path, name):
    make_folder(tmp_path / "mine")
    start.create(experiment(tmp_path / "mine"), run := tmp_path / "run").close()
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    with no_hang(), pytest.raises(ValueError, match="is a pipe and no file"):
        RunDirectory.open(run)


@pytest.mark.parametrize("which", [Checkpoints.state_file, Checkpoints.model_file])
def test_a_checkpoint_that_is_a_pipe_is_refused(tmp_path, which):
    checkpoints = Checkpoints(tmp_path)
    facts = {"tokenizer": "ab", "clip_norms": [0.3], "clip_round": 2}
    checkpoints.write(2, State(b"model", {}, facts), Head(3, "ab"))
    which(checkpoints, 2).unlink()
    os.mkfifo(which(checkpoints, 2))
    with no_hang(), pytest.raises(ValueError, match="is a pipe and no file"):
        checkpoints.read()


def test_a_corpus_with_a_pipe_in_it_is_refused(tmp_path, capsys):
    path = make_corpus(tmp_path / "corpus")
    (path / "lines.json").unlink()
    os.mkfifo(path / "lines.json")
    assert "lines.json' is a pipe and no file" in refused(capsys, "corpus", "info", path)


@pytest.mark.parametrize(
    "words", ["ingest '' --out OUT", "train recipe.toml --run ''", "corpus info ''"]
)
def test_an_empty_name_is_refused_and_not_taken_for_this_folder(
    tmp_path, monkeypatch, capsys, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "someone.txt").write_text("text that nobody named\n")
    listed = ["" if word == "''" else word for word in words.split()]
    assert "an argument is empty" in refused(capsys, *listed)
    assert os.listdir(tmp_path) == ["someone.txt"]
    with pytest.raises(ValueError, match="the name of an input is empty"):
        input_files(["someone.txt", ""])


# A secret that is not on the command line.


def test_a_salt_comes_from_a_file_of_its_owner_only(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chats.csv").write_text("user,text\na,b\n")
    salt = tmp_path / "salt"
    salt.write_text("0123456789abcdef" * 2 + "\n")
    words = ["ingest", "chats.csv", "--out", "corpus", "--salt-file", "salt"]
    salt.chmod(0o640)
    assert "readable by its owner alone (mode 0600), got mode 0640" in refused(capsys, *words)
    salt.chmod(0o600)
    with pytest.raises(SystemExit) as stop:
        main([*words, "--json"])
    assert stop.value.code == 0
    assert "0123456789abcdef" not in "".join(capsys.readouterr())
    assert json.loads(Path("corpus/corpus.json").read_text())["salt"] == "0123456789abcdef" * 2
    assert "No such option" in refused(capsys, *words[:-2], "--salt", "0123456789abcdef" * 2)


# Corpora that were moved, or cannot be written to.


def test_a_moved_corpus_is_found_by_its_identity(tmp_path, monkeypatch):
    make_folder(folder := tmp_path / "mine")
    own = experiment(folder, seed=None)
    start.create(own, tmp_path / "run").close()
    corpus = load_corpus(folder / "corpus")
    facts = own.corpus.source, corpus.identity, corpus.commitment
    assert find_corpus(*facts) == own.corpus.source
    shutil.move(folder / "corpus", tmp_path / "moved")
    make_corpus(tmp_path / "other", changed={3: ["of the same people, and not the same"]})
    with pytest.raises(ValueError, match=r"no corpus .* any more: .* tacit corpus info PATH"):
        start.resume(None, tmp_path / "run")
    load_corpus(tmp_path / "other")
    load_corpus(tmp_path / "moved")  # as tacit corpus info does
    load_corpus(tmp_path / "other")
    assert find_corpus(*facts) == str(tmp_path / "moved")
    start.resume(None, tmp_path / "run").close()
    start.branch(own.changed(rounds=9), tmp_path / "branch", tmp_path / "run", 0).close()
    assert f'source = "{folder / "corpus"}"' in (tmp_path / "branch/experiment.toml").read_text()


def test_a_corpus_named_relative_to_another_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    corpus = load_corpus(make_corpus(Path("corpus")))
    monkeypatch.chdir("/")
    assert find_corpus("corpus", corpus.identity, corpus.commitment) == str(tmp_path / "corpus")


def test_generated_people_leave_no_note_of_where_they_are(tmp_path):
    ingest_records([("a", ["b"])], tmp_path / "corpus", about_people=False)
    load_corpus(tmp_path / "corpus")
    assert not people.state_folder(create=False).exists()


def test_a_corpus_that_cannot_be_written_to_is_trained_on_with_its_caches_in_the_run(
    tmp_path, monkeypatch
):
    make_folder(folder := tmp_path / "mine")
    corpus, may = folder / "corpus", os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != corpus and may(path, mode))
    start.create(experiment(folder, seed=None), tmp_path / "run").close()
    assert list((tmp_path / "run" / "private").glob("tokens-*"))
    assert not list(corpus.glob("tokens-*"))


def test_a_training_that_cannot_remember_its_people_is_refused_before_a_run_is_made(
    tmp_path, monkeypatch
):
    make_folder(folder := tmp_path / "mine")
    (tmp_path / "file").touch()
    monkeypatch.setenv("TACIT_STATE", str(tmp_path / "file"))
    with pytest.raises(ValueError, match="set TACIT_STATE to a folder that can be written to"):
        start.create(experiment(folder, seed=None), tmp_path / "runs" / "new")
    assert not (tmp_path / "runs").exists()
