"""Input files: which there are, what format each has, and its lines or bytes as they come."""

from __future__ import annotations

import glob
import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

FORMATS = {
    "csv": "CSV",
    "tsv": "TSV",
    "jsonl": "JSON Lines",
    "parquet": "Parquet",
    "text": "plain text",
}
_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".txt": "text",
    ".text": "text",
}
_COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


@dataclass(frozen=True)
class InputFile:
    """A file, its format, and for a text file whose text it is."""

    path: Path
    format: str
    user: str

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self.path.stat().st_size


def input_files(
    inputs: str | Path | Sequence[str | Path], format: str | None = None
) -> list[InputFile]:
    """All files that the inputs (files, folders, globs) stand for, in order of their paths."""
    if format is not None and format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    if isinstance(inputs, (str, Path)):
        inputs = [inputs]
    found: dict[Path, InputFile] = {}
    for given in inputs:
        for path, base in _expanded(given):
            user = str(path.relative_to(base)) if base else path.name
            found.setdefault(path.resolve(), InputFile(path, "", user))
    if not found:
        raise ValueError("no input: name a file, a folder or a glob")
    files = sorted(found.values(), key=lambda file: str(file.path))
    kinds = {file.path: format or _format(file.path) for file in files}
    if set(kinds.values()) <= {None, "text"} and any(Path(given).is_dir() for given in inputs):
        kinds = dict.fromkeys(kinds, "text")  # one file per user, whatever their names end in
    for file in files:
        kind = kinds[file.path]
        if kind is None:
            raise ValueError(
                f"cannot tell the format of {str(file.path)!r} by its name: say which of"
                f" {', '.join(FORMATS)} it is"
            )
        first = kinds[files[0].path]
        if kind != first:
            raise ValueError(
                f"{str(files[0].path)!r} is {FORMATS[str(first)]} and {str(file.path)!r} is"
                f" {FORMATS[kind]}: ingest files of one format at a time"
            )
    named = [InputFile(f.path, str(kinds[f.path]), _stem(f.user)) for f in files]
    if named[0].format == "text":
        _check_distinct(named)
    return named


def _expanded(given: str | Path) -> list[tuple[Path, Path | None]]:
    """(file, folder that its user's name is relative to) for one input."""
    path = Path(given)
    if path.is_dir():
        inside = [p for p in path.rglob("*") if p.is_file()]
        files = [p for p in inside if not _hidden(p.relative_to(path))]
        if not files:
            raise ValueError(f"the folder {str(given)!r} has no files in it")
        return [(file, path) for file in files]
    if path.exists():
        return [(path, None)]
    if glob.has_magic(str(given)):
        found = [Path(p) for p in glob.glob(str(given), recursive=True)]
        files = [p for p in found if p.is_file()]
        if not files:
            raise ValueError(f"no file matches {str(given)!r}")
        fixed = []  # the parts before the first wildcard
        for part in path.parts[:-1]:
            if glob.has_magic(part):
                break
            fixed.append(part)
        return [(file, Path(*fixed)) for file in files]
    raise ValueError(f"there is no file {str(given)!r}")


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _format(path: Path) -> str | None:
    plain = path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
    return _SUFFIXES.get(plain.suffix.lower())


def _stem(name: str) -> str:
    """A file's name without what says how it is written: alice.txt.gz is alice's."""
    for suffixes in (_COMPRESSED, _SUFFIXES):
        for suffix in suffixes:
            if name.lower().endswith(suffix) and len(name) > len(suffix):
                name = name[: -len(suffix)]
                break
    return name


def _check_distinct(files: list[InputFile]) -> None:
    seen: dict[str, Path] = {}
    for file in files:
        if file.user in seen:
            raise ValueError(
                f"{str(seen[file.user])!r} and {str(file.path)!r} would be the same user"
                f" {file.user!r}: give their folder, or a quoted glob"
            )
        seen[file.user] = file.path


class ByteStream:
    """The decompressed bytes of a file, and how much of the file has been read for them."""

    def __init__(self, raw: IO[bytes], data: io.BufferedReader) -> None:
        self._raw, self.data = raw, data

    @property
    def position(self) -> int:
        """Bytes of the file on disk read so far."""
        return self._raw.tell()


@contextmanager
def opened(path: Path) -> Iterator[ByteStream]:
    """Open a file, plain, gzip or zstd; what is wrong with it becomes one sentence."""
    name = repr(str(path))
    with _readable(path) as raw:
        head = raw.read(4)
        raw.seek(0)
        kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
        expected = _COMPRESSED.get(path.suffix.lower())
        if not head:
            raise ValueError(f"{name} is empty")
        if expected is not None and kind != expected:
            raise ValueError(f"{name} is not {expected} data, though its name says so")
        try:
            yield ByteStream(raw, _decompressed(raw, kind))
        except EOFError:
            raise ValueError(f"{name} is cut short: its {kind} data has no end") from None
        except (gzip.BadGzipFile, zlib.error):
            raise ValueError(f"{name} is damaged: its gzip data does not decompress") from None
        except OSError as problem:
            if kind == "zstd" and ("Truncated" in str(problem) or "ZSTD" in str(problem).upper()):
                cut = "is cut short" if "Truncated" in str(problem) else "is damaged"
                raise ValueError(f"{name} {cut}: its zstd data does not decompress") from None
            raise


def sha256_of(path: Path) -> str:
    """The digest of a file as it lies on the disk."""
    with _readable(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _readable(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except OSError as problem:
        raise ValueError(f"cannot read {str(path)!r}: {problem.strerror or problem}") from None


def _decompressed(raw: IO[bytes], kind: str | None) -> io.BufferedReader:
    if kind == "gzip":
        unpacked: Any = gzip.GzipFile(fileobj=raw)
    elif kind == "zstd":
        unpacked = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
    else:
        unpacked = raw
    return io.BufferedReader(unpacked, 1 << 18)


def text_lines(stream: ByteStream, path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, with their ends; anything else is refused by line number."""
    head = stream.data.peek(4096)[:4096]
    if not head:
        raise ValueError(f"{str(path)!r} is empty")
    if b"\0" in head:
        raise ValueError(f"{str(path)!r} is binary (or UTF-16): what is read as text must be UTF-8")
    for number, raw in enumerate(stream.data, 1):
        try:
            line = raw.decode()
        except UnicodeDecodeError as problem:
            raise ValueError(
                f"line {number} of {str(path)!r} is not UTF-8: byte 0x{raw[problem.start]:02x} at"
                f" position {problem.start + 1}"
            ) from None
        yield line.removeprefix("\ufeff") if number == 1 else line
