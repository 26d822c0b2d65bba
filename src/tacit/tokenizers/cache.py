"""Users' tokens on disk, memory-mapped: one cache per tokenizer, source and cap.

A user's tokens are those of each text in turn, BOS to EOS, cut at the cap: a function of that
user's own text.  A cache is a folder with three arrays, and a description that is written last:

    tokens.npy   all users' tokens, one user after the other (uint16 where the vocabulary fits)
    offsets.npy  where each user's tokens start, and where the last one's end
    sums.npy     a CRC-32 of each user's tokens, compared when that user is read
    cache.json   what the cache is of, and how large the arrays are

Opening reads the description and the sizes of the files and nothing that grows with the users.
A cache exists whole or not at all, and one process at a time builds it.  The folder is as private
as the text.
"""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tacit.privacy import checks, durable
from tacit.privacy.documents import read_json
from tacit.tokenizers.capped import CappedEncoder
from tacit.tokenizers.normalisation import check_unicode
from tacit.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tacit.corpus.source import UserSource

Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
Progress = Callable[[int, int], None]  # users done, users in all

PAPERS_CAP = 1600

_CHUNK_TEXTS, _CHUNK_CHARACTERS = 20_000, 10_000_000  # of users who are tokenized at once
_HEADER = 128  # bytes of the .npy header of any array of numbers with one dimension


@dataclass(frozen=True)
class _Description:
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
        """The name of the cache's folder, which has the start of each part of the key."""
        cap = "all" if self.max_tokens_per_user is None else self.max_tokens_per_user
        return f"tokens-{self.tokenizer[:16]}-{self.source[:16]}-{cap}"

    @classmethod
    def read(cls, folder: Path) -> _Description:
        """What cache.json says; `ValueError` if it is missing or damaged."""
        try:
            description = cls(**read_json(folder / "cache.json", dict[str, Any]))
        except FileNotFoundError:
            raise ValueError("it has no cache.json") from None
        except (ValueError, TypeError) as error:
            raise ValueError("its cache.json is damaged") from error
        numbers = (description.users, description.total_tokens)
        is_sound = all(type(number) is int and number >= 0 for number in numbers)
        is_sound = is_sound and description.dtype in ("uint16", "uint32")
        if not is_sound or description.format != cls.format:
            raise ValueError(f"its cache.json is not in the format {cls.format}")
        return description


