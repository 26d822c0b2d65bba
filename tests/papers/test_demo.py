"""`tacit demo` as a user meets it: everything that it promises, on one screen."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tacit.cli.main import main
from tacit.runs.run import Run

# Tests that run in the background may have been told to ignore Ctrl-C.
WITH_CTRL_C = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
if __name__ == "__main__":
    from tacit.cli.main import main
    main()
"""
NUMBER = r"([\d,.]+)"


def demo(*words: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    threads = torch.get_num_threads()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as stop,
    ):
        main(["demo", *map(str, words)])
    torch.set_num_threads(threads)
    code = stop.value.code
    assert isinstance(code, int)
    return code, out.getvalue(), err.getvalue()


def joined(out: str) -> str:
    """Without the line breaks of a screen."""
    return " ".join(out.split())


def figures(out: str) -> dict[str, tuple[float, float]]:
    """Top-1 in percent, in which UNK is no choice, and perplexity, by model."""
    found = {}
    for name in ("unigram", "bigram", "the start", "private"):
        row = rf"^\s*{name} .*?{NUMBER}% +{NUMBER}% +{NUMBER}\s*$"
        line = re.search(row, out, re.MULTILINE)
        assert line is not None, f"no row for {name} in:\n{out}"
        assert float(line[2]) <= float(line[1])  # if UNK competes
        found[name] = (float(line[1]), float(line[3].replace(",", "")))
    return found


def memorized(out: str) -> dict[str, tuple[int, int]]:
    """Canaries by Random Sampling and by Beam Search, by model, in their order."""
    line = r"^ (\S.*?) +(\d+) +(\d+) +\d+ of \d+ +0 of \d+ *$"
    return {name: (int(rs), int(bs)) for name, rs, bs in re.findall(line, out, re.MULTILINE)}


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A smoke test with a cache and a memory of people of its own."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CACHE", str(folder / "cache"))
        patch.setenv("TACIT_STATE", str(folder / "state"))
        patch.setenv("TACIT_KERNEL", "torch")  # two rounds are not worth a compilation
        patch.setenv("COLUMNS", "80")
        code, out, err = demo("--quick", "--out", folder / "out")
        yield folder / "out", code, out, err


def test_it_says_everything_that_it_promises(quick):
    folder, code, out, err = quick
    assert code == 0, err
    assert all(perplexity > 1 for _, perplexity in figures(out).values())
    assert "An LSTM of 92,912 parameters on the chat of 144 test users" in out
    text = joined(out)
    assert re.search(
        rf"Audit run, [^.]*\. User-level \({NUMBER}, 0.0001\)-differential privacy under"
        r" add/remove-one adjacency, with the population of 100 users declared public",
        text,
    )
    assert "excluded: the choice of settings" in text
    assert re.search(r"bigram model, which has no privacy: its first suggestion is right", text)
    for prefix in ("how are", "i like", "nice to"):
        assert re.search(rf"^ ?{prefix} +\S", out, re.MULTILINE)
    assert re.search(r"Took \d+ min \d+ s", text)
    assert "tacit predict" in out
    assert out.splitlines()[-1] == f"The runs are in {folder / '1'}"
    assert (folder / "1" / "curves.png").stat().st_size > 5000


def test_it_fits_a_screen(quick):
    lines = quick[2].splitlines()
    assert len(lines) <= 72
    commands = ("  tacit ", "The runs are in", "Took ")  # these have paths, and may be longer
    assert all(len(line) <= 80 for line in lines if not line.startswith(commands))


def test_a_smoke_test_says_that_it_is_one(quick):
    assert quick[2].startswith("A smoke test: these figures show that it runs")


def test_its_runs_are_ordinary_ones_without_a_key_and_share_their_start(quick):
    plain, private = (Run.open(quick[0] / "1" / name) for name in ("fedavg", "dp-fedavg"))
    for run in (plain, private):
        assert run.is_complete
        assert not run.ledger.header.simulation
        assert not run.directory.key_file.exists()
    assert "No differential privacy" in plain.guarantee().claim
    before = [row for run in (plain, private) for row in run.metrics() if row["round"] == 0]
    assert before[0]["perplexity"] == before[1]["perplexity"]


def test_every_model_is_audited_and_the_private_one_reported(quick):
    folder, _, out, _ = quick
    rows = memorized(out)
    assert list(rows) == ["SGD on records", "FedAvg", "FedAvg+clip", "DP-FedAvg"]
    for name in ("fedavg", "fedavg-clip", "dp-fedavg"):
        audit = json.loads((folder / "1" / name / "audit.json").read_text())
        assert audit["canaries"] == 9
        assert audit["controls"]["count"] == 5
    page = (folder / "1" / "dp-fedavg" / "report.html").read_text()
    assert "differential privacy" in page
    assert "report.html" in joined(out)


def test_a_file_in_the_way_is_one_sentence(tmp_path):
    (tmp_path / "demo").write_text("mine")
    code, out, err = demo("--out", tmp_path / "demo")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "is a file" in err
    assert (tmp_path / "demo").read_text() == "mine"


@pytest.mark.slow
def test_another_demo_gets_a_folder_of_its_own_and_a_seed_marks_a_simulation(quick, monkeypatch):
    folder = quick[0]
    monkeypatch.setenv("TACIT_STATE", str(folder.parent / "state"))  # these people are known there
    before = (folder / "1" / "dp-fedavg" / "ledger.jsonl").read_bytes()
    code, out, err = demo("--quick", "--seed", "1", "--out", folder)
    assert code == 0, err
    assert out.splitlines()[-1] == f"The runs are in {folder / '2'}"
    assert "Simulation, not for release" in joined(out)
    assert "This corpus has 5 other runs on record" in joined(out)
    assert "ledger is gone" not in joined(out)
    assert (folder / "1" / "dp-fedavg" / "ledger.jsonl").read_bytes() == before


@pytest.mark.slow
def test_ctrl_c_is_one_sentence_and_leaves_the_runs(quick, tmp_path):
    command = [sys.executable, "-c", WITH_CTRL_C, "demo", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    ledger = tmp_path / "out" / "1" / "shipped" / "ledger.jsonl"
    _wait_for(ledger, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to its processes as well
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("tacit: interrupted; what was trained so far is in")
    assert ledger.exists()


@pytest.mark.slow
def test_the_demo_keeps_its_promises(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = demo("--out", tmp_path / "out")
    assert code == 0, err
    rows = figures(out)
    assert rows["private"][0] > rows["bigram"][0]
    assert rows["private"][0] > rows["the start"][0] + 1  # points; it was 3 and more
    assert rows["private"][1] < rows["the start"][1]
    assert "The private model beats the bigram model" in joined(out)
    came_out = memorized(out)
    assert came_out["SGD on records"][0] >= 10
    assert came_out["SGD on records"][0] > came_out["FedAvg"][0] > came_out["DP-FedAvg"][0]
    assert came_out["FedAvg"][0] >= came_out["FedAvg+clip"][0]
    assert came_out["DP-FedAvg"] == (0, 0)
    guarantee = Run.open(tmp_path / "out" / "1" / "shipped").guarantee()
    assert 7.9 < guarantee.epsilon["pld"] <= 8


def _wait_for(path: Path, process: subprocess.Popen[str], seconds: float = 180) -> None:
    """Until a round was charged: the header and one entry."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert process.poll() is None, process.communicate()
        if path.exists() and path.read_text().count("\n") > 1:
            return
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    raise AssertionError(f"{path} was not written in {seconds} s")
