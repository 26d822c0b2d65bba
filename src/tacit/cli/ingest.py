"""`tacit ingest`: people's text in files becomes a corpus directory."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from tacit.cli.options import AsJson, whole_number
from tacit.cli.progress import bar

if TYPE_CHECKING:
    from tacit.corpus.ingest import Report


def ingest(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT", help="Files, a folder, a quoted glob, or a built-in."),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The corpus directory to make; must not exist.")
    ],
    user_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Who wrote it.  [default: user, author, sender, ...]"),
    ] = None,
    text_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What was written.  [default: text, body, message, ...]"),
    ] = None,
    order_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="What a user's texts are ordered by, such as a time stamp."
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="csv, tsv, jsonl, parquet or text.  [default: by file name]"
        ),
    ] = None,
    no_quotes: Annotated[
        bool, typer.Option("--no-quotes", help="In CSV and TSV, quotes are part of the text.")
    ] = False,
    whole_files: Annotated[
        bool, typer.Option("--whole-files", help="A text file is one text, not one per line.")
    ] = False,
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="Leave out rows without a user or a text.")
    ] = False,
    test_fraction: Annotated[
        float, typer.Option(metavar="F", help="Users kept for testing, by hash of the user id.")
    ] = 0.1,
    held_out_fraction: Annotated[
        float, typer.Option(metavar="F", help="Texts of each user held out, by hash of the text.")
    ] = 0.1,
    min_texts: Annotated[
        int, typer.Option(metavar="N", help="Leave out users with fewer texts.")
    ] = 1,
    max_texts: Annotated[
        Optional[int],  # noqa: UP045  (typer reads this form together with a parser)
        typer.Option(parser=whole_number, metavar="N", help="Keep a user's first N texts."),
    ] = None,
    min_words: Annotated[
        int, typer.Option(metavar="N", help="Leave out users with fewer words.")
    ] = 0,
    max_words: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(parser=whole_number, metavar="N", help="Keep a user's first N words."),
    ] = None,
    salt: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="32 digits that user ids are hashed with.  [random]"),
    ] = None,
    new_people: Annotated[
        bool,
        typer.Option(
            "--new-people", help="These are not the people whose text was ingested under their ids."
        ),
    ] = False,
    memory_limit: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory to sort in; the rest goes to disk.")
    ] = "1GiB",
    as_json: AsJson = False,
) -> None:
    """Make a corpus of people's text: CSV, TSV, JSON Lines or Parquet, plain or compressed.

    JSON Lines may hold one user per line ({"user": ..., "texts": [...]}); a folder may hold one
    text file per user.  User ids are hashed.  The order of the rows does not matter.

    Example:

    `tacit ingest chats.parquet --user-column author --text-column body --out corpora/chats`
    """
    from tacit.corpus import builtin
    from tacit.corpus.ingest import ingest as ingest_files
    from tacit.corpus.ingest import ingest_records
    from tacit.corpus.options import UserOptions

    options = UserOptions(
        test_fraction, held_out_fraction, min_texts, max_texts, min_words, max_words
    )
    start = time.monotonic()
    with _bar() as report:
        if len(inputs) == 1 and builtin.is_builtin(inputs[0]) and not Path(inputs[0]).exists():
            records, count = builtin.raw_records(inputs[0])
            corpus = ingest_records(
                records,
                out,
                count=count,
                inputs=builtin.raw_files(inputs[0]),
                about_people=builtin.is_about_people(inputs[0]),
                new_people=new_people,
                skip_bad_rows=skip_bad_rows,
                options=options,
                salt=salt,
                memory_limit=memory_limit,
                report=report,
            )
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
                new_people=new_people,
                skip_bad_rows=skip_bad_rows,
                options=options,
                salt=salt,
                memory_limit=memory_limit,
                report=report,
            )
    seconds = time.monotonic() - start
    info = corpus.info()
    rows = info["input"]["rows"]
    if as_json:
        facts = {"out": str(out), "seconds": seconds, "rows_per_second": rows / seconds, **info}
        json.dump(facts, sys.stdout, indent=2, allow_nan=False)
        print()
        return
    print(
        f"{out}: {info['users']:,} users ({info['test_users']:,} for testing),"
        f" {info['texts']:,} texts ({info['held_out_texts']:,} held out), {info['words']:,} words"
    )
    skipped = info["input"]["skipped_rows"]
    if any(skipped.values()):
        print(
            f"left out: {skipped['without_user']:,} rows without a user,"
            f" {skipped['without_text']:,} without a text"
        )
    for sentence in _about_people(info):
        print(sentence)
    print(f"read {rows:,} rows in {seconds:.1f} s, {rows / seconds:,.0f} rows a second")


def _about_people(info: Mapping[str, Any]) -> Iterator[str]:
    """Whose text it is, as far as the operator should know; never an id."""
    if info["known_people"]:
        yield (
            "these are the people of an earlier corpus: what was spent on them is carried over; if"
            " they are others, say --new-people"
        )
    if info["new_people"]:
        yield (
            f"they look like the people {info['new_people']} of an earlier corpus, and were"
            " declared to be others: claims will say so"
        )
    for people, share in info["overlaps"]:
        yield (
            f"{share:.0%} of them, or of the people {people} of an earlier corpus, are in both: too"
            " few to be the same people, so what was spent on those is not carried over"
        )
    if count := info["input"]["lookalike_ids"]:
        yield (
            f"{count:,} user ids differ from another one in case or blanks only: if they are the"
            " same people, mend the ids and ingest again, since each counts as a person here"
        )


@contextmanager
def _bar() -> Iterator[Report]:
    """A bar with the rows per second of each step."""
    with bar("reading") as show:
        current, start = "reading", time.monotonic()

        def report(step: str, done: int, total: int, rows: int) -> None:
            nonlocal current, start
            if step != current:
                current, start = step, time.monotonic()
            passed = time.monotonic() - start
            counted = rows if step == "reading" else done
            rate = f"{counted / passed:,.0f} rows/s" if passed > 0 and counted else ""
            show(step, done, total or None, rate)

        yield report
