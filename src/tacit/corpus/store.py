"""A corpus on disk: opened in no time, read one user at a time, whatever its size.

A corpus directory holds these files; `corpus.writer` makes them.

    corpus.json     format, counts, options, salt, fingerprint, whose text it is, and the sizes
                    and digests of the other files
    users.arrow     one row per user, in order: id, offset, texts, words
    texts.arrow     one row per text, a user's texts next to each other: text, held_out
    lines.json      a sample of lines, hashed with the salt, to find them again elsewhere
    people/         a copy of the ledger of its people, for another installation to take over

A user's texts are the rows offset .. offset + texts of texts.arrow.  Both tables are Arrow IPC
files of one record batch each, without compression: mapped into memory, one batch costs the same
to open whatever its size, and a user is read from where the user is.
"""

from __future__ import annotations

import hashlib
import mmap
import re
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import pyarrow as pa

from tacit.corpus import people
from tacit.corpus.hashing import derived
from tacit.corpus.sketches import LineSketch
from tacit.corpus.source import Counts, Mask, Progress, Subset, UserCorpus, UserSource
from tacit.privacy import trusted
from tacit.privacy.documents import DamagedFile, fitted, read_json

FORMAT = "tacit corpus"
VERSION = 2
META = "corpus.json"
USERS = "users.arrow"
TEXTS = "texts.arrow"
LINES = "lines.json"
USERS_SCHEMA = pa.schema(
    [
        ("id", pa.binary(16)),
        ("offset", pa.uint64()),
        ("texts", pa.uint32()),
        ("words", pa.uint64()),
    ]
)
TEXTS_SCHEMA = pa.schema([("text", pa.large_string()), ("held_out", pa.bool_())])

_FILES = {"bytes": {USERS, TEXTS}, "digests": {USERS, TEXTS, LINES}}
_PIECE = 1 << 20


class _Input(TypedDict):
    sha256: str


class _Meta(TypedDict):
    """What corpus.json holds, as far as it is read here."""

    users: int
    test_users: int
    fingerprint: str
    bytes: dict[str, int]
    salt: str
    digests: dict[str, str]
    inputs: list[_Input]
    people: str
    new_people: NotRequired[str | None]
    overlaps: list[tuple[str, float]]
    about_people: bool


