"""A session of fuzzing: cases of all kinds in turn, until the time is up.

Each case follows from (seed, kind, number), so it can be repeated alone.  The first failure of
each cause is made smaller and kept in a folder of its own; of the others there are counts.
"""

from __future__ import annotations

import json
import random
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.hostile.fuzz import command_lines, damaged, kills, parsers, world
from tests.hostile.fuzz.known import is_known
from tests.hostile.fuzz.place import Place, say
from tests.hostile.fuzz.verdicts import Failure

ROOT = Path(__file__).parents[3]
_SHRINKING = 20  # tries


class Case(Protocol):
    """Something to try, and what was wrong with it."""

    @property
    def kind(self) -> str: ...
    @property
    def words(self) -> list[str]: ...
    @property
    def summary(self) -> str: ...
    @property
    def kinds(self) -> list[str]: ...
    def names(self, place: Place) -> set[str]: ...
    def damage(self, place: Place, folder: Path) -> None: ...
    def run(self, place: Place) -> Failure | None: ...


DRAWS: dict[str, Callable[[random.Random, Place], Any]] = {
    "damaged": damaged.draw,
    "lines": command_lines.draw,
    "kills": kills.draw,
    "parsers": parsers.draw,
}
# Of the time of a session.
SHARES = {"damaged": 0.42, "lines": 0.22, "kills": 0.16, "parsers": 0.02, "guided": 0.18}


def case_of(seed: int, kind: str, number: int, place: Place) -> Any:
    """The case of a number: the same one each time."""
    return DRAWS[kind](random.Random(f"{seed} {kind} {number}"), place)


@dataclass
class Figures:
    """What was tried, and what came of it."""

    cases: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    slowest: dict[str, float] = field(default_factory=dict)
    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    failures: dict[str, Counter[str]] = field(default_factory=dict)

    def count(self, kind: str, seconds: float, kinds: list[str], cases: int = 1) -> None:
        self.cases[kind] += cases
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds
        if cases == 1:
            self.slowest[kind] = max(self.slowest.get(kind, 0.0), seconds)
        self.kinds.setdefault(kind, Counter()).update(kinds)

    def fail(self, kind: str, failure: str) -> bool:
        """Count a failure; returns whether its cause is new."""
        counts = self.failures.setdefault(kind, Counter())
        counts[failure] += 1
        return sum(other[failure] for other in self.failures.values()) == 1

    @property
    def failed(self) -> int:
        return sum(sum(counts.values()) for counts in self.failures.values())

    def as_row(self) -> dict[str, Any]:
        return {
            "cases": dict(self.cases),
            "seconds": self.seconds,
            "slowest": self.slowest,
            "kinds": {kind: dict(counts.most_common()) for kind, counts in self.kinds.items()},
            "failures": {kind: dict(counts) for kind, counts in self.failures.items()},
        }


