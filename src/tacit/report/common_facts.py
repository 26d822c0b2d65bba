"""What a report says of any run, whatever its model: the claim, the ledger, files and versions.

Guarantee: `claim_facts` and `ledger_facts` are functions of the ledger alone.  There is no path, no
clock and no other run in them, so that whoever has the ledger can make them again and compare.
"""

from __future__ import annotations

import hashlib
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from typing import Any

from tacit import __version__
from tacit.privacy.guarantee import Guarantee, finite
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import PriorCost
from tacit.runs.directory import RunDirectory

KIND = "tacit report"  # how report.json is told from other files
VERSIONS = ("torch", "numpy", "scipy", "dp-accounting", "tokenizers")
# True of any guarantee; what else it does not claim depends on its unit.
NEVER_CLAIMED = (
    "Models that are made from this one with more of people's text, such as a personalised one.",
    "Whatever else is published about the same users, from this corpus or from others.",
)


def claim_facts(guarantee: Guarantee, ledger: Ledger) -> dict[str, Any]:
    """The claim in words, and everything that it is made from.

    `ledger` is the one that the guarantee is of, or is projected from.
    """
    header, parent = guarantee.header, ledger.header.parent
    return {
        "sentence": guarantee.claim,
        "private": finite(guarantee.value) is not None,
        "about_people": header.about_people,
        "epsilon": {name: finite(value) for name, value in guarantee.epsilon.items()},
        "accountant": guarantee.accountant,
        "accountant_asked_for": header.accountant,
        "delta": guarantee.delta,
        "unit": header.unit,
        "adjacency": header.adjacency.value if header.adjacency is not None else None,
        "population": header.population,
        "population_is_counted": header.population_is_counted,
        "view": header.view,
        "simulation": header.simulation,
        "audit": header.audit,
        "counted": header.counted,
        "rounds_charged": guarantee.rounds,
        "releases": [
            {
                "kind": part.kind,
                "count": part.count,
                "event": part.event.to_json(),
                "estimator": part.estimator,
            }
            for part in guarantee.parts
        ],
        "budget": asdict(header.budget) if header.budget else None,
        "excluded": list(guarantee.excluded),
        "public_inputs": [asdict(one) for one in header.public_inputs],
        "prior_costs": [_cost_facts(guarantee, cost) for cost in header.prior_costs],
        "parent": parent.to_json() if parent else None,
        "experiment": header.experiment,
        "not_for_release": guarantee.why_not_for_release,
    }


def _cost_facts(guarantee: Guarantee, cost: PriorCost) -> dict[str, Any]:
    """What was paid before the run began; epsilon is null where it is infinite or not known."""
    known = cost.releases is not None
    return {
        "what": cost.what,
        "whom": cost.whom,
        "part": cost.part or None,
        "is_known": known,
        "epsilon": finite(guarantee.cost_of(cost)) if known else None,
        "excluded": list(cost.excluded),
        "head": cost.head.to_json() if cost.head else None,
    }


def ledger_facts(ledger: Ledger) -> dict[str, Any]:
    """How long it is, how it ends, and what it holds."""
    header, entries, head = ledger.header, ledger.entries, ledger.head
    return {
        "run_id": header.run_id,
        "entries": head.entries,
        "head": head.hash,
        "kinds": dict(Counter(entry.kind for entry in entries)),
        "branch": header.branch,
        "parent": header.parent.to_json() if header.parent else None,
        "charged_again": charged_again(ledger),
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
