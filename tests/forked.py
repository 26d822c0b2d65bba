"""Commands of tacit, each in a process of its own that need not import everything again.

A server imports all of tacit once and computes nothing, so it can be forked for every command:
importing torch takes longer than most of what the documents do.
"""

import multiprocessing
import os
import sys
from dataclasses import dataclass
from pathlib import Path

PRELOADED = [
    "tacit.cli.main",
    "tacit.train",
    "tacit.tasks.nlu.trainer",
    "tacit.audit.language",
    "tacit.tokenizers.learn",
    "tacit.runs.bundle",
    "tacit.verification",
    "tacit.report.page",
    "tacit_papers.thakkar2020.training",
    "tacit_papers.dupuy2021.comparison",
    "matplotlib.pyplot",
    "transformers",
]


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed."""

    code: int | None
    output: str


def tacit(words: list[str], folder: Path, *, timeout: float = 600) -> Done:
    """Run `tacit WORDS` in a folder."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    printed = folder.with_name(f"{folder.name}.output")
    process = context.Process(target=_run, args=(words, folder, dict(os.environ), printed))
    process.start()
    process.join(timeout)
    if process.is_alive():
        process.kill()
        process.join()
    return Done(process.exitcode, printed.read_text() if printed.exists() else "")


def _run(words: list[str], folder: Path, environment: dict[str, str], printed: Path) -> None:
    os.environ.clear()
    os.environ.update(environment | {"NO_COLOR": "1", "COLUMNS": "100"})
    os.chdir(folder)
    out = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for descriptor in (1, 2):
        os.dup2(out, descriptor)
    sys.stdin = open(os.devnull)  # noqa: SIM115
    sys.argv = ["tacit", *words]
    from tacit.cli.main import main

    main(words)
