"""Ingest: people's text in files, in whatever order, becomes a corpus directory."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tacit.corpus import hashing
from tacit.corpus.census import Census, InputDigest
from tacit.corpus.columns import Columns
from tacit.corpus.files import InputFile, input_files, sha256_of
from tacit.corpus.grouping import Spool, blocks, check_size, sorted_rows
from tacit.corpus.options import UserOptions
from tacit.corpus.people import OnMerge, Recognition, merge_ledgers
from tacit.corpus.readers import Reader, Record
from tacit.corpus.store import Corpus
from tacit.corpus.workspace import move_in, workspace
from tacit.corpus.writer import CorpusWriter

Report = Callable[[str, int, int, int], None]  # what is being done, done, of how many, rows so far


def _silent(step: str, done: int, total: int, rows: int) -> None:
    pass


@dataclass
class _Count:
    """Rows read so far, and those that lack something."""

    rows: int = 0
    without_user: int = 0
    without_text: int = 0
    first_bad: str = ""

    def bad(self) -> dict[str, int]:
        return {"without_user": self.without_user, "without_text": self.without_text}


@dataclass
class _Intake:
    """Where records go: counted, and spooled if they have a user and a text."""

    spool: Spool
    skip_bad_rows: bool
    count: _Count = field(default_factory=_Count)

    def take(self, record: Record, source: str) -> None:
        count = self.count
        texts = [text for text in record.texts if text and not text.isspace()]
        count.rows += len(record.texts)
        if not record.user or record.user.isspace():
            count.without_user += len(record.texts)
        else:
            count.without_text += len(record.texts) - len(texts)
            if texts:
                self.spool.add(record.user, texts, record.order)
            if len(texts) == len(record.texts):
                return
        count.first_bad = count.first_bad or f"line {record.line} of {source}"

    def check(self) -> None:
        count = self.count
        bad = count.without_user + count.without_text
        if bad and not self.skip_bad_rows:
            raise ValueError(
                f"{bad:,} of {count.rows:,} rows have no user ({count.without_user:,}) or no text"
                f" ({count.without_text:,}), the first at {count.first_bad}: mend them, or leave"
                " them out with skip_bad_rows"
            )
        if not self.spool.rows:
            raise ValueError(f"there are no rows with a user and a text among {count.rows:,} rows")


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
    skip_bad_rows: bool = False,
    options: UserOptions | None = None,
    salt: str | None = None,
    new_people: bool = False,
    on_merge: OnMerge = merge_ledgers,
    memory_limit: str = "1GiB",
    threads: int = 2,
    report: Report = _silent,
) -> Corpus:
    """Make the corpus directory `out` of files, folders or globs, and open it.

    The result depends on the set of rows, not on their order or on how they are divided into
    files.  A user's texts are ordered by `order_column` if there is one.  Without it, texts that
    came in one list, or in one text file, stay in that order; all else is ordered by a hash of
    the user and the text, so that a cap keeps an arbitrary part and not, say, the start of the
    alphabet.  Memory stays near `memory_limit`, whatever the size of the input.

    If half of the users were ingested here before, they are taken for the same people, and what
    was spent on them is carried over, unless `new_people` declares that they are others.
    `on_merge` is called if two groups of people turn out to be one (see `people.recognise`).
    """
    salted = _salt_bytes(salt)
    census = Census(salted, about_people=True, new_people=new_people)
    job = _Job(Path(out), options, salted, skip_bad_rows, memory_limit, threads, report, census)
    files = input_files(inputs, format)
    total = sum(file.size for file in files)
    columns = Columns(user_column, text_column, order_column)

    def take_all(intake: _Intake, work: Path) -> None:
        reader = Reader(columns, work, quotes, whole_files)
        done = 0
        for file in files:
            _take_file(file, reader, intake, done, total, report)
            done += file.size

    facts = {"files": len(files), "format": files[0].format}
    return job.run(take_all, facts, [file.path for file in files], on_merge)


def ingest_records(
    records: Iterable[tuple[str, Sequence[str]]],
    out: str | Path,
    *,
    count: int = 0,
    skip_bad_rows: bool = False,
    options: UserOptions | None = None,
    salt: str | None = None,
    inputs: Sequence[Path] = (),
    about_people: bool = True,
    new_people: bool = False,
    on_merge: OnMerge = merge_ledgers,
    memory_limit: str = "1GiB",
    threads: int = 2,
    report: Report = _silent,
) -> Corpus:
    """Make a corpus of (user, texts) pairs, of which there are `count`; the rest as `ingest`.

    `inputs` are the files that the records were read from.  `about_people` is False for users who
    were generated: nothing is remembered of them, and nothing is claimed about them.
    """
    salted = _salt_bytes(salt)
    census = Census(salted, about_people=about_people, new_people=new_people)
    job = _Job(Path(out), options, salted, skip_bad_rows, memory_limit, threads, report, census)

    def take_all(intake: _Intake, work: Path) -> None:
        for number, (user, texts) in enumerate(records, 1):
            intake.take(Record(user, texts, None, number), "the records")
            if not number % 1024:
                report("reading", number, count, intake.count.rows)

    return job.run(take_all, {"files": 0, "format": "records"}, inputs, on_merge)


def _take_file(
    file: InputFile, reader: Reader, intake: _Intake, done: int, total: int, report: Report
) -> None:
    name = repr(str(file.path))
    for number, record in enumerate(reader.records(file), 1):
        intake.take(record, name)
        if not number % 1024:
            report("reading", done + reader.position, total, intake.count.rows)
    report("reading", done + file.size, total, intake.count.rows)


class _Job:
    """Everything after reading: sort, cap, write, and put in place; or leave no trace."""

    def __init__(
        self,
        out: Path,
        options: UserOptions | None,
        salt: bytes,
        skip_bad_rows: bool,
        memory_limit: str,
        threads: int,
        report: Report,
        census: Census,
    ) -> None:
        if not threads >= 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        check_size(memory_limit)
        self._out, self._options, self._salt = out, options or UserOptions(), salt
        self._skip_bad_rows, self._report = skip_bad_rows, report
        self._memory_limit, self._threads = memory_limit, threads
        self._census = census

    def run(
        self,
        take_all: Callable[[_Intake, Path], None],
        facts: dict[str, Any],
        inputs: Sequence[Path],
        on_merge: OnMerge,
    ) -> Corpus:
        with workspace(self._out) as work:
            spool = Spool(work / "rows.parquet", self._salt, self._options.held_out_fraction)
            intake = _Intake(spool, self._skip_bad_rows)
            take_all(intake, work)
            spool.close()
            intake.check()
            digests = [InputDigest(path.name, sha256_of(path)) for path in inputs]
            count = intake.count
            facts |= {"rows": count.rows, "skipped_rows": count.bad()}
            writer = CorpusWriter(work / "corpus", work / "columns")
            try:
                found = self._write(writer, spool, facts, digests, work / "scratch")
            finally:
                writer.close()
            # First: people without a corpus do no harm, a corpus of forgotten people would.
            self._census.register(found, digests, on_merge)
            move_in(writer.path, self._out)
        return Corpus.open(self._out)

    def _write(
        self,
        writer: CorpusWriter,
        spool: Spool,
        facts: dict[str, Any],
        digests: Sequence[InputDigest],
        scratch: Path,
    ) -> Recognition:
        options = self._options
        scratch.mkdir()
        self._report("sorting", 0, spool.rows, spool.rows)
        rows = sorted_rows(spool, scratch, self._memory_limit, self._threads)
        below = hashing.threshold(options.test_fraction)
        done = test_users = 0
        for block, used in blocks(rows, options):
            writer.append(block)
            self._census.add(block)
            # Draws have 64 bits and the bound may be 2^64: that cannot be compared in uint64.
            test_users += len(block.keys) if below >= 2**64 else _below(block.keys, below)
            done += used
            self._report("writing", done, spool.rows, spool.rows)
        spool.path.unlink()  # the disk may be small, and the tables are about to be made
        if not writer.counts["users"]:
            raise ValueError(
                f"no user has at least {options.min_texts} texts and {options.min_words} words,"
                " as min_texts and min_words ask"
            )
        found = self._census.find(digests, writer.fingerprint(test_users))
        writer.finish(
            {
                "test_users": test_users,
                "salt": self._salt.hex(),
                "options": asdict(options),
                "input": facts | {"lookalike_ids": self._census.lookalikes()},
                "inputs": [asdict(digest) for digest in digests],
                **self._census.facts(found),
            },
            self._census.lines(),
        )
        return found


def _below(keys: Any, bound: int) -> int:
    return int((keys[:, 0] < np.uint64(bound)).sum())


def _salt_bytes(salt: str | None) -> bytes:
    if salt is None:
        return secrets.token_bytes(hashing.SALT_BYTES)
    if not re.fullmatch(r"[0-9a-fA-F]{32}", salt):
        raise ValueError(f"salt must be {hashing.SALT_BYTES} bytes as 32 hexadecimal digits")
    return bytes.fromhex(salt)
