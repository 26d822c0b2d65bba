"""`tacit evaluate`: how well a model predicts the words of people it has never seen."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from tacit.cli.options import AsJson, whole_number
from tacit.cli.progress import bar, tracked

if TYPE_CHECKING:
    from tacit.corpus.source import UserCorpus
    from tacit.evaluation.accuracy import Metrics
    from tacit.evaluation.predictors import Predictor
    from tacit.models.base import LanguageModel
    from tacit.runs.stored_model import StoredModel

EXAMPLES = """
Examples:

`tacit evaluate runs/first`

`tacit evaluate runs/first --round 40 --baselines`

`tacit evaluate pretrained --corpus chitchat --json`
"""

TOKENS = 75_000
PIECES = 50  # the bar moves so often
WITHOUT_PRIVACY = (
    "fitted on the training users' text without privacy, for comparison only; not for release"
)


def evaluate(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A run directory, an exported bundle, or a folder that tacit model pretrain made.",
            show_default=False,
        ),
    ],
    round: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=whole_number, metavar="N", help="The model after this round.  [default: last]"
        ),
    ] = None,
    corpus: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="CORPUS", help="Whose test users.  [default: the run's own corpus]"),
    ] = None,
    tokens: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=whole_number,
            metavar="N",
            help=f"Measure on so many tokens.  [default: the run's, else {TOKENS:,}]",
        ),
    ] = None,
    head_words: Annotated[
        bool,
        typer.Option("--head-words", help="How often common words are among the top 10."),
    ] = False,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines", help="Unigram and bigram models of the training users, without privacy."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Accuracy and perplexity on the text of test users, whom no training has seen.

    The same texts every time, and the same as during training: figures of two rounds or two runs
    on a corpus compare.
    """
    from tacit.evaluation.held_out import held_out_sequences
    from tacit.runs.stored_model import StoredModel

    if tokens is not None and tokens < 1:
        raise ValueError(f"--tokens must be at least 1, got {tokens}")
    found = StoredModel.open(run, round)
    users = found.corpus(corpus)
    own = found.experiment.evaluation.max_tokens if found.experiment else TOKENS
    sequences = held_out_sequences(users.test, found.tokenizer, tokens or own)
    if not sequences:
        raise ValueError("the test users have no text to measure on")
    results: dict[str, Metrics] = {"model": _measured(found.model, sequences, found, "model")}
    if baselines:
        for name, predictor in _baselines(found, users, corpus).items():
            results[name] = _measured(predictor, sequences, found, name)
    histograms = _head_words(found, sequences) if head_words else None
    row = _as_row(found, corpus, results, histograms)
    if as_json:
        json.dump(row, sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        _print(row, results, histograms)


def _measured(
    predictor: LanguageModel | Predictor,
    sequences: Sequence[Sequence[int]],
    found: StoredModel,
    name: str,
) -> Metrics:
    from tacit.evaluation.accuracy import Metrics
    from tacit.evaluation.accuracy import evaluate as evaluated

    words = found.tokenizer
    total = Metrics()

    def add(part: Sequence[Sequence[int]]) -> None:
        nonlocal total
        total += evaluated(predictor, part, bos=words.bos, unk=words.unk)

    _piecewise(sequences, f"measuring the {name}", add)
    return total


def _piecewise(
    sequences: Sequence[Sequence[int]],
    title: str,
    work: Callable[[Sequence[Sequence[int]]], None],
) -> None:
    """Work through the texts with a bar; what is measured is a sum over texts."""
    size = max(200, -(-len(sequences) // PIECES))
    with bar(title) as show:
        for start in range(0, len(sequences), size):
            show(title, start, len(sequences), f"{start:,} of {len(sequences):,} texts")
            work(sequences[start : start + size])


def _baselines(found: StoredModel, users: UserCorpus, named: str | None) -> dict[str, Predictor]:
    """What a model has to beat: fitted on the training users, with nothing to protect them."""
    from tacit.evaluation.baselines import Bigram
    from tacit.tasks.language.people import People
    from tacit.tokenizers.cache import PAPERS_CAP, user_tokens

    words, people, cap = found.tokenizer, users.train, PAPERS_CAP
    if found.run is not None and named is None:  # the very text that the run was trained on
        people = People.of(found.run.experiment, users).view(found.run.experiment, words)
        cap = found.run.experiment.corpus.max_tokens_per_user
    texts = [
        user_tokens(people.texts(user), words, cap)
        for user in tracked(range(len(people)), "reading the training users")
    ]
    bigram = Bigram.fit(texts, words.vocab_size, bos=words.bos)
    return {"unigram": bigram.unigram, "bigram": bigram}


def _head_words(found: StoredModel, sequences: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """McMahan et al. 2018, Table 3; a dictionary lists the most frequent words first."""
    from tacit.evaluation.head_words import HEADS, head_word_histograms

    words = found.tokenizer
    if words.kind != "word":
        raise ValueError(f"--head-words needs a dictionary of words, and this is {words.kind}")
    frequent = [id for id in range(words.vocab_size) if id not in (words.bos, words.eos, words.unk)]
    heads = [head for head in HEADS if head <= len(frequent)]
    if not heads:
        raise ValueError(f"--head-words needs 10 words at least, and there are {len(frequent)}")
    total = {head: [0] * 11 for head in heads}

    def add(part: Sequence[Sequence[int]]) -> None:
        more = head_word_histograms(found.model, part, frequent, bos=words.bos, heads=heads)
        for head, counts in more.items():
            total[head] = [a + int(b) for a, b in zip(total[head], counts, strict=True)]

    _piecewise(sequences, "counting head words", add)
    return total


def _as_row(
    found: StoredModel,
    corpus: str | None,
    results: dict[str, Metrics],
    histograms: dict[int, list[int]] | None,
) -> dict[str, Any]:
    own = found.run.experiment.corpus.source if found.run else None
    row: dict[str, Any] = {"run": str(found.path), "round": found.round, "corpus": corpus or own}
    row |= _renamed(results["model"])
    others = {name: _renamed(metrics) for name, metrics in results.items() if name != "model"}
    if others:
        row["baselines"] = {"fitted": WITHOUT_PRIVACY, **others}
    if histograms is not None:
        row["head_words"] = {str(head): counts for head, counts in histograms.items()}
    return row


def _renamed(metrics: Metrics) -> dict[str, Any]:
    row = metrics.as_row()
    row["tokens"] = row.pop("targets")
    return row


def _print(
    row: dict[str, Any], results: dict[str, Metrics], histograms: dict[int, list[int]] | None
) -> None:
    console = Console(highlight=False)
    after = f" after round {row['round']}" if row["round"] is not None else ""
    model = results["model"]
    table = Table(
        title=f"{row['run']}{after}: {model.targets:,} tokens of test users of {row['corpus']},"
        f" {model.unknown_rate:.1%} unknown"
    )
    table.add_column("predictor")
    for name in ("perplexity", "top 1", "top 3", "top 5"):
        table.add_column(name, justify="right")
    for name, metrics in results.items():
        shares = (metrics.accuracy_top1, metrics.accuracy_top3, metrics.accuracy_top5)
        table.add_row(
            name if name == "model" else f"{name} (not private)",
            f"{metrics.perplexity:,.1f}",
            *(f"{share:.2%}" for share in shares),
            style="bold" if name == "model" else None,
        )
    console.print(table)
    if len(results) > 1:
        console.print(f"Unigram and bigram: {WITHOUT_PRIVACY}.")
    if histograms is not None:
        console.print(_histogram_table(histograms))


def _histogram_table(histograms: dict[int, list[int]]) -> Table:
    table = Table(
        title="Of the model's top 10, so many are among the n most frequent words: percent",
        box=box.SIMPLE_HEAD,
        padding=(0, 0),
    )
    table.add_column("n", justify="right")
    for count in range(11):
        table.add_column(str(count), justify="right", min_width=5)
    for head, counts in histograms.items():
        total = max(sum(counts), 1)
        table.add_row(str(head), *(f"{100 * count / total:.1f}" for count in counts))
    return table
