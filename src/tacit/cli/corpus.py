"""`tacit corpus`: what is in a corpus, and what its people may lose.

`info` prints counts and never a text.  `head` and `export` hand out people's text and say so.
`budget` is about people rather than a folder: it covers every run on them, on any copy of the
corpus, of language models and of intents and slots.
"""

from __future__ import annotations

import gzip
import json
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tacit.cli.options import AsJson, argument, check_counts, count, real, text
from tacit.cli.output import emit, note, table
from tacit.privacy.claims import format_delta, format_epsilon
from tacit.privacy.records import one_of
from tacit.privacy.visible import visible
from tacit.runs.progress import tracked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacit.corpus.people_costs import Account, PeoplesBudget
    from tacit.corpus.source import UserSource

app = typer.Typer(
    help="Look into a corpus, export it, set its people's budget.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_Corpus = Annotated[
    str, argument(..., "CORPUS", "A corpus directory, chitchat, or synthetic:users=1000,words=100.")
]
_Part = Annotated[str, text(..., "NAME", "Which users: all, train or test.")]
_Texts = Annotated[str, text(..., "NAME", "Which of their texts: all, kept or held-out.")]


@app.command("info")
def _info(corpus: _Corpus, as_json: AsJson = False) -> None:
    """How many users, texts and words there are, and how they are divided.  Prints no text.

    Example:

    `tacit corpus info corpora/chats`
    """
    from tacit.corpus.builtin import load_corpus
    from tacit.corpus.store import Corpus

    opened = load_corpus(corpus)
    facts: dict[str, Any] = dict(opened.info())
    if isinstance(opened, Corpus):
        facts["words_per_user"] = _quantiles(opened.word_counts())
        facts["texts_per_user"] = _quantiles(opened.text_counts())
    rows = [(name.replace("_", " "), _words(value)) for name, value in facts.items()]
    emit(facts, as_json, lambda console: console.print(table("", "", rows=rows, title=corpus)))


@app.command("head")
def _head(
    corpus: _Corpus,
    users: int = count(3, "N", "How many users."),
    each: int = count(3, "N", "How many texts of each."),
    part: _Part = "all",
    texts: _Texts = "all",
    as_json: AsJson = False,
) -> None:
    """Print some texts of the first users.  **This prints people's text**: mind who sees it.

    Example:

    `tacit corpus head corpora/chats --users 2`
    """
    check_counts(users=users, each=each)
    source = _select(corpus, part, texts)
    note("what follows is people's text")
    rows = [
        {"user": source.user_id(i), "texts": source.texts(i)[:each]}
        for i in range(min(users, len(source)))
    ]

    def render(console: Console) -> None:
        for row in rows:
            console.print(f"user {row['user']}", soft_wrap=True)
            for line in row["texts"]:
                console.print(f"  {visible(line)}", soft_wrap=True)

    emit(rows, as_json, render)


@app.command("export")
def _export(
    corpus: _Corpus,
    out: Path = argument(..., "FILE", "Where to: .jsonl or .jsonl.gz; must not exist."),
    part: _Part = "all",
    texts: _Texts = "all",
    as_json: AsJson = False,
) -> None:
    """Write a corpus as JSON Lines, a user per line, under the hashed ids.  **This writes people's
    text**: mind who can read the file.

    Example:

    `tacit corpus export corpora/chats chats.jsonl.gz --part train`
    """
    from tacit.privacy.durable import whole_file

    if not out.name.endswith((".jsonl", ".jsonl.gz")):
        raise ValueError(f"export file must end in .jsonl or .jsonl.gz, got {str(out)!r}")
    if out.exists():
        raise ValueError(f"{str(out)!r} exists already: choose another name, or remove it first")
    if not out.parent.is_dir():
        raise ValueError(f"export file {str(out)!r} is in a folder that does not exist")
    source = _select(corpus, part, texts)
    note(f"writing people's text to {out}")
    users = 0
    with (
        whole_file(out) as raw,  # for its owner only
        gzip.GzipFile(fileobj=raw, mode="wb") if out.suffix == ".gz" else nullcontext(raw) as file,
    ):
        for index in tracked(range(len(source)), "exporting"):
            row = {"user": source.user_id(index), "texts": source.texts(index)}
            if row["texts"]:
                file.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
                users += 1
    result = {"file": str(out), "users": users}
    emit(result, as_json, lambda console: console.print(f"{out}: {users:,} users", soft_wrap=True))


