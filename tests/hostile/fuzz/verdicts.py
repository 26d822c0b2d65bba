"""What is right about how a command ended, and what is wrong.

It may do its work (0), fail a check where there is one (1), or refuse (2) in one sentence.  It may
not end in a traceback or by a signal, take long over a refusal, leave something half-written, or
believe what is not so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.fuzz.child import Ended

GROUPS = ("corpus", "tokenizer", "model", "recipes", "papers")
CHECKS = ("verify", "audit")  # commands that may end with 1
_LEFT = re.compile(r"(^|/)\.[^/]*\.(partial|old)(/|$)|(^|/)(tmp|home)/")
_NOT_OURS = re.compile(r"(^|/)(torchinductor_\w+|matplotlib-\w+|\.cache/|\.config/matplotlib)")
# What a refused command may leave, since it is whole: caches, locks, what is known of people.
_KEPT = re.compile(
    r"^(corpus/(\.?tokens-|people)|state/|.*\.lock$|home/|tmp/|[^/]*/private/|[^/]*/ledger\.jsonl$)"
)
# Of a text on a terminal: it moves the cursor, or turns the order of letters around.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

_RESUMED = ("train", "tokenizer", "demo", "papers")  # after Ctrl-C, what is there goes on
_READS_ONLY = ("verify", "ledger", "compare", "evaluate", "predict", "recipes")


@dataclass(frozen=True)
class Failure:
    """What went wrong: its kind, and the cause that it is counted under."""

    kind: str
    cause: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.cause}"


def listing(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Every path in a folder, with what changes if it is written to."""
    found = {}
    for path in folder.rglob("*"):
        about = path.lstat()
        found[str(path.relative_to(folder))] = (about.st_ino, about.st_size, about.st_mtime_ns)
    return found


def judged(
    words: list[str],
    ended: Ended,
    before: dict[str, tuple[int, int, int]],
    folder: Path,
    *,
    is_work: bool = False,
) -> Failure | None:
    """The first thing that is wrong, the worst kinds first; None if all is right.

    With `is_work`, the command may take as long as it likes, and has to end well after Ctrl-C.
    """
    command = " ".join(words[: 2 if words[0] in GROUPS else 1])
    if ended.is_fault:
        return Failure("traceback", ended.cause)
    if ended.was_killed:
        return Failure("hang", f"{command}, deaf to Ctrl-C")
    if ended.was_stopped and not is_work:
        return Failure("hang", f"{command} {ended.was_stopped} for over 20 seconds")
    if ended.code < 0:
        return Failure("crash", f"signal {-ended.code} in {command}")
    if ended.code == 1 and (words[0] not in CHECKS or "report" in ended.err):
        return Failure("fault", _shape(ended.err))
    if ended.code not in (0, 1, 2, 130):
        return Failure("exit code", f"{ended.code} of {command}")
    if ended.code == 2 and (wrong := _wrong_message(ended)):
        return Failure("message", f"{wrong}: {_shape(ended.err)}")
    if _CONTROL.search(ended.err) or _CONTROL.search(ended.out):
        return Failure("terminal", f"a control character is printed by {words[0]}")
    return _half_written(words, ended, before, folder)


def _wrong_message(ended: Ended) -> str | None:
    lines = ended.err.splitlines()
    if not lines:
        return "refused without a word"
    if not all(line.startswith("tacit: ") for line in lines):
        return "more than sentences on standard error"
    if len(lines[-1]) > 2000:
        return "a sentence of over 2,000 letters"
    if len(lines[-1]) < len("tacit: abc def"):
        return "a sentence that says nothing"
    return None


def _shape(text: str) -> str:
    """A message without what differs from case to case."""
    last = text.strip().rpartition("\n")[2]
    last = re.sub(r"'[^']*'|\"[^\"]*\"|\S*[/\d]\S*", "_", last)
    return last[:120]


def _half_written(
    words: list[str], ended: Ended, before: dict[str, tuple[int, int, int]], folder: Path
) -> Failure | None:
    after = listing(folder)
    new = [name for name in after if name not in before and not _NOT_OURS.search(name)]
    if left := [name for name in new if _LEFT.search(name)]:
        return Failure("leftover", f"{_general(left[0])} after {words[0]}")
    has_ended = ended.code == 2 or (ended.code == 130 and words[0] not in _RESUMED)
    half = [name for name in new if not _KEPT.search(name)]
    if has_ended and half:
        return Failure("half-written", f"{_general(half[0])} by {words[0]} that was refused")
    if words[0] in _READS_ONLY and ended.code != 0:
        for name, about in before.items():
            is_file = not (folder / name).is_dir()
            if is_file and after.get(name) != about and not _KEPT.search(name):
                return Failure("half-written", f"{_general(name)} changed by {words[0]}")
    return None


def _general(name: str) -> str:
    return re.sub(r"[0-9a-f]{6,}|\d+|tmp\w{6,}", "N", name)