class TokenCache:
    """The tokens of every user of a source, each as a view of the file."""

    def __init__(self, path: Path, description: _Description) -> None:
        self.path = path
        self.description = description
        users, total = description.users, description.total_tokens
        self._tokens = _map_array(path / "tokens.npy", description.dtype, total)
        self._offsets = _map_array(path / "offsets.npy", "int64", users + 1)
        self._sums = _map_array(path / "sums.npy", "uint32", users)
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
        """The cache in `folder`, built first if it does not exist or is damaged.

        While another process builds the same cache, this one waits for it.
        """
        if max_tokens_per_user is not None:
            checks.whole("max_tokens_per_user", max_tokens_per_user, at_least=1)
        if not source.fingerprint.isalnum():
            raise ValueError(
                f"a source's fingerprint must be letters and digits, got {source.fingerprint!r}"
            )
        key = _Description(
            tokenizer=tokenizer.fingerprint,
            source=source.fingerprint,
            max_tokens_per_user=max_tokens_per_user,
            users=len(source),
            dtype="uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32",
        )
        path = Path(folder) / key.folder_name
        if (cache := cls._open_if_sound(path, key)) is not None:
            return cache
        durable.make_folder(path.parent)
        with durable.locked(path.with_name(f".{path.name}.lock")):
            if (cache := cls._open_if_sound(path, key)) is not None:  # built meanwhile
                return cache
            with durable.whole_folder(path, replace=True) as partial:
                _write_cache(partial, key, _encode_users(key, source, tokenizer, progress))
            return cls.open(path)

    @classmethod
    def open(cls, path: str | Path) -> TokenCache:
        """A cache that exists; `ValueError` says what is wrong with it."""
        path = Path(path)
        try:
            return cls(path, _Description.read(path))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"the token cache {path} cannot be used: {error}; delete it to have it built again"
            ) from error

    @classmethod
    def _open_if_sound(cls, path: Path, key: _Description) -> TokenCache | None:
        try:
            cache = cls.open(path)
        except ValueError:
            return None
        return cache if replace(cache.description, total_tokens=0) == key else None

    def __len__(self) -> int:
        return self.description.users

    def tokens(self, index: int) -> Tokens:
        """A user's tokens, read-only and without a copy; `ValueError` if they are damaged."""
        if not 0 <= index < len(self):
            raise IndexError(f"user {index} of {len(self)}: users are numbered from 0")
        start, end = int(self._offsets[index]), int(self._offsets[index + 1])
        tokens = self._tokens[start:end]
        is_inside = 0 <= start <= end <= len(self._tokens)
        if not is_inside or zlib.crc32(tokens.data) != self._sums[index]:
            raise ValueError(
                f"the token cache {self.path} is damaged at user {index}: delete it to have it"
                " built again"
            )
        return tokens

    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of tokens of each user; takes time linear in the users."""
        return np.diff(self._offsets)

    def __repr__(self) -> str:
        return f"<{self.description.total_tokens:,} tokens of {len(self):,} users in {self.path}>"

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return TokenCache.open, (self.path,)


def user_tokens(
    texts: list[str], tokenizer: Tokenizer, max_tokens_per_user: int | None = PAPERS_CAP
) -> list[int]:
    """What a cache holds for a user with these texts."""
    return CappedEncoder(tokenizer, max_tokens_per_user).encode([texts])[0]


def _write_cache(folder: Path, key: _Description, users: Iterable[npt.NDArray[Any]]) -> None:
    """Fill a folder with the cache of these users' tokens, in their order."""
    offsets = np.zeros(key.users + 1, np.int64)
    sums = np.zeros(key.users, np.uint32)
    with open(folder / "tokens.npy", "wb") as file:
        file.write(bytes(_HEADER))  # until the length is known
        index = 0
        for tokens in users:
            assert tokens.dtype == key.dtype
            file.write(tokens.data)
            offsets[index + 1] = offsets[index] + len(tokens)
            sums[index] = zlib.crc32(tokens.data)
            index += 1
        assert index == key.users
        total = int(offsets[-1])
        file.seek(0)
        file.write(_npy_header(key.dtype, total))
        file.flush()
        os.fsync(file.fileno())
    for name, array in (("offsets.npy", offsets), ("sums.npy", sums)):
        header = _npy_header(str(array.dtype), len(array))
        durable.write_whole(folder / name, header + array.tobytes())
    described = asdict(replace(key, total_tokens=total))
    durable.write_whole(folder / "cache.json", json.dumps(described, indent=1).encode())


def _encode_users(
    key: _Description, source: UserSource, tokenizer: Tokenizer, progress: Progress | None
) -> Iterator[npt.NDArray[Any]]:
    """Each user's tokens in turn; many users' texts go through the tokenizer at once."""
    cap = key.max_tokens_per_user
    encoder = CappedEncoder(tokenizer, cap)
    users: list[list[str]] = []
    texts = characters = 0
    for index in range(key.users):
        own = source.texts(index)
        if cap is not None:
            own = own[: (cap + 1) // 2]  # each text has two tokens at least
        try:
            users.append([check_unicode(text) for text in own])
        except ValueError as error:
            raise ValueError(f"a text of user {index} cannot be tokenized: {error}") from None
        texts += len(own)
        characters += sum(map(len, own))
        is_full = texts >= _CHUNK_TEXTS or characters >= _CHUNK_CHARACTERS
        if is_full or index == key.users - 1:
            for ids in encoder.encode(users):
                yield np.array(ids, key.dtype)
            users, texts, characters = [], 0, 0
            if progress is not None:
                progress(index + 1, key.users)


def _map_array(path: Path, dtype: str, length: int) -> npt.NDArray[Any]:
    """The array of a .npy file, mapped; `ValueError` unless its header and size are just so."""
    header = _npy_header(dtype, length)
    size = len(header) + length * np.dtype(dtype).itemsize
    with open(path, "rb") as file:
        if file.read(_HEADER) != header:
            raise ValueError(f"{path.name} does not start like {length} numbers of type {dtype}")
        if (actual := os.fstat(file.fileno()).st_size) != size:
            raise ValueError(f"{path.name} has {actual} bytes where there should be {size}")
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
