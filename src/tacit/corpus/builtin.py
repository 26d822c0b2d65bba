"""Corpora by name: `chitchat`, real chat that comes with the package, and `synthetic`.

This is the one place that knows these names.  Everything else loads a corpus and asks it, above
all whether it is about people (`UserCorpus.about_people`).

A synthetic corpus has any number of users who do not exist, each computed when it is asked for.  A
word is drawn by its rank from Zipf's law over the vocabulary.  Of the words, half follow from the
`order` words before them (one of 4 successors of that context, the same for all users), so there is
something to learn; of the rest, half are drawn from the user's topic (the same law over a
vocabulary in another order), so users differ.  Every draw is a function of (seed, user, position):
user i is the same in every corpus of that seed, whatever the number of users.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from decimal import Decimal
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from tacit.corpus import hashing, places, store
from tacit.corpus.enrolment import Enrolment
from tacit.corpus.hashing import Words, derived, mixed
from tacit.corpus.ingest import ingest_records
from tacit.corpus.source import Mask, Progress, Subset, UserCorpus, UserSource
from tacit.corpus.store import Corpus
from tacit.privacy import checks, durable, scratch
from tacit.privacy.records import Record, at_least

_BUILTIN = ("chitchat", "synthetic")
_ENROLMENT = "enrolment:"
_ALWAYS_ON, _SECURE_SUM, _TESTED_ON = ",always-on=", ",sum=secure", ",test="


def load_corpus(name_or_path: str | Path) -> UserCorpus:
    """A corpus directory, `chitchat`, or `synthetic:users=1000,words=100,...`.

    Or people whose text is elsewhere: `enrolment:DIR,test=CORPUS`, measured on the test users of
    CORPUS; `enrolment:DIR,sum=secure,test=CORPUS` if the server is to see sums only.  With
    `enrolment:DIR,always-on=WHO,test=CORPUS` somebody vouches that all silos are always on.
    """
    name = str(name_or_path)
    if name == "chitchat":
        return _chitchat()
    if is_enrolment(name):
        tested_on = name.partition(_TESTED_ON)[2]
        return Enrolment.open(
            enrolment_folder(name),
            load_corpus(tested_on) if tested_on else None,
            secure_sum=has_secure_sums(name),
            always_on=always_on(name),
        )
    if is_synthetic(name):
        return SyntheticCorpus(_synthetic_options(name))
    if not Path(name).exists():
        raise ValueError(
            f"there is no corpus {name!r}: name a directory that tacit ingest made, or one of"
            f" {', '.join(_BUILTIN)}"
        )
    corpus = Corpus.open(name)
    places.remember(corpus)
    return corpus


def find_corpus(source: str, identity: str, commitment: str) -> str:
    """The source that a run names its corpus by, or the place where that corpus lies now.

    Raises:
        ValueError: if it is not there any more, and nobody knows where it is.
    """
    if is_builtin(source) or is_enrolment(source) or Path(source).exists():
        return source
    moved_to = places.find(identity, commitment)
    if moved_to is None:
        raise ValueError(
            f"there is no corpus {source!r} any more: put it back, or if it was moved, say where it"
            " is with tacit corpus info PATH, and it is found from then on"
        )
    return str(moved_to)


def is_enrolment(name: str) -> bool:
    """Whether a name stands for people whose text is elsewhere."""
    return name.startswith(_ENROLMENT)


def enrolment_name(
    folder: Path, tested_on: str, *, secure_sum: bool = False, always_on: str = ""
) -> str:
    """The name that stands for enrolled people, and for the corpus with the test users."""
    for reserved in (_ALWAYS_ON, _SECURE_SUM, _TESTED_ON):
        if reserved in str(folder):
            raise ValueError(f"the name of an enrolment must not have {reserved!r} in it: {folder}")
    if always_on and not re.fullmatch(r"[\w(][\w .&'()/-]{0,78}[\w.)]", always_on):
        raise ValueError(
            "whoever vouches that silos are always on must be named by 2 to 80 letters, digits,"
            f" spaces and .&'()/-, got {always_on!r}"
        )
    vouched = f"{_ALWAYS_ON}{always_on}" if always_on else ""
    how = _SECURE_SUM if secure_sum else ""
    return f"{_ENROLMENT}{folder}{vouched}{how}{_TESTED_ON}{tested_on}"


def enrolment_folder(name: str) -> str:
    """The folder of the enrolment that a name stands for."""
    return _enrolment_parts(name)[0]


def always_on(name: str) -> str:
    """Who vouches that the silos which a name stands for are always on; empty if nobody does."""
    return _enrolment_parts(name)[1] if is_enrolment(name) else ""


def _enrolment_parts(name: str) -> tuple[str, str]:
    people = name.removeprefix(_ENROLMENT).partition(_TESTED_ON)[0].removesuffix(_SECURE_SUM)
    folder, _, vouched = people.partition(_ALWAYS_ON)
    return folder, vouched


def has_secure_sums(name: str) -> bool:
    """Whether a name stands for people of whom the server sees sums only."""
    return is_enrolment(name) and name.partition(_TESTED_ON)[0].endswith(_SECURE_SUM)


def is_builtin(name: str) -> bool:
    """Whether a name stands for a built-in corpus."""
    return name.partition(":")[0] in _BUILTIN


def is_synthetic(name: str) -> bool:
    """Whether a name stands for a generated corpus, which is about nobody."""
    return name.partition(":")[0] == "synthetic"


def ingest_builtin(name: str, out: str | Path, **settings: Any) -> Corpus:
    """Make a corpus directory of a built-in corpus; `settings` are those of `ingest_records`.

    Whether it is about people is recorded in it: chitchat is, a generated corpus is not.
    """
    if is_synthetic(name):
        corpus = SyntheticCorpus(_synthetic_options(name))
        settings |= {"count": len(corpus), "about_people": False}
        return ingest_records(corpus.records(), out, **settings)
    records = chitchat_records()
    settings |= {"count": len(records), "inputs": [_chitchat_file()]}
    return ingest_records(records.items(), out, **settings)


_MOST = 10**10  # of anything that is made up


def _synthetic_options(name: str) -> SyntheticOptions:
    """What `synthetic:users=1e6,words=100` asks for."""
    names = [field.name for field in fields(SyntheticOptions)]
    options: dict[str, Any] = {}
    for part in filter(None, name.partition(":")[2].split(",")):
        key, _, text = (word.strip() for word in part.partition("="))
        if key not in names:
            raise ValueError(f"{part!r} in {name!r}: synthetic takes {', '.join(names)}")
        try:
            value = float(text) if key.endswith("fraction") else _whole(text)
        except (ValueError, ArithmeticError):
            raise ValueError(
                f"{part!r} in {name!r} has no number, such as {key}=1000, up to {_MOST:.0e}"
            ) from None
        options[key] = value
    return SyntheticOptions(**options)


def _whole(text: str) -> int:
    """A whole number, which may be written as 1e6."""
    value = Decimal(text)
    if not abs(value) <= _MOST or value != value.to_integral_value():
        raise ValueError
    return int(value)


def _chitchat_file() -> Path:
    """The file that the dataset's package brings along."""
    import chitchat_dataset

    return Path(chitchat_dataset.__file__).with_name("dataset.json")