@dataclass
class Session:
    """One session, with a folder for what it finds."""

    place: Place
    seed: int
    out: Path
    only: tuple[str, ...] = tuple(SHARES)
    figures: Figures = field(default_factory=Figures)

    def run(self, seconds: float) -> Figures:
        """Try cases until the time is up; each kind gets its share of it."""
        began = last = time.monotonic()
        numbers: Counter[str] = Counter()
        while (passed := time.monotonic() - began) < seconds:
            kind = min(self.only, key=lambda one: self._spent(one) / SHARES[one])
            if kind == "guided":
                self._guided(numbers[kind], min(45, max(round(seconds - passed), 1)))
            else:
                self.try_one(kind, numbers[kind])
            numbers[kind] += 1
            if time.monotonic() - last > 10:
                last = time.monotonic()
                self._progress(last - began, seconds)
        self.write(time.monotonic() - began)
        self._progress(time.monotonic() - began, seconds)
        return self.figures

    def try_one(self, kind: str, number: int) -> Failure | None:
        """Run a case; a failure with a new cause is made smaller and kept."""
        case: Case = case_of(self.seed, kind, number, self.place)
        began = time.monotonic()
        failure = case.run(self.place)
        cases = getattr(case, "count", 1)
        self.figures.count(kind, time.monotonic() - began, case.kinds, cases)
        if failure and self.figures.fail(kind, str(failure)):
            small = self._smaller(case, failure)
            self.keep(small, failure, f"--seed {self.seed} --repeat {kind}:{number}")
        return failure

    def _spent(self, kind: str) -> float:
        return self.figures.seconds.get(kind, 0.0)

    def _smaller(self, case: Any, failure: Failure) -> Any:
        """Leave parts of a case out while it fails for the same cause."""
        tries, found = _SHRINKING, True
        while found and tries > 0:
            found = False
            for smaller in getattr(case, "smaller", _none)():
                tries -= 1
                if smaller.run(self.place) == failure:
                    case, found = smaller, True
                    break
                if tries <= 0:
                    break
        return case

    def keep(self, case: Case, failure: Failure, repeat: str) -> None:
        """A folder with the case's files as the command found them, and how to run it again."""
        mark = "known" if is_known(str(failure)) else "new"
        say(f"fuzz: {mark} failure: {failure}\n      {case.summary[:300]}")
        slug = "".join(one if one.isalnum() else "-" for one in str(failure))[:70]
        folder = self.out / f"{sum(map(len, self.figures.failures.values())):03d}-{slug}"
        folder.mkdir(parents=True, exist_ok=True)
        inside = folder / "folder"
        shutil.rmtree(inside, ignore_errors=True)
        names = case.names(self.place)
        if names:
            world.copy(self.place.world, names, inside, drops=False)
            case.damage(self.place, inside)
        lines = [
            f"failure: {failure}",
            f"case: {case.summary}",
            f"repeat: python -m tests.hostile.fuzz {repeat}",
        ]
        if names:
            command = shlex.join(["tacit", *case.words])
            lines.append(f"by hand: cd {inside} && TACIT_STATE=state TMPDIR=tmp {command}")
        (folder / "case.txt").write_text("\n".join(lines) + "\n", errors="backslashreplace")

    def _guided(self, number: int, seconds: int) -> None:
        """One parser for a while with atheris, which starts from what it has learnt before."""
        names = list(parsers.PARSERS)
        name = names[number % len(names)]
        seeds, found = self.out / "learnt" / name, self.out / f"guided-{number}-{name}"
        found.mkdir(parents=True, exist_ok=True)
        if not seeds.exists():
            seeds.mkdir(parents=True)
            for index, data in enumerate(parsers.seeds_of(name, self.place.world)):
                (seeds / f"good-{index}").write_bytes(data)
        began = time.monotonic()
        command = [sys.executable, "-m", "tests.hostile.fuzz.guided", name, seeds, found]
        command += ["--seconds", str(seconds), "--seed", str(self.seed + number)]
        with (found / "log.txt").open("w") as log:
            done = subprocess.run(
                [str(word) for word in command],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                check=False,
                timeout=seconds + 300,
            )
        row = {"inputs": 0, "causes": {}}
        if (found / "figures.json").exists():
            row = json.loads((found / "figures.json").read_text())
        passed = time.monotonic() - began
        self.figures.count("guided", passed, [name], row["inputs"])
        for index, (cause, count) in enumerate(row["causes"].items()):
            failure = Failure("parser", f"{name}: {cause}")
            for _ in range(count):
                is_new = self.figures.fail("guided", str(failure))
                if is_new:
                    self._keep_input(name, found / f"cause-{index}", failure)
        for crash in (*found.glob("crash-*"), *found.glob("timeout-*"), *found.glob("oom-*")):
            what = crash.name.partition("-")[0]
            if self.figures.fail("guided", f"parser: {name}: {what}"):
                say(f"fuzz: new failure: {name}: {what}, kept as {crash}")
        if done.returncode and not row["inputs"]:
            raise RuntimeError(f"atheris cannot run: see {found / 'log.txt'}")
        for scratch in found.glob("guided-*"):
            shutil.rmtree(scratch, ignore_errors=True)

    def _keep_input(self, name: str, file: Path, failure: Failure) -> None:
        small = parsers.shrunk(name, file.read_bytes(), file.parent)
        kept = file.with_name(f"{file.name}-{parsers.PARSERS[name].name}")
        kept.write_bytes(small)
        say(f"fuzz: new failure: {failure}\n      {len(small)} bytes in {kept}")

    def _progress(self, passed: float, seconds: float) -> None:
        total = sum(self.figures.cases.values())
        commands = total - self.figures.cases["guided"] - self.figures.cases["parsers"]
        left = max(seconds - passed, 0) / 60
        say(
            f"fuzz: {commands:,} commands and {total - commands:,} inputs,"
            f" {commands / max(passed, 1e-9):.1f} commands a second,"
            f" {self.figures.failed:,} failures of {self._causes():,} causes,"
            f" {left:.1f} minutes left"
        )

    def _causes(self) -> int:
        return len({one for counts in self.figures.failures.values() for one in counts})

    def write(self, seconds: float) -> None:
        """figures.json, of which docs/results/hostile.md is written."""
        row = {"seed": self.seed, "total_seconds": seconds, **self.figures.as_row()}
        (self.out / "figures.json").write_text(json.dumps(row, indent=1) + "\n")


def _none() -> Iterator[Any]:
    return iter(())
