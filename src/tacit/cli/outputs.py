"""Directories that commands make: whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """A folder to fill that becomes `out` at the end, or is gone if anything goes wrong."""
    if out.exists():
        raise ValueError(f"--out {str(out)!r} exists already: name a directory to be made")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"--out {str(out)!r} is in a folder that does not exist")
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
    try:
        yield partial
        mask = os.umask(0)
        os.umask(mask)
        partial.chmod(0o777 & ~mask)  # mkdtemp's is for the owner only
        if out.exists():  # renaming over an empty directory would succeed
            raise ValueError(f"--out {str(out)!r} was made by somebody else meanwhile")
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def append_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Add lines to a JSON Lines file."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)
