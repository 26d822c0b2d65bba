"""How a run or a bundle is changed so that only what it says can give it away."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Head, seal
from tacit.privacy.records import canonical_json
from tacit.runs.checkpoints import Checkpoints
from tacit.runs.directory import digest_of_result
from tacit.tasks.task import State

Lines = list[dict[str, Any]]


def chained_anew(file: Path, change: Callable[[Lines], object]) -> None:
    """Change a ledger's lines, the header first, and make the chain whole again."""
    lines: Lines = [json.loads(line) for line in file.read_text().splitlines()]
    change(lines)
    previous, data = "", b""
    for number, line in enumerate(lines):
        fields = {name: value for name, value in line.items() if name not in ("hash", "previous")}
        if number:
            fields |= {"previous": previous, "index": number - 1}
        sealed, previous = seal(fields)
        data += sealed
    file.write_bytes(data)


def refitted(run: Path) -> None:
    """Let every checkpoint have the head that the ledger now has, at most, at its entries."""
    ledger, checkpoints = Ledger.read(run / "ledger.jsonl"), Checkpoints(run / "checkpoints")
    for leg in checkpoints.legs():
        entries = min(checkpoints.read(leg).head.entries, len(ledger.entries))
        with_head(checkpoints, leg, Head(entries, ledger.hashes[entries]))


def with_head(checkpoints: Checkpoints, leg: int, head: Head) -> None:
    """Write a checkpoint anew, with another head."""
    last = checkpoints.read(leg)
    checkpoints.write(leg, State(last.model_file.read_bytes(), last.arrays, last.facts), head)


def forged(run: Path, change: Callable[[Lines], object]) -> None:
    """A ledger that was rewritten with all checkpoints to fit."""
    chained_anew(run / "ledger.jsonl", change)
    refitted(run)


def header(**values: Any) -> Callable[[Path], None]:
    """Other values in the header of a ledger that is forged."""
    return lambda run: forged(run, lambda lines: lines[0].update(values))


def charges(**values: Any) -> Callable[[Path], None]:
    """Other values in each round of a ledger that is forged; a dictionary adds to one."""

    def change(lines: Lines) -> None:
        for line in lines[1:]:
            if line["kind"] == "round":
                for name, value in values.items():
                    merges = isinstance(value, dict) and value.get("kind") is None
                    line[name] = line[name] | value if merges else value

    return lambda run: forged(run, change)


def sealed_anew(bundle: Path) -> None:
    """The digests of all files of a bundle as they now are, in its last line."""

    def change(lines: Lines) -> None:
        names = sorted(one.name for one in bundle.iterdir() if one.name != "ledger.jsonl")
        digests = {name: hashlib.sha256((bundle / name).read_bytes()).hexdigest() for name in names}
        lines[-1]["note"] = canonical_json(digests)
        lines[-1]["plan_hash"] = hashlib.sha256(lines[-1]["note"].encode()).hexdigest()

    chained_anew(bundle / "ledger.jsonl", change)


def result(**values: Any) -> Callable[[Path], None]:
    """Another result.json, with a digest to fit."""

    def change(run: Path) -> None:
        found = json.loads((run / "result.json").read_text()) | values
        found["sha256"] = digest_of_result(found)
        (run / "result.json").write_text(json.dumps(found, indent=2) + "\n")

    return change


def text(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Other words in a file; they have to be there."""

    def change(run: Path) -> None:
        before = (run / name).read_text()
        assert old in before
        (run / name).write_text(before.replace(old, new, 1))

    return change


def flipped(name: str, place: int = -1) -> Callable[[Path], None]:
    """One bit of a file."""

    def change(run: Path) -> None:
        [file] = run.glob(name)
        data = bytearray(file.read_bytes())
        data[place] ^= 1
        file.write_bytes(data)

    return change


def gone(name: str) -> Callable[[Path], None]:
    return lambda run: (run / name).unlink()


def both(*changes: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        for one in changes:
            one(run)

    return change