class Corpus(UserCorpus):
    """All users of a corpus directory, test users first; `train` and `test` are the two parts.

    Users are in ascending order of their keys (`corpus.hashing`), and the head of the key decides
    who is a test user: so both parts are ranges of users.
    """

    def __init__(self, path: Path, meta: _Meta) -> None:
        self.path = path
        self._meta = meta
        users = _mapped_table(path / USERS, meta["bytes"][USERS], USERS_SCHEMA)
        texts = _mapped_table(path / TEXTS, meta["bytes"][TEXTS], TEXTS_SCHEMA)
        # Columns lie where they are in the files: nothing is copied here.
        self._ids: Any = users.column("id")
        self._text: Any = texts.column("text")
        self._held_out: Any = texts.column("held_out")
        self._offsets: Any = users.column("offset").to_numpy()
        self._counts: Any = users.column("texts").to_numpy()
        self._words: Any = users.column("words").to_numpy()
        if len(users) != meta["users"]:
            raise DamagedFile(path / META, f"it says {meta['users']} users, and has {len(users)}")

    @classmethod
    def open(cls, path: str | Path) -> Corpus:
        """Map a corpus directory; costs the same for a thousand users and for ten million."""
        trusted.refuse_irregular_in(Path(path))
        return cls(Path(path), _read_meta(Path(path)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Corpus.open, (self.path,)  # another process maps the files by itself

    def __len__(self) -> int:
        return len(self._ids)

    def user_id(self, index: int) -> str:
        user_id: bytes = self._ids[self._checked(index)].as_py()
        return user_id.hex()

    def texts(self, index: int) -> list[str]:
        texts: list[str] = self._text.slice(*self._rows(index)).to_pylist()
        return texts

    def text(self, index: int, position: int) -> str:
        start, count = self._rows(index)
        if not 0 <= position < count:
            raise IndexError(f"text {position} of {count}")
        return str(self._text[start + position])

    def text_counts(self) -> Counts:
        return np.asarray(self._counts, dtype=np.int64)

    def word_counts(self) -> Counts:
        """The number of words, divided at blanks, of each user."""
        return np.asarray(self._words, dtype=np.int64)

    def held_out_mask(self, index: int) -> Mask:
        marks = self._held_out.slice(*self._rows(index))
        return np.asarray(marks.to_numpy(zero_copy_only=False), dtype=np.bool_)

    @property
    def fingerprint(self) -> str:
        return str(self._meta["fingerprint"])

    @property
    def train(self) -> UserSource:
        return Subset(self, range(int(self._meta["test_users"]), len(self)))

    @property
    def test(self) -> UserSource:
        return Subset(self, range(int(self._meta["test_users"])))

    @property
    def identity(self) -> str:
        return people.resolve(str(self._meta["people"]))

    @property
    def split_identity(self) -> str:
        # Parts are cut by the hashed ids, and those by the salt.
        return derived("corpus identity", self._meta["salt"])[:16]

    @property
    def about_people(self) -> bool:
        return bool(self._meta["about_people"])

    @property
    def commitment(self) -> str:
        digests = [f"{name} {digest}" for name, digest in sorted(self._meta["digests"].items())]
        return derived("corpus commitment", self._meta["salt"], self._meta["test_users"], *digests)

    def declarations(self, colluding: int | None = None) -> tuple[str, ...]:
        said = [
            "what other runs have cost those of these users who are in another corpus too (about"
            f" {share:.0%} of the smaller of the two)"
            for _, share in self._meta["overlaps"]
        ]
        if self._meta.get("new_people"):
            said.append(
                "what was spent on people of an earlier corpus with the same ids, who are declared"
                " to be others"
            )
        return tuple(said)

    def verify(self, progress: Progress | None = None) -> None:
        """Hash the files again; one that is not what corpus.json says is named and refused."""
        paths = {self.path / name: digest for name, digest in self._meta["digests"].items()}
        for path in paths:
            if not path.exists():
                raise ValueError(f"{str(path)!r} is missing: ingest the input again")
        total, done = sum(path.stat().st_size for path in paths), 0
        for path, expected in paths.items():
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while data := file.read(_PIECE):
                    digest.update(data)
                    done += len(data)
                    if progress is not None:
                        progress(done, total)
            if digest.hexdigest() != expected:
                raise ValueError(
                    f"{str(path)!r} was changed since it was ingested: its SHA-256 is not the one"
                    f" in {META}; ingest the input again"
                )

    @property
    def input_digests(self) -> frozenset[str]:
        """The SHA-256 of each file that was ingested."""
        return frozenset(str(file["sha256"]) for file in self._meta["inputs"])

    @property
    def line_key(self) -> bytes:
        """The key of `line_sketch`."""
        return bytes.fromhex(self._meta["salt"])

    def line_sketch(self) -> LineSketch:
        """A sample of the lines of all texts, by which they are found again elsewhere."""
        path = self.path / LINES
        try:
            return LineSketch.from_json(read_json(path, dict[str, Any]))
        except OSError as problem:
            raise ValueError(f"cannot read {str(path)!r}: {problem.strerror}") from None
        except ValueError:
            raise ValueError(f"{str(path)!r} is damaged: ingest the input again") from None

    def info(self) -> dict[str, Any]:
        return {name: value for name, value in self._meta.items() if name != "salt"}

    def _rows(self, index: int) -> tuple[int, int]:
        """A user's first row in the table of texts, and the number of rows."""
        index = self._checked(index)
        return int(self._offsets[index]), int(self._counts[index])


def _mapped_table(path: Path, size: int, schema: pa.Schema) -> pa.RecordBatch:
    """An Arrow file of one record batch, mapped into memory at the same cost whatever its size.

    A file that does not have these bytes and these columns is refused.
    """
    actual = path.stat().st_size if path.exists() else 0
    if actual != size:
        raise ValueError(f"{str(path)!r} is damaged: it has {actual:,} bytes instead of {size:,}")
    with path.open("rb") as file:
        # Not pyarrow's own memory map: that one asks the system to read ahead all of the file.
        mapped = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        batch = pa.ipc.open_file(mapped).get_batch(0)
        if batch.schema != schema:
            raise pa.ArrowInvalid("other columns")
    except (pa.ArrowInvalid, ValueError):
        raise ValueError(f"{str(path)!r} is damaged: it does not hold its table") from None
    return batch


def _read_meta(path: Path) -> _Meta:
    """What corpus.json says; a folder that is no whole corpus of this version is refused."""
    if not path.exists():
        raise ValueError(f"there is no corpus at {str(path)!r}: make one with tacit ingest")
    try:
        fields = read_json(path / META, dict[str, Any])
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"{str(path)!r} is not a corpus: it has no {META}; make one with tacit ingest"
        ) from None
    if fields.get("format") != FORMAT:
        raise ValueError(f"{str(path / META)!r} does not describe a corpus of tacit")
    if fields.get("version") != VERSION:
        raise ValueError(
            f"the corpus {str(path)!r} has format version {fields.get('version')}; this tacit reads"
            f" version {VERSION}: ingest its input again"
        )
    meta = fitted(fields, _Meta, path / META)
    for name, files in _FILES.items():
        if fields[name].keys() != files:
            raise DamagedFile(path / META, f"{name} must have {', '.join(sorted(files))}")
    if not (0 <= meta["test_users"] <= meta["users"] and re.fullmatch("(..)+", meta["salt"])):
        raise DamagedFile(path / META, "its counts or its salt are none")
    if not re.fullmatch("[0-9a-f]*", meta["salt"] + meta["fingerprint"]):
        raise DamagedFile(path / META, "its salt or fingerprint has other than hexadecimal digits")
    return meta
