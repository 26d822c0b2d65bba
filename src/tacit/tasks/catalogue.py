"""All recipes that can be shown: of every kind, the command that runs each, and what is on record.

Besides the recipes of `tacit train` there are those that only a command of another package reads.
A package with recipes (entry-point group `tacit.recipes`) may name their shelves, and say which of
its recipes were run on record, in two plain tables of its module:

    SHELVES = {"my-kind": ("my_package.grids:GRIDS", "tacit mine NAME --out DIR")}
    RECORDS = {"my-recipe": ("docs/results/mine.md#a-heading", "as it is, three seeds")}

This is the one place where it is said: a recipe that is in no such table was never run on record.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tacit.config.recipes import Recipe, Shelf, packages
from tacit.tasks.recipes import SHELVES, task_of_recipe

_TRAIN = "tacit train NAME --corpus C --run DIR"


@dataclass(frozen=True)
class Kind:
    """Recipes that are read alike."""

    shelf: Shelf[Any]
    command: str  # runs one of them, called NAME


@dataclass(frozen=True)
class Record:
    """Where it stands what a recipe gave, and what of it was run."""

    page: str  # a file of the repository, and a heading of it behind a #
    how: str


@dataclass(frozen=True)
class Entry:
    """A recipe, its kind, and its record if it was ever run on record."""

    recipe: Recipe[Any]
    kind: str
    command: str
    record: Record | None

    def facts(self) -> dict[str, Any]:
        """What it stands for, under the names that scripts rely on."""
        experiment = next(iter(self.recipe.experiments.values()))
        return {
            "name": self.recipe.name,
            "task": self.kind,
            **experiment.about.model_dump(),
            "variants": self.recipe.variants or experiment.parts(),
            "command": self.command.replace("NAME", self.recipe.name),
            "recorded": vars(self.record) if self.record else None,
        }


def kinds() -> dict[str, Kind]:
    """Every kind of recipe: the tasks of `tacit train`, then what packages have of their own."""
    found = {task: Kind(shelf, _TRAIN) for task, shelf in SHELVES.items()}
    for module in _modules():
        for name, (path, command) in getattr(module, "SHELVES", {}).items():
            where, _, attribute = path.partition(":")
            found[name] = Kind(getattr(importlib.import_module(where), attribute), command)
    return found


def records() -> dict[str, Record]:
    """The record of every recipe that was run on record, by the recipe's name."""
    return {
        name: Record(*record)
        for module in _modules()
        for name, record in getattr(module, "RECORDS", {}).items()
    }


def names() -> dict[str, str]:
    """The kind of every recipe, by the recipe's name."""
    return {name: kind for kind, of in kinds().items() for name in of.shelf.names()}


def entry(recipe: str) -> Entry:
    """A recipe of any kind, by name or from a file, which never has a record."""
    every = kinds()
    kind = task_of_recipe(recipe, {name: one.shelf for name, one in every.items()})
    loaded = every[kind].shelf.load(recipe)
    return Entry(loaded, kind, every[kind].command, records().get(recipe))


def source(recipe: str) -> str:
    """The text of a recipe of any kind, as it was written."""
    shelves = {name: kind.shelf for name, kind in kinds().items()}
    return shelves[task_of_recipe(recipe, shelves)].source(recipe)


def _modules() -> Iterator[ModuleType]:
    """The packages with recipes, tacit's own first."""
    return map(importlib.import_module, packages())
