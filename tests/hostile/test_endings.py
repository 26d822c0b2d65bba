"""Whatever happens in a command, it ends in one sentence and an exit code, and goes on later."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from tacit.cli import main as cli
from tacit.cli import train as training
from tacit.cli.endings import as_typed, explain
from tacit.privacy import durable
from tests.cli.training import TINY, train, weights, with_tokenizer
from tests.runs.small import experiment, make_corpus


@pytest.fixture
def ends(monkeypatch, command):
    """`ends(act)`: the exit code and the words of a command that does nothing but `act`."""

    def run(act) -> tuple[int, str]:
        monkeypatch.setattr(cli, "_run", lambda _: act())
        code, out, err = command("")("--version")
        assert out == ""
        assert "Traceback" not in err
        return code, err

    # The tree of commands is looked at for the names of options.
    monkeypatch.setattr(cli, "_options", lambda _: {})
    return run


def failing(error: BaseException):
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("the sentence\n  goes on"), 2, "the sentence goes on"),
        (OverflowError("math range error"), 2, "too large or too small to compute with"),
        (MemoryError(), 2, "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you"), 2, "not enough memory"),
        (RuntimeError("can't start new thread"), 2, "not enough memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 2, "not enough memory"),
        (ImportError("x.so: failed to map segment from shared object"), 2, "not enough memory"),
        (ImportError("No module named 'opacus'"), 2, "missing in this installation"),
        (OSError(errno.ENOSPC, "No space left", "a/b"), 2, "a/b: No space left; make room"),
        (OSError(errno.EROFS, "Read-only file system", "a/b"), 2, "can be written to"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), 2, "not UTF-8"),
        (KeyError("rounds"), 1, "a mistake in tacit and not in what you typed: KeyError"),
        (AttributeError("no x"), 1, "please report it"),
        (RecursionError("too deep"), 1, "TACIT_DEBUG=1"),
        (AssertionError(), 1, "AssertionError"),
    ],
)
def test_every_exception_is_one_sentence(ends, error, code, said):
    ended, err = ends(failing(error))
    assert ended == code
    assert err.startswith("tacit: ")
    assert err.count("\n") == 1
    assert said in err


def test_a_sentence_about_a_number_of_5000_digits_keeps_its_beginning_and_its_end(ends):
    _, err = ends(failing(ValueError(f"rounds must be at most 9, got {'1' * 5000}; say fewer")))
    assert err.startswith("tacit: rounds must be at most 9, got 111")
    assert err.endswith("111; say fewer\n")
    assert len(err) < 2000


def test_our_own_fault_says_where_it_happened():
    with pytest.raises(KeyError) as fault:
        failing(KeyError("a"))()
    assert "in test_endings.py, line" in explain(fault.value)[0]


def test_with_tacit_debug_the_traceback_is_shown(ends, monkeypatch):
    monkeypatch.setenv("TACIT_DEBUG", "1")
    with pytest.raises(KeyError, match="rounds"):
        ends(failing(KeyError("rounds")))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signals_end_a_command_as_ctrl_c_does(ends, number, code):
    def act() -> None:
        os.kill(os.getpid(), number)
        time.sleep(5)

    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, usual)  # under nohup it is ignored
    try:
        ended, err = ends(act)
        assert signal.getsignal(number) == usual
    finally:
        signal.signal(number, before)
    assert ended == code
    assert err == "tacit: interrupted; nothing is half-written: the same command begins again\n"


def test_a_signal_that_is_ignored_stays_ignored(ends):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert ends(lambda: os.kill(os.getpid(), signal.SIGHUP)) == (0, "")
    finally:
        signal.signal(signal.SIGHUP, before)


# Options are named as they are typed.

OPTIONS = {"skip_bad_rows": "--skip-bad-rows", "target_epsilon": "--target-epsilon"} | {
    name: f"--{name}" for name in ("rounds", "cohort", "delta")
}


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        ("leave them out with skip_bad_rows", "leave them out with --skip-bad-rows"),
        ("skip_bad_rows, and target_epsilon.", "--skip-bad-rows, and --target-epsilon."),
        ("privacy.target_epsilon is", "privacy.target_epsilon is"),
        ("the folder a/skip_bad_rows/b", "the folder a/skip_bad_rows/b"),
        ("'skip_bad_rows' is no user", "'skip_bad_rows' is no user"),
        ("--set target_epsilon=3", "--set target_epsilon=3"),
        ("other_words", "other_words"),
        ("give target_epsilon, rounds and cohort", "give --target-epsilon, --rounds and --cohort"),
        (
            "all of rounds, target_epsilon, or delta.",
            "all of --rounds, --target-epsilon, or --delta.",
        ),
        ("the rounds and cohort of target_epsilon", "the rounds and cohort of --target-epsilon"),
        ("rounds and users, target_epsilon", "rounds and users, --target-epsilon"),
        ("target_epsilon or rounds, or leave it", "--target-epsilon or --rounds, or leave it"),
        ("target_epsilon and roundsmen", "--target-epsilon and roundsmen"),
    ],
)
def test_parameters_are_named_as_options(said, typed):
    assert as_typed(said, OPTIONS) == typed


def test_ingest_names_the_option_that_leaves_rows_out(command, tmp_path):
    (tmp_path / "chats.csv").write_text("user,text\na,hello\n,without\n")
    code, _, err = command("ingest")(tmp_path / "chats.csv", "--out", tmp_path / "corpus")
    assert code == 2
    assert "--skip-bad-rows" in err
    assert "skip_bad_rows" not in err


# Numbers that nobody can compute with.


def test_a_noise_multiplier_that_is_next_to_nothing_is_refused(command):
    words = "--population 1e6 --cohort 100 --rounds 10 --delta 1e-9 --noise-multiplier 1e-300"
    command("plan").refused(*words.split())


@pytest.mark.parametrize("users", ["1e30", "1e400", "-1e30", "nan"])
def test_a_made_up_corpus_with_more_users_than_can_be_is_refused(command, users):
    said = command("corpus info").refused(f"synthetic:users={users}")
    assert "users" in said


# What is written when a command is interrupted, or when the disk is full.


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("endings") / "corpus")


@pytest.fixture
def interrupted(monkeypatch):
    """The first thing that is to be on the disk for good meets Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)


