"""`verify` finds nothing wrong with any run or bundle that tacit makes."""

from __future__ import annotations

import os
import shutil

import pytest

from tacit.corpus.people_ledger import PeopleLedger
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger import Ledger
from tacit.runs.directory import RunDirectory
from tacit.verification import verifying
from tacit.verification.verifying import verify
from tests.verification.kinds import EXPORTED, MADE

REPORTED = ("private", "branch", "same", "switched", "canaries", "nlu people")


@pytest.mark.parametrize("kind", MADE)
def test_a_run_of_any_kind_is_verified(made, kind):
    found = verify(made(kind))
    assert found.differences == ()
    assert found.claim == Guarantee.of(Ledger.read(made(kind) / "ledger.jsonl")).claim


@pytest.mark.parametrize("kind", EXPORTED)
def test_a_bundle_of_any_kind_is_verified_and_has_the_claim_of_its_run(made, kind):
    found = verify(made(kind, "bundle"))
    assert (found.kind, found.differences) == ("bundle", ())
    assert found.claim == verify(made(kind)).claim


@pytest.mark.parametrize(
    "kind", ["private", "branch", "same", "switched", "canaries", "nlu people"]
)
def test_a_run_with_a_report_is_verified(made, kind):
    assert verify(made(kind, "reported")).differences == ()


def test_a_killed_run_may_have_charged_what_no_checkpoint_has(made):
    """What the kinds are for: each ends at another point between a charge and a checkpoint."""
    ahead = {}
    for kind in MADE:
        if "killed" in kind and "nlu" not in kind:
            last = RunDirectory(made(kind)).checkpoints.read()
            ledger = Ledger.read(made(kind) / "ledger.jsonl")
            ahead[kind] = ledger.head.entries - last.head.entries
    assert set(ahead.values()) >= {0, 1}


def test_nothing_but_the_folder_is_needed(made, tmp_path, monkeypatch):
    for kind, form in [("private", "run"), ("private", "bundle"), ("nlu people", "run")]:
        there = tmp_path / f"{kind} {form}"
        shutil.copytree(made(kind, form), there)
        shutil.rmtree(there / "private", ignore_errors=True)
        monkeypatch.setenv("TACIT_STATE", str(tmp_path / "nobody"))
        monkeypatch.chdir(tmp_path)
        assert verify(there).differences == ()
        assert not (tmp_path / "nobody").exists()


def test_a_run_that_goes_on_meanwhile_is_looked_at_again(copied, monkeypatch):
    """The checkpoint is of a later moment than the ledger that was read before it."""
    run, calls = copied("private"), []
    whole = (run / "ledger.jsonl").read_bytes()
    (run / "ledger.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    read = verifying.Evidence.__init__

    def opened(self, *arguments):
        calls.append(1)
        read(self, *arguments)
        (run / "ledger.jsonl").write_bytes(whole)  # as if the training had gone on just now

    monkeypatch.setattr(verifying.Evidence, "__init__", opened)
    assert verify(run).differences == ()
    assert len(calls) == 2


def test_verifying_changes_nothing(made):
    run = made("private", "reported")
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.rglob("*")}
    people = PeopleLedger.open(
        Ledger.read(run / "ledger.jsonl", torn_is_left_out=True).header.people
    ).path
    known = people.read_bytes()
    verify(run)
    assert before == {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in before}
    assert set(before) == set(run.rglob("*"))
    assert people.read_bytes() == known


def test_it_works_without_the_right_to_write(made, copied):
    run = copied("private")
    for path in [*run.rglob("*"), run]:
        if "private" not in path.relative_to(run).parts:
            os.chmod(path, 0o555 if path.is_dir() else 0o444)
    try:
        assert verify(run).differences == ()
    finally:
        for path in [run, *run.rglob("*")]:
            os.chmod(path, 0o755 if path.is_dir() else 0o644)
