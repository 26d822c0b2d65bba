"""Recipes: experiments as TOML files that extend one another, one for each published setting.

    extends = "mcmahan2018"            # or a list; what comes later wins
    [variants.S-10.plan]               # several trainings that differ in a few values
    clip_norm = 10.0

    [grid]                             # one training for each combination of these values
    "plan.clip_norm" = [5.0, 10.0]

Tables are merged key by key; see `tacit.config.sections.merge`.  Of values that contradict each
other (noise_multiplier and noise_stddev, for instance) the later file's replaces the other.  Within
one file they stay a contradiction, and the experiment is refused.

Recipes are found by name in the package `tacit.recipes` and in every package that is registered
under the entry-point group `tacit.recipes`.  A file whose name begins with `_` is there to be
extended and is not listed.  A `Shelf` holds the recipes of one kind of experiment: `TRAINING` has
those of `tacit train`, and other commands have shelves of their own, each in a subfolder.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import product
from os.path import normpath, realpath
from pathlib import Path
from typing import Any, Generic, TypeVar

import tomli_w

from tacit.config.experiment import Experiment
from tacit.config.sections import Complete, Section, Tables, by_dotted_key, merge, read_toml
from tacit.privacy import trusted

# Each variant is a directory of its own in that of a run, and so is each cell of a grid.
_VARIANT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{,199}")
MOST_EXPERIMENTS = 1000  # of one recipe; each of them is a training
_DEEPEST = 32  # recipes that each extend the next

E = TypeVar("E", bound=Complete)


@dataclass(frozen=True)
class Recipe(Generic[E]):
    """A name and its experiments: one, or one for each variant and cell of a grid."""

    name: str
    experiments: Mapping[str, E]  # by variant; "" where there is only one

    @property
    def variants(self) -> list[str]:
        """The names of the variants; none of a recipe that is a single experiment."""
        return [name for name in self.experiments if name]

    def only(self, variant: str | None = None) -> E:
        """The experiment of a variant; without one the recipe must have no variants."""
        if variant is None and self.variants:
            raise ValueError(
                f"the recipe {self.name} has the variants {', '.join(self.variants)}; name one"
            )
        if (variant or "") not in self.experiments:
            raise _no_variant(self.name, variant or "", self.variants)
        return self.experiments[variant or ""]

    def to_toml(self) -> str:
        """A recipe with the same experiments: what they share, then what is each variant's own."""
        if not self.variants:
            return self.experiments[""].to_toml()
        values = {
            variant: dict(by_dotted_key(experiment.model_dump(mode="json", exclude_none=True)))
            for variant, experiment in self.experiments.items()
        }
        for own in values.values():
            del own["name"]  # follows from the recipe's name and the variant's
        first, *others = (own.items() for own in values.values())
        shared = {key: value for key, value in first if all((key, value) in o for o in others)}
        variants = {
            variant: _tables({key: value for key, value in own.items() if key not in shared})
            for variant, own in values.items()
        }
        return tomli_w.dumps(_tables(shared) | {"variants": variants})


@functools.cache
def packages() -> list[str]:
    """Those with recipes, tacit's own first; whatever is installed is searched for them, once."""
    return ["tacit.recipes", *(entry.value for entry in entry_points(group="tacit.recipes"))]


