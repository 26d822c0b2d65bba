"""The recipes of all tasks under one roof: a name or a file is enough to find the right one.

Each task has a shelf of its own (`tacit.config.recipes.Shelf`).  A file says its task by the key
`task`, or by what it extends; without either it is of a language model.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from tacit.config.recipes import TRAINING, Recipe, Shelf, beside, identity
from tacit.config.sections import read_toml
from tacit.tasks.nlu.experiment import RECIPES

SHELVES: dict[str, Shelf[Any]] = {"language": TRAINING, "nlu": RECIPES}


def names() -> dict[str, str]:
    """The task of every recipe that comes with tacit, by the recipe's name."""
    return {name: task for task, shelf in SHELVES.items() for name in shelf.names()}


def task_of_recipe(recipe: str, shelves: Mapping[str, Shelf[Any]] = SHELVES) -> str:
    """The task that a recipe is for, by its name or the path of its file.

    It is looked for on the shelves of all tasks, or on those given.

    Raises:
        ValueError: if there is no such file, or it names a task that does not exist.
    """
    seen = set()
    while recipe.endswith(".toml"):
        tables = read_toml(TRAINING.source(recipe), recipe)
        if "task" in tables:
            if tables["task"] not in [*SHELVES]:
                raise ValueError(
                    f"{recipe}: task must be one of {', '.join(SHELVES)}, got {tables['task']!r}"
                )
            return str(tables["task"])
        seen.add(identity(recipe))
        parents = tables.get("extends") or []
        first = parents[0] if isinstance(parents, list) and parents else parents
        if not isinstance(first, str) or identity(beside(recipe, first)) in seen:
            return "language"  # what is wrong with it is said when it is loaded
        recipe = beside(recipe, first)
    for task, shelf in shelves.items():
        try:
            shelf.source(recipe)
        except ValueError:
            continue
        return task
    # Loading it will say that there is none, and which one was meant.
    known = {name: task for task, shelf in shelves.items() for name in shelf.names()}
    near = difflib.get_close_matches(recipe, known, n=1, cutoff=0.4)
    return known[near[0]] if near else "language"


def load(
    recipe: str,
    settings: Sequence[str] = (),
    variant: str | None = None,
    unset: Sequence[str] = (),
) -> Recipe[Any]:
    """A recipe of any task, by name or from a file, with `key=value` settings on top of it.

    The keys in `unset` go back to their defaults.
    """
    return SHELVES[task_of_recipe(recipe)].load(recipe, settings, variant, unset)


def source(recipe: str) -> str:
    """The text of a recipe of any task, as it was written."""
    return SHELVES[task_of_recipe(recipe)].source(recipe)
