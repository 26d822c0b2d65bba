"""A corpus on disk: opened in no time, read one user at a time, whatever its size."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tacit.corpus import layout, people
from tacit.corpus.hashing import derived
from tacit.corpus.lines import LineSketch
from tacit.corpus.source import Counts, Mask, Progress, Source, UserCorpus, checked_index
from tacit.corpus.table import Table
from tacit.corpus.views import Subset, held_out, kept

__all__ = ["Corpus", "held_out", "kept"]

_PIECE = 1 << 20
_NEEDED = set(
    "users test_users fingerprint bytes salt digests inputs people overlaps about_people".split()
)
_FILES = {
    "bytes": {layout.USERS, layout.TEXTS},
    "digests": {layout.USERS, layout.TEXTS, layout.LINES},
}


class Corpus(UserCorpus):
    """All users of a corpus directory, test users first; `train` and `test` are the two parts."""

    def __init__(self, path: Path, meta: Mapping[str, Any], users: Table, texts: Table) -> None:
        self.path = path
        self._meta = meta
        self._length = int(meta["users"])
        self._users, self._texts = users, texts

    @classmethod
    def open(cls, path: str | Path) -> Corpus:
        """Map a corpus directory; costs the same for a thousand users and for ten million."""
        path = Path(path)
        meta = _read_meta(path)
        users, texts = (
            Table(path / name, meta["bytes"][name], schema)
            for name, schema in layout.SCHEMAS.items()
        )
        return cls(path, meta, users, texts)

    def __reduce__(self) -> tuple[Any, ...]:
        return Corpus.open, (self.path,)  # another process maps the files by itself

    def __len__(self) -> int:
        return self._length

    def user_id(self, index: int) -> str:
        return self._users.read("id", 16 * checked_index(index, self._length), 16).hex()

    def texts(self, index: int) -> list[str]:
        return self._texts.texts("text", *self._place(index))

    def text(self, index: int, position: int) -> str:
        start, count = self._place(index)
        if not 0 <= position < count:
            raise IndexError(f"text {position} of {count}")
        return self._texts.texts("text", start + position, 1)[0]

    def text_count(self, index: int) -> int:
        return self._place(index)[1]

    def text_counts(self) -> Counts:
        return self._users.column("texts")

    def word_count(self, index: int) -> int:
        """How many words, divided at blanks, a user has."""
        return self._users.numbers("words", checked_index(index, self._length), 1)[0]

    def word_counts(self) -> Counts:
        """How many words each user has."""
        return self._users.column("words")

    def held_out_mask(self, index: int) -> Mask:
        start, count = self._place(index)
        skipped = start % 8
        data = self._texts.read("held_out", start // 8, (skipped + count + 7) // 8)
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        return bits[skipped : skipped + count].astype(np.bool_)

    @property
    def fingerprint(self) -> str:
        return str(self._meta["fingerprint"])

    @property
    def train(self) -> Source:
        return Subset(self, range(int(self._meta["test_users"]), self._length))

    @property
    def test(self) -> Source:
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

    @property
    def declarations(self) -> tuple[str, ...]:
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
        files = [self.path / name for name in self._meta["digests"]]
        total, done = sum(file.stat().st_size for file in files if file.exists()), 0
        for name, expected in self._meta["digests"].items():
            digest = hashlib.sha256()
            if not (self.path / name).exists():
                raise ValueError(f"{str(self.path / name)!r} is missing: ingest the input again")
            with (self.path / name).open("rb") as file:
                while data := file.read(_PIECE):
                    digest.update(data)
                    done += len(data)
                    if progress is not None:
                        progress(done, total)
            if digest.hexdigest() != expected:
                raise ValueError(
                    f"{str(self.path / name)!r} was changed since it was ingested: its SHA-256 is"
                    f" not the one in {layout.META}; ingest the input again"
                )

    @property
    def input_digests(self) -> frozenset[str]:
        """The SHA-256 of each file that was ingested."""
        return frozenset(str(file["sha256"]) for file in self._meta["inputs"])

    @property
    def line_key(self) -> bytes:
        """What the sketch of lines is keyed with."""
        return bytes.fromhex(self._meta["salt"])

    def line_sketch(self) -> LineSketch:
        """A sample of the lines of all texts."""
        path = self.path / layout.LINES
        try:
            return LineSketch.from_json(json.loads(path.read_bytes()))
        except OSError as problem:
            raise ValueError(f"cannot read {str(path)!r}: {problem.strerror}") from None
        except ValueError:
            raise ValueError(f"{str(path)!r} is damaged: ingest the input again") from None

    def info(self) -> dict[str, Any]:
        """What corpus.json says, but for the salt, which protects the ids."""
        return {name: value for name, value in self._meta.items() if name != "salt"}

    def _place(self, index: int) -> tuple[int, int]:
        """A user's first row in the table of texts, and how many there are."""
        index = checked_index(index, self._length)
        last = index == self._length - 1
        start, *end = self._users.numbers("offset", index, 1 if last else 2)
        return start, (end[0] if end else len(self._texts)) - start


def _read_meta(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ValueError(f"there is no corpus at {str(path)!r}: make one with tacit ingest")
    try:
        meta = json.loads((path / layout.META).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"{str(path)!r} is not a corpus: it has no {layout.META}; make one with tacit ingest"
        ) from None
    except ValueError:
        raise ValueError(f"{str(path / layout.META)!r} is not JSON: it is damaged") from None
    if not isinstance(meta, dict) or meta.get("format") != layout.FORMAT:
        raise ValueError(f"{str(path / layout.META)!r} does not describe a corpus of tacit")
    if meta.get("version") != layout.VERSION:
        raise ValueError(
            f"the corpus {str(path)!r} has format version {meta.get('version')}; this tacit reads"
            f" version {layout.VERSION}: ingest its input again"
        )
    missing = _NEEDED - set(meta)
    if missing or any(set(meta[name]) != files for name, files in _FILES.items()):
        raise ValueError(f"{str(path / layout.META)!r} is damaged: {sorted(missing)} is missing")
    return meta
