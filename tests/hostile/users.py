"""Acts of other users of this machine, each in a process that has become that user.

Root can do it.  The process is forked from a server that has imported what is needed, since another
user may not be allowed to read where Python lies.
"""

import multiprocessing
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIRST, SECOND = 65_531, 65_532


@dataclass(frozen=True)
class User:
    """Who acts, with which umask, in a home of their own."""

    uid: int
    home: Path
    umask: int = 0o022

    def does(self, act: Callable[..., Any], *arguments: Any, timeout: float = 240) -> Any:
        """What a function of these tests returns when this user calls it."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.hostile.preload"])
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(target=_act, args=(self, act, arguments, writer))
        process.start()
        writer.close()
        try:
            assert reader.poll(timeout), f"{act.__name__} was still at it after {timeout} seconds"
            result, mistake = reader.recv()
        finally:
            process.kill()
            process.join()
        assert not mistake, mistake
        return result

    def become(self) -> None:
        """Make this process the user's, for good."""
        if self.uid != os.geteuid():
            os.setgroups([])
            os.setresgid(self.uid, self.uid, self.uid)
            os.setresuid(self.uid, self.uid, self.uid)
        os.umask(self.umask)
        os.environ["HOME"] = str(self.home)


def _act(user: User, act: Callable[..., Any], arguments: tuple[Any, ...], writer: Any) -> None:
    user.become()
    try:
        writer.send((act(*arguments), ""))
    except BaseException:
        writer.send((None, traceback.format_exc()))
