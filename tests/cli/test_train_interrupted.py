"""Ctrl-C: exit code 130, nothing is lost, and one message says how to go on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

from tests.cli.training import TINY, tacit, train, weights, with_tokenizer

# A shell that runs tests in the background may have told its children to ignore Ctrl-C.
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from tacit.cli.main import main
main()
"""


def command(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "train", *map(with_tokenizer, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_ctrl_c_exits_with_130_and_the_run_goes_on_to_the_same_weights(tmp_path):
    words = ["--rounds", 30, "--seed", 3, *TINY, "--set", "evaluation.every=10"]
    path = tmp_path / "ctrl-c"
    process = command("mcmahan2018", "--run", path, *words)
    while len(list(path.glob("checkpoints/state-*.safetensors"))) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=180)
    assert (process.returncode, out) == (130, "")
    found = re.search(r"^tacit: interrupted after round (\d+); nothing is lost: (.*)$", err, re.M)
    assert found is not None, err
    assert err.count("interrupted") == 1
    assert "Traceback" not in err
    assert 1 <= int(found[1]) < 30
    assert found[2] == f"tacit train --resume --run {path}"

    code, _, err = train("--resume", "--run", path, "--workers", 1)
    assert code == 0, err
    whole = tmp_path / "whole"
    code, _, err = train("mcmahan2018", "--run", whole, *words)
    assert code == 0, err
    assert weights(path, 30) == weights(whole, 30)
    assert (path / "ledger.jsonl").read_bytes() == (whole / "ledger.jsonl").read_bytes()


def test_ctrl_c_before_the_run_directory_is_there_leaves_nothing(tmp_path, monkeypatch):
    from tacit.tasks.language import assembly

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(assembly.StartingModel, "of", interrupt)
    code, out, err = train("mcmahan2018", "--run", tmp_path / "run", *TINY)
    assert (code, out) == (130, "")
    assert err.startswith("tacit: interrupted before anything was released")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_between_variants_names_the_whole_command(tmp_path, monkeypatch):
    from tacit.tasks.language import assembly

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(assembly.StartingModel, "of", interrupt)
    words = ["train", "mcmahan2018-table2", "--run", str(tmp_path / "run"), *TINY]
    monkeypatch.setattr(sys, "argv", ["tacit", *words])
    code, _, err = tacit(*words)
    assert code == 130
    assert "after round 0 of sigma-0.003; nothing is lost: tacit train mcmahan2018-table2" in err
    assert err.rstrip().endswith("--resume")
