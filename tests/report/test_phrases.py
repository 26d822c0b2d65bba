"""What a report tells of phrases: verdicts to everybody, the rest to their owner."""

import json

import pytest

from tacit.report.page import render
from tests.report import audits

FIGURES = ("log_perplexity", "rank", "rank_standard_error", "exposure")


def test_no_report_that_is_not_internal_has_a_figure_of_a_phrase(audited, facts_of):
    facts = facts_of(audited)
    [row] = facts["audit"]["phrases"]
    assert row["text"] == "phrase 1"
    assert [row[name] for name in FIGURES] == [None] * 4
    assert {row["memorized_rs"], row["memorized_bs"]} == {False}
    for told in (json.dumps(facts), render(facts)):
        assert str(audits.LOG_PERPLEXITY)[:6] not in told


def test_figures_in_a_public_file_are_not_passed_on(audited, facts_of):
    """As audits wrote them that did not keep them apart."""
    found = audits.audit()
    found["phrases"][0] |= {"log_perplexity": audits.LOG_PERPLEXITY, "exposure": 9.25}
    audits.put(audited, found)
    [row] = facts_of(audited)["audit"]["phrases"]
    assert [row[name] for name in FIGURES] == [None] * 4


def test_an_internal_report_has_them(audited, facts_of):
    [row] = facts_of(audited, internal=True)["audit"]["phrases"]
    assert row["text"] == audits.PHRASE
    assert row["log_perplexity"] == pytest.approx(audits.LOG_PERPLEXITY)


def test_phrases_of_another_audit_are_not_mixed_in(audited, facts_of):
    audits.put(audited, audits.audit(round=4))
    [row] = facts_of(audited, internal=True)["audit"]["phrases"]
    assert row["text"] == "phrase 1"
