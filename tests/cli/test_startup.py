"""`tacit --help` is quick, fits a screen and tells the way; shells complete the commands."""

import os
import re
import subprocess
import sys

import pytest

from tacit.cli.main import main

HEAVY = ("torch", "numpy", "scipy", "matplotlib", "pydantic", "pyarrow", "transformers")


def test_the_command_line_imports_nothing_heavy_before_a_command_is_run():
    script = f"import sys, tacit.cli.main; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_report_on_a_language_model_waits_for_no_torch(simulated_run, tmp_path):
    """Which takes longer to import than 100,000 measurements take to read."""
    script = (
        "import sys\nfrom tacit.cli.main import main\ntry:\n    main()\nfinally:\n"
        "    print([m for m in ('torch', 'pyarrow') if m in sys.modules])"
    )
    words = ["report", str(simulated_run), "--out", str(tmp_path / "page.html")]
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_help_fits_a_screen_and_shows_the_way_in_order(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) <= 34
    shown = [line.split()[1] for line in lines if line.startswith("│ ") and line[2] != "-"]
    way = "ingest plan train evaluate predict audit report export verify".split()
    assert shown[: len(way)] == way
    assert {"compare", "ledger", "demo", "corpus", "tokenizer", "model", "recipes"} < set(shown)
    assert "papers" in shown  # of the entry-point group tacit.commands


def test_shells_complete_commands():
    script = "from tacit.cli.main import app; app(prog_name='tacit')"
    asked = {"_TACIT_COMPLETE": "complete_bash", "COMP_WORDS": "tacit model p", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | asked,
    )
    assert done.stdout.split() == ["pretrain", "personalize"]


@pytest.mark.parametrize("group", ["corpus", "federate", "model", "papers", "recipes", "tokenizer"])
def test_a_group_by_itself_shows_its_commands(capsys, group):
    with pytest.raises(SystemExit) as stop:
        main([group])
    out, err = capsys.readouterr()
    assert (stop.value.code, err) == (0, "")
    assert re.search(rf"{group} \[OPTIONS\] \[?COMMAND", " ".join(out.split()))
