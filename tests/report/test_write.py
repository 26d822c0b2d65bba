"""Where a report goes, and what is left when it cannot get there."""

import json
import stat

import pytest

from tacit.report import page
from tacit.report.page import Target


@pytest.fixture
def target(tmp_path):
    return Target(tmp_path / "report.html")


def test_both_files_are_written_and_agree(target, run, facts_of):
    facts = facts_of(run)
    target.write(facts)
    assert json.loads(target.facts.read_text()) == facts
    assert facts["claim"]["sentence"] in target.page.read_text()
    assert {path.name for path in target.page.parent.iterdir() if path.is_file()} == {
        "report.html",
        "report.json",
    }


def test_an_internal_report_is_for_its_owner_only(target, run, facts_of):
    target.write(facts_of(run))
    assert stat.S_IMODE(target.page.stat().st_mode) & 0o044
    target.write(facts_of(run, internal=True))
    for path in (target.page, target.facts):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_earlier_report_stays_when_the_new_one_fails(target, run, facts_of, monkeypatch):
    facts = facts_of(run)
    target.write(facts)
    before = target.page.read_bytes(), target.facts.read_bytes()

    def fail(_):
        raise RuntimeError("the template is broken")

    monkeypatch.setattr(page, "render", fail)
    with pytest.raises(RuntimeError):
        target.write(facts | {"kind": "other"})
    assert (target.page.read_bytes(), target.facts.read_bytes()) == before


def test_a_figure_that_is_no_number_is_not_written(target, run, facts_of):
    with pytest.raises(ValueError, match="JSON compliant"):
        target.write(facts_of(run) | {"projected": None, "oops": float("nan")})
    assert not target.page.exists()
    assert not target.facts.exists()


def test_places_that_cannot_hold_a_report_are_refused(tmp_path):
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "audit.json").write_text("{}")
    for name, message in (
        ("report.txt", "--out must end in .html or .htm"),
        ("missing/report.html", "is in a folder that does not exist"),
        ("folder.html", "is a folder; name a file"),
        ("audit.html", "would replace audit.json beside it, which is not a report"),
    ):
        with pytest.raises(ValueError, match=message):
            Target(tmp_path / name)


def test_an_earlier_report_may_be_replaced_under_any_name(tmp_path, run, facts_of):
    target = Target(tmp_path / "other.html")
    target.write(facts_of(run))
    assert Target(tmp_path / "other.html") == target
