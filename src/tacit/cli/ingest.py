"""`tacit ingest`: people's text in files becomes a corpus directory.

User ids are hashed and users are divided by a hash of their id, so that one user never moves
another.  People are recognised when their text is ingested again: what was spent on them follows.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from tacit.cli.options import AsJson, argument, count, flag, text
from tacit.cli.output import emit
from tacit.privacy import trusted
from tacit.privacy.checks import naming_options
from tacit.runs.progress import Show, bar


def ingest(
    inputs: list[str] = argument(..., "INPUT", "Files, a folder, a quoted glob, or a built-in."),
    out: Path = text(..., "FOLDER", "The corpus directory to make; must not exist."),
    user_column: str | None = text(None, "NAME", "Who wrote it. [default: user, author, ...]"),
    text_column: str | None = text(None, "NAME", "What was written. [default: text, body, ...]"),
    order_column: str | None = text(None, "NAME", "A user's texts are ordered by it."),
    order_format: str | None = text(None, "FORMAT", "How its dates are written: %d.%m.%Y"),
    format: str | None = text(None, "NAME", "csv, tsv, jsonl, parquet, text. [default: by name]"),
    delimiter: str | None = text(None, "CHAR", "Of CSV and TSV, such as ';'. [default: , or tab]"),
    encoding: str = text("utf-8", "NAME", "Such as latin-1, cp1252 or utf-16."),
    no_quotes: bool = flag("--no-quotes", "In CSV and TSV, quotes are part of the text."),
    whole_files: bool = flag("--whole-files", "A text file is one text, not one per line."),
    skip_bad_rows: bool = flag("--skip-bad-rows", "Leave out rows without a user or a text."),
    sentences: bool = flag("--sentences", "Cut texts into sentences, each a text by itself."),
    test_fraction: float = text(0.1, "F", "Users kept for testing, by hash of the user id."),
    held_out_fraction: float = text(0.1, "F", "Texts of each user held out, by hash of the text."),
    min_texts: int = text(1, "N", "Leave out users with fewer texts."),
    max_texts: int | None = count(None, "N", "Keep a user's first N texts."),
    min_words: int = text(0, "N", "Leave out users with fewer words."),
    max_words: int | None = count(None, "N", "Keep a user's first N words."),
    salt_file: Path | None = text(None, "FILE", "Its 32 hex digits hash user ids. [random]"),
    new_people: bool = flag("--new-people", "Others than the earlier people with the same ids."),
    memory_limit: str = text("1GiB", "SIZE", "Memory to sort in; the rest goes to disk."),
    as_json: AsJson = False,
) -> None:
    """Make a corpus of people's text: CSV, TSV, JSON Lines or Parquet, plain or compressed.

    JSON Lines may hold one user per line ({"user": ..., "texts": [...]}); a folder may hold one
    text file per user.  User ids are hashed.  The order of the rows does not matter.

    Example:

    `tacit ingest chats.parquet --user-column author --text-column body --out corpora/chats`
    """
    from tacit.corpus import builtin
    from tacit.corpus.grouping import UserOptions
    from tacit.corpus.ingest import ingest as ingest_files

    with naming_options():
        options = UserOptions(
            test_fraction,
            held_out_fraction,
            min_texts,
            max_texts,
            min_words,
            max_words,
            sentences,
        )
    shared: dict[str, Any] = {
        "options": options,
        "new_people": new_people,
        "skip_bad_rows": skip_bad_rows,
        "salt": None if salt_file is None else _salt(salt_file),
        "memory_limit": memory_limit,
    }
    began = time.monotonic()
    with bar("reading") as show, naming_options(quotes="--no-quotes", salt="--salt-file"):
        shared["report"] = _with_rate(show)
        if len(inputs) == 1 and builtin.is_builtin(inputs[0]) and not Path(inputs[0]).exists():
            corpus = builtin.ingest_builtin(inputs[0], out, **shared)
        else:
            corpus = ingest_files(
                list(inputs),
                out,
                user_column=user_column,
                text_column=text_column,
                order_column=order_column,
                format=format,
                quotes=not no_quotes,
                whole_files=whole_files,
                delimiter=delimiter,
                encoding=encoding,
                order_format=order_format,
                **shared,
            )
    seconds = time.monotonic() - began
    info = corpus.info()
    rate = info["input"]["rows"] / seconds
    facts = {"out": str(out), "seconds": seconds, "rows_per_second": rate, **info}
    emit(facts, as_json, lambda console: _print(console, facts))


def _salt(file: Path) -> str:
    """The salt in a file: with it ids can be guessed, so the file is for its owner only."""
    with trusted.open_regular(file) as opened:
        mode, data = os.fstat(opened.fileno()).st_mode & 0o777, opened.read(100)
    if mode & 0o077:
        raise ValueError(
            f"--salt-file {str(file)!r} must be readable by its owner alone (mode 0600), got mode"
            f" {mode:04o}"
        )
    if not re.fullmatch(rb"[0-9a-fA-F]{32}\s*", data):  # which must not be quoted
        raise ValueError(f"--salt-file {str(file)!r} must hold 32 hexadecimal digits")
    return data.decode().strip()


def _print(console: Console, facts: Mapping[str, Any]) -> None:
    """Counts, what was left out, and what the operator should know about the people."""
    lines = [
        f"{facts['out']}: {facts['users']:,} users ({facts['test_users']:,} for testing),"
        f" {facts['texts']:,} texts ({facts['held_out_texts']:,} held out), {facts['words']:,}"
        " words"
    ]
    skipped = facts["input"]["skipped_rows"]
    if any(skipped.values()):
        lines.append(
            f"left out: {skipped['without_user']:,} rows without a user,"
            f" {skipped['without_text']:,} without a text"
        )
    if count := facts["input"].get("text_orders"):
        lines.append(
            f"{count:,} values of the order column are neither numbers nor ISO dates, and were"
            " sorted as text; if they are dates, say --order-format"
        )
    lines += _about_people(facts)
    lines.append(
        f"read {facts['input']['rows']:,} rows in {facts['seconds']:.1f} s,"
        f" {facts['rows_per_second']:,.0f} rows a second"
    )
    for line in lines:
        console.print(line, soft_wrap=True)


def _about_people(facts: Mapping[str, Any]) -> Iterator[str]:
    """Whether these people are known already, as far as the operator should know; never an id."""
    if facts["known_people"]:
        yield (
            "these are the people of an earlier corpus: what was spent on them is carried over; if"
            " they are others, say --new-people"
        )
    if facts["new_people"]:
        yield (
            f"they look like the people {facts['new_people']} of an earlier corpus, and were"
            " declared to be others: claims will say so"
        )
    for people, share in facts["overlaps"]:
        yield (
            f"{share:.0%} of them, or of the people {people} of an earlier corpus, are in both: too"
            " few to be the same people, so what was spent on those is not carried over"
        )
    if count := facts["input"]["lookalike_ids"]:
        yield (
            f"{count:,} user ids differ from another one in case or blanks only: if they are the"
            " same people, correct the ids and ingest again, since each counts as a person here"
        )


def _with_rate(show: Show) -> Callable[[str, int, int, int], None]:
    """What the ingest reports to, which shows the rows per second of each step."""
    current, began = "reading", time.monotonic()

    def report(step: str, done: int, total: int, rows: int) -> None:
        nonlocal current, began
        if step != current:
            current, began = step, time.monotonic()
        passed = time.monotonic() - began
        counted = rows if step == "reading" else done
        rate = f"{counted / passed:,.0f} rows/s" if passed > 0 and counted else ""
        show(step, done, total or None, rate)

    return report
