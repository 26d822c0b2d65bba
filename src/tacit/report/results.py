"""How a report reads the results that lie beside a run: as tables that are checked once, here.

Results are JSON files that other commands wrote, perhaps on another day and another machine.  A
file that was cut off or edited is refused in one sentence, before any of it is on a page.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tacit.config.sections import sentence


class Table(BaseModel):
    """A table of a JSON file: the values that a report tells, by name and type.

    What else the file holds is not read, so that no path and no private figure gets into a report
    unless a table names it.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


_Table = TypeVar("_Table", bound=Table)


def read(table: type[_Table], path: Path) -> _Table | None:
    """What a file holds, or None if there is no such file.

    Raises `ValueError` with one sentence if it is not JSON, or not such a table.
    """
    data = read_object(path)
    return None if data is None else checked(table, data, path)


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object that a file holds, or None if there is no such file.

    NaN and infinity, which are not JSON but pass for it in Python, are refused.
    """

    def refuse_constant(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no number")

    try:
        data = json.loads(path.read_bytes(), parse_constant=refuse_constant)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: it is not JSON ({error})") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} is damaged: it is not a JSON object")
    return data


def checked(table: type[_Table], data: dict[str, Any], path: Path) -> _Table:
    """Data of the file at `path` as a table; the first mistake in it is raised as one sentence."""
    try:
        return table.model_validate(data)
    except ValidationError as error:
        raise ValueError(sentence(error, f"{path} is damaged", table)) from None
