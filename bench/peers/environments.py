"""A virtual environment for each peer: they pin what tacit does not want to have.

Each is made once, in tacit's cache folder, with the torch that tacit itself runs on: a comparison
of two torches would say nothing about the rest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path


class NoEnvironment(RuntimeError):
    """A peer cannot be installed here; the message says why."""


def python_for(requirement: str) -> Path:
    """The interpreter of an environment in which the requirement is installed."""
    torch = metadata.version("torch").split("+")[0]
    name = "".join(c if c.isalnum() or c in ".-" else "_" for c in requirement)
    folder = cache_folder() / f"{name}-torch-{torch}"
    python = folder / "bin" / "python"
    done = folder / ".installed"
    if done.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"installing {requirement} in an environment of its own; this takes a minute", flush=True)
    _run(requirement, [sys.executable, "-m", "venv", str(folder)])
    constraints = folder / "constraints.txt"
    constraints.write_text(f"torch=={torch}\n", encoding="utf-8")
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    _run(requirement, [*pip, f"torch=={torch}"])
    _run(requirement, [*pip, "-c", str(constraints), requirement])
    done.touch()
    return python


def cache_folder() -> Path:
    """Where everything goes that the bench makes and can make again."""
    given = os.environ.get("TACIT_CACHE")
    if given:
        return Path(given) / "bench"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tacit" / "bench"


def _run(requirement: str, command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoEnvironment(f"{requirement} was not installed: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = lines[-1] if lines else f"exit code {done.returncode}"
        raise NoEnvironment(f"{requirement} was not installed: {why}")
