"""Recipes: experiments as TOML files that extend one another, one for each published setting.

    extends = "mcmahan2018"            # or a list; what comes later wins
    [variants.S-10.plan]               # several trainings that differ in a few values
    clip_norm = 10.0

    [grid]                             # one training for each combination of these values
    "plan.clip_norm" = [5.0, 10.0]

Tables are merged key by key.  Of values that contradict each other (noise_multiplier and
noise_stddev, for instance) the one of the later file takes the place of the other.  Within one file
they stay a contradiction, and the experiment is refused.

A `Shelf` is a folder of recipes for one kind of experiment: `TRAINING` has those of `tacit train`,
and other commands have shelves of their own.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from os.path import normpath
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from tacit.config.experiment import Experiment
from tacit.config.tables import Tables, merge

# Each variant is a directory of its own in that of a run.
_VARIANT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Readable(Protocol):
    """An experiment that tables can be read as."""

    @classmethod
    def from_data(cls, data: dict[str, Any], where: str) -> Self: ...


E = TypeVar("E", bound=Readable)


@dataclass(frozen=True)
class Recipe(Generic[E]):
    """A name, what it stands for, and its experiments: one, or one for each variant."""

    name: str
    experiments: Mapping[str, E]  # by variant; "" where there is only one

    @property
    def variants(self) -> list[str]:
        return [name for name in self.experiments if name]

    def only(self, variant: str | None = None) -> E:
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


@dataclass(frozen=True)
class Shelf(Generic[E]):
    """The recipes of a folder of `tacit.recipes`, and what they are read as."""

    experiment: type[E]
    folder: str = ""

    def names(self) -> list[str]:
        """The recipes that come with tacit."""
        found = [Path(item.name) for item in self._place().iterdir()]
        shown = (path for path in found if path.suffix == ".toml" and path.name[0] != "_")
        return sorted(path.stem for path in shown)

    def source(self, name: str) -> str:
        """The text of a recipe, as it was written."""
        return self._read(name)[0]

    def load(
        self, name_or_path: str, settings: Sequence[str] = (), variant: str | None = None
    ) -> Recipe[E]:
        """A recipe by name or from a file, with `key=value` settings on top of it.

        With a `variant` only that one is made, so that the settings need not suit the others.
        """
        tables, where = self._merged(_beside("", name_or_path), ())
        for setting in settings:
            tables = merge(tables, setting_of(setting))
        variants = tables.pop("variants", {})
        name = Path(name_or_path).stem
        tables.setdefault("name", name)
        _check_variants(variants, where)
        cells: dict[str, Tables] = {}
        for label, changes in (variants or {"": {}}).items():
            data = merge(tables, changes)
            for said in map(setting_of, settings):  # what the caller says wins over variants too
                if "variants" not in said:
                    data = merge(data, said)
            cells |= _cells(label, data, where)
        if variant is not None and list(cells) != [""]:
            if variant not in cells:
                known = ", ".join(cells)
                raise ValueError(f"the recipe {name} has no variant {variant!r}; it has {known}")
            cells = {variant: cells[variant]}
        made = {}
        for label, data in cells.items():
            if label:
                data["name"] = f"{name}/{label}"
            of = f"{where}, variant {label}" if label else where
            made[label] = self.experiment.from_data(data, of)
        return Recipe(name, made)

    def _place(self) -> Any:
        place = files("tacit.recipes")
        return place / self.folder if self.folder else place

    def _merged(self, name: str, below: tuple[str, ...]) -> tuple[Tables, str]:
        """A recipe's tables with those that it extends under them."""
        if name in below:
            raise ValueError(f"the recipe {name} extends itself: {' -> '.join([*below, name])}")
        text, where = self._read(name)
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
            tables = merge(tables, self._merged(_beside(name, parent), (*below, name))[0])
            tables.pop("name", None)
        return merge(tables, own), where

    def _read(self, name: str) -> tuple[str, str]:
        """The text of a recipe and how to call it in a message."""
        if name.endswith(".toml"):
            path = Path(name)
            try:
                return path.read_text(encoding="utf-8"), str(path)
            except FileNotFoundError:
                raise ValueError(f"there is no recipe at {path}") from None
            except UnicodeDecodeError:
                raise ValueError(f"{path} is not UTF-8") from None
            except OSError as error:
                raise ValueError(f"the recipe {path} cannot be read: {error.strerror}") from None
        file = self._place() / f"{name}.toml"
        if not name or "/" in name or not file.is_file():
            names = self.names()
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
            raise ValueError(f"there is no recipe {name!r}; {hint} (a file's name ends in .toml)")
        return file.read_text(encoding="utf-8"), f"the recipe {name}"


TRAINING = Shelf(Experiment)
names, load, source = TRAINING.names, TRAINING.load, TRAINING.source


def _check_variants(variants: Any, where: str) -> None:
    if not isinstance(variants, dict) or not all(isinstance(v, dict) for v in variants.values()):
        raise ValueError(f"{where}: variants must be tables, such as [variants.NAME.plan]")
    if odd := [variant for variant in variants if not _VARIANT.fullmatch(variant)]:
        raise ValueError(f"{where}: a variant's name has letters, digits and _.- only: {odd[0]!r}")


def _cells(label: str, data: Tables, where: str) -> dict[str, Tables]:
    """The tables of a variant, or one for each cell of its grid, named by what it sets."""
    grid = data.pop("grid", {})
    if not isinstance(grid, dict) or not all(isinstance(v, list) and v for v in grid.values()):
        raise ValueError(f'{where}: grid must have lists, such as "plan.clip_norm" = [5.0, 10.0]')
    made = {}
    for values in product(*grid.values()):
        cell, parts = data, [label] if label else []
        for key, value in zip(grid, values, strict=True):
            cell = merge(cell, _nested(key.split("."), value))
            parts.append(f"{key.rpartition('.')[2]}-{value}")
        made["_".join(parts)] = cell
    return made


def _nested(keys: Sequence[str], value: Any) -> Tables:
    for key in reversed(keys):
        value = {key: value}
    tables: Tables = value
    return tables


def _beside(name: str, parent: str) -> str:
    """What a recipe extends: a name, or a file whose path starts at the recipe's own folder."""
    return normpath(Path(name).parent / parent) if parent.endswith(".toml") else parent


def setting_of(text: str) -> Tables:
    """`plan.clip_norm=3` as tables; a value that is not TOML is taken as a string."""
    key, equals, value = text.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts) or not value.strip():
        raise ValueError(f"--set must be key=value, such as plan.clip_norm=3, got {text!r}")
    try:
        parsed: Any = tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    return _nested(parts, parsed)
