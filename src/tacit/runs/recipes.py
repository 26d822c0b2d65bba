"""Recipes: experiments as TOML files that extend one another, one for each published setting.

    extends = "mcmahan2018"            # or a list; what comes later wins
    [variants.S-10.plan]               # several trainings that differ in a few values
    clip_norm = 10.0

Tables are merged key by key.  Of values that contradict each other (noise_multiplier and
noise_stddev, for instance) the one that is set last takes the place of the other.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from tacit.runs.experiment import Experiment

Tables = dict[str, Any]

# In the plan: what setting the one says about the other.
_REPLACES = {
    "noise_multiplier": ("noise_stddev",),
    "noise_stddev": ("noise_multiplier",),
    "clip_norm": ("layer_clip_norms",),
    "layer_clip_norms": ("clip_norm",),
}


@dataclass(frozen=True)
class Recipe:
    """A name, what it stands for, and its experiments: one, or one for each variant."""

    name: str
    experiments: Mapping[str, Experiment]  # by variant; "" where there is only one

    @property
    def variants(self) -> list[str]:
        return [name for name in self.experiments if name]

    def only(self, variant: str | None = None) -> Experiment:
        """The experiment of a variant; without one the recipe must have no variants."""
        if variant is None and list(self.experiments) != [""]:
            raise ValueError(
                f"the recipe {self.name} has the variants {', '.join(self.experiments)}; name one"
            )
        wanted = variant or ""
        if wanted not in self.experiments:
            known = ", ".join(self.variants) or "none"
            raise ValueError(f"the recipe {self.name} has no variant {wanted!r}; it has {known}")
        return self.experiments[wanted]


def names() -> list[str]:
    """The recipes that come with tacit."""
    folder = files("tacit.recipes")
    found = [Path(item.name) for item in folder.iterdir() if item.name.endswith(".toml")]
    return sorted(path.stem for path in found if not path.name.startswith("_"))


def load(name_or_path: str, settings: Sequence[str] = ()) -> Recipe:
    """A recipe by name or from a file, with `key=value` settings on top of it."""
    tables, where = _merged(name_or_path, ())
    for setting in settings:
        tables = merge(tables, _setting(setting))
    variants = tables.pop("variants", {})
    name = Path(name_or_path).stem
    tables.setdefault("name", name)
    if not isinstance(variants, dict) or not all(isinstance(v, dict) for v in variants.values()):
        raise ValueError(f"{where}: variants must be tables, such as [variants.NAME.plan]")
    if not variants:
        return Recipe(name, {"": Experiment.from_data(tables, where)})
    made = {}
    for variant, changes in variants.items():
        data = merge(tables, changes)
        for setting in settings:  # what the caller says wins over the variant too
            data = merge(data, _setting(setting))
        data["name"] = f"{name}/{variant}"
        made[variant] = Experiment.from_data(data, f"{where}, variant {variant}")
    return Recipe(name, made)


def source(name: str) -> str:
    """The text of a recipe, as it was written."""
    return _read(name)[0]


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Tables:
    """The tables of both; where both have a value, that of `changes`."""
    merged = dict(base)
    for key, value in changes.items():
        for other in _REPLACES.get(key, ()):
            merged.pop(other, None)
        if key == "clipping" and value == "none":
            for norm in ("clip_norm", "layer_clip_norms"):
                merged.pop(norm, None)
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def _merged(name: str, below: tuple[str, ...]) -> tuple[Tables, str]:
    """A recipe's tables with those that it extends under them."""
    if name in below:
        raise ValueError(f"the recipe {name} extends itself: {' -> '.join([*below, name])}")
    text, where = _read(name, below)
    try:
        own = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{where} is not TOML: {error}") from None
    extended = own.pop("extends", [])
    parents = [extended] if isinstance(extended, str) else extended
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise ValueError(f"{where}: extends must be a recipe's name or a list of names")
    tables: Tables = {}
    for parent in parents:
        tables = merge(tables, _merged(parent, (*below, name))[0])
        tables.pop("name", None)
    return merge(tables, own), where


def _read(name: str, below: tuple[str, ...] = ()) -> tuple[str, str]:
    """The text of a recipe and how to call it in a message."""
    if name.endswith(".toml"):
        path = Path(name)
        if below and not path.is_absolute():  # beside the file that extends it
            path = Path(below[-1]).parent / path
        try:
            return path.read_text(encoding="utf-8"), str(path)
        except FileNotFoundError:
            raise ValueError(f"there is no recipe at {path}") from None
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not UTF-8") from None
    file = files("tacit.recipes") / f"{name}.toml"
    if not name or "/" in name or not file.is_file():
        near = difflib.get_close_matches(name, names(), n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names())}"
        raise ValueError(f"there is no recipe {name!r}; {hint} (a file's name ends in .toml)")
    return file.read_text(encoding="utf-8"), f"the recipe {name}"


def _setting(text: str) -> Tables:
    """`plan.clip_norm=3` as tables; a value that is not TOML is taken as a string."""
    key, equals, value = text.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts) or not value.strip():
        raise ValueError(f"--set must be key=value, such as plan.clip_norm=3, got {text!r}")
    try:
        parsed: Any = tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    for part in reversed(parts):
        parsed = {part: parsed}
    tables: Tables = parsed
    return tables
