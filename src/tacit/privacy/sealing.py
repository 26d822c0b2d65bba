"""A line of a hash-chained file: canonical JSON that carries its own SHA-256.

Each line but the first names the hash of the one above, so that the hash of the last line stands
for the whole file.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tacit.privacy.events import canonical_json


class LedgerError(ValueError):
    """A ledger that cannot be trusted, or that must not be written to."""


def seal(fields: dict[str, Any]) -> tuple[bytes, str]:
    """The line of these fields, with its newline, and its hash."""
    line_hash = hashlib.sha256(canonical_json(fields).encode()).hexdigest()
    return canonical_json(fields | {"hash": line_hash}).encode() + b"\n", line_hash


def open_seal(line: bytes, path: Path, number: int) -> tuple[dict[str, Any], str]:
    """The fields of a line and its hash, which must be theirs; another spelling is refused too.

    The hash is taken of the line's own bytes with the item that states it cut out: these are the
    canonical JSON of all other fields, and ledgers are long.
    """
    try:
        fields = json.loads(line)
        is_canonical = canonical_json(fields).encode() == line
    except (ValueError, RecursionError) as error:
        raise fault(path, number, "it is cut off or not valid JSON") from error
    if not (isinstance(fields, dict) and is_canonical):
        raise fault(path, number, "it is not a JSON object as tacit writes it")
    stated = fields.pop("hash", None)
    item = b'"hash":' + canonical_json(stated).encode()
    others = line.replace(item + b",", b"", 1) if fields else b"{}"
    if len(others) == len(line):  # the last of the fields
        others = line.replace(b"," + item, b"", 1)
    if stated != hashlib.sha256(others).hexdigest():
        raise fault(path, number, "it was changed: its hash does not match what it says")
    return fields, stated


def fault(path: Path, number: int, what: str) -> LedgerError:
    """What is wrong with a line."""
    return LedgerError(f"the ledger {path} cannot be trusted at line {number}: {what}")
