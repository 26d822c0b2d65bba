"""One command in a process of its own, forked from one that has imported everything already.

The child has a terminal of its own that is none, a temporary folder, a home and a state inside of
the case's folder, a limit of memory, and a time after which it is told to end.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import re
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.fuzz import privilege

LIMIT = 20.0  # seconds: nothing that is refused may take longer
GRACE = 20.0  # seconds after Ctrl-C
_PATIENCE, _STEP = 15, 5.0  # times the limit, on a busy machine; seconds
_MEMORY = 6 << 30
_FILE_SIZE = 1 << 28
_FAULT = 70  # the exit code of a child that an exception ended
_FRAME = re.compile(r'File ".*?/(?:src|site-packages|python3\.\d+)/(\S+?)", line \d+, in (\S+)')
_OURS = re.compile(r'File ".*?/src/(tacit\S+?)", line \d+, in (\S+)')


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code, or the signal; what it printed; and how long it took."""

    code: int
    out: str
    err: str
    seconds: float
    was_stopped: str = ""  # "works" or "waits", if it was told to end, since its time was up
    was_killed: bool = False  # and did not

    @property
    def is_fault(self) -> bool:
        return self.code == _FAULT and "Traceback (most recent call last)" in self.err

    @property
    def cause(self) -> str:
        """The exception and the last function of ours that it went through."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        last = next((line for line in reversed(lines) if re.match(r"[A-Za-z_.]+(:|$)", line)), "")
        kind = last.partition(":")[0].rpartition(".")[2] or "no exception"
        frames = _OURS.findall(self.err) or _FRAME.findall(self.err)
        return f"{kind} in {frames[-1][0]}:{frames[-1][1]}" if frames else kind


def call(
    act: Callable[[], object],
    folder: Path,
    *,
    limit: float = LIMIT,
    memory: int = _MEMORY,
    environment: Mapping[str, str] | None = None,
    kill_after: float | None = None,
    drops: bool = True,
) -> Ended:
    """Call a function in a child whose working directory is `folder`.

    With `kill_after`, the child and all its processes are killed after that many seconds.
    """
    beside = folder.with_name(f"{folder.name}.printed")
    out, err = beside.with_suffix(".out"), beside.with_suffix(".err")
    began = time.monotonic()
    gc.freeze()
    process = os.fork()
    if process == 0:
        _child(act, folder, (out, err), memory, environment or {}, drops)
    watched = os.pidfd_open(process)
    stopped, killed = "", False
    try:
        if kill_after is not None:
            select.select([watched], [], [], kill_after)
        elif stopped := _beyond(process, watched, limit):
            _signal_all(process, signal.SIGINT, group=False)
            killed = bool(_beyond(process, watched, GRACE))
    finally:
        # Its group: whatever it has started ends with it.
        _signal_all(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        os.close(watched)
    seconds = time.monotonic() - began
    texts = [path.read_bytes().decode(errors="backslashreplace") for path in (out, err)]
    return Ended(os.waitstatus_to_exitcode(status), *texts, seconds, stopped, killed)


def tacit(words: Sequence[str], folder: Path, **options: object) -> Ended:
    """Run `tacit WORDS` in a child."""

    def act() -> None:
        from tacit.cli.main import main

        sys.argv = ["tacit", *words]
        main(list(words))

    return call(act, folder, **options)  # type: ignore[arg-type]


def environment_of(folder: Path, cache: Path | None) -> dict[str, str]:
    """Where a command keeps what it keeps: nothing of whoever runs the fuzzer.

    Compiled kernels are shared by all cases; without a `cache`, they are the user's own.
    """
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacit"
    return {
        "TACIT_STATE": str(folder / "state"),
        "TACIT_CACHE": str(cache or os.environ.get("TACIT_CACHE") or usual),
        "TMPDIR": str(folder / "tmp"),
        "HOME": str(folder / "home"),
        "NO_COLOR": "1",
        "COLUMNS": "100",
    }


def _beyond(process: int, watched: int, limit: float) -> str:
    """What it does after `limit` seconds that it had a processor for; empty if it has ended.

    On a machine that is busy with other things, a second of work takes many; a child that waits for
    what never comes (a FIFO, a lock) does no work, and is over its time by the clock.
    """
    if select.select([watched], [], [], limit)[0]:
        return ""
    done = _work(process)
    for _ in range(round(_PATIENCE * limit / _STEP)):
        if select.select([watched], [], [], _STEP)[0]:
            return ""
        before, done = done, _work(process)
        if done == before:
            return "waits"
        if done >= limit:
            break
    return "works"


def _work(process: int) -> float:
    """Seconds of a processor that a child has had."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _signal_all(process: int, number: int, *, group: bool = True) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(process, number)
        else:
            os.kill(process, number)


def _child(
    act: Callable[[], object],
    folder: Path,
    printed: tuple[Path, Path],
    memory: int,
    environment: Mapping[str, str],
    drops: bool,
) -> None:
    code = _FAULT
    try:
        os.setsid()
        for path, descriptor in zip(printed, (1, 2), strict=True):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            os.dup2(file, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
        if drops:
            privilege.drop()
        os.environ.update(environment)
        tempfile.tempdir = None
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_SIZE, _FILE_SIZE))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        atexit._clear()
        warnings.resetwarnings()
        act()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 0xFF)