@pytest.mark.parametrize("words", ["corpus export CORPUS OUT.jsonl", "ingest CHATS --out OUT"])
def test_ctrl_c_leaves_nothing_half_written(command, interrupted, corpus, tmp_path, words):
    (tmp_path / "chats.csv").write_text("user,text\n" + "a,hello\nb,you\n" * 20)
    before = sorted(tmp_path.rglob("*"))
    names = {"CORPUS": corpus, "OUT": tmp_path / "out", "CHATS": tmp_path / "chats.csv"}
    for name, path in names.items():
        words = words.replace(name, str(path))
    code, _, err = command("")(*words.split())
    assert code == 130
    assert "nothing is half-written: the same command begins again" in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_full_disk_names_the_file(monkeypatch, tmp_path):
    (tmp_path / "lines").write_text("{}\n")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="weights") as refusal:
        durable.write_whole(tmp_path / "weights", b"data")
    assert explain(refusal.value)[0].startswith(f"{tmp_path / 'weights'}: No space left")
    with pytest.raises(OSError, match="lines") as refusal:
        durable.append_line(tmp_path / "lines", {"a": 1})
    assert explain(refusal.value)[0].startswith(f"{tmp_path / 'lines'}: No space left")


def begun(path):
    """A run that has a checkpoint, as far as it is looked at before it goes on."""
    (path / "checkpoints").mkdir(parents=True)
    (path / "checkpoints" / "state-000003.safetensors").touch()
    (path / "experiment.toml").write_text(experiment(path).to_toml())
    return path


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device", "a/model"), MemoryError()]
)
def test_a_training_that_runs_out_of_something_says_how_it_goes_on(
    command, monkeypatch, tmp_path, error
):
    monkeypatch.setattr(training, "train_one", lambda *_, **__: failing(error)())
    run = begun(tmp_path / "run")
    said = command("train").refused("--resume", "--run", run, "--workers", 1)
    assert explain(error)[0] in said
    assert f"nothing is lost: tacit train --resume --run {run}" in said


def test_a_training_that_is_terminated_says_how_it_goes_on(command, monkeypatch, tmp_path):
    def terminated(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    monkeypatch.setattr(training, "train_one", terminated)
    run = begun(tmp_path / "run")
    code, out, err = command("train")("--resume", "--run", run, "--workers", 1)
    assert (code, out) == (143, "")
    assert err == (
        f"tacit: interrupted after round 3; nothing is lost: tacit train --resume --run {run}\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_training_that_is_terminated_goes_on_to_the_same_weights(tmp_path, number, code):
    words = ["--rounds", 30, "--seed", 3, *TINY, "--set", "evaluation.every=10"]
    path = tmp_path / "terminated"
    command = ["train", "mcmahan2018", "--run", path, *words, "--workers", 2]
    process = subprocess.Popen(
        [sys.executable, "-m", "tacit.cli.main", *map(with_tokenizer, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    while len(list(path.glob("checkpoints/state-*.safetensors"))) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.killpg(process.pid, number)  # the workers get it too
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "")
    assert f"nothing is lost: tacit train --resume --run {path}" in err
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):  # nobody of them is left
        os.killpg(process.pid, 0)

    assert train("--resume", "--run", path, "--workers", 1)[0] == 0
    whole = tmp_path / "whole"
    assert train("mcmahan2018", "--run", whole, *words)[0] == 0
    assert weights(path, 30) == weights(whole, 30)
    assert (path / "ledger.jsonl").read_bytes() == (whole / "ledger.jsonl").read_bytes()


@pytest.mark.slow
def test_two_trainings_of_one_new_run_are_one_training_and_a_sentence(tmp_path):
    words = ["--rounds", 3, "--seed", 3, *TINY]
    command = ["train", "mcmahan2018", "--run", tmp_path / "run", *words]
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "tacit.cli.main", *map(with_tokenizer, command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for _ in range(2)
    ]
    ends = [(*process.communicate(timeout=200), process.returncode) for process in both]
    assert sorted(code for *_, code in ends) == [0, 2], ends
    [lost] = [err for _, err, code in ends if code == 2]
    assert "Traceback" not in lost
    assert str(tmp_path / "run") in lost.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