def chitchat_records() -> dict[str, list[str]]:
    """All texts of each sender of the Chit-Chat dataset, in the order they were sent."""
    conversations = json.loads(_chitchat_file().read_text(encoding="utf-8"))
    sent = [
        (said["timestamp"], said["sender"], said["text"])
        for conversation in conversations.values()
        for message in conversation["messages"]
        for said in message
    ]
    sent.sort(key=lambda said: said[0])  # stable: what was sent in one second stays as it was
    records: dict[str, list[str]] = {}
    for _, sender, text in sent:
        if text.strip():  # 33 of 258,145 are blank
            records.setdefault(sender, []).append(text)
    return records


def _chitchat() -> Corpus:
    """1,315 people's chat, 2.48M words (MIT); made on first use, and kept in the user's cache."""
    name = f"chitchat-{version('chitchat-dataset')}-{store.VERSION}"
    try:
        return _cached_chitchat(durable.own_folder(_cache_folder()) / name)
    except OSError:  # a cache that cannot be written to: one for this process, then
        return _cached_chitchat(scratch.of_this_process() / name)


def _cached_chitchat(path: Path) -> Corpus:
    """The corpus at a path, made if it is not there or damaged.

    Of processes which start at once, one makes it and the others wait for it.
    """
    with suppress(ValueError):
        return Corpus.open(path)
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(path.parent)
    with durable.locked(path.with_name(f".{path.name}.lock")):
        with suppress(ValueError):
            return Corpus.open(path)
        if path.exists():  # damaged
            shutil.rmtree(path)
        # The ids are public already: a fixed salt makes them the same for everybody.
        return ingest_builtin("chitchat", path, salt=derived("chitchat salt")[:32])