@app.command("budget")
def _budget(
    corpus: str = argument(..., "CORPUS", "A corpus directory, chitchat, or a set of utterances."),
    epsilon: float | None = real(None, "E", "The most that all runs together may cost."),
    delta: float | None = real(None, "D", "The delta that epsilon is for."),
    unit: str = text("user", "NAME", "Whom it protects: a user, or a record."),
    adjacency: str = text("add/remove-one", "NAME", "add/remove-one or replace-one."),
    as_json: AsJson = False,
) -> None:
    """What all runs on the same people may cost together, have cost, and leave.

    With --epsilon and --delta a budget is declared, and is a hard stop for every run from then on:
    of language models and of intents and slots, on this corpus and on every other with these
    people.  It may be raised later, but not lowered below what is already spent.

    Examples:

    `tacit corpus budget corpora/chats --epsilon 8 --delta 1e-6`

    `tacit corpus budget corpora/chats`
    """
    from tacit.corpus.people_costs import PeoplesBudget
    from tacit.privacy.events import Adjacency

    if (epsilon is None) != (delta is None):
        missing = "delta" if delta is None else "epsilon"
        raise ValueError(f"a budget needs --epsilon and --delta: --{missing} is missing")
    one_of(*Adjacency)("adjacency", adjacency)
    declared = None
    if epsilon is not None and delta is not None:
        declared = PeoplesBudget(epsilon, delta, unit, Adjacency(adjacency))
    account = _declare(corpus, declared)
    emit(account, as_json, lambda console: _print_account(console, account))


def _declare(name: str, budget: PeoplesBudget | None) -> Account:
    """The account of the people of a corpus, or of those who said the utterances of a set.

    A budget is declared first, if there is one, and a corpus carries a copy of it along.
    """
    from tacit.corpus.builtin import is_builtin, load_corpus
    from tacit.corpus.people_ledger import PeopleLedger, leave_copy
    from tacit.corpus.store import META

    path, corpus = Path(name), None
    if is_builtin(name) or not path.exists() or (path / META).exists():
        corpus = load_corpus(name)
        if not corpus.about_people:
            raise ValueError(f"{name} holds made-up text, about no real people: it needs no budget")
        ledger = PeopleLedger.of_corpus(corpus)
    else:
        from tacit.tasks.nlu.readers import load_nlu
        from tacit.tasks.nlu.utterances import recognise

        ledger = PeopleLedger.open(recognise(load_nlu(name, unseen_intents="keep")))
    if budget is not None:
        ledger.declare(budget)
        if corpus is not None:
            with suppress(OSError):  # a corpus that cannot be written to
                leave_copy(corpus)
    return ledger.account()


def _print_account(console: Console, account: Account) -> None:
    """The budget and what is left of it, and every run on these people."""
    budget = account.budget
    if budget is None or account.spent is None or account.left is None:
        console.print("No budget is declared for these people.")
    else:
        spent = format_epsilon(account.spent)
        console.print(f"Budget: {budget}; spent {spent}, left {account.left:.4g}.")
    if not account.runs:
        console.print("Nothing was released about them yet.")
        return
    console.print(
        table(
            *("run", "kind", ">releases", ">epsilon", ">at delta", "counted"),
            rows=[
                (
                    run.run_id,
                    f"{run.unit}-level, {run.adjacency or 'no noise'}",
                    f"{run.releases:,}",
                    format_epsilon(run.epsilon),
                    format_delta(run.delta),
                    f"no: {run.not_counted}" if run.not_counted else "yes",
                )
                for run in account.runs
            ],
        )
    )


def _select(name: str, part: str, texts: str) -> UserSource:
    """The users and the texts of them that --part and --texts name."""
    from tacit.corpus.builtin import load_corpus

    one_of("all", "train", "test")("part", part)
    one_of("all", "kept", "held-out")("texts", texts)
    corpus = load_corpus(name)
    source: UserSource = {"train": corpus.train, "test": corpus.test}.get(part, corpus)
    if texts == "all":
        return source
    return source.kept() if texts == "kept" else source.held_out()


def _quantiles(counts: NDArray[Any]) -> dict[str, int]:
    """How much the users have: quantiles that are counts of some user."""
    import numpy as np

    levels = {"least": 0.0, "median": 0.5, "90%": 0.9, "most": 1.0}
    return {name: int(np.quantile(counts, q, method="inverted_cdf")) for name, q in levels.items()}


def _words(value: Any) -> str:
    """A value of corpus.json in words."""
    match value:
        case dict():
            return ", ".join(f"{key.replace('_', ' ')} {_words(v)}" for key, v in value.items())
        case list():
            return "; ".join(map(_words, value)) or "none"
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
    return str(value)
