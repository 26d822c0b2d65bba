"""`tacit predict` as somebody meets it who types."""

from __future__ import annotations

import io
import json

import pytest
import torch

from tacit.runs.run import Run


@pytest.fixture
def tacit(command):
    return command("predict")


def next_word_probabilities(path, text):
    run = Run.open(path)
    model = run.model()
    model.eval()
    tokens = run.tokenizer.encode(text)[:-1]
    with torch.no_grad():
        logits = model(torch.tensor([tokens]))[0][0, -1]
    probs = torch.softmax(logits.double(), 0)
    special = (run.tokenizer.bos, run.tokenizer.eos, run.tokenizer.unk)
    return {
        run.tokenizer.token(id): float(probs[id]) for id in range(len(probs)) if id not in special
    }


@pytest.mark.parametrize("text", ["", "the big ", "the big", "The  BIG", "no such word here "])
def test_next_words_are_the_most_probable_ones(tacit, private_run, text):
    found = tacit.json(private_run, text, "--top", 5)
    expected = next_word_probabilities(private_run, text)
    best = sorted(expected, key=lambda word: (-expected[word], word))[:5]
    assert [row["word"] for row in found] == best
    for row in found:
        assert list(row) == ["word", "probability"]
        assert row["probability"] == pytest.approx(expected[row["word"]], rel=1e-6)


def test_the_beginning_of_a_word_is_completed(tacit, private_run):
    found = tacit.json(private_run, "the b")
    expected = next_word_probabilities(private_run, "the")
    assert sorted(row["word"] for row in found) == ["big", "blue"]
    for row in found:
        assert row["probability"] == pytest.approx(expected[row["word"]], rel=1e-6)


def test_a_beginning_that_no_word_has_gets_next_words(tacit, private_run):
    assert len(tacit.json(private_run, "the zzz")) == 3


def test_all_words_at_once_are_the_dictionary_and_nothing_special(tacit, private_run):
    words = {row["word"] for row in tacit.json(private_run, "the ", "--top", 1000)}
    assert words == set(next_word_probabilities(private_run, "the"))


def test_rounds_differ(tacit, private_run):
    assert tacit.json(private_run, "the ") != tacit.json(private_run, "the ", "--round", 0)


def test_people_read_a_table(tacit, private_run):
    printed = tacit.says(private_run, "the [red] ")
    assert "after “the [red] ”" in printed
    assert "%" in printed


def test_piped_lines_are_answered_one_by_one(tacit, private_run, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("the b\n\nthe \n"))
    code, out, _ = tacit(private_run, "--json")
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [len(row) for row in rows] == [2, 3, 3]
    monkeypatch.setattr("sys.stdin", io.StringIO("the b\n"))
    assert "big" in tacit.says(private_run)


def test_without_a_text_it_asks_until_the_end_of_input(tacit, private_run, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    typed = iter(["the ", "qui"])

    def answer(prompt):
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", answer)
    code, out, err = tacit(private_run)
    assert code == 0
    assert len(out.splitlines()) == 2
    assert out.splitlines()[1].startswith("quickly")
    assert "Ctrl-D" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--top", "0"], "--top must be at least 1, got 0"),
        (["x", "--round", "99"], "there is no checkpoint of round 99"),
    ],
)
def test_mistakes_are_one_sentence(tacit, private_run, arguments, message):
    assert message in tacit.refused(private_run, *arguments)
