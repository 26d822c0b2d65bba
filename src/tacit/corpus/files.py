"""Input files: which there are, what format each has, and its lines or bytes as they come.

A name says the format and the compression (`chats.csv.gz`); the first bytes of a file must agree
with the compression.  Files are read as streams, so their size does not matter.
"""

from __future__ import annotations

import glob
import hashlib
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from tacit.privacy import trusted
from tacit.privacy.checks import argument
from tacit.privacy.records import one_of

FORMATS = {
    "csv": "CSV",
    "tsv": "TSV",
    "jsonl": "JSON Lines",
    "parquet": "Parquet",
    "text": "plain text",
}
_SUFFIXES = {f".{name}": name for name in FORMATS} | {
    ".tab": "tsv",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".pq": "parquet",
    ".txt": "text",
}
_COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


@dataclass(frozen=True)
class InputFile:
    """A file to ingest.

    format: one of `FORMATS`.
    user: the name of the file without its endings, relative to the folder or glob that it was
        named by: in a folder with one text file per user, whose text it is.
    """

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
    """All files that the inputs (files, folders, globs) stand for, in order of their paths.

    They must be of one format, which their names or `format` say.  A folder of files whose names
    say nothing, or that are text, holds one text file per user.
    """
    if format is not None:
        one_of(*FORMATS)(argument("format"), format)
    if isinstance(inputs, (str, Path)):
        inputs = [inputs]
    users: dict[Path, tuple[Path, str]] = {}
    for name in inputs:
        if not str(name).strip():
            raise ValueError("the name of an input is empty: name a file, a folder or a glob")
        for path, base in _expanded(name):
            users.setdefault(path.resolve(), (path, str(path.relative_to(base or path.parent))))
    if not users:
        raise ValueError("no input: name a file, a folder or a glob")
    named = sorted(users.values(), key=lambda pair: str(pair[0]))
    kinds = [format or format_of(path) for path, _ in named]
    if set(kinds) <= {None, "text"} and any(Path(name).is_dir() for name in inputs):
        kinds = ["text"] * len(named)
    files = []
    for (path, user), kind in zip(named, kinds, strict=True):
        if kind is None:
            raise ValueError(
                f"cannot tell the format of {str(path)!r} by its name: say which of"
                f" {', '.join(FORMATS)} it is"
            )
        files.append(InputFile(path, kind, stem(user)))
        if kind != files[0].format:
            raise ValueError(
                f"{str(files[0].path)!r} is {FORMATS[files[0].format]} and {str(path)!r} is"
                f" {FORMATS[kind]}: ingest files of one format at a time"
            )
    if files[0].format == "text":
        seen: dict[str, Path] = {}
        for file in files:
            if (same := seen.setdefault(file.user, file.path)) != file.path:
                raise ValueError(
                    f"{str(same)!r} and {str(file.path)!r} would be the same user {file.user!r}:"
                    " give their folder, or a quoted glob"
                )
    return files


def _expanded(name: str | Path) -> list[tuple[Path, Path | None]]:
    """(file, folder that its user's name is relative to) for one input."""
    path = Path(name)
    if path.is_dir():
        inside = [entry for entry in path.rglob("*") if entry.is_file()]
        # Not what is hidden: files, and folders on the way to them, whose names start with a dot.
        files = [file for file in inside if "/." not in f"/{file.relative_to(path).as_posix()}"]
        if not files:
            raise ValueError(f"the folder {str(name)!r} has no files in it")
        return [(file, path) for file in files]
    if path.exists():
        return [(path, None)]
    if not glob.has_magic(str(name)):
        raise ValueError(f"there is no file {str(name)!r}")
    matches = map(Path, glob.glob(str(name), recursive=True))
    files = [match for match in matches if match.is_file()]
    if not files:
        raise ValueError(f"no file matches {str(name)!r}")
    fixed = takewhile(lambda part: not glob.has_magic(part), path.parts)
    base = Path(*fixed)
    return [(file, base) for file in files]


def format_of(path: Path) -> str | None:
    """The format that a file's name says, or None."""
    plain = path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
    return _SUFFIXES.get(plain.suffix.lower())


def stem(name: str) -> str:
    """A file's name without what says how it is written: alice.txt.gz is alice's."""
    for suffixes in (_COMPRESSED, _SUFFIXES):
        for suffix in suffixes:
            if name.lower().endswith(suffix) and len(name) > len(suffix):
                name = name[: -len(suffix)]
                break
    return name


@dataclass(frozen=True)
class InputStream:
    """The decompressed bytes of an open file, and the file itself, which says how far it is read.

    data: the bytes; `raw` is the file on disk.
    """

    path: Path
    raw: io.BufferedReader
    data: io.BufferedReader

    def lines(self, encoding: str = "utf-8") -> Iterator[str]:
        """The lines of a file, with their ends; what is not in the encoding is refused by line."""
        name = repr(str(self.path))
        if encoding != "utf-8":
            yield from self._decoded(encoding)
            return
        head = self.data.peek(4096)[:4096]
        if not head:
            raise ValueError(f"{name} is empty")
        if b"\0" in head:
            raise ValueError(
                f"{name} is binary (or UTF-16): what is read as text must be UTF-8, or its encoding"
                " be said"
            )
        for number, raw in enumerate(self.data, 1):
            try:
                line = raw.decode()
            except UnicodeDecodeError as problem:
                raise ValueError(
                    f"line {number} of {name} is not UTF-8: byte 0x{raw[problem.start]:02x} at"
                    f" position {problem.start + 1}; say its encoding, such as latin-1 or cp1252"
                ) from None
            yield line.removeprefix("\ufeff") if number == 1 else line

    def _decoded(self, encoding: str) -> Iterator[str]:
        """The lines of a file in another encoding than UTF-8."""
        number = 0
        try:
            with io.TextIOWrapper(self.data, encoding, newline="\n") as text:
                for number, line in enumerate(text, 1):
                    yield line.removeprefix("\ufeff") if number == 1 else line
        except UnicodeError:
            raise ValueError(
                f"{str(self.path)!r} is not {encoding} after line {number}: say another encoding"
            ) from None
        if not number:
            raise ValueError(f"{str(self.path)!r} is empty")


@contextmanager
def opened(path: Path) -> Iterator[InputStream]:
    """Open a file, plain, gzip or zstd, to read it from start to end.

    What is wrong with it (empty, cut short, damaged, not what its name says) becomes a
    `ValueError` of one sentence, also where that is noticed only while it is read in the block.
    """
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
        data: Any = raw
        if kind is not None:
            import pyarrow as pa  # slow, and most files are not compressed

            data = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), kind)
        try:
            yield InputStream(path, raw, io.BufferedReader(data, 1 << 18))
        except OSError as problem:
            if kind is None or problem.errno is not None:
                raise
            cut = "is cut short" if "Truncated" in str(problem) else "is damaged"
            raise ValueError(f"{name} {cut}: its {kind} data does not decompress") from None


def sha256_of(path: Path) -> str:
    """The digest of a file as it lies on the disk."""
    with _readable(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _readable(path: Path) -> io.BufferedReader:
    """An open file; one that cannot be opened is refused in one sentence."""
    try:
        return trusted.open_regular(path)
    except OSError as problem:
        raise ValueError(f"cannot read {str(path)!r}: {problem.strerror or problem}") from None
