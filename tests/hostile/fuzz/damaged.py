"""Cases on damaged files: a target, one to three mutations, and a command that reads it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.hostile.fuzz import facts, mutations
from tests.hostile.fuzz.child import Ended
from tests.hostile.fuzz.mutations import Mutation
from tests.hostile.fuzz.place import Place
from tests.hostile.fuzz.targets import TARGETS
from tests.hostile.fuzz.verdicts import Failure


@dataclass(frozen=True)
class DamagedCase:
    """A command on files that were damaged."""

    target: str
    line: str
    mutations: tuple[Mutation, ...]

    kind = "damaged files"

    @property
    def words(self) -> list[str]:
        return self.line.split()

    @property
    def summary(self) -> str:
        return f"tacit {self.line}   [{'; '.join(map(str, self.mutations))}]"

    @property
    def kinds(self) -> list[str]:
        return [one.kind for one in self.mutations]

    def names(self, place: Place) -> set[str]:
        return TARGETS[self.target].names(self.line, place.world)

    def damage(self, place: Place, folder: Path) -> None:
        for one in self.mutations:
            one.apply(folder, place.world)

    def run(self, place: Place) -> Failure | None:
        """What is wrong, if anything is."""
        world = place.world
        with place.case(self.names(place), lambda folder: self.damage(place, folder)) as folder:
            changed = self._changed(world, folder)
            ended, failure = place.judge(self.words, folder)
        return failure or self._believed(place, changed, ended)

    def _changed(self, world: Path, folder: Path) -> list[Mutation]:
        """The mutations that have changed what a file says."""
        is_bundle = "bundle" in self.target
        return [
            one
            for one in self.mutations
            if facts.parsed(folder / one.file) != facts.parsed(world / one.file)
            and (is_bundle or one.kind != "missing" or not facts.may_be_missing(one.file))
        ]

    def _believed(self, place: Place, changed: list[Mutation], ended: Ended) -> Failure | None:
        """A changed fact that is verified, or another claim than that of the same thing whole."""
        if ended.code != 0 or not changed or not TARGETS[self.target].verified:
            return None
        if self.words[0] == "verify":
            for one in changed:
                if facts.is_protected(one.file) and one.kind not in mutations.SEALED:
                    return Failure("silent", f"verify takes {_name(one)}")
        elif any(one.kind in mutations.SEALED for one in changed):
            return None  # it is another ledger, with a claim of its own
        elif self.words[0] in ("ledger", "report", "export", "compare", "evaluate", "train"):
            said = facts.claims(ended.out)
            if said is not None and said != _reference(place, self):
                return Failure(
                    "silent", f"another claim by {self.words[0]} after {_name(changed[0])}"
                )
        return None

    def smaller(self) -> Iterator[DamagedCase]:
        """The same with one mutation less."""
        if len(self.mutations) > 1:
            for index in range(len(self.mutations)):
                rest = self.mutations[:index] + self.mutations[index + 1 :]
                yield replace(self, mutations=rest)


_REFERENCES: dict[tuple[Path, str], list[tuple[str, str]] | None] = {}


def _reference(place: Place, case: DamagedCase) -> list[tuple[str, str]] | None:
    """What the same command says of the same thing, undamaged."""
    key = (place.world, case.line)
    if key not in _REFERENCES:
        with place.case(case.names(place), lambda _: None) as folder:
            _REFERENCES[key] = facts.claims(place.run(case.words, folder).out)
    return _REFERENCES[key]


def _name(one: Mutation) -> str:
    parts = Path(one.file).parts[1:] or (one.file,)
    return "/".join("N" if any(map(str.isdigit, part)) else part for part in parts)


def draw(random_: random.Random, place: Place) -> DamagedCase:
    """Any target that the world has, any of its lines, any of its files, any kind."""
    targets = [name for name, one in TARGETS.items() if (place.world / one.path).exists()]
    name = random_.choice(targets)
    target = TARGETS[name]
    there = [line for line in target.lines if _is_there(line, place.world)]
    line = random_.choice(there)
    files = target.files(place.world)
    made: dict[str, Mutation] = {}
    for _ in range(random_.choice((1, 1, 1, 2, 3))):
        file = random_.choice(files)
        made.setdefault(file, _mutation(random_, place.world, name, file))
    return DamagedCase(name, line, tuple(made.values()))


def _is_there(line: str, world: Path) -> bool:
    """Whether a small world has what a line names."""
    fixed = ("run", "other", "bundle", "simulated", "stopped", "nlu", "nlu-other", "nlu-stopped")
    named = [word.partition("@")[0] for word in line.split()]
    return all((world / word).exists() for word in named if word in fixed)


def _mutation(random_: random.Random, world: Path, name: str, file: str) -> Mutation:
    donors = list(TARGETS[name].donors(world, file))
    if donors and random_.random() < 0.08:
        # The file of the same name elsewhere, as often as any other.
        donor = donors[0] if random_.random() < 0.5 else random_.choice(donors)
        return Mutation("swapped with another", file, 0, donor)
    kind = random_.choice(mutations.fitting(world / file))
    return Mutation(kind, file, random_.randrange(2**32))
