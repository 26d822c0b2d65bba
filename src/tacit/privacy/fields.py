"""Checks on the fields of what a ledger holds; each raises `ValueError` naming the field."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence


def expect_fields(what: str, data: object, cls: type) -> None:
    """The fields of the dataclass, all of them and no others."""
    expected = {field.name for field in dataclasses.fields(cls)}
    if not isinstance(data, Mapping) or set(data) != expected:
        got = sorted(data) if isinstance(data, Mapping) else data
        raise ValueError(f"{what} needs the fields {sorted(expected)}, got {got}")


def name(what: str, value: str) -> None:
    """Text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{what} must be text that is not empty, got {value!r}")


def one_of(what: str, value: str, known: Sequence[str]) -> None:
    """One of a few words."""
    if value not in known:
        raise ValueError(f"{what} must be one of {', '.join(known)}, got {value!r}")


def hexadecimal(what: str, value: str) -> None:
    """Lower-case hexadecimal digits, as digests are written."""
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]+", value):
        raise ValueError(f"{what} must be lower-case hexadecimal digits, got {value!r}")