@dataclass(frozen=True)
class Shelf(Generic[E]):
    """The recipes of one kind of experiment, by name.

    `experiment` is the class that a recipe's tables are read as, and `folder` the subfolder of
    each recipe package that has recipes of this kind.
    """

    experiment: type[E]
    folder: str = ""

    def names(self) -> list[str]:
        """All recipes but those that exist to be extended."""
        return sorted(name for name in self._files() if not name.startswith("_"))

    def source(self, name: str) -> str:
        """The text of a recipe, as it was written."""
        return self._read(name)[0]

    def load(
        self,
        name_or_path: str,
        settings: Sequence[str] = (),
        variant: str | None = None,
        unset: Sequence[str] = (),
    ) -> Recipe[E]:
        """A recipe by name or from a file, with `key=value` settings on top of it.

        The keys in `unset` have the default that they would have if the recipe did not name them.
        With a `variant` only that one is made, so that the settings need not suit the others.

        Raises:
            ValueError: in one sentence, if there is no such recipe or variant, or a value is wrong.
        """
        name = Path(name_or_path).stem
        tables, where = self._merged(beside("", name_or_path), {}, {})
        tables = _without(tables, unset)
        changes = [_setting(text) for text in settings]
        for change in changes:
            tables = merge(tables, change)
        tables.setdefault("name", name)
        cells: dict[str, Tables] = {}
        for label, own in _variants(tables.pop("variants", {}), where).items():
            data = merge(tables, _without(own, unset))
            for change in changes:  # what the caller says wins over variants too
                if "variants" not in change:
                    data = merge(data, change)
            _add_cells(cells, label, data, where)
        if variant is not None and list(cells) != [""]:
            if variant not in cells:
                raise _no_variant(name, variant, list(cells))
            cells = {variant: cells[variant]}
        experiments = {}
        for label, data in cells.items():
            named = {"name": f"{name}/{label}"} if label else {}
            experiments[label] = self.experiment.from_data(
                data | named, f"{where}, variant {label}" if label else where
            )
        for key in unset:
            _refuse_unknown(key, next(iter(experiments.values())), where)
        return Recipe(name, experiments)

    def _files(self) -> dict[str, Traversable]:
        """The file of each recipe by name; of two with one name, tacit's own."""
        by_name: dict[str, Traversable] = {}
        for package in packages():
            folder = files(package).joinpath(self.folder)
            for file in folder.iterdir() if folder.is_dir() else ():
                if file.name.endswith(".toml"):
                    by_name.setdefault(file.name.removesuffix(".toml"), file)
        return by_name

    def _merged(
        self, name: str, below: Mapping[str, str], known: dict[str, tuple[Tables, str]]
    ) -> tuple[Tables, str]:
        """A recipe's tables over those that it extends, and how to call it in a message.

        Args:
            name: the recipe's name or path.
            below: the recipes that lead to it, each by its identity with its name.
            known: what was found by identity, so that each recipe is read once however often it is
                extended.
        """
        own_identity = identity(name)
        way = " -> ".join([*below.values(), name])
        if own_identity in below:
            raise ValueError(f"the recipe {name} extends itself: {way}")
        if len(below) >= _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} recipes extend one another: {way}")
        if own_identity in known:
            return known[own_identity]
        text, where = self._read(name)
        own = read_toml(text, where)
        extended = own.pop("extends", [])
        parents = [extended] if isinstance(extended, str) else extended
        if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
            raise ValueError(f"{where}: extends must be a recipe's name or a list of names")
        tables: Tables = {}
        for parent in parents:
            path = beside(name, parent)
            tables = merge(tables, self._merged(path, {**below, own_identity: name}, known)[0])
            tables.pop("name", None)
        known[own_identity] = merge(tables, own), where
        return known[own_identity]

    def _read(self, name: str) -> tuple[str, str]:
        """The text of a recipe, and how to call it in a message."""
        if name.endswith(".toml"):
            try:
                return trusted.read_text(Path(name)), name
            except FileNotFoundError:
                raise ValueError(f"there is no recipe at {name}") from None
            except UnicodeDecodeError:
                raise ValueError(f"{name} is not UTF-8") from None
            except OSError as error:
                raise ValueError(f"the recipe {name} cannot be read: {error.strerror}") from None
        file = self._files().get(name)
        if file is None:
            names = self.names()
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
            raise ValueError(f"there is no recipe {name!r}; {hint} (a file's name ends in .toml)")
        return file.read_text(encoding="utf-8"), f"the recipe {name}"


TRAINING = Shelf(Experiment)
names, load, source = TRAINING.names, TRAINING.load, TRAINING.source


def with_settings(experiment: E, settings: Sequence[str]) -> E:
    """The experiment with `key=value` settings on top of it.

    Raises:
        ValueError: in one sentence, if a setting or the result is not right.
    """
    tables: Tables = experiment.model_dump()
    for text in settings:
        tables = merge(tables, _setting(text))
    return type(experiment).from_data(tables, "the experiment with --set")


def _tables(values: Mapping[str, Any]) -> Tables:
    """Nested tables of values by dotted key."""
    tables: Tables = {}
    for key, value in values.items():
        tables = merge(tables, _nested(key.split("."), value))
    return tables


def _no_variant(recipe: str, variant: str, known: Sequence[str]) -> ValueError:
    listed = ", ".join(known) or "none"
    return ValueError(f"the recipe {recipe} has no variant {variant!r}; it has {listed}")


