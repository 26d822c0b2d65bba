"""Ways to damage a file, each a function of the file and a random draw.

A mutation is named by its kind, and repeated by the seed of its draw.
"""

from __future__ import annotations

import codecs
import gzip
import json
import os
import random
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.verification.forging import chained_anew

HUGE = 10**400
DEEP = 100_000
VALUES: tuple[object, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, HUGE, -HUGE, 1e-320, 1e308, -1e308, 0.5),
    *(float("nan"), float("inf"), float("-inf"), "", " ", "0", "nan", "a" * 100_000, "\x00"),
    *("../../escaped", "/etc/passwd", "\x1b[31mred", "\u202egnirts", "[bold]x[/bold]", "\ud800"),
    *("line\nanother", "synthetic:users=1e30", [], {}, [[]], [None], {"": None}, [1] * 1000),
)
_TOML_VALUES = (
    *("true", "0", "-1", "1e308", "nan", "inf", "-inf", "9223372036854775807", "9" * 400),
    *('""', '"../../escaped"', '"\\u001b[31mred"', "[]", "{}", "[[]]", "1979-05-27", '"a"', "1.5"),
)


@dataclass(frozen=True)
class Mutation:
    """One change of one file of a folder."""

    kind: str
    file: str  # relative to the case's folder
    seed: int
    donor: str = ""  # the file that it is swapped with, relative to the world

    def apply(self, folder: Path, world: Path) -> None:
        draw, path = random.Random(self.seed), folder / self.file
        if self.kind in PLACES:
            PLACES[self.kind](path)
        elif self.kind == "swapped with another":
            path.unlink()
            shutil.copyfile(world / self.donor, path)
        else:
            owner = path.stat()
            KINDS[self.kind](path, draw)
            if os.getuid() == 0:
                os.chown(path, owner.st_uid, owner.st_gid)

    def __str__(self) -> str:
        more = f" by {self.donor}" if self.donor else ""
        return f"{self.kind}: {self.file}{more}"


def fitting(path: Path) -> list[str]:
    """The kinds that can be tried on a file."""
    kinds = [*_OF_BYTES, *PLACES]
    if _is_text(path):
        kinds += _OF_LINES
    if path.suffix == ".json":
        kinds += [*_OF_JSON, *_OF_JSON]
    if path.suffix == ".jsonl":
        kinds += [*_OF_JSON_LINES, *_OF_JSON_LINES]
    if path.name == "ledger.jsonl":
        kinds += [*_OF_LEDGERS, *_OF_LEDGERS]
    if path.suffix == ".toml":
        kinds += [*_OF_TOML, *_OF_TOML]
    if path.suffix == ".safetensors":
        kinds += [*_OF_SAFETENSORS, *_OF_SAFETENSORS]
    if path.suffix == ".gz":
        kinds += _OF_GZIP
    return kinds


def of_bytes(data: bytes, draw: random.Random) -> bytes:
    """Some bytes, changed by a kind that is drawn; what parsers are tried on without a file."""
    kind = draw.choice([*_OF_BYTES, *_OF_LINES] if b"\n" in data else [*_OF_BYTES])
    return ({**_OF_BYTES, **_OF_LINES}[kind])(data, draw)


# Bytes.


def _place(data: bytes, draw: random.Random) -> int:
    # The beginning, where headers are, as often as all else.
    return draw.randrange(min(len(data), draw.choice((16, 200, len(data)))) or 1) if data else 0


def _flip(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 8))):
        if changed:
            changed[_place(data, draw)] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _truncate(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.choice((_place(data, draw), max(len(data) - draw.randrange(1, 9), 0)))]


def _insert(data: bytes, draw: random.Random) -> bytes:
    at = _place(data, draw)
    few = draw.randbytes(draw.choice((1, 1, 4, 100)))
    return data[:at] + draw.choice((few, b"0", b"-", b'"', b",", b"\n", b"[", b"e999")) + data[at:]


def _nul(data: bytes, draw: random.Random) -> bytes:
    at = _place(data, draw)
    return data[:at] + b"\0" * draw.choice((1, 8, 4096)) + data[at:]


