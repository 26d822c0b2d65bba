"""How a command ends: every exception is one sentence and an exit code, and signals end it gently.

    0    done
    1    a check that failed (`audit`, `verify`), or our own fault, which says how to report it
    2    a mistake in what was given, or something that is missing here: memory, room on a disk
    129, 130, 143
         ended by SIGHUP, Ctrl-C or SIGTERM: whatever goes on after Ctrl-C goes on after these
    141  nobody reads what is printed any more, as after `| head -1`

With TACIT_DEBUG set, an exception ends in its traceback.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import typer

from tacit.cli.output import Interrupted, note

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What typer raises for a mistake in what was typed; before 0.22 it is click's.
_MISTYPED: type[Exception] = (
    getattr(typer, "TyperException", None) or importlib.import_module("click").ClickException
)
_NO_READER = 128 + signal.SIGPIPE
_OUT_OF_MEMORY = (
    "allocate memory",
    "out of memory",
    "not enough memory",
    "start new thread",
    "failed to map segment",
)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BEFORE, _AFTER = r"(?<![\w.'\"/-])", r"(?![\w'\"=/(]|\.\w)"  # neither in a path nor in quotes
_NAME = re.compile(f"{_BEFORE}[a-z]+(?:_[a-z]+)+{_AFTER}")
AGAIN = "interrupted; nothing is half-written: the same command begins again"


def end_well(command: Callable[[], object], options: Callable[[], Mapping[str, str]]) -> int:
    """Run a command and return its exit code, whatever it raises.

    `options` are the command's, as they are typed, by the names that its code has for them.
    """
    open_streams()
    with _signals() as received:
        code = _code_of(command, options)
        try:
            sys.stdout.flush()
        except OSError as error:
            code = _printing_failed(error)
        return 128 + received[0] if received and code == 130 else code


def _code_of(command: Callable[[], object], options: Callable[[], Mapping[str, str]]) -> int:
    try:
        code = command()
    except typer.Exit as stop:
        code = stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except Interrupted as stop:
        note(str(stop))
        return 130
    except SystemExit:  # by rich and by typer, for nothing else than this
        return _printing_failed(BrokenPipeError())
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group by itself: typer has shown help
            return 0
        if os.environ.get("TACIT_DEBUG"):
            raise
        said, code = explain(error)
        note(as_typed(said, options()))
    if code == 130:  # typer may turn Ctrl-C into an exit code
        note(AGAIN)
    return code if isinstance(code, int) else 0


def explain(error: BaseException) -> tuple[str, int]:
    """An exception as one sentence, and the exit code that it ends with."""
    said = " ".join(str(error).split()) or type(error).__name__
    match error:
        case _ if isinstance(error, _MISTYPED):
            return " ".join(getattr(error, "format_message", error.__str__)().split()), 2
        case _ if _is_out_of_memory(error, said):
            return (
                f"there is not enough memory for this ({said}): leave it more, or ask for less,"
                " such as fewer --workers"
            ), 2
        case OSError():
            return _of_the_system(error, said), 2
        case UnicodeDecodeError():
            return f"something that was read is not UTF-8 text ({said})", 2
        case ValueError():
            return said, 2
        case ImportError():
            return f"something is missing in this installation of tacit: {said}", 2
        case ArithmeticError():
            return f"a number that was given is too large or too small to compute with: {said}", 2
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" in {Path(frame.filename).name}, line {frame.lineno}" for frame in last)
    return (
        f"this is a mistake in tacit and not in what you typed: {type(error).__name__}{where}"
        f" ({said}); please report it where you have tacit from, with the command and with the"
        " traceback that TACIT_DEBUG=1 shows"
    ), 1


def as_typed(said: str, options: Mapping[str, str]) -> str:
    """A sentence with options in it as they are typed: --skip-bad-rows, and not skip_bad_rows.

    Keys of files, such as plan.noise_multiplier, and words that may be plain English are left: of
    the latter only those are options that stand in a list of options, such as "noise_multiplier,
    rounds and cohort".
    """

    def typed(name: re.Match[str]) -> str:
        return options.get(name[0], name[0])

    def all_typed(listed: re.Match[str]) -> str:
        return re.sub("[a-z_]+", typed, listed[0]) if "_" in listed[0] else listed[0]

    one = f"(?:{'|'.join(sorted(options, key=len, reverse=True))})"
    lists = re.compile(f"{_BEFORE}{one}(?:(?:, and |, or |, | and | or ){one})+{_AFTER}")
    return _NAME.sub(typed, lists.sub(all_typed, said) if options else said)


def _is_out_of_memory(error: BaseException, said: str) -> bool:
    """Libraries say it in their own ways."""
    may_be = isinstance(error, RuntimeError | ImportError | OSError)
    return isinstance(error, MemoryError) or (may_be and any(one in said for one in _OUT_OF_MEMORY))


def _of_the_system(error: OSError, said: str) -> str:
    """What the system refused, about which file, and what would help."""
    if error.errno is None or error.strerror is None:
        return said
    files = [str(name) for name in (error.filename, error.filename2) if name is not None]
    said = f"{' and '.join(files)}: {error.strerror}" if files else error.strerror
    if error.errno in _NO_ROOM:
        said += "; make room and run it again"
    elif error.errno == errno.EROFS:
        said += "; name a place that can be written to"
    return said


def _printing_failed(error: OSError) -> int:
    """Standard output is closed or full: nothing more is printed, and Python's own end is quiet."""
    if not isinstance(error, BrokenPipeError):
        note(f"standard output cannot be written to: {error.strerror}")
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _NO_READER if isinstance(error, BrokenPipeError) else 2


def not_text(arguments: Sequence[str]) -> str | None:
    """The first argument that is not UTF-8, as it can be shown; None if all are text."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            return ascii(argument)
    return None


def open_streams() -> None:
    """See to it that there are three standard streams, and that anything can be printed to them.

    A stream that the shell has closed becomes the null device: else the next file that is opened,
    a ledger say, would get what is printed.  What an encoding does not have is escaped.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
        if getattr(sys, name) is None:
            opened = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, opened)
        if mode == "w" and isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _signals() -> Iterator[list[int]]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does; yields the signals that came.

    Under torchrun they do what they did, because that program ends all of its processes itself.
    One that is ignored, as `nohup` has it, stays ignored.
    """
    received: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    is_ours = threading.current_thread() is threading.main_thread() and "RANK" not in os.environ
    before = {number: signal.getsignal(number) for number in _ENDING if is_ours}
    for number, handler in before.items():
        if handler in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, interrupt)
    try:
        yield received
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
