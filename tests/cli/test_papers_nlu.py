"""`tacit papers nlu`: variants of a recipe as rows of one table, and their times."""

import math

import pytest

from tacit.runs.run import NluRun
from tacit_papers.dupuy2021.comparison import why_untrained
from tests.tasks.nlu.small import small
from tests.tasks.nlu.writing import write


@pytest.fixture
def table(command):
    return command("papers nlu")


def test_variants_are_compared_in_one_table_and_not_trained_twice(table, tmp_path):
    steady = {"decay": "none", "decay_rate": None}
    text = small(training={"epochs": 1}, noise=steady).to_toml()
    text += "\n[variants.plain]\ntraining = { method = 'sgd' }\n"
    text += "noise = { noise_multiplier = 0.0 }\n\n[variants.private]\n"
    ways = write(tmp_path / "ways.toml", text)
    asked = (ways, "--out", tmp_path / "runs")
    code, _, why = table(*asked)
    assert code == 2
    assert "plain is what the other variants are compared with, and it has learned nothing" in why
    assert not (tmp_path / "runs" / "private").exists()  # nothing was trained in vain
    asked = (*asked, "--any-baseline")
    found = table.json(*asked)
    assert ["no change relative to it means anything" in said for said in found["warnings"]] == [
        True
    ]
    rows = found["rows"]
    assert [(row["name"], row["method"]) for row in rows] == [
        ("plain", "sgd"),
        ("private", "edp-sgd"),
    ]
    assert rows[0]["epsilon"] is None
    assert rows[0]["published_log10_epsilon"] is None
    assert rows[1]["epsilon"] > 0
    published = 0.5 + 2 * math.sqrt(0.5 * math.log(1000))  # z = 1, one epoch, delta 1e-3
    assert rows[1]["published_epsilon"] == pytest.approx(published)
    assert rows[1]["published_log10_epsilon"] == pytest.approx(math.log10(published))
    before = (tmp_path / "runs" / "plain" / "ledger.jsonl").stat().st_mtime_ns
    printed = table.says(*asked, "--markdown", "--only", "plain")
    assert "| plain |" in printed
    assert "| private |" not in printed
    assert (tmp_path / "runs" / "plain" / "ledger.jsonl").stat().st_mtime_ns == before
    assert "--only other: the recipe has plain, private" in table.refused(*asked, "--only", "other")
    assert "--out says where the runs go" in table.refused(ways)


@pytest.mark.slow
def test_the_baseline_of_the_default_comparison_has_learned(table, tmp_path):
    row = table.json("--only", "sgd", "--seed", "1", "--out", tmp_path / "runs")["rows"][0]
    assert row["slot_f1"] > 0.8
    assert row["intent_accuracy"] > 0.8
    assert why_untrained(NluRun.open(tmp_path / "runs" / "sgd")) is None


def test_variants_are_timed_in_turns_and_leave_nothing(table, tmp_path):
    text = small(noise={"decay": "none", "decay_rate": None}).to_toml()
    text += "\n[variants.sgd]\ntraining = { method = 'sgd' }\nnoise = { noise_multiplier = 0.0 }\n"
    text += "\n[variants.private]\n[variants.ghost]\ntraining = { method = 'dp-sgd' }\n"
    ways = write(tmp_path / "ways.toml", text)
    rows = table.json(ways, "--time", "5")
    assert [row["name"] for row in rows] == ["sgd", "private", "ghost"]
    assert rows[0]["factor"] == 1
    assert all(row["steps"] == row["turns"] == 5 for row in rows)
    assert all(row["epoch_seconds"] > row["step_seconds"] > 0 for row in rows)
    assert list(tmp_path.iterdir()) == [ways]
    printed = table.says(ways, "--time", "1", "--only", "sgd", "--markdown")
    assert "| sgd |" in printed
    assert "x 1.00" in printed
    alone = table.refused(ways, "--time", "1", "--only", "private")
    assert "timing needs a variant 'sgd' to compare with" in alone
