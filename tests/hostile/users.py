"""Commands and acts of other users of this machine, each in a process that has become that user.

Root can do it.  The process is forked from a server that has imported all of tacit, since another
user may not be allowed to read where Python lies.
"""

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import forked

FIRST, SECOND = 65_531, 65_532


@dataclass(frozen=True)
class User:
    """Who acts, with which umask, in a home of their own."""

    uid: int
    home: Path
    umask: int = 0o022

    def tacit(self, *words: object, timeout: float = 120, **environment: str) -> forked.Done:
        """Run `tacit WORDS` in the user's home."""
        printed = self.home.with_name(f"{self.home.name}-{self.uid}.output")
        printed.touch()
        printed.chmod(0o666)
        own = {
            "HOME": str(self.home),
            "TACIT_STATE": str(self.home / "state"),
            "TACIT_CACHE": str(self.home / "cache"),
            "TMPDIR": str(self.home.parent),
        }
        inherited = {key: value for key, value in os.environ.items() if key != "XDG_CACHE_HOME"}
        everything = inherited | own | environment
        target = (self, list(map(str, words)), everything, printed)
        code = _in_process(_command, target, timeout)
        return forked.Done(code, printed.read_text())

    def does(self, act: Callable[..., Any], *arguments: Any, timeout: float = 60) -> Any:
        """What a function of these tests returns when this user calls it."""
        reader, writer = _context().Pipe(duplex=False)
        code = _in_process(_act, (self, act, arguments, writer), timeout)
        assert code == 0, f"{act.__name__} ended with {code}"
        return reader.recv()

    def become(self) -> None:
        """Make this process the user's, for good."""
        if os.geteuid() != self.uid:
            os.setgroups([])
            os.setresgid(self.uid, self.uid, self.uid)
            os.setresuid(self.uid, self.uid, self.uid)
        os.umask(self.umask)


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*forked.PRELOADED, "tests.hostile.preload"])
    return context


def _in_process(target: Callable[..., None], arguments: tuple[Any, ...], timeout: float) -> Any:
    process = _context().Process(target=target, args=arguments)
    process.start()
    process.join(timeout)
    if process.is_alive():
        process.kill()
        process.join()
        return None
    return process.exitcode


def _command(user: User, words: list[str], environment: dict[str, str], printed: Path) -> None:
    os.environ.update(environment)
    user.become()
    forked._run(words, user.home, environment, printed)


def _act(user: User, act: Callable[..., Any], arguments: tuple[Any, ...], writer: Any) -> None:
    user.become()
    writer.send(act(*arguments))
