"""What a report says of any run, whatever its model: the claim, the ledger, files and versions."""

from __future__ import annotations

import hashlib
import math
import platform
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from tacit import __version__
from tacit.privacy.claims import ALWAYS_EXCLUDED
from tacit.privacy.events import Adjacency
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger import Ledger
from tacit.runs.directory import RunDirectory

KIND = "tacit report"  # how report.json is told from other files
VERSIONS = ("torch", "numpy", "scipy", "dp-accounting", "tokenizers")
# True of any guarantee; what else it does not claim depends on its unit.
NEVER_CLAIMED = (
    "Models that are made from this one with more of people's text, such as a personalised one.",
    "Whatever else is published about the same users, from this corpus or from others.",
)


def claim_facts(
    guarantee: Guarantee,
    ledger: Ledger,
    *,
    about_people: bool,
    adjacency: Adjacency | None,
    budget: dict[str, Any] | None,
    always_excluded: Sequence[str] = ALWAYS_EXCLUDED,
) -> dict[str, Any]:
    """The claim, and the numbers that every claim rests on."""
    return {
        "sentence": guarantee.claim,
        "private": math.isfinite(guarantee.epsilon[guarantee.accountant]),
        "about_people": about_people,
        "epsilon": {name: finite(value) for name, value in guarantee.epsilon.items()},
        "accountant": guarantee.accountant,
        "delta": guarantee.delta,
        "unit": ledger.header.unit,
        "adjacency": adjacency.value if adjacency is not None else None,
        "population": ledger.header.population,
        "rounds_charged": guarantee.rounds,
        "budget": budget,
        "excluded": excluded_in(guarantee.claim, always_excluded),
        "other_runs": guarantee.others or None,
    }


def excluded_in(claim: str, otherwise: Sequence[str] = ALWAYS_EXCLUDED) -> list[str]:
    """What a claim excludes, as a list; where there is no claim, what none ever covers."""
    _, found, text = claim.partition("; excluded: ")
    text, _, _ = text.partition(".  ")  # what follows is said about the tokenizer
    return text.rstrip(".").split("; ") if found else list(otherwise)


def ledger_facts(ledger: Ledger) -> dict[str, Any]:
    """How long it is, how it ends, and what it holds."""
    header, entries, head = ledger.header, ledger.entries, ledger.head
    parent = header.parent
    return {
        "run_id": header.run_id,
        "entries": head.entries,
        "head": head.hash,
        "kinds": dict(Counter(entry.kind for entry in entries)),
        "branch": header.branch,
        "parent": {"run_id": parent.run_id, "entries": parent.head.entries} if parent else None,
    }


def charged_again(ledger: Ledger) -> list[int]:
    """The rounds that were released more than once."""
    rounds = [(entry.branch, entry.round) for entry in ledger.entries if entry.kind == "round"]
    return sorted(key[1] for key, count in Counter(rounds).items() if count > 1)


def versions() -> dict[str, str]:
    """Of what wrote the report."""
    found = {"tacit": __version__, "python": platform.python_version()}
    return found | {name: metadata.version(name) for name in VERSIONS}


def file_facts(directory: RunDirectory, names: Sequence[str]) -> list[dict[str, Any]]:
    """The run's public files of these names, and the last model's, by their digests."""
    paths = [directory.path / name for name in names]
    paths.append(directory.checkpoints.read().model_file)
    return [
        {
            "name": str(path.relative_to(directory.path)),
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        for path in paths
        if path.is_file()
        for data in (path.read_bytes(),)
    ]


def finite(value: float) -> float | None:
    """None for infinity, which JSON does not have."""
    return value if math.isfinite(value) else None
