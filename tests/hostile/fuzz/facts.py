"""Whether a mutation has changed a fact: what files say once they are read, not their bytes.

White space in result.json, or a byte order mark that a reader skips, changes nothing; one digit of
a ledger does.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

# Files that say nothing about privacy: metrics, curves and what is the owner's own.
_FREE_NAMES = ("metrics.jsonl", "curve.png")
_OPTIONAL = ("report.html", "report.json", "audit.json", "result.json")
_CLAIMING = ("claim", "sentence", "epsilon", "delta", "unit", "adjacency", "not_for_release")


def is_protected(file: str) -> bool:
    """Whether `tacit verify` answers for this file of a run or a bundle."""
    path = Path(file)
    return path.name not in _FREE_NAMES and "private" not in path.parts


def may_be_missing(file: str) -> bool:
    """Whether a run may be without this file: what is not said is no changed fact.

    A run that has not ended has no result, most have no report, and old checkpoints may be removed.
    """
    path = Path(file)
    return path.name in _OPTIONAL or "checkpoints" in path.parts


def parsed(path: Path) -> Any:
    """The content of a file, for comparing; what cannot be parsed is its bytes."""
    if path.is_symlink() or not path.is_file() or not os.access(path, os.R_OK):
        return None
    data = path.read_bytes()
    try:
        match path.suffix:
            case ".json":
                return repr(json.loads(data))
            case ".jsonl":
                *whole, rest = data.split(b"\n")
                return [repr(json.loads(line)) for line in whole], rest
            case ".toml":
                return repr(tomllib.loads(data.decode()))
    except (ValueError, RecursionError):
        pass
    return data


def claims(out: str) -> list[tuple[str, str]] | None:
    """Everything about privacy in what a command printed as JSON; None if it printed none."""
    try:
        data = json.loads(out)
    except (ValueError, RecursionError):
        return None
    return sorted(_claims(data))


def _claims(data: Any, within: str = "") -> list[tuple[str, str]]:
    if isinstance(data, dict):
        return [
            one
            for name, value in data.items()
            for one in _claims(value, within or (name if name in _CLAIMING else ""))
        ]
    if isinstance(data, list):
        return [one for value in data for one in _claims(value, within)]
    return [(within, f"{data:.8g}" if isinstance(data, float) else repr(data))] if within else []
