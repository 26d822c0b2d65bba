"""A few cases of each kind in a process that has computed nothing yet, so that it can fork."""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

from tests.forked import PRELOADED
from tests.hostile.fuzz.known import is_known
from tests.hostile.fuzz.place import made
from tests.hostile.fuzz.session import Session

SEED = 19


def try_cases(out: Path, cases: dict[str, int], whole: bool = False) -> None:
    """Try the first cases of each kind, always the same, in this process; figures go to `out`."""
    began = time.monotonic()
    with made(whole=whole) as place:
        session = Session(place, SEED, out)
        for kind, count in cases.items():
            for number in range(count):
                session.try_one(kind, number)
        session.write(time.monotonic() - began)


def figures_of(
    out: Path, cases: dict[str, int], timeout: float, *, whole: bool = False
) -> dict[str, Any]:
    """The figures of some cases, which are tried in a process of their own.

    They are tried on the few things that the usual tests need, or on the `whole` world.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=try_cases, args=(out, cases, whole))
    process.start()
    process.join(timeout)
    if process.is_alive():
        process.kill()
        process.join()
    assert process.exitcode == 0
    row: dict[str, Any] = json.loads((out / "figures.json").read_text())
    return row


def unknown(figures: dict[str, Any]) -> list[str]:
    """The failures that nobody knows of."""
    every = [failure for counts in figures["failures"].values() for failure in counts]
    return [failure for failure in every if not is_known(failure)]
