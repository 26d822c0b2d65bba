"""Users' tokens on disk, memory-mapped: one cache per tokenizer, source and cap.

A user's tokens are those of each text in turn, BOS to EOS, cut at the cap: a function of that
user's own text.  A cache is a folder with three arrays, and a description that is written last:

    tokens.npy   all users' tokens, one user after the other (uint16 where the vocabulary fits)
    offsets.npy  where each user's tokens start, and where the last one's end
    sums.npy     a CRC-32 of each user's tokens, compared when that user is read
    cache.json   what the cache is of, and how large the arrays are

Opening reads the description and the sizes of the files and nothing that grows with the users.
The folder is as private as the text.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tacit.privacy import checks, durable
from tacit.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tacit.corpus.source import UserSource
import fcntl
import io
import os
from contextlib import contextmanager

Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
Progress = Callable[[int, int], None]  # users done, users in all

PAPERS_CAP = 1600

_CHUNK_TEXTS, _CHUNK_CHARACTERS = 5_000, 1_000_000  # what is tokenized at once


@dataclass(frozen=True)
class Description:
    """What a cache is of, as cache.json says it; the key is all but the number of tokens."""

    tokenizer: str
    source: str
    max_tokens_per_user: int | None
    users: int
    dtype: str
    total_tokens: int = 0
    format: str = "tacit-tokens-1"

    @property
    def folder_name(self) -> str:
        cap = "all" if self.max_tokens_per_user is None else self.max_tokens_per_user
        return f"tokens-{self.tokenizer[:16]}-{self.source[:16]}-{cap}"


class TokenCache:
    """The tokens of every user of a source, each as a view of the file."""

    def __init__(self, path: Path, description: Description) -> None:
        self.path = path
        self.description = description
        users, total = description.users, description.total_tokens
        self._tokens = mapped_array(path / "tokens.npy", description.dtype, total)
        self._offsets = mapped_array(path / "offsets.npy", "int64", users + 1)
        self._sums = mapped_array(path / "sums.npy", "uint32", users)
        if self._offsets[0] != 0 or self._offsets[-1] != total:
            raise ValueError("its offsets do not cover its tokens")

    @classmethod
    def open_or_build(
        cls,
        source: UserSource,
        tokenizer: Tokenizer,
        folder: str | Path,
        *,
        max_tokens_per_user: int | None = PAPERS_CAP,
        progress: Progress | None = None,
    ) -> TokenCache:
        """The cache in `folder`, built first if it is not there or is damaged.

        A cache exists whole or not at all; who finds another process building it waits.
        """
        if max_tokens_per_user is not None:
            checks.whole("max_tokens_per_user", max_tokens_per_user, at_least=1)
        wanted = Description(
            tokenizer=tokenizer.fingerprint,
            source=_safe_name(source.fingerprint),
            max_tokens_per_user=max_tokens_per_user,
            users=len(source),
            dtype="uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32",
        )
        path = Path(folder) / wanted.folder_name
        if (found := cls._open_if_sound(path, wanted)) is not None:
            return found
        with exclusively(path):
            if (found := cls._open_if_sound(path, wanted)) is not None:  # built meanwhile
                return found
            with durable.whole_folder(path, mode=0o700, replace=True) as partial:
                _build(partial, wanted, source, tokenizer, progress)
            return cls.open(path)

    @classmethod
    def open(cls, path: str | Path) -> TokenCache:
        """A cache that exists; `ValueError` says what is wrong with it."""
        path = Path(path)
        try:
            return cls(path, _read_description(path))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"the token cache {path} cannot be used: {error}; delete it to have it built again"
            ) from error

    @classmethod
    def _open_if_sound(cls, path: Path, wanted: Description) -> TokenCache | None:
        try:
            cache = cls.open(path)
        except ValueError:
            return None
        same = asdict(cache.description) | {"total_tokens": 0} == asdict(wanted)
        return cache if same else None

    def __len__(self) -> int:
        return self.description.users

    def tokens(self, index: int) -> Tokens:
        """A user's tokens, read-only and without a copy; `ValueError` if they are damaged."""
        if not 0 <= index < len(self):
            raise IndexError(f"user {index} of {len(self)}: users are numbered from 0")
        start, end = int(self._offsets[index]), int(self._offsets[index + 1])
        tokens = self._tokens[start:end]
        in_place = 0 <= start <= end <= len(self._tokens)
        if not in_place or zlib.crc32(tokens.data) != self._sums[index]:
            raise ValueError(
                f"the token cache {self.path} is damaged at user {index}: delete it to have it"
                " built again"
            )
        return tokens

    def lengths(self) -> npt.NDArray[np.int64]:
        """How many tokens each user has; takes time linear in the users."""
        return np.diff(self._offsets)

    def verify(self) -> None:
        """Read every user's tokens; `ValueError` at the first damaged one."""
        for index in range(len(self)):
            self.tokens(index)

    def __repr__(self) -> str:
        return f"<{self.description.total_tokens:,} tokens of {len(self):,} users in {self.path}>"

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return TokenCache.open, (self.path,)


def user_tokens(
    texts: list[str], tokenizer: Tokenizer, max_tokens_per_user: int | None = PAPERS_CAP
) -> list[int]:
    """What a cache holds for a user with these texts."""
    encoded = tokenizer.encode_batch(_needed(texts, max_tokens_per_user))
    return [id for ids in encoded for id in ids][:max_tokens_per_user]


