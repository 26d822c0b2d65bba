"""What pydantic finds wrong with an experiment, as one sentence a person can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, get_origin

from pydantic import BaseModel, ValidationError


def sentence(error: ValidationError, where: str, model: type[BaseModel]) -> str:
    """The first mistake: which key of which file, what was given, what would be right."""
    first = error.errors()[0]
    place = _place(model, first["loc"])
    if first["type"] == "extra_forbidden":
        if len(place) == 1 and (home := _sections_with(model, place[0])):
            return f"{where} has the unknown key {place[0]!r}; did you mean {home[0]!r}?"
        return unknown_key(where, place, _keys_at(model, place[:-1]))
    given, message = first.get("input"), first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    key = ".".join(place)
    if first["type"] == "missing":
        return f"{where}: {key} is missing"
    if first["type"] == "value_error":
        return f"{where}: {f'{key}: ' if key else ''}{message}"
    return f"{where}: {key} cannot be {given!r}: {message}"


def unknown_key(where: str, place: list[str], known: Iterable[str]) -> str:
    """An unknown key, and the one that was probably meant."""
    known = sorted(known)
    near = difflib.get_close_matches(place[-1], known, n=1, cutoff=0.5)
    hint = f"did you mean {'.'.join([*place[:-1], near[0]])!r}?" if near else ""
    return (
        f"{where} has the unknown key {'.'.join(place)!r}; {hint or 'known: ' + ', '.join(known)}"
    )


def _place(model: Any, loc: tuple[int | str, ...]) -> list[str]:
    """The keys that lead to a mistake, without the names of types that pydantic adds to them."""
    place: list[str] = []
    for part in loc:
        place.append(str(part))
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        if field is None:
            return place
        found = next(_models_in(field.annotation), None)
        if found is None:  # a value, or a table or list of values
            below = loc[len(place) : len(place) + 1]
            is_container = get_origin(field.annotation) is dict or isinstance((*below, "")[0], int)
            return place + [str(key) for key in below if is_container]
        model = found
    return place


def _sections_with(model: type[BaseModel], key: str) -> list[str]:
    """Where a key belongs that stands outside of its section."""
    sections = {
        name: next(_models_in(f.annotation), None) for name, f in model.model_fields.items()
    }
    return [
        f"{name}.{key}" for name, found in sections.items() if found and key in found.model_fields
    ]


def _keys_at(model: Any, place: list[str]) -> list[str]:
    """The keys that the table at `place` may have."""
    for part in place:
        if part.isdigit():
            continue
        field = model.model_fields.get(part)
        found = next(_models_in(field.annotation), None) if field is not None else None
        if found is None:
            return []
        model = found
    return list(model.model_fields)


def _models_in(annotation: Any) -> Any:
    """The sections that a field's type mentions: `Plan`, `Plan | None`, `tuple[Phase, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models_in(argument)
