"""Cases of kill -9: any writing command, at any moment of its life, and then the same once more.

What is there in the end has to be what a run that nobody killed leaves, bit for bit, with nothing
beside it: no hidden parts, no scratch, and no key of a run that has ended.  A moment is one in
time, or one between two acts on files, of which Python's audit hooks tell.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.fuzz import child
from tests.hostile.fuzz.child import Ended
from tests.hostile.fuzz.place import Place
from tests.hostile.fuzz.targets import QUICKLY, Target
from tests.hostile.fuzz.verdicts import Failure
from tests.hostile.fuzz.world import TINY

_ACTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.chmod")
_WRITES = os.O_WRONLY | os.O_RDWR
_LIMIT = 120.0


@dataclass(frozen=True)
class Act:
    """A writing command, how it goes on after a kill, and what it makes.

    `again`: the line after a kill, if what it makes is there already.  `is_whole`: whether what it
    makes is finished as it stands, so that nothing has to be run again.
    """

    line: str
    out: tuple[str, ...]
    again: str = ""
    finished: str = ""  # in `out`: it is there when all is done


ACTS: dict[str, Act] = {
    "ingest": Act("ingest chats.csv --salt-file salt --out out", ("out",), finished="corpus.json"),
    "model pretrain": Act(
        f"model pretrain books.jsonl.gz --out out {TINY} --seed 1",
        ("out",),
        finished="model.safetensors",
    ),
    "train": Act(
        "train recipe.toml --run out --workers 1 --quiet",
        ("out",),
        "train --resume --run out --workers 1 --quiet",
        "result.json",
    ),
    "train with a switch": Act(
        "train switching.toml --run out --workers 1 --quiet",
        ("out",),
        "train --resume --run out --workers 1 --quiet",
        "result.json",
    ),
    "train, correlated noise": Act(
        "train turns.toml --run out --workers 1 --quiet",
        ("out",),
        "train --resume --run out --workers 1 --quiet",
        "result.json",
    ),
    "train, intents": Act(
        "train nlu.toml --run out --quiet",
        ("out",),
        "train --resume --run out --quiet",
        "result.json",
    ),
    "tokenizer swap": Act(
        "tokenizer swap simulated@2 --run out --rounds 4 --kind word --size 40 --tokens 300"
        " --workers 1 --quiet",
        ("out",),
        "train --resume --run out --workers 1 --quiet",
        "result.json",
    ),
    "tokenizer train": Act(
        "tokenizer train out --public public.txt --kind word --size 40",
        ("out",),
        finished="tokenizer.json",
    ),
    "audit": Act(f"audit run --phrases phrases.txt {QUICKLY}", ("run/audit.json", "run/private")),
    "report": Act("report run --out out.html", ("out.html", "out.json")),
    "export": Act("export run --out out", ("out",), finished="README.md"),
    "model personalize": Act(
        "model personalize bundle --user-text messages.txt --out out --epochs 1",
        ("out",),
        finished="PRIVATE",
    ),
}
# Of no two runs the same: how long things took.
_TIMED = ("metrics.jsonl", "diagnostics.jsonl", "curve.png", "use-times.json")


@dataclass(frozen=True)
class KillCase:
    """One or more kills of a command, at shares of its life, before it is left in peace."""

    name: str
    moments: tuple[tuple[str, float], ...]  # ("time" or "act", share)

    kind = "kills"

    @property
    def act(self) -> Act:
        return ACTS[self.name]

    @property
    def words(self) -> list[str]:
        return self.act.line.split()

    @property
    def summary(self) -> str:
        when = ", ".join(f"at {share:.0%} of its {by}s" for by, share in self.moments)
        return f"tacit {self.act.line}   [killed {when}]"

    @property
    def kinds(self) -> list[str]:
        return [f"{self.name}, by {by}" for by, _ in self.moments]

    def names(self, place: Place) -> set[str]:
        """What of the world it needs."""
        return Target("recipe.toml", ()).names(self.act.line, place.world)

    def damage(self, place: Place, folder: Path) -> None:
        """Nothing is damaged: the recipes are seeded, so that two runs of one are the same."""

    def run(self, place: Place) -> Failure | None:
        reference = _reference(place, self)
        with place.case(self.names(place), lambda folder: self.damage(place, folder)) as folder:
            for by, share in self.moments:
                _run(place, self._next(folder), folder, kill=_moment(by, share, reference))
            ended = _run(place, self._next(folder), folder)
            if ended.is_fault:
                return Failure("traceback", f"{ended.cause} after a kill of {self.name}")
            if ended.code != 0 and not self._is_finished(folder):
                said = " ".join(ended.err.split())[-200:]
                return Failure("kill", f"{self.name} does not go on: {said}")
            return self._compare(reference, folder)

    def _next(self, folder: Path) -> list[str]:
        act = self.act
        return (act.again if act.again and (folder / act.out[0]).exists() else act.line).split()

    def _is_finished(self, folder: Path) -> bool:
        """Whether the last kill came after its last act, so that it is refused as done already."""
        return bool(self.act.finished) and (folder / self.act.out[0] / self.act.finished).exists()

    def _compare(self, reference: Reference, folder: Path) -> Failure | None:
        if left := leftovers(folder):
            return Failure("leftover", f"{left[0]} after a kill of {self.name}")
        for key in folder.rglob("private/key"):
            if any(key.read_bytes()) and (key.parents[1] / "result.json").exists():
                return Failure("key", f"a key is there after {self.name} has ended")
        found = _contents(self.act, folder)
        names = sorted({*found, *reference.contents})
        for name in names:
            if found.get(name) != reference.contents.get(name):
                return Failure("other bits", f"{name} after a kill of {self.name}")
        return None

    def smaller(self) -> Iterator[KillCase]:
        if len(self.moments) > 1:
            for one in self.moments:
                yield KillCase(self.name, (one,))


@dataclass(frozen=True)
class Reference:
    """What a run that nobody killed leaves, how long it takes, and its acts on files."""

    contents: dict[str, bytes]
    seconds: float
    acts: int


_REFERENCES: dict[tuple[Path, str], Reference] = {}


def _reference(place: Place, case: KillCase) -> Reference:
    key = (place.world, case.name)
    if key not in _REFERENCES:
        with place.case(case.names(place), lambda folder: case.damage(place, folder)) as folder:
            ended = _run(place, case.words, folder, counted=folder / "acts")
            if ended.code != 0:
                raise RuntimeError(f"tacit {case.act.line}: {ended.err}")
            acts = int((folder / "acts").read_text())
            (folder / "acts").unlink()
            assert not leftovers(folder), leftovers(folder)
            _REFERENCES[key] = Reference(_contents(case.act, folder), ended.seconds, acts)
    return _REFERENCES[key]


def leftovers(folder: Path) -> list[str]:
    """Hidden parts anywhere, and whatever is in the temporary folder."""
    hidden = [
        *(path for path in folder.rglob(".*.partial")),
        *(path for path in folder.rglob(".*.old")),
        *(path for path in (folder / "tmp").iterdir() if not _is_foreign(path)),
    ]
    return sorted(str(path.relative_to(folder)) for path in hidden)


def _is_foreign(path: Path) -> bool:
    """Whether a path in the temporary folder is torch's, or Python's.

    Python tries for a moment whether it can write there at all: four letters in a file of eight.
    """
    is_trial = re.fullmatch("[a-z0-9_]{8}", path.name) and path.is_file()
    return "torchinductor" in path.name or bool(is_trial and path.stat().st_size <= len("blat"))


def _contents(act: Act, folder: Path) -> dict[str, bytes]:
    """What it has made, byte for byte, but for times."""
    found = {}
    for name in act.out:
        whole = folder / name
        for path in [whole] if whole.is_file() else whole.rglob("*"):
            if path.is_file() and path.name not in (*_TIMED, "releases.jsonl"):
                found[str(path.relative_to(folder))] = _without_times(path)
    return found


def _without_times(path: Path) -> bytes:
    """A file's bytes; of what is measured by the clock, nothing."""
    data = path.read_bytes()
    if path.name in ("result.json", "corpus.json", "personalization.json", "out.json"):
        values = json.loads(data)
        for name in ("seconds", "sha256", "known_people"):
            values.pop(name, None)  # after a killed ingest its people are known, and rightly
        return json.dumps(values, sort_keys=True).encode()
    return data


