"""Coverage-guided fuzzing of one parser with atheris, in a process of its own.

    python -m tests.hostile.fuzz.guided PARSER SEEDS FOUND --seconds N --seed N

SEEDS is a folder of good files, which grows by what reaches new code; into FOUND go an input for
each cause, made short, and figures.json.  A cause does not end it, so that one bug does not hide
the next.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("parser")
    arguments.add_argument("seeds", type=Path)
    arguments.add_argument("found", type=Path)
    arguments.add_argument("--seconds", type=int, default=60)
    arguments.add_argument("--seed", type=int, default=1)
    asked = arguments.parse_args()
    import atheris

    with atheris.instrument_imports(include=["tacit", "tomllib"], exclude=["tacit.models"]):
        from tests.hostile.fuzz import parsers

        _warm_up(asked.parser, asked.seeds, parsers)
    scratch = Path(tempfile.mkdtemp(prefix="guided-", dir=asked.found))
    path = scratch / parsers.PARSERS[asked.parser].name
    state = _State(asked.found / "figures.json")

    def test(data: bytes) -> None:
        path.write_bytes(data)
        began = time.monotonic()
        cause = parsers.cause_of(asked.parser, path)
        state.count(cause, data, time.monotonic() - began)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        """Half of the time a change that knows about lines, numbers and encodings."""
        import random

        from tests.hostile.fuzz import mutations

        if seed % 2:
            return bytes(atheris.Mutate(data, most))
        return mutations.of_bytes(data, random.Random(seed))[:most]

    options = [
        f"-max_total_time={asked.seconds}",
        f"-seed={asked.seed}",
        "-timeout=20",
        "-rss_limit_mb=6000",
        "-max_len=65536",
        "-print_final_stats=1",
        f"-artifact_prefix={asked.found}/",
        str(asked.seeds),
    ]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(scratch)
    atheris.Setup([sys.argv[0], *options], test, custom_mutator=mutate)
    atheris.Fuzz()


class _State:
    """Counts, kept on the disk every second: the fuzzer ends without a word."""

    def __init__(self, file: Path) -> None:
        self._file, self._inputs, self._slowest, self._last = file, 0, 0.0, 0.0
        self._causes: dict[str, int] = {}

    def count(self, cause: str | None, data: bytes, seconds: float) -> None:
        self._inputs += 1
        self._slowest = max(self._slowest, seconds)
        if cause is not None:
            if cause not in self._causes:
                self._file.with_name(f"cause-{len(self._causes)}").write_bytes(data)
            self._causes[cause] = self._causes.get(cause, 0) + 1
        if time.monotonic() - self._last > 1:
            self._last = time.monotonic()
            row = {"inputs": self._inputs, "causes": self._causes, "slowest": self._slowest}
            self._file.write_text(json.dumps(row))


def _warm_up(name: str, seeds: Path, parsers: object) -> None:
    """Read the good files once, so that what is imported late is instrumented too."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / parsers.PARSERS[name].name  # type: ignore[attr-defined]
        for seed in seeds.iterdir():
            path.write_bytes(seed.read_bytes())
            parsers.cause_of(name, path)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
