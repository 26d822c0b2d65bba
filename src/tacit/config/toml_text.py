"""Tables as TOML text, which the standard library reads but does not write."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def dumps(data: Mapping[str, Any]) -> str:
    """One table, values first, then its tables; None has no place in TOML and is an error."""
    lines: list[str] = []
    _table(data, (), lines)
    return "\n".join(lines).strip() + "\n"


def _table(data: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    tables = {key: value for key, value in data.items() if _is_table(value)}
    for key, value in data.items():
        if key not in tables:
            lines.append(f"{_key(key)} = {_value(value)}")
    for key, value in tables.items():
        below = (*path, key)
        header = ".".join(map(_key, below))
        if isinstance(value, Mapping):
            lines += ["", f"[{header}]"]
            _table(value, below, lines)
        else:
            for item in value:
                lines += ["", f"[[{header}]]"]
                _table(item, below, lines)


def _is_table(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    is_list = isinstance(value, list | tuple) and bool(value)
    return is_list and all(isinstance(item, Mapping) for item in value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value)
        case str():
            return _string(value)
        case list() | tuple():
            return f"[{', '.join(map(_value, value))}]"
        case Mapping():  # inside a list of other things
            return f"{{{', '.join(f'{_key(key)} = {_value(v)}' for key, v in value.items())}}}"
    raise ValueError(f"TOML has no place for {value!r}")


def _string(value: str) -> str:
    """A basic string; JSON's escapes are TOML's, but for DEL, which TOML wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
