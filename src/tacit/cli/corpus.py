"""`tacit corpus info|head|export|budget`: what is in a corpus, and what its people may lose."""

from __future__ import annotations

import gzip
import json
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Optional

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.options import number
from tacit.cli.progress import tracked
from tacit.privacy import durable

if TYPE_CHECKING:
    from tacit.corpus.source import Source

app = typer.Typer(rich_markup_mode="markdown")


@app.callback(invoke_without_command=True)
def _corpus(context: typer.Context) -> None:
    """Look into a corpus, export it, set its people's budget."""
    if context.invoked_subcommand is None:
        print(context.get_help())


Name = Annotated[
    str,
    typer.Argument(
        metavar="CORPUS", help="A corpus directory, chitchat, or synthetic:users=1000,words=100."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Part = Annotated[str, typer.Option(metavar="NAME", help="Which users: all, train or test.")]
Texts = Annotated[
    str, typer.Option(metavar="NAME", help="Which of their texts: all, kept or held-out.")
]


@app.command("info")
def info(corpus: Name, as_json: Json = False) -> None:
    """How many users, texts and words there are, and how they are divided.  Prints no text.

    Example:

    `tacit corpus info corpora/chats`
    """
    from tacit.corpus.builtin import load_corpus
    from tacit.corpus.store import Corpus

    found = load_corpus(corpus)
    facts: dict[str, Any] = dict(found.info())
    if isinstance(found, Corpus):
        facts["words_per_user"] = _quantiles(found.word_counts())
        facts["texts_per_user"] = _quantiles(found.text_counts())
    if as_json:
        json.dump(facts, sys.stdout, indent=2, allow_nan=False)
        print()
        return
    table = Table(show_header=False, title=corpus)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), _shown(value))
    Console().print(table)


@app.command("head")
def head(
    corpus: Name,
    users: Annotated[int, typer.Option(metavar="N", min=1, help="How many users.")] = 3,
    each: Annotated[int, typer.Option(metavar="N", min=1, help="How many texts of each.")] = 3,
    part: Part = "all",
    texts: Texts = "all",
    as_json: Json = False,
) -> None:
    """Print some texts of the first users.  **This prints people's text**: mind who sees it.

    Example:

    `tacit corpus head corpora/chats --users 2`
    """
    source = _chosen(corpus, part, texts)
    print("tacit: what follows is people's text", file=sys.stderr)
    shown = [
        {"user": source.user_id(i), "texts": source.texts(i)[:each]}
        for i in range(min(users, len(source)))
    ]
    if as_json:
        json.dump(shown, sys.stdout, indent=2, ensure_ascii=False)
        print()
        return
    for row in shown:
        print(f"user {row['user']}")
        for text in row["texts"]:
            print(f"  {text}")


@app.command("export")
def export(
    corpus: Name,
    out: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where to: .jsonl or .jsonl.gz; must not exist.")
    ],
    part: Part = "all",
    texts: Texts = "all",
    as_json: Json = False,
) -> None:
    """Write a corpus as JSON Lines, a user per line, under the hashed ids.  **This writes people's
    text**: mind who can read the file.

    Example:

    `tacit corpus export corpora/chats chats.jsonl.gz --part train`
    """
    if not out.name.endswith((".jsonl", ".jsonl.gz")):
        raise ValueError(f"export file must end in .jsonl or .jsonl.gz, got {str(out)!r}")
    if out.exists():
        raise ValueError(f"{str(out)!r} exists already: choose another name, or remove it first")
    if not out.parent.is_dir():
        raise ValueError(f"export file {str(out)!r} is in a folder that does not exist")
    source = _chosen(corpus, part, texts)
    print(f"tacit: writing people's text to {out}", file=sys.stderr)
    count = 0
    # Only the owner can read the file, which is people's text.
    with durable.whole_file(out, mode=0o600) as file, _compressor(file, out) as lines:
        for index in tracked(range(len(source)), "exporting"):
            row = {"user": source.user_id(index), "texts": source.texts(index)}
            if row["texts"]:
                lines.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
                count += 1
    if as_json:
        json.dump({"file": str(out), "users": count}, sys.stdout, indent=2)
        print()
    else:
        print(f"{out}: {count:,} users")


@app.command("budget")
def budget(
    corpus: Annotated[
        str,
        typer.Argument(
            metavar="CORPUS", help="A corpus directory, chitchat, or a set of utterances."
        ),
    ],
    epsilon: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(parser=number, metavar="E", help="The most that all runs together may cost."),
    ] = None,
    delta: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(parser=number, metavar="D", help="The delta at which that is meant."),
    ] = None,
    unit: Annotated[
        str, typer.Option(metavar="NAME", help="Whom it protects: a user, or a record.")
    ] = "user",
    adjacency: Annotated[
        str, typer.Option(metavar="NAME", help="add/remove-one or replace-one.")
    ] = "add/remove-one",
    as_json: Json = False,
) -> None:
    """What all runs on the same people may cost together, have cost, and leave.

    With --epsilon and --delta a budget is declared, and is a hard stop for every run from then on:
    of language models and of intents and slots, on this corpus and on every other with these
    people.  It may be raised later; below what is spent already it cannot be.

    Examples:

    `tacit corpus budget corpora/chats --epsilon 8 --delta 1e-6`

    `tacit corpus budget corpora/chats`
    """
    from tacit.cli.corpus_budget import declare, print_account
    from tacit.corpus.people_ledger import PeoplesBudget
    from tacit.privacy.events import Adjacency

    if (epsilon is None) != (delta is None):
        missing = "delta" if delta is None else "epsilon"
        raise ValueError(f"a budget needs --epsilon and --delta: --{missing} is missing")
    known = [one.value for one in Adjacency]
    if adjacency not in known:
        raise ValueError(f"adjacency must be one of {', '.join(known)}, got {adjacency!r}")
    wanted = None
    if epsilon is not None and delta is not None:
        wanted = PeoplesBudget(epsilon, delta, unit, Adjacency(adjacency))
    account = declare(corpus, wanted)
    if as_json:
        json.dump(account.as_row(), sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        print_account(account)


def _chosen(corpus: str, part: str, texts: str) -> Source:
    from tacit.corpus.builtin import load_corpus
    from tacit.corpus.views import held_out, kept

    for name, value, known in (
        ("part", part, ("all", "train", "test")),
        ("texts", texts, ("all", "kept", "held-out")),
    ):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    whole = load_corpus(corpus)
    source: Source = {"train": whole.train, "test": whole.test}.get(part, whole)
    if texts == "all":
        return source
    return kept(source) if texts == "kept" else held_out(source)


def _compressor(file: BinaryIO, out: Path) -> AbstractContextManager[BinaryIO | gzip.GzipFile]:
    """What to write to so that `file` gets the format that `out`'s ending asks for."""
    return gzip.GzipFile(fileobj=file, mode="wb") if out.suffix == ".gz" else nullcontext(file)


def _quantiles(counts: Any) -> dict[str, int]:
    import numpy as np

    levels = {"least": 0.0, "median": 0.5, "90%": 0.9, "most": 1.0}
    return {name: int(np.quantile(counts, q, method="inverted_cdf")) for name, q in levels.items()}


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k.replace('_', ' ')} {_shown(v)}" for k, v in value.items())
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "; ".join(map(_shown, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
