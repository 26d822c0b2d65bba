"""Where a tokenizer's vocabulary comes from: it is part of what is released (design rule 9).

    "public: NAME"           learnt from public text or a public list only
    "private: NAME"          learnt under differential privacy, with a ledger entry of its own
    "post-processing: NAME"  computed from what was released privately before; costs nothing more
    "oracle"                 learnt from the users' own text: no guarantee survives it
    "unknown"                not stated; treated like "oracle"

A provenance is a plain string, so that it can stand in tokenizer.json and in reports as it is.
"""

from __future__ import annotations

ORACLE = "oracle"
UNKNOWN = "unknown"

_NAMED = ("public", "private", "post-processing")
_VOIDING = {
    ORACLE: "its vocabulary was learnt from the users' own text",
    UNKNOWN: "nobody knows where its vocabulary comes from",
}


def public(name: str) -> str:
    """The provenance of what was learnt from the public text or list called `name`."""
    return check(f"public: {name}")


def check(provenance: str) -> str:
    """The provenance itself if it is of one of the five kinds; `ValueError` otherwise."""
    kind, colon, name = provenance.partition(": ")
    named = kind in _NAMED and colon and name.strip() == name != "" and name.isprintable()
    if provenance not in _VOIDING and not named:
        kinds = ", ".join([*(f"'{kind}: NAME'" for kind in _NAMED), *map(repr, _VOIDING)])
        raise ValueError(f"provenance must be one of {kinds}, got {provenance!r}")
    return provenance


def why_void(provenance: str) -> str | None:
    """Why no guarantee holds for a model that uses such a tokenizer, or None if one may."""
    return _VOIDING.get(check(provenance))
