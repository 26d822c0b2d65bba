"""Runs of every kind, made once, in an installation that knows the people of all of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tests.report.remembered import epsilons
from tests.verification import kinds
from tests.verification.kinds import tacit


@pytest.fixture(scope="session", autouse=True)
def _remembered():
    with epsilons():
        yield


@pytest.fixture(scope="session")
def installation(tmp_path_factory):
    return tmp_path_factory.mktemp("known") / "tacit"


@pytest.fixture(autouse=True)
def _known(_fresh_state, installation, monkeypatch):
    """What is made here stays known from one test to the next."""
    monkeypatch.setenv("TACIT_STATE", str(installation))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("verified")


@pytest.fixture
def made(place):
    """`made("private")` is the directory of that run, `made("private", "bundle")` its export."""
    own = place / "own"
    if not own.exists():
        kinds.make_folder(own)

    def make(kind: str, form: str = "run") -> Path:
        run = place / kind
        if not run.exists():
            kinds.MADE[kind](own, run)
        if form == "bundle" and not (place / f"{kind} bundle").exists():
            tacit("export", run, "--out", place / f"{kind} bundle", *_marked(run))
        if form == "reported" and not (run / "report.json").exists():
            tacit("report", run)
        return place / f"{kind} bundle" if form == "bundle" else run

    return make


def _marked(run: Path) -> list[str]:
    from tacit.runs.run import Run

    return ["--not-for-release"] if Run.open(run).guarantee().why_not_for_release else []


@pytest.fixture
def copied(made, tmp_path):
    """The same, to be written to."""

    def copy(kind: str, form: str = "run") -> Path:
        there = tmp_path / "copy"
        shutil.copytree(made(kind, form), there)
        return there

    return copy