@dataclass(frozen=True)
class _Moment:
    seconds: float | None = None
    act: int | None = None


def _moment(by: str, share: float, reference: Reference) -> _Moment:
    if by == "time":
        return _Moment(seconds=share * reference.seconds)
    return _Moment(act=max(round(share * reference.acts), 1))


def _run(
    place: Place,
    words: list[str],
    folder: Path,
    *,
    kill: _Moment | None = None,
    counted: Path | None = None,
) -> Ended:
    """Run a command with the same chances each time, and perhaps kill it."""

    def act() -> None:
        from tacit.cli.main import main

        _fix_chances()
        sys.argv = ["tacit", *words]
        done = _watch(kill.act if kill else None)
        try:
            main(words)
        finally:
            if counted is not None:
                total = done()
                counted.write_text(str(total))

    return child.call(
        act,
        folder,
        limit=_LIMIT,
        environment=child.environment_of(folder, place.cache),
        kill_after=kill.seconds if kill else None,
        drops=place.drops,
    )


def _fix_chances() -> None:
    """A name that each installation gives its people by chance is the same in all cases."""
    from types import SimpleNamespace

    from tacit.corpus import people

    people.secrets = SimpleNamespace(  # type: ignore[attr-defined]
        token_hex=lambda size: "5e" * size, token_bytes=bytes
    )


def _watch(last: int | None) -> Callable[[], int]:
    """Count acts on files, and let the process be killed before its `last`."""
    acts = [0]

    def hook(event: str, given: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = given
            is_act = (
                isinstance(flags, int)
                and bool(flags & _WRITES)
                and isinstance(path, str | os.PathLike)
            )
            is_act = is_act and str(path).find("/dev/") < 0
        else:
            is_act = event in _ACTS
        if is_act:
            acts[0] += 1
            if acts[0] == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return lambda: acts[0]


def draw(random_: random.Random, place: Place) -> KillCase:
    """Any writing command that the world has the files of, killed once or a few times."""
    is_small = not (place.world / "simulated").exists()
    names = [name for name in ACTS if not (is_small and name == "tokenizer swap")]
    moments = tuple(
        (random_.choice(("time", "act")), random_.random())
        for _ in range(random_.choice((1, 1, 1, 3)))
    )
    return KillCase(random_.choice(names), moments)