def is_cached(corpus: Corpus) -> bool:
    """Whether a corpus lies in the user's cache, from where it is never moved."""
    return corpus.path.resolve().is_relative_to(_cache_folder().resolve())


def _cache_folder() -> Path:
    """Where corpora that were made by name are kept."""
    return durable.user_folder("cache") / "corpora"


_Positive = Annotated[int, at_least(1)]
_Share = Annotated[float, checks.closed_unit]
_BRANCHES = 4
_BLOCK = 1024
_STEP = np.uint64(0x9E3779B97F4A7C15)  # splitmix64's increment
_SYLLABLES = [consonant + vowel for vowel in "aeiou" for consonant in "tnsrhldcmfpgwybvkjxz"]


@dataclass(frozen=True)
class SyntheticOptions(Record):
    """How many users of how many words, and how their words are drawn.

    words, words_per_text: words of each user in all, and of each text but perhaps the last.
    vocabulary: the number of different words.
    topics: users are divided into this many groups that prefer different words.
    order: the number of words before a word that it may follow from; 0 for none.
    """

    users: _Positive = 1000
    words: _Positive = 100
    words_per_text: _Positive = 10
    vocabulary: _Positive = 10_000
    topics: _Positive = 10
    order: int = 1
    seed: int = 0
    test_fraction: _Share = 0.1
    held_out_fraction: _Share = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.order <= 5:
            raise ValueError(f"order must be from 0 to 5, got {self.order}")


