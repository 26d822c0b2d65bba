"""A small sample of the fuzzer (`make fuzz` runs it for as long as one likes), always the same."""

from __future__ import annotations

import json

import pytest
from typer.main import get_command

from tacit.cli.main import app
from tests.cli.test_help_examples import commands
from tests.hostile.fuzz import facts, kills, mutations, page, parsers, targets
from tests.hostile.fuzz.child import Ended
from tests.hostile.fuzz.sample import figures_of, unknown
from tests.hostile.fuzz.verdicts import judged, listing

SAMPLE = {"damaged": 12, "lines": 6, "kills": 2, "parsers": 1}


def test_a_sample_of_hostile_files_command_lines_and_kills_ends_well(tmp_path):
    figures = figures_of(tmp_path, SAMPLE, 900)
    assert unknown(figures) == []
    assert figures["cases"]["damaged"] == SAMPLE["damaged"]
    assert figures["cases"]["kills"] == SAMPLE["kills"]


def test_every_line_that_is_tried_is_one_that_its_command_takes():
    """An option that is renamed would let each try end before it has begun."""
    tree = dict(commands(get_command(app)))
    tried = {line for one in targets.TARGETS.values() for line in one.lines}
    tried |= {line for act in kills.ACTS.values() for line in (act.line, act.again) if line}
    for line in tried:
        words = line.split()
        name = next(name for name in tree if tuple(words[: len(name)]) == name)
        assert tree[name].make_context(name[-1], words[len(name) :]).command.callback, line


@pytest.mark.slow
def test_so_does_a_larger_one(tmp_path):
    figures = figures_of(tmp_path, {kind: 10 * count for kind, count in SAMPLE.items()}, 3600)
    assert unknown(figures) == []


# The fuzzer itself: it has to see what is wrong.


@pytest.fixture
def ended():
    return lambda code=0, out="", err="", **how: Ended(code, out, err, 0.1, **how)


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ({"code": 70, "err": "Traceback (most recent call last):\nKeyError: 'x'\n"}, "traceback"),
        ({"code": -11}, "crash"),
        ({"code": 130, "was_stopped": "waits"}, "hang"),
        ({"code": -9, "was_stopped": "waits", "was_killed": True}, "hang"),
        ({"code": 3}, "exit code"),
        ({"code": 1}, "fault"),
        ({"code": 2}, "message"),
        ({"code": 2, "err": "tacit: \n"}, "message"),
        ({"code": 2, "err": "tacit: no such run\nmore\n"}, "message"),
        ({"code": 2, "err": "tacit: there is no \x1b[31mrun\n"}, "terminal"),
        ({"code": 0, "out": "\u202egnp"}, "terminal"),
    ],
)
def test_a_bad_end_is_noticed(ended, how, kind, tmp_path):
    failure = judged(["evaluate", "run"], ended(**how), listing(tmp_path), tmp_path)
    assert failure is not None
    assert failure.kind == kind


def test_a_good_end_is_not(ended, tmp_path):
    before = listing(tmp_path)
    for how in ({}, {"code": 2, "err": "tacit: there is no run at here\n"}):
        assert judged(["evaluate", "run"], ended(**how), before, tmp_path) is None
    assert judged(["verify", "run"], ended(code=1), before, tmp_path) is None


@pytest.mark.parametrize("left", [".out.partial", "tmp/scratch", "out"])
def test_what_a_refused_command_leaves_is_noticed(ended, left, tmp_path):
    before = listing(tmp_path)
    (tmp_path / left).parent.mkdir(exist_ok=True)
    (tmp_path / left).write_text("half")
    refused = ended(code=2, err="tacit: there is no run at here\n")
    assert judged(["export", "run"], refused, before, tmp_path) is not None


def test_only_another_content_is_a_changed_fact(tmp_path):
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    one.write_text('{"epsilon": 1.0, "rounds": 3}')
    other.write_text('{"epsilon":  1.00,\n "rounds": 3}\n')
    assert facts.parsed(one) == facts.parsed(other)
    other.write_text('{"epsilon": 1.0, "rounds": 4}')
    assert facts.parsed(one) != facts.parsed(other)


def test_every_kind_of_mutation_can_be_applied_and_repeated(tmp_path):
    good = {
        "a.json": '{"a": [1, 2.5, {"b": "c"}], "d": null}',
        "ledger.jsonl": '{"a": 1, "hash": ""}\n{"b": 2, "hash": ""}\n',
        "a.toml": 'a = 1\n[b]\nc = "d"\n',
        "a.safetensors": "",
        "a.csv": "a,b\n1,2\n",
    }
    for name, text in good.items():
        for kind in dict.fromkeys(mutations.fitting(tmp_path / name)):
            seen = []
            for again in ("one", "two"):
                folder = tmp_path / kind.replace("/", " ") / again / name
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text)
                mutations.Mutation(kind, name, 7).apply(folder, folder)
                path = folder / name
                seen.append(path.read_bytes() if path.is_file() and not path.is_symlink() else kind)
            assert seen[0] == seen[1], kind


def test_a_parser_that_raises_what_it_should_not_is_found(tmp_path, monkeypatch):
    def broken(path):
        if b"\x00" in path.read_bytes():
            raise KeyError("a bug")
        raise ValueError("refused")

    monkeypatch.setitem(parsers.PARSERS, "broken", parsers.Parser(broken, "file", ()))
    file = tmp_path / "file"
    file.write_bytes(b"good")
    assert parsers.cause_of("broken", file) is None
    assert parsers.shrunk("broken", b"abc\x00" * 10, tmp_path) == b"\x00"


def test_figures_become_the_page(tmp_path):
    figures = {
        "seed": 1,
        "total_seconds": 1800.0,
        "cases": {"damaged": 1200},
        "kinds": {"damaged": {"a bit": 1000, "empty": 200}},
        "seconds": {"damaged": 900.0},
        "slowest": {"damaged": 3.21},
        "failures": {"damaged": {"traceback: KeyError in a.py:b": 2}},
    }
    (tmp_path / "figures.json").write_text(json.dumps(figures))
    there = tmp_path / "hostile.md"
    there.write_text(page.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    page.write(tmp_path / "figures.json", there)
    text = there.read_text(encoding="utf-8")
    assert "| commands on damaged files | 1,200 | 2 | 900 | 3.2 s | 2 |" in text
    assert "| traceback: KeyError in a.py:b | 2 |" in text
