"""Tables over tables: how recipes extend one another, and how an experiment is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Tables = dict[str, Any]

# In the plan: what setting the one takes the place of.
_REPLACES = {
    "noise_multiplier": ("noise_stddev",),
    "noise_stddev": ("noise_multiplier",),
    "clip_norm": ("layer_clip_norms",),
    "layer_clip_norms": ("clip_norm",),
    "schedule": ("adaptive",),
    "adaptive": ("schedule",),
}
_NORMS = {"clip_norm", "layer_clip_norms"}


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Tables:
    """The tables of both; where both have a value, that of `changes`.

    Of values that contradict each other the one in `changes` takes the place of the other.
    """
    given = {key for key, value in changes.items() if value is not None}
    replaced = {other for key in given for other in _REPLACES.get(key, ())}
    if changes.get("clipping") == "none":
        replaced |= _NORMS
    elif base.get("clipping") == "none" and _NORMS & given:
        replaced.add("clipping")
    merged = {key: value for key, value in base.items() if key not in replaced}
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def by_dotted_key(tables: Mapping[str, Any], below: str = "") -> Iterator[tuple[str, Any]]:
    """All values of nested tables, each with its dotted key."""
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from by_dotted_key(value, f"{below}{key}.")
        else:
            yield f"{below}{key}", value
