"""Ingest: people's text in files, in whatever order, becomes a corpus directory.

    files -> records -> spool (sorted by user, on disk) -> capped users -> corpus directory

While the users are written, a census is taken of them: who they are is found out, and remembered,
before the corpus gets its name.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from tacit.corpus import hashing, people, places
from tacit.corpus.files import input_files, sha256_of
from tacit.corpus.grouping import Block, Spool, UserOptions
from tacit.corpus.order import OrderColumn
from tacit.corpus.readers import InputRecord, Reader, ReadOptions
from tacit.corpus.sketches import LineSketch, Sketch, add_lines
from tacit.corpus.store import Corpus
from tacit.corpus.writer import CorpusWriter, output_folder
from tacit.privacy.checks import argument

_Report = Callable[[str, int, int, int], None]
_Read = Callable[[Path], Iterator[tuple[InputRecord, str, int]]]  # records, where from, how far


class _Settings(TypedDict, total=False):
    """How records become a corpus, wherever they come from.

    options: splits and caps.
    salt: 32 hexadecimal digits that user ids are hashed with; by default random.
    skip_bad_rows: leave out rows without a user or a text; else they are refused.
    about_people: False for users who were generated: nothing is remembered of them, and nothing is
        claimed about them.  The corpus records it for everything downstream.
    new_people: a declaration that they are none of the people known here.
    memory_limit: what sorting may take of memory; 1GiB by default.
    report: called with a step's name, how much of it is done, of how much, and the rows read.
    """

    options: UserOptions | None
    salt: str | None
    skip_bad_rows: bool
    about_people: bool
    new_people: bool
    memory_limit: str
    report: _Report


def ingest(
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    user_column: str | None = None,
    text_column: str | None = None,
    order_column: str | None = None,
    format: str | None = None,
    quotes: bool = True,
    whole_files: bool = False,
    delimiter: str | None = None,
    encoding: str = "utf-8",
    order_format: str | None = None,
    **settings: Unpack[_Settings],
) -> Corpus:
    """Make the corpus directory `out` of files, folders or globs, and open it.

    The result depends on the set of rows, not on their order or on how they are divided into
    files.  A user's texts are ordered by `order_column` if there is one.  Without it, texts that
    came in one list, or in one text file, stay in that order; all else is ordered by a hash of
    the user and the text, so that a cap keeps an arbitrary part and not, say, the start of the
    alphabet.  Memory stays near `memory_limit`, whatever the size of the input.

    If half of the users were ingested here before, they are taken for the same people, and what
    was spent on them is carried over, unless `new_people` declares that they are others (see
    `people.recognise`).

    Args:
        user_column, text_column: names of columns; by default guessed.
        format: one of `files.FORMATS`; by default what the files' names say.
        quotes: whether quotes in CSV and TSV enclose a field; else they are part of the text.
        whole_files: whether a text file is one text; else each of its lines is one.
        delimiter: what divides the fields of CSV and TSV; by default a comma and a tab.
        encoding: of all files but Parquet, such as "latin-1".
        order_format: how dates in `order_column` are written, as `datetime.strptime` has it; by
            default they are numbers, ISO dates or text.  Other dates are refused without it.
        settings: as in `_Settings`.
    """
    job = _Job(Path(out), settings)
    files = input_files(inputs, format)
    if order_format is not None and order_column is None:
        raise ValueError(
            f"{argument('order_format')} says how {argument('order_column')} is written: name that"
            " column as well"
        )
    order = OrderColumn(order_format)
    reading = ReadOptions.of(files[0].format, quotes, whole_files, delimiter, encoding)

    def read(scratch: Path) -> Iterator[tuple[InputRecord, str, int]]:
        reader = Reader(user_column, text_column, order_column, scratch, reading)
        done = 0
        for file in files:
            name = repr(str(file.path))
            for record in reader.records(file):
                by = record.order
                if order_column is not None and by is not None:
                    by = order.sortable(by, f"line {record.line} of {name}")
                yield record._replace(order=by), name, done + reader.position
            facts["text_orders"] = order.texts
            done += file.size

    facts: dict[str, Any] = {"files": len(files), "format": files[0].format}
    total = sum(file.size for file in files)
    return job.run(read, total, facts, [file.path for file in files])


def ingest_records(
    records: Iterable[tuple[str, Sequence[str]]],
    out: str | Path,
    *,
    count: int = 0,
    inputs: Sequence[Path] = (),
    **settings: Unpack[_Settings],
) -> Corpus:
    """Make a corpus of (user, texts) pairs; all else is as for `ingest`.

    Args:
        records: pairs of a raw user id and texts that stay in their order; a user may come again.
        count: the number of pairs, for `report`; 0 if it is not known.
        inputs: the files that the records were read from, to be recognised by their digests.
        settings: as in `_Settings`.
    """
    job = _Job(Path(out), settings)

    def read(scratch: Path) -> Iterator[tuple[InputRecord, str, int]]:
        for number, (user, texts) in enumerate(records, 1):
            yield InputRecord(user, texts, None, number), "the records", number

    return job.run(read, count, {"files": 0, "format": "records"}, inputs)


class _Job:
    """One ingest, from records to a corpus directory; if anything fails, it leaves no trace."""

    def __init__(self, out: Path, settings: _Settings) -> None:
        salt = settings.get("salt")
        if salt is None:
            salt = secrets.token_hex(hashing.SALT_BYTES)
        if not re.fullmatch(r"[0-9a-fA-F]{32}", salt):
            raise ValueError(
                f"{argument('salt')} must be {hashing.SALT_BYTES} bytes as 32 hexadecimal digits"
            )
        self._out, self._settings, self._salt = out, settings, bytes.fromhex(salt)
        self._options = settings.get("options") or UserOptions()
        self._about_people = settings.get("about_people", True)
        self._report: _Report = settings.get("report", lambda *step: None)

    def run(self, read: _Read, total: int, facts: dict[str, Any], inputs: Sequence[Path]) -> Corpus:
        """Make the corpus of what `read` gives, of `total` bytes or records, and open it.

        `facts` are what corpus.json says of the input besides what is counted here.
        """
        with output_folder(self._out) as folder:
            scratch = folder / "scratch"
            scratch.mkdir()
            memory = self._settings.get("memory_limit", "1GiB")
            spool = Spool(scratch, self._salt, self._options, memory)
            counted = self._spool(read(scratch), total, spool)  # `read` may add to the facts
            facts = facts | counted
            digests = [{"name": path.name, "sha256": sha256_of(path)} for path in inputs]
            writer = CorpusWriter(folder, scratch)
            try:
                self._write(writer, spool, facts, digests)
            finally:
                writer.close()
            shutil.rmtree(scratch)
            places.remember(Corpus.open(folder), self._out)  # before it is there, as its people are
        return Corpus.open(self._out)

    def _spool(
        self, records: Iterator[tuple[InputRecord, str, int]], total: int, spool: Spool
    ) -> dict[str, Any]:
        """Spool all records that have a user and a text; returns how many rows were read and
        skipped.  Rows that lack one are refused unless they are to be skipped.
        """
        rows = without_user = without_text = done = 0
        first_bad = ""
        for number, (record, source, done) in enumerate(records, 1):
            texts = [text for text in record.texts if text and not text.isspace()]
            rows += len(record.texts)
            if not record.user or record.user.isspace():
                without_user += len(record.texts)
                first_bad = first_bad or f"line {record.line} of {source}"
            else:
                if texts:
                    spool.add(record.user, texts, record.order)
                if len(texts) < len(record.texts):
                    without_text += len(record.texts) - len(texts)
                    first_bad = first_bad or f"line {record.line} of {source}"
            if not number % 1024:
                self._report("reading", done, total, rows)
        spool.close()
        self._report("reading", total or done, total, rows)
        if first_bad and not self._settings.get("skip_bad_rows"):
            raise ValueError(
                f"{without_user + without_text:,} of {rows:,} rows have no user ({without_user:,})"
                f" or no text ({without_text:,}), the first at {first_bad}: mend them, or leave"
                f" them out with {argument('skip_bad_rows')}"
            )
        if not spool.rows:
            raise ValueError(f"there are no rows with a user and a text among {rows:,} rows")
        skipped = {"without_user": without_user, "without_text": without_text}
        return {"rows": rows, "skipped_rows": skipped}

    def _write(
        self,
        writer: CorpusWriter,
        spool: Spool,
        facts: dict[str, Any],
        inputs: list[dict[str, str]],
    ) -> None:
        """Write all users, find out who they are, and finish the corpus directory."""
        options, census = self._options, _Census(self._salt, self._about_people)
        self._report("sorting", 0, spool.rows, spool.rows)
        below = hashing.threshold(options.test_fraction)
        done = test_users = 0
        for block, used in spool.users():
            writer.append(block)
            census.add(block)
            # Draws have 64 bits and the bound may be 2^64: that cannot be compared in uint64.
            is_test = block.keys[:, 0] <= np.uint64(below - 1) if below else np.zeros(0, bool)
            test_users += int(is_test.sum())
            done += used
            self._report("writing", done, spool.rows, spool.rows)
        if not writer.counts["users"]:
            raise ValueError(
                f"no user has at least {options.min_texts} texts and {options.min_words} words,"
                f" as {argument('min_texts')} and {argument('min_words')} ask"
            )
        # People are remembered before their corpus gets its name: people without a corpus do no
        # harm, while a corpus of forgotten people would.
        digests = [file["sha256"] for file in inputs]
        declared_new = self._settings.get("new_people", False)
        known = census.recognise(digests, declared_new, writer.fingerprint(test_users))
        writer.finish(
            {
                "test_users": test_users,
                "salt": self._salt.hex(),
                "options": asdict(options),
                "input": facts | {"lookalike_ids": census.lookalikes()},
                "inputs": inputs,
                "people": known.people,
                "known_people": known.is_known,
                "new_people": known.declared_new,
                "overlaps": known.overlaps,
                "about_people": self._about_people,
            },
            census.lines(),
        )


class _Census:
    """Who is in a corpus that is being made, sketched in passing while its users are written."""

    def __init__(self, salt: bytes, about_people: bool) -> None:
        self._folded: list[npt.NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
        self._keys: list[bytes] = []
        self._ids: list[bytes] = []
        # Generated users need no installation to remember them.
        self._secret = people.secret() if about_people else None
        self._lines = {key: LineSketch({}) for key in (salt, self._secret) if key is not None}

    def add(self, block: Block) -> None:
        """Take a block."""
        self._folded.append(block.folded)
        add_lines(self._lines, block.text, block.text_ends)
        if self._secret is not None:
            self._keys.append(block.keys.astype(">u8").tobytes())
            self._ids.append(block.ids)

    def lines(self) -> LineSketch:
        """A sample of lines for the corpus to keep, under its salt."""
        return next(iter(self._lines.values()))

    def lookalikes(self) -> int:
        """The number of ids that differ from another one in case or blanks only."""
        _, counts = np.unique(np.concatenate(self._folded), return_counts=True)
        return int(counts[counts > 1].sum())

    def recognise(
        self, inputs: Sequence[str], new_people: bool, fingerprint: str
    ) -> people.Recognition:
        """Find out who the people are, and remember them; generated users are only named."""
        if self._secret is None:
            return people.Recognition(hashing.derived("nobody", fingerprint)[:16], False, 0.0)
        # An export names users by their hashed ids: ingested again, they are known by those.
        exported = (hashing.user_key(user.hex()) for user in _sixteens(self._ids))
        return people.recognise(
            [Sketch.of(ids, self._secret) for ids in (_sixteens(self._keys), exported)],
            inputs=inputs,
            lines=self._lines[self._secret],
            new_people=new_people,
        )


def _sixteens(blobs: Iterable[bytes]) -> Iterator[bytes]:
    """The 16-byte values that lie one after the other in some bytes."""
    return (blob[i : i + 16] for blob in blobs for i in range(0, len(blob), 16))