def _variants(variants: Any, where: str) -> dict[str, Tables]:
    """The changes of each variant, checked; one without a name or changes if there are none."""
    if not isinstance(variants, dict) or not all(isinstance(v, dict) for v in variants.values()):
        raise ValueError(f"{where}: variants must be tables, such as [variants.NAME.plan]")
    for variant in variants:
        _refuse_name(variant, where)
    return variants or {"": {}}


def _refuse_name(name: str, where: str) -> None:
    """Raise unless a folder inside of a run's can be called so."""
    if not _VARIANT.fullmatch(name):
        raise ValueError(
            f"{where}: a variant's name has letters, digits and _.- only, and at most 200 of them"
            f" (for a cell of a grid it is made of its values): {name[:300]!r}"
        )


def _add_cells(cells: dict[str, Tables], label: str, data: Tables, where: str) -> None:
    """Add the tables of a variant, or those of each cell of its grid, named by what it sets.

    Each gets a folder of its own, so that a name is refused which is none of a folder inside of
    the run's, or which another has already.
    """
    grid = data.pop("grid", {})
    if not isinstance(grid, dict) or not all(isinstance(v, list) and v for v in grid.values()):
        raise ValueError(f'{where}: grid must have lists, such as "plan.clip_norm" = [5.0, 10.0]')
    count = len(cells) + math.prod(map(len, grid.values()))
    if count > MOST_EXPERIMENTS:
        raise ValueError(
            f"{where}: variants and grid make {count:,} trainings, and a recipe may have at most"
            f" {MOST_EXPERIMENTS:,}"
        )
    taken = {name.casefold() for name in cells}  # some systems take two spellings for one name
    for values in product(*grid.values()):
        cell, parts = data, [label] if label else []
        for key, value in zip(grid, values, strict=True):
            cell = merge(cell, _nested(key.split("."), value))
            parts.append(f"{key.rpartition('.')[2]}-{value}")
        name = "_".join(parts)
        if parts:
            _refuse_name(name, where)
        if name.casefold() in taken:
            raise ValueError(f"{where}: two variants, or cells of a grid, are called {name!r}")
        taken.add(name.casefold())
        cells[name] = cell


def _without(tables: Tables, keys: Sequence[str]) -> Tables:
    """The tables without the values of these dotted keys, if they have them."""
    for key in keys:
        first, _, rest = key.partition(".")
        if rest and isinstance(tables.get(first), dict):
            tables = tables | {first: _without(tables[first], [rest])}
        elif not rest:
            tables = {name: value for name, value in tables.items() if name != first}
    return tables


def _refuse_unknown(key: str, experiment: Complete, where: str) -> None:
    """Raise unless an experiment has this dotted key: nothing is unset by a slip of the pen."""
    section: Any = experiment
    for part in key.split("."):
        fields = type(section).model_fields if isinstance(section, Section) else section or {}
        if part not in fields:
            near = difflib.get_close_matches(part, fields, n=1, cutoff=0.4)
            hint = f"; did you mean {key.replace(part, near[0])!r}?" if near else ""
            raise ValueError(f"{where} has no key {key!r} to unset{hint}")
        section = getattr(section, part) if isinstance(section, Section) else fields[part]


def _nested(keys: Sequence[str], value: Any) -> Tables:
    """Tables with one value: plan.clip_norm, 3 becomes {"plan": {"clip_norm": 3}}."""
    for key in reversed(keys):
        value = {key: value}
    tables: Tables = value
    return tables


def beside(name: str, parent: str) -> str:
    """What a recipe extends: a name, or a file whose path starts at the recipe's own folder."""
    return normpath(Path(name).parent / parent) if parent.endswith(".toml") else parent


def identity(name: str) -> str:
    """What is the same for all ways to name a recipe: its name, or where its file really is."""
    return realpath(name) if name.endswith(".toml") else name


def _setting(text: str) -> Tables:
    """`plan.clip_norm=3` as tables; a value that is not TOML is taken as a string."""
    key, equals, value = text.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts) or not value.strip():
        raise ValueError(f"--set must be key=value, such as plan.clip_norm=3, got {text!r}")
    try:
        parsed: Any = tomllib.loads(f"value = {value.strip()}")["value"]
    except (ValueError, RecursionError):
        parsed = value.strip()
    return _nested(parts, parsed)