def _needed(texts: list[str], cap: int | None) -> list[str]:
    """The texts that the cap can reach, since each has two tokens at least."""
    return texts if cap is None else texts[: (cap + 1) // 2]


def _build(
    path: Path,
    wanted: Description,
    source: UserSource,
    tokenizer: Tokenizer,
    progress: Progress | None,
) -> None:
    offsets = np.zeros(wanted.users + 1, np.int64)
    sums = np.zeros(wanted.users, np.uint32)
    with growing_array(path / "tokens.npy", wanted.dtype) as append:
        index = 0
        for tokens in _encoded_users(wanted, source, tokenizer, progress):
            append(tokens)
            offsets[index + 1] = offsets[index] + len(tokens)
            sums[index] = zlib.crc32(tokens.data)
            index += 1
    assert index == wanted.users
    write_array(path / "offsets.npy", offsets)
    write_array(path / "sums.npy", sums)
    described = asdict(wanted) | {"total_tokens": int(offsets[-1])}
    durable.write_whole(path / "cache.json", json.dumps(described, indent=1).encode())


def _encoded_users(
    wanted: Description, source: UserSource, tokenizer: Tokenizer, progress: Progress | None
) -> Iterator[npt.NDArray[Any]]:
    """Each user's tokens in turn; many users' texts go through the tokenizer at once."""
    cap = wanted.max_tokens_per_user
    texts: list[str] = []
    counts: list[int] = []
    characters = 0
    for index in range(wanted.users):
        mine = _needed(source.texts(index), cap)
        texts += mine
        counts.append(len(mine))
        characters += sum(map(len, mine))
        is_full = len(texts) >= _CHUNK_TEXTS or characters >= _CHUNK_CHARACTERS
        if is_full or index == wanted.users - 1:
            encoded = iter(_encode_naming_the_user(texts, counts, index, tokenizer))
            for count in counts:
                ids = [id for _ in range(count) for id in next(encoded)]
                yield np.array(ids[:cap], wanted.dtype)
            texts, counts, characters = [], [], 0
            if progress is not None:
                progress(index + 1, wanted.users)


def _encode_naming_the_user(
    texts: list[str], counts: list[int], last: int, tokenizer: Tokenizer
) -> list[list[int]]:
    """`encode_batch`, whose complaint about a text names the user whose text it is."""
    try:
        return tokenizer.encode_batch(texts)
    except ValueError:
        start = 0
        for index, count in enumerate(counts, start=last + 1 - len(counts)):
            try:
                tokenizer.encode_batch(texts[start : start + count])
            except ValueError as error:
                raise ValueError(f"a text of user {index} cannot be tokenized: {error}") from error
            start += count
        raise


def _read_description(path: Path) -> Description:
    try:
        data = json.loads((path / "cache.json").read_bytes())
        description = Description(**data)
    except FileNotFoundError:
        raise ValueError("it has no cache.json") from None
    except (ValueError, TypeError) as error:
        raise ValueError("its cache.json is damaged") from error
    numbers = (description.users, description.total_tokens)
    is_sound = all(type(number) is int and number >= 0 for number in numbers)
    is_sound = is_sound and description.dtype in ("uint16", "uint32")
    if not is_sound or description.format != Description.format:
        raise ValueError(f"its cache.json is not in the format {Description.format}")
    return description


def _safe_name(fingerprint: str) -> str:
    if not fingerprint.isalnum():
        raise ValueError(f"a source's fingerprint must be letters and digits, got {fingerprint!r}")
    return fingerprint


# Folders of arrays that exist whole or not at all, built by one process at a time.

_HEADER = 128  # bytes of the .npy header of any array of numbers with one dimension


@contextmanager
def exclusively(path: Path) -> Iterator[None]:
    """Nobody else is in here for the same folder; the system lets go of a process that dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def growing_array(path: Path, dtype: str) -> Iterator[Callable[[npt.NDArray[Any]], object]]:
    """A .npy file whose length nobody knows yet: call what you get with each part in turn."""
    with open(path, "wb") as file:
        file.write(bytes(_HEADER))
        length = 0

        def append(part: npt.NDArray[Any]) -> None:
            nonlocal length
            assert part.dtype == dtype
            assert part.ndim == 1
            file.write(part.data)
            length += len(part)

        yield append
        file.seek(0)
        file.write(_npy_header(dtype, length))
        file.flush()
        os.fsync(file.fileno())


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """A one-dimensional .npy file, synced."""
    with growing_array(path, str(array.dtype)) as append:
        append(array)


def mapped_array(path: Path, dtype: str, length: int) -> npt.NDArray[Any]:
    """The array of a file as those above write it; `ValueError` if its size or header is not so."""
    header = _npy_header(dtype, length)
    size = len(header) + length * np.dtype(dtype).itemsize
    with open(path, "rb") as file:
        if file.read(_HEADER) != header:
            raise ValueError(f"{path.name} does not start like {length} numbers of type {dtype}")
        if (found := os.fstat(file.fileno()).st_size) != size:
            raise ValueError(f"{path.name} has {found} bytes where there should be {size}")
        if length == 0:
            return np.empty(0, dtype)  # nothing can be mapped
        return np.memmap(file, dtype, "r", _HEADER, (length,)).view(np.ndarray)


def _npy_header(dtype: str, length: int) -> bytes:
    description = np.lib.format.dtype_to_descr(np.dtype(dtype))
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": description, "fortran_order": False, "shape": (length,)}
    )
    assert buffer.tell() == _HEADER
    return buffer.getvalue()
