"""One changed byte, anywhere: nothing that is claimed is another, or it is noticed."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger import Ledger
from tacit.verification.verifying import verify

CHANGED = [
    ("private", "reported"),
    ("simulated", "run"),
    ("branch", "run"),
    ("switched", "run"),
    ("same", "run"),
    ("beside", "run"),
    ("canaries", "run"),
    ("killed after a charge", "run"),
    ("killed after a checkpoint", "run"),
    ("nlu people", "reported"),
    ("nlu edp-sgd-paper", "run"),
    ("nlu killed", "run"),
    ("private", "bundle"),
    ("switched", "bundle"),
    ("beside", "bundle"),
]
SECTIONS = ("claim", "ledger", "projected", "epsilon")
HOW = ("flip", "insert", "delete", "truncate")


@dataclass(frozen=True)
class Change:
    """One byte of a file, or all from there on."""

    how: str
    place: float
    byte: int

    def of(self, data: bytes) -> bytes:
        at = min(int(self.place * len(data)), max(len(data) - 1, 0))
        before, here, after = data[:at], data[at : at + 1], data[at + 1 :]
        match self.how:
            case "flip":
                return before + bytes(one ^ (1 << self.byte % 8) for one in here) + after
            case "insert":
                return before + bytes([self.byte]) + here + after
            case "delete":
                return before + after
        return before


changes = st.builds(
    Change,
    st.sampled_from(HOW),
    st.floats(0, 1),
    # Digits and blanks change most without breaking a file's form.
    st.sampled_from(b"0123456789 \n.-e") | st.integers(0, 255),
)


def files_of(folder: Path) -> list[Path]:
    """All but what is private, and the metrics, which claim nothing."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path.name != "metrics.jsonl"
        and "private" not in path.relative_to(folder).parts
    )


def claimed(folder: Path) -> dict[str, object]:
    """Everything that is said about privacy in a folder, wherever it stands."""
    found: dict[str, object] = {
        "ledger": Guarantee.of(Ledger.read(folder / "ledger.jsonl")).claim,
    }
    for name in ("README.md", "report.html"):
        if (folder / name).exists():
            found[name] = (folder / name).read_bytes()
    if (folder / "result.json").exists():
        found["result.json"] = json.loads((folder / "result.json").read_text())
    if (folder / "report.json").exists():
        facts = json.loads((folder / "report.json").read_text())
        found["report.json"] = [facts.get(name) for name in SECTIONS]
    return found


def is_same(one: object, other: object) -> bool:
    """Equal, but for the last digits of an epsilon, which no two machines agree on."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-8)
    return one == other


def check(folder: Path, before: dict[str, object], file: Path, change: Change) -> None:
    """Change the file, look, and put it back."""
    data = file.read_bytes()
    changed = change.of(data)
    file.write_bytes(changed)
    try:
        found = verify(folder)
        if found.kind == "bundle" and changed != data:
            assert found.differences
        if not found.differences:
            assert is_same(claimed(folder), before)
            assert found.claim == before["ledger"]
    finally:
        file.write_bytes(data)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Copies to write to, one of each kind."""
    return tmp_path_factory.mktemp("changed")


@pytest.fixture
def opened(made, kept):
    def copy(kind: str, form: str) -> Path:
        there = kept / f"{kind} {form}"
        if not there.exists():
            shutil.copytree(made(kind, form), there)
        return there

    return copy


@pytest.mark.parametrize(("kind", "form"), CHANGED)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_byte_changes_no_claim_or_is_noticed(opened, kind, form, data):
    folder = opened(kind, form)
    before = claimed(folder)
    file = data.draw(st.sampled_from(files_of(folder)))
    check(folder, before, file, data.draw(changes))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "form"), CHANGED)
@pytest.mark.parametrize("how", HOW)
def test_so_does_any_of_forty_bytes_of_each_file(opened, kind, form, how):
    folder = opened(kind, form)
    before = claimed(folder)
    for file in files_of(folder):
        size = max(file.stat().st_size, 1)
        step = max(size // 40, 1)
        for place in range(0, size, step):
            check(folder, before, file, Change(how, place / size, 48 + place % 10))