def _delete(data: bytes, draw: random.Random) -> bytes:
    at = _place(data, draw)
    return data[:at] + data[at + draw.choice((1, 4, 64)) :]


def _empty(_: bytes, __: random.Random) -> bytes:
    return b""


def _noise(data: bytes, draw: random.Random) -> bytes:
    return draw.randbytes(draw.choice((1, 64, max(len(data), 1))))


def _digit(data: bytes, draw: random.Random) -> bytes:
    """Another digit: what changes a fact without breaking a form."""
    places = [match.start() for match in re.finditer(rb"[0-9]", data[:20_000])]
    if not places:
        return _flip(data, draw)
    at = draw.choice(places)
    return (
        data[:at]
        + str((int(data[at : at + 1]) + draw.randrange(1, 10)) % 10).encode()
        + (data[at + 1 :])
    )


def _twice(data: bytes, _: random.Random) -> bytes:
    return data + data


def _marked(data: bytes, draw: random.Random) -> bytes:
    return draw.choice((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF32_BE)) + data


def _recoded(data: bytes, draw: random.Random) -> bytes:
    return data.decode("latin-1").encode(draw.choice(("utf-16", "utf-16-be", "utf-32", "cp037")))


def _not_unicode(data: bytes, draw: random.Random) -> bytes:
    at = _place(data, draw)
    odd = (b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", "é".encode("latin-1"))
    return data[:at] + draw.choice(odd) + data[at:]


def _deep(data: bytes, draw: random.Random) -> bytes:
    """Brackets, more than a parser that calls itself can bear."""
    one = draw.choice((b"[", b'{"a":', b'{"a":['))
    nested = one * DEEP
    at = data.find(b":") + 1
    return draw.choice((nested, data[:at] + nested + data[at:], nested + b"0" + b"]" * DEEP))


# Lines.


def _on_lines(change: Callable[[list[bytes], random.Random], object]) -> Callable[..., bytes]:
    def changed(data: bytes, draw: random.Random) -> bytes:
        lines = data.splitlines(keepends=True)
        if lines:
            change(lines, draw)
        return b"".join(lines)

    return changed


def _swap_lines(lines: list[bytes], draw: random.Random) -> None:
    one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]


def _delete_line(lines: list[bytes], draw: random.Random) -> None:
    del lines[draw.choice((draw.randrange(len(lines)), -1))]


def _repeat_line(lines: list[bytes], draw: random.Random) -> None:
    at = draw.randrange(len(lines))
    lines.insert(at, lines[at])


def _windows(lines: list[bytes], _: random.Random) -> None:
    lines[:] = [line.rstrip(b"\n") + b"\r\n" for line in lines]


def _blank(lines: list[bytes], draw: random.Random) -> None:
    lines.insert(draw.randrange(len(lines)), b"   \n")


def _one_line(lines: list[bytes], _: random.Random) -> None:
    lines[:] = [line.rstrip(b"\r\n") for line in lines]


def _long_line(lines: list[bytes], draw: random.Random) -> None:
    lines.insert(draw.randrange(len(lines)), b"word " * 400_000 + b"\n")


# JSON, whose values are replaced where they stand.