class SyntheticCorpus(UserCorpus):
    """Users drawn from a fixed law; nothing is stored but the vocabulary.

    Splits go by the same hashes as in an ingested corpus, so that ingesting these users gives the
    same test users and the same held-out texts.  They are about nobody: no claim about people is
    made, and nothing is remembered of them.
    """

    def __init__(self, options: SyntheticOptions | None = None) -> None:
        self.options = options or SyntheticOptions()
        ranks = np.arange(1, self.options.vocabulary + 1)
        weights = np.cumsum(1.0 / ranks)
        self._below = weights / weights[-1]
        self._spelling = [_spelled(rank) for rank in range(self.options.vocabulary)]
        digest = hashlib.sha256(f"tacit synthetic {self.options.seed}".encode()).digest()
        self._key = np.frombuffer(digest[:8], "<u8")[0]
        self._texts_per_user = -(-self.options.words // self.options.words_per_text)

    def __len__(self) -> int:
        return self.options.users

    def raw_id(self, index: int) -> str:
        """The id that the user has when the corpus is ingested."""
        return f"synthetic-{self.options.seed}-{index}"

    def user_id(self, index: int) -> str:
        index = self._checked(index)
        return hashing.derived("synthetic user", self.raw_id(index))[:32]

    def texts(self, index: int) -> list[str]:
        return self._block(np.array([self._checked(index)]))[0]

    def text_counts(self) -> npt.NDArray[np.int64]:
        return np.full(len(self), self._texts_per_user)

    def held_out_mask(self, index: int) -> Mask:
        key = hashing.user_key(self.raw_id(index))
        below = hashing.threshold(self.options.held_out_fraction)
        texts = [text.encode() for text in self.texts(index)]
        return np.array([hashing.held_out_draw(key, text) < below for text in texts])

    def records(self) -> Iterator[tuple[str, list[str]]]:
        """(raw id, texts) of all users, for an ingest.

        A block of users is drawn at once, which is much faster than one user at a time.
        """
        for start in range(0, len(self), _BLOCK):
            users = np.arange(start, min(start + _BLOCK, len(self)))
            for user, texts in zip(users, self._block(users), strict=True):
                yield self.raw_id(int(user)), texts

    @property
    def identity(self) -> str:
        return self.fingerprint[:16]

    @property
    def split_identity(self) -> str:
        return self.identity

    @property
    def about_people(self) -> bool:
        return False

    @property
    def commitment(self) -> str:
        return hashing.derived("corpus commitment", self.fingerprint)

    def verify(self, progress: Progress | None = None) -> None:
        """Nothing is stored, so nothing can have been changed."""

    @property
    def fingerprint(self) -> str:
        return hashing.derived("synthetic", self.options)

    @property
    def train(self) -> UserSource:
        return Subset(self, np.flatnonzero(~self._is_test))

    @property
    def test(self) -> UserSource:
        return Subset(self, np.flatnonzero(self._is_test))

    def info(self) -> dict[str, Any]:
        return {
            "format": "synthetic",
            "users": len(self),
            "test_users": int(self._is_test.sum()),
            "texts": len(self) * self._texts_per_user,
            "words": len(self) * self.options.words,
            "options": asdict(self.options),
            "fingerprint": self.fingerprint,
        }

    @cached_property
    def _is_test(self) -> Mask:
        """For each user, whether it is a test user."""
        fraction = self.options.test_fraction
        marks = (
            hashing.is_test(hashing.user_key(self.raw_id(i)), fraction) for i in range(len(self))
        )
        return np.fromiter(marks, np.bool_, len(self))

    def _block(self, users: npt.NDArray[np.int64]) -> list[list[str]]:
        """The texts of some users."""
        words, size = self.options.words, self.options.words_per_text
        ranks = self._ranks(users).reshape(len(users), -1)[:, :words].tolist()
        spell = self._spelling.__getitem__
        return [
            [" ".join(map(spell, row[i : i + size])) for i in range(0, words, size)]
            for row in ranks
        ]

    def _ranks(self, users: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The words' ranks, [user, text, position].

        Positions are drawn one after the other, for all users and texts at once, since a word may
        follow from those before it; a text knows nothing of the one before.
        """
        options = self.options
        texts, size = self._texts_per_user, options.words_per_text
        own = mixed(self._key + users.astype(np.uint64) * _STEP)
        topic = (own % np.uint64(options.topics)).astype(np.int64)[:, None]
        context: list[Words] = [np.zeros((len(users), texts), np.uint64)] * options.order
        ranks = np.empty((len(users), texts, size), np.int64)
        for position in range(size):
            index = (np.arange(texts) * size + position).astype(np.uint64)[None, :]
            draw = mixed(own[:, None] + (index + np.uint64(1)) * _STEP)
            rank = self._rank(mixed(draw + _STEP))
            # Topics take every t-th word of the vocabulary, starting elsewhere.
            topical = (rank * (2 * topic + 3) + 31 * topic) % options.vocabulary
            bits = draw >> np.uint64(56)
            rank = np.where(bits & np.uint64(1), topical, rank)
            if context:
                state = np.full_like(draw, self._key)
                for word in context:
                    state = mixed(state + (word + np.uint64(1)) * _STEP)
                branch = (draw >> np.uint64(32)) % np.uint64(_BRANCHES)
                follows = self._rank(mixed(state + branch * _STEP))
                rank = np.where(bits & np.uint64(2), follows, rank)
                context = [*context[1:], rank.astype(np.uint64) + np.uint64(1)]
            ranks[:, :, position] = rank
        return ranks

    def _rank(self, bits: Words) -> npt.NDArray[np.int64]:
        """Zipf's law by inversion of 53-bit uniform draws."""
        uniform = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return np.searchsorted(self._below, uniform, side="right").astype(np.int64)


def _spelled(rank: int) -> str:
    """A made-up word for each rank: the more frequent, the shorter."""
    word = _SYLLABLES[rank % 100]
    while rank := rank // 100:
        rank -= 1
        word = _SYLLABLES[rank % 100] + word
    return word
