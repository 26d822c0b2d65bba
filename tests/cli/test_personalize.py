"""`tacit model personalize`: better for one person, and that person's own."""

from __future__ import annotations

import json
import os

import pytest

from tacit.models import weights
from tacit.runs.personalization import PERSONAL, read_texts
from tacit.runs.stored_model import StoredModel

TEXT = "the red dog runs quickly and then sleeps"


@pytest.fixture
def tacit(command):
    return command("model personalize")


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("\n".join([TEXT] * 40) + "\n\n")
    return path


def test_a_person_s_later_text_is_predicted_better(tacit, private_run, mine, tmp_path):
    out = tmp_path / "own"
    found = tacit.json(private_run, "--user-text", mine, "--out", out, "--lr", 0.02)
    assert (found["texts"], found["held_out_texts"]) == (32, 8)
    assert found["after"]["perplexity"] < found["before"]["perplexity"]
    assert found["before"]["tokens"] == found["after"]["tokens"] == 8 * 9
    saved = json.loads((out / "personalization.json").read_text())
    assert saved["after"] == found["after"]


def test_the_result_is_for_its_owner_only_and_marked(tacit, private_run, mine, tmp_path):
    out = tmp_path / "own"
    before = os.umask(0o022)
    try:
        printed = tacit.says(private_run, "--user-text", mine, "--out", out, "--epochs", 1)
    finally:
        os.umask(before)
    assert "never exported" in printed
    assert out.stat().st_mode & 0o777 == 0o700
    assert (out / "PRIVATE").exists()
    for path in out.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    origins = weights.trained_on(out / "model.safetensors")
    assert PERSONAL in origins
    assert set(StoredModel.open(private_run).trained_on) < set(origins)
    assert TEXT.encode() not in b"".join(path.read_bytes() for path in out.iterdir())


def test_the_result_can_be_used_but_not_exported(tacit, command, private_run, mine, tmp_path):
    out = tmp_path / "own"
    tacit.says(private_run, "--user-text", mine, "--out", out, "--lr", 0.02, "--epochs", 25)
    assert command("predict").json(out, "the red ")[0]["word"] == "dog"
    assert command("evaluate").json(out, "--corpus", private_run.parent / "corpus")["tokens"] > 0
    assert "never exported" in command("export").refused(out, "--out", tmp_path / "shared")


def test_the_released_model_is_left_as_it_was(tacit, private_run, mine, tmp_path):
    before = {path: path.read_bytes() for path in private_run.rglob("*") if path.is_file()}
    tacit.says(private_run, "--user-text", mine, "--out", tmp_path / "own", "--epochs", 1)
    assert before == {path: path.read_bytes() for path in private_run.rglob("*") if path.is_file()}


def test_a_bundle_can_be_personalised(tacit, command, private_run, mine, tmp_path):
    command("export").says(private_run, "--out", tmp_path / "bundle")
    found = tacit.json(
        tmp_path / "bundle", "--user-text", mine, "--out", tmp_path / "own", "--epochs", 1
    )
    assert found["round"] is None


@pytest.mark.parametrize(
    "lines",
    [
        ['{"text": "a b"}', '{"text": "c"}', '{"text": " "}'],
        ['{"user": 7, "texts": ["a b", "c"]}'],
        ['"a b"', "", '"c"'],
    ],
)
def test_json_lines_hold_text_in_several_ways(tmp_path, lines):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(lines))
    assert read_texts(path) == ["a b", "c"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "only one line\n", "at least 2 are needed"),
        ("a.txt", "", "is empty"),
        ("a.jsonl", "{secret", "line 1 of"),
        ("a.jsonl", '{"body": "x"}', 'neither a string "text"'),
        ("a.jsonl", '{"user": 1, "text": "x"}\n{"user": 2, "text": "y"}', "text of 2 users"),
    ],
)
def test_text_that_cannot_be_used_is_one_sentence(
    tacit, private_run, tmp_path, name, content, message
):
    (tmp_path / name).write_text(content)
    said = tacit.refused(private_run, "--user-text", tmp_path / name, "--out", tmp_path / "own")
    assert message in said
    assert "secret" not in said
    assert not (tmp_path / "own").exists()


def test_mistakes_are_one_sentence(tacit, private_run, mine, tmp_path):
    (tmp_path / "there").mkdir()
    assert "exists already" in tacit.refused(
        private_run, "--user-text", mine, "--out", tmp_path / "there"
    )
    assert "there is no file" in tacit.refused(
        private_run, "--user-text", tmp_path / "none.txt", "--out", tmp_path / "own"
    )
    for option, value in (("--epochs", "0"), ("--lr", "nan"), ("--epochs", "-1")):
        said = tacit.refused(
            private_run, "--user-text", mine, "--out", tmp_path / "own", option, value
        )
        assert "must be a finite number above 0" in said
    assert not (tmp_path / "own").exists()
