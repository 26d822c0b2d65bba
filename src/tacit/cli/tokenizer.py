"""`tacit tokenizer train|sample|swap`: one that fits the users, for free."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from tacit.cli import tokenizer_options as options
from tacit.cli import tokenizer_train
from tacit.cli.options import Quiet, whole_number
from tacit.privacy import checks

if TYPE_CHECKING:
    from tacit.tokenizers.tokenizer import Tokenizer

app = typer.Typer(rich_markup_mode="markdown")


@app.callback(invoke_without_command=True)
def _tokenizer(context: typer.Context) -> None:
    """Learn tokenizers, from private models too; sample and swap."""
    if context.invoked_subcommand is None:
        print(context.get_help())


app.command("train", epilog=tokenizer_train.EXAMPLES)(tokenizer_train.train)


@app.command("sample")
def sample(
    model: options.Model,
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
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = None,
    max_length: options.MaxLength = 100,
    seed: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(parser=whole_number, metavar="N", help="The same seed, the same text."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Text that a model says by itself, one text to a line.

    It is computed from the released model alone, and tells no more about anybody than that does.
    """
    from tacit.evaluation.sampling import sample_texts
    from tacit.privacy import durable
    from tacit.runs.stored_model import StoredModel

    options.check_counts(tokens=tokens)
    if seed is not None:
        checks.whole("--seed", seed)
    if out is not None:
        options.check_new(out, "file for the texts")
    sampling = options.sampling_of(temperature, top_k, max_length)
    found = StoredModel.open(*options.place_of(model))
    wanted = tokens or (1_000_000 if out is not None else 200)
    began, key = time.monotonic(), options.key_of(seed)
    with options.telling("sampling") as tell:
        said = sample_texts(
            found.model, found.tokenizer, key, tokens=wanted, sampling=sampling, progress=tell
        )
    texts = [" ".join(text.split()) for text in said]
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        durable.create_whole(out, "".join(f"{text}\n" for text in texts).encode())
    row = {
        "out": None if out is None else str(out),
        "texts": len(texts),
        "words": sum(len(text.split()) for text in texts),
        "seconds": round(time.monotonic() - began, 2),
    }
    if as_json:
        json.dump(row if out is not None else row | {"sampled": texts}, sys.stdout, indent=2)
        print()
    elif out is None:
        print("\n".join(texts))
    else:
        print(f"{row['texts']:,} texts of {row['words']:,} words in {out}, {row['seconds']} s")


@app.command("swap")
def swap(
    context: typer.Context,
    model: options.Model,
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
        typer.Option(metavar="NAME", help="[default: that of the model's tokenizer]"),
    ] = None,
    size: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=whole_number, metavar="N", help="[default: that of the model's tokenizer]"
        ),
    ] = None,
    tokens: options.Tokens = 1_000_000,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = None,
    max_length: options.MaxLength = 100,
    workers: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(parser=whole_number, metavar="N", help="Processes.  [default: all cores]"),
    ] = None,
    quiet: Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Go on training with another tokenizer, in a branch of a run.

    The embedding of each new token is the mean over the old tokens that spell it.  The branch pays
    for all that its model has cost, and the swap itself costs nothing.  A branch that was
    interrupted goes on with `tacit train --resume --run DIR`.
    """
    from tacit.cli import train as training
    from tacit.cli.requests import Request
    from tacit.runs.directory import RunDirectory
    from tacit.tasks.language.switching import with_switch

    options.check_counts(size=size, tokens=tokens, rounds=rounds)
    options.sampling_of(temperature, top_k, max_length)
    if tokenizer is not None:
        _refuse_beside_tokenizer(options.given_options(context))
    engine = training.choose_engine("", workers, "cpu")
    RunDirectory.check_free(run)
    parent, at = options.run_at(model)
    round = parent.round if at is None else at
    if tokenizer is None:
        old = parent.tokenizer_at(round)
        kind, size = kind or old.kind, size or old.vocab_size
        _check_learnable(old, kind, size)
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
    with _nothing_left_behind(run):
        training.carry_out([request], engine, quiet=quiet, as_json=as_json)


def _check_learnable(old: Tokenizer, kind: str, size: int) -> None:
    """Before anything is sampled: a tokenizer of that kind could follow the old one."""
    from tacit.tokenizers.remapping import Remapping
    from tacit.tokenizers.sampled import normalisation_of

    Remapping.between(old, options.trial_of(kind, size, normalisation_of(old)))


def _refuse_beside_tokenizer(given: list[str]) -> None:
    """What is said about a tokenizer to be learnt, where one is given."""
    for option in ("--kind", "--size", *options.SAMPLING):
        if option in given:
            raise ValueError(f"{option} is for a tokenizer to be learnt; leave out --tokenizer")


@contextmanager
def _nothing_left_behind(run: Path) -> Iterator[None]:
    """A branch that cannot even be switched is removed: it has released nothing of its own."""
    from tacit.privacy.ledger import Ledger
    from tacit.runs.directory import RunDirectory

    try:
        yield
    except ValueError:
        directory = RunDirectory(run)
        if directory.ledger_file.is_file():
            ledger = Ledger.read(directory.ledger_file)
            parent = ledger.header.parent
            if parent is not None and len(ledger.entries) == parent.head.entries:
                shutil.rmtree(run)
        raise
