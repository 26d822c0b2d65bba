"""Directories that commands make: whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tacit.privacy import durable


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """A folder to fill that becomes `out` at the end, or is gone if anything goes wrong."""
    if out.exists():
        raise ValueError(f"--out {str(out)!r} exists already: name a directory to be made")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"--out {str(out)!r} is in a folder that does not exist")
    with durable.whole_folder(out) as folder:
        yield folder


def append_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Add lines to a JSON Lines file."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)