def _leaves(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value is, of whatever kind."""
    found = [path] if path else []
    if isinstance(data, dict):
        for name, value in data.items():
            found += _leaves(value, (*path, name))
    elif isinstance(data, list):
        for index, value in enumerate(data[:50]):
            found += _leaves(value, (*path, index))
    return found


def _parent(data: Any, path: tuple[Any, ...]) -> Any:
    for step in path[:-1]:
        data = data[step]
    return data


def change_json(data: Any, draw: random.Random, values: tuple[object, ...] = VALUES) -> Any:
    """Another value, one key less or more, or another kind of thing altogether."""
    leaves = _leaves(data)
    if not leaves or draw.random() < 0.05:
        return draw.choice(values)
    path = draw.choice(leaves)
    parent, last = _parent(data, path), path[-1]
    match draw.randrange(8):
        case 0:
            del parent[last]
        case 1 if isinstance(parent, dict):
            parent[f"{last}_"] = parent.pop(last)
        case 2 if isinstance(parent, dict):
            parent["unheard of"] = draw.choice(values)
        case 3:
            other = draw.choice(leaves)
            parent[last] = json.loads(json.dumps(_parent(data, other)[other[-1]]))
        case 4 if isinstance(parent[last], int | float) and parent[last] == parent[last]:
            changed = (parent[last] + 1, -parent[last], parent[last] * 0.5, str(parent[last]))
            parent[last] = draw.choice(changed)
        case _:
            parent[last] = draw.choice(values)
    return data


def _dumped(data: Any) -> bytes:
    return json.dumps(data).encode("utf-8", "surrogatepass")


def _json_value(data: bytes, draw: random.Random) -> bytes:
    try:
        return _dumped(change_json(json.loads(data), draw))
    except ValueError:
        return _flip(data, draw)


def _json_key_twice(data: bytes, draw: random.Random) -> bytes:
    """A key that stands twice, the second time with another value."""
    keys = list(re.finditer(rb'"(\w+)"\s*:', data))
    if not keys:
        return _insert(data, draw)
    key = draw.choice(keys)
    value = draw.choice((b"null", b"0", b'"x"', b"[]", b"1e400"))
    return data[: key.start()] + key[0] + value + b", " + data[key.start() :]


def _json_line_value(data: bytes, draw: random.Random) -> bytes:
    lines = data.splitlines()
    if not lines:
        return _insert(data, draw)
    at = draw.randrange(len(lines))
    lines[at] = _json_value(lines[at], draw).replace(b"\n", b"")
    return b"\n".join(lines) + b"\n"


# Files of a form of their own.


def _ledger_anew(path: Path, draw: random.Random) -> None:
    """A ledger with another value, whose chain is whole again."""

    def change(lines: list[dict[str, Any]]) -> None:
        at = draw.randrange(len(lines))
        changed = change_json(lines[at], draw)
        lines[at] = changed if isinstance(changed, dict) else {}

    try:
        chained_anew(path, change)
    except (ValueError, RecursionError, UnicodeError, OverflowError):
        path.write_bytes(_flip(path.read_bytes(), draw))


def _ledger_shorter(path: Path, draw: random.Random) -> None:
    """Some lines less, and a chain that is whole again."""

    def change(lines: list[dict[str, Any]]) -> None:
        del lines[draw.randrange(1, max(len(lines), 2)) :]

    chained_anew(path, change)


def _toml_value(data: bytes, draw: random.Random) -> bytes:
    lines = data.decode(errors="replace").splitlines()
    places = [n for n, line in enumerate(lines) if "=" in line]
    if not places:
        return _insert(data, draw)
    at = draw.choice(places)
    name, _, value = lines[at].partition("=")
    match draw.randrange(6):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[at])
        case 2:
            lines[at] = f"{name.strip()}_ = {value}"
        case 3:
            lines[at] = f"{name.strip()}.deeper = {value}"
        case 4:
            table = draw.choice(("[" + "a." * 5000 + "a]", "[[grid]]", "[variants.x]", "[plan]"))
            lines.insert(at, table)
        case _:
            lines[at] = f"{name}= {draw.choice(_TOML_VALUES)}"
    return ("\n".join(lines) + "\n").encode()


def _toml_deep(data: bytes, draw: random.Random) -> bytes:
    return data + b"deep = " + b"[" * draw.choice((500, 5000, DEEP)) + b"]" * 100 + b"\n"


def _tensors_header(data: bytes, draw: random.Random) -> bytes:
    """Other shapes, types, places or facts of tensors."""
    try:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        header = change_json(header, draw)
        made = _dumped(header)
    except (ValueError, RecursionError):
        return _flip(data, draw)
    return len(made).to_bytes(8, "little") + made + data[8 + size :]


def _tensors_size(data: bytes, draw: random.Random) -> bytes:
    odd = (0, 1, 2**31, 2**63, 2**64 - 1, len(data), len(data) - 8)
    return draw.choice(odd).to_bytes(8, "little") + data[8:]


def _tensors_values(data: bytes, draw: random.Random) -> bytes:
    """Numbers that are none, in the weights themselves."""
    size = int.from_bytes(data[:8], "little")
    at = 8 + size + 4 * draw.randrange(max((len(data) - 8 - size) // 4, 1))
    odd = draw.choice((float("nan"), float("inf"), 3e38, 1e-45, 0.25))
    return data[:at] + struct.pack("<f", odd) + data[at + 4 :]


def _inside_gzip(data: bytes, draw: random.Random) -> bytes:
    try:
        text = gzip.decompress(data)
    except (OSError, EOFError):
        return _flip(data, draw)
    return gzip.compress(of_bytes(text, draw), mtime=0)


def _bomb(_: bytes, __: random.Random) -> bytes:
    """Little that becomes very much: 100 MB of one letter, on one line."""
    return gzip.compress(b"a" * 100_000_000, compresslevel=1, mtime=0)


# What stands where the file should be.


def _missing(path: Path) -> None:
    path.unlink()


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(target: str) -> Callable[[Path], None]:
    def linked(path: Path) -> None:
        path.unlink()
        path.symlink_to(path.name if target == "itself" else target)

    return linked


def _unreadable(path: Path) -> None:
    path.chmod(0)


PLACES: dict[str, Callable[[Path], None]] = {
    "missing": _missing,
    "a folder": _folder,
    "a FIFO": _fifo,
    "a link to nothing": _link("nowhere"),
    "a link to itself": _link("itself"),
    "a link to /dev/zero": _link("/dev/zero"),
    "a link to /dev/null": _link("/dev/null"),
    "unreadable": _unreadable,
}
_OF_BYTES = {
    "a bit": _flip,
    "cut off": _truncate,
    "inserted": _insert,
    "NUL bytes": _nul,
    "deleted": _delete,
    "empty": _empty,
    "noise": _noise,
    "a digit": _digit,
    "twice": _twice,
    "a byte order mark": _marked,
    "another encoding": _recoded,
    "not Unicode": _not_unicode,
    "deep nesting": _deep,
}
_OF_LINES = {
    "lines swapped": _on_lines(_swap_lines),
    "a line deleted": _on_lines(_delete_line),
    "a line twice": _on_lines(_repeat_line),
    "line ends of Windows": _on_lines(_windows),
    "a blank line": _on_lines(_blank),
    "one line": _on_lines(_one_line),
    "a long line": _on_lines(_long_line),
}
_OF_JSON = {"a JSON value": _json_value, "a key twice": _json_key_twice}
_OF_JSON_LINES = {"a value in a line": _json_line_value, "a key twice": _json_key_twice}
_OF_TOML = {"a TOML value": _toml_value, "deep TOML": _toml_deep}
_OF_SAFETENSORS = {
    "header of tensors": _tensors_header,
    "size of a header": _tensors_size,
    "odd weights": _tensors_values,
}
_OF_GZIP = {"inside gzip": _inside_gzip, "a gzip bomb": _bomb}
_OF_LEDGERS = {"sealed anew": _ledger_anew, "shorter, sealed anew": _ledger_shorter}


def _on_file(change: Callable[[bytes, random.Random], bytes]) -> Callable[..., None]:
    def changed(path: Path, draw: random.Random) -> None:
        path.write_bytes(change(path.read_bytes(), draw))

    return changed


KINDS: dict[str, Callable[[Path, random.Random], None]] = {
    name: _on_file(change)
    for table in (
        *(_OF_BYTES, _OF_LINES, _OF_JSON, _OF_JSON_LINES, _OF_TOML, _OF_SAFETENSORS, _OF_GZIP),
    )
    for name, change in table.items()
} | _OF_LEDGERS
SEALED = tuple(_OF_LEDGERS)  # of which the chain says nothing


def _is_text(path: Path) -> bool:
    return path.suffix in (
        *(".json", ".jsonl", ".toml", ".txt", ".csv", ".tsv", ".md", ".html", ".py"),
    )
