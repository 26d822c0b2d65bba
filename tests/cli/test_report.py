"""`tacit report`: a page and its facts, or one sentence."""

from __future__ import annotations

import json
import shutil

import pytest

from tacit.runs.run import Run
from tests.report import audits
from tests.report.remembered import epsilons


@pytest.fixture(scope="module", autouse=True)
def _remembered():
    with epsilons():
        yield


@pytest.fixture
def tacit(command):
    return command("report")


@pytest.fixture
def copied(private_run, tmp_path):
    """A run that may be written to."""
    shutil.copytree(private_run, tmp_path / "run")
    return tmp_path / "run"


def test_a_report_is_written_into_the_run(tacit, copied):
    said = tacit.says(copied)
    claim = Run.open(copied).guarantee().claim
    assert claim in said
    assert claim in (copied / "report.html").read_text()
    assert json.loads((copied / "report.json").read_text())["claim"]["sentence"] == claim
    tacit.says(copied)  # and again


def test_what_scripts_rely_on(tacit, copied):
    audits.put(copied)
    found = tacit.json(copied)
    assert found["page"] == str(copied / "report.html")
    assert found["facts"] == str(copied / "report.json")
    assert (found["internal"], found["audited"]) == (False, True)
    assert found["claim"] == Run.open(copied).guarantee().claim
    assert {"name", "severity", "text"} == set(found["warnings"][0])


def test_a_report_can_go_elsewhere(tacit, private_run, tmp_path):
    before = sorted(path.name for path in private_run.iterdir())
    tacit.says(private_run, "--out", tmp_path / "shared.html")
    assert {path.name for path in tmp_path.iterdir()} == {"shared.html", "shared.json"}
    assert sorted(path.name for path in private_run.iterdir()) == before


def test_warnings_are_printed_the_serious_ones_first(tacit, plain_run, tmp_path):
    run = tmp_path / "plain"
    shutil.copytree(plain_run, run)
    (run / "result.json").unlink()  # not complete, which is a note
    said = tacit.says(run)
    assert "Serious: This run has no privacy guarantee" in said
    assert said.index("Serious: ") < said.index("Note: ")


def test_private_figures_are_in_an_internal_report_only(tacit, copied):
    audits.put(copied)
    said = tacit.says(copied)
    written = [(copied / name).read_text() for name in ("report.html", "report.json")]
    assert not any(audits.SECRET in text or audits.PHRASE in text for text in [said, *written])
    assert "Do not pass it on" in tacit.says(copied, "--internal")
    assert all(
        audits.SECRET in (copied / name).read_text() for name in ("report.html", "report.json")
    )


def test_a_projection_is_labelled(tacit, private_run, tmp_path):
    page = tmp_path / "page.html"
    asked = ("--projected-cohort", "100", "--projected-population", "1000")
    assert "projected, not trained with this guarantee" in tacit.says(
        private_run, "--out", page, *asked
    )
    assert "projected, not trained with this guarantee" in page.read_text()
    assert "go together" in tacit.refused(private_run, "--projected-cohort", "100")
    assert "--projected-delta needs" in tacit.refused(private_run, "--projected-delta", "1e-5")
    for delta in ("0", "1", "nan"):
        assert "the projected delta must be" in tacit.refused(
            private_run, *asked, "--projected-delta", delta
        )
    page.unlink()
    tacit.says(private_run, "--out", page, *asked, "--projected-delta", "1e-7")
    found = json.loads(page.with_suffix(".json").read_text())
    assert (found["projected"]["delta"], found["claim"]["delta"]) == (1e-7, 1e-3)


def test_a_run_projected_to_itself_costs_what_it_costs(tacit, private_run, tmp_path):
    header = Run.open(private_run).ledger.header
    asked = ("--projected-cohort", "10", "--projected-population", header.population)
    tacit.says(private_run, "--out", tmp_path / "page.html", *asked)
    found = json.loads((tmp_path / "page.json").read_text())
    row = tacit.json(private_run, "--out", tmp_path / "page.html", *asked)
    assert row["projected_claim"] == found["projected"]["sentence"]
    assert row["claim"] == found["claim"]["sentence"]
    assert found["projected"]["epsilon"] == found["claim"]["epsilon"]
    assert found["projected"]["excluded"] == found["claim"]["excluded"]


def test_mistakes_are_one_sentence_and_leave_the_earlier_report(tacit, copied, tmp_path):
    tacit.says(copied)
    before = (copied / "report.html").read_bytes()
    assert "there is no run at" in tacit.refused(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    assert "is not a run directory" in tacit.refused(tmp_path / "empty")
    lost = tmp_path / "lost" / "page.html"
    assert "a folder that does not exist" in tacit.refused(copied, "--out", lost)
    assert "must end in .html" in tacit.refused(copied, "--out", tmp_path / "page.pdf")
    tokenizer = copied / "tokenizer.html"
    assert "would replace tokenizer.json" in tacit.refused(copied, "--out", tokenizer)
    (copied / "audit.json").write_text("{}")
    assert "audit.json is damaged: round is missing" in tacit.refused(copied)
    assert (copied / "report.html").read_bytes() == before


def test_a_touched_ledger_has_no_report(tacit, copied):
    lines = (copied / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (copied / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    assert "ledger" in tacit.refused(copied)
    assert not (copied / "report.html").exists()
