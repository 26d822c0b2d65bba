"""What this installation keeps of its own, outside of every corpus and run: a folder and a secret.

The folder is `$TACIT_STATE`, or else `$XDG_STATE_HOME/tacit`, or else `~/.local/state/tacit`.  What
is remembered about people lies in it (`corpus.people`, `corpus.people_ledger`), so it outlives
corpora and run directories.  The secret keys all that is derived from their ids and texts, so that
the folder reveals nobody to a reader who does not have the secret too.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from tacit.privacy import durable

SECRET_BYTES = 32


def state_folder(*, create: bool = True) -> Path:
    """The state folder, made on first use and readable by its owner only.

    Without `create` it is where the folder is or would be, and nothing is made.
    """
    base = os.environ.get("XDG_STATE_HOME")
    path = (Path(base) if base else Path.home() / ".local" / "state") / "tacit"
    if own := os.environ.get("TACIT_STATE"):
        path = Path(own)
    if not create:
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
    except OSError as problem:
        raise _unusable(path, problem) from None
    if not path.is_dir():
        raise _unusable(path, "it is a file")
    if not os.access(path, os.W_OK | os.X_OK):
        raise _unusable(path, "no permission")
    return path


def secret() -> bytes:
    """32 bytes from the operating system, made once for this installation.

    A damaged secret is refused and never replaced: with another one, nobody known here would be
    recognised, and what was spent on them would be forgotten.
    """
    path = state_folder() / "secret"
    try:
        if not path.exists():
            fresh = path.with_name(f".secret.{secrets.token_hex(8)}")
            try:
                durable.write_whole(fresh, secrets.token_bytes(SECRET_BYTES), mode=0o600)
                # A link is made by one process only, and of a whole file: the others read it.
                with suppress(FileExistsError):
                    os.link(fresh, path)
                durable.sync(path.parent)
            finally:
                fresh.unlink(missing_ok=True)
        data = path.read_bytes()
    except OSError as problem:
        raise _unusable(path.parent, problem) from None
    if len(data) != SECRET_BYTES:
        raise ValueError(
            f"{str(path)!r} is damaged: it has {len(data)} bytes instead of {SECRET_BYTES};"
            " without it nobody known here is recognised again, so restore it from a backup"
        )
    return data


def _unusable(path: Path, problem: OSError | str) -> ValueError:
    why = problem if isinstance(problem, str) else problem.strerror or str(problem)
    return ValueError(
        f"cannot write to {str(path)!r}, where tacit remembers what was spent on whom ({why}): set"
        " TACIT_STATE to a folder that can be written to"
    )
