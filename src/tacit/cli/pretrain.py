"""`tacit model pretrain`: a starting point from public text, before anything private is touched."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.options import AsJson, number, whole_number
from tacit.cli.output import append_rows, new_directory
from tacit.cli.progress import bar

if TYPE_CHECKING:
    from tacit.evaluation.accuracy import Metrics
    from tacit.evaluation.predictors import Predictor
    from tacit.models.base import LanguageModel
    from tacit.public import pretrain as training
    from tacit.public.text import PublicText
    from tacit.tokenizers.tokenizer import Kind, Tokenizer

EXAMPLES = """
Examples:

`tacit model pretrain books.jsonl.gz --out pretrained --minutes 15`

`tacit model pretrain chitchat --model cifg --tokenizer bpe --vocab 5000 --out pretrained`

`tacit model pretrain more.txt --tokenizer pretrained/tokenizer.json --lr 1e-3 --out again`

`tacit model pretrain sotu+chatterbot --mlm --minutes 25 --out pretrained-bert`
"""

KINDS: tuple[Kind, ...] = ("word", "bpe", "wordpiece", "char")


def pretrain(
    context: typer.Context,
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT...",
            help="Public text: files (plain, JSON Lines by author; also gzip), corpora.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory to make.")],
    model: Annotated[
        str, typer.Option(metavar="NAME", help="lstm, cifg, gru, ... or package.module:factory.")
    ] = "lstm",
    model_option: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(metavar="NAME=VALUE", help="A size of the model, such as cells=128."),
    ] = None,
    tokenizer: Annotated[
        str,
        typer.Option(
            metavar="WHICH",
            help="word, bpe, wordpiece or char, learnt from the text; public:NAME (or a word"
            " list); or a tokenizer.json.",
        ),
    ] = "word",
    vocab: Annotated[
        int, typer.Option(parser=whole_number, metavar="N", help="Tokens of a new tokenizer.")
    ] = 10_000,
    epochs: Annotated[
        float, typer.Option(parser=number, metavar="X", help="Passes over the text.")
    ] = 1.0,
    minutes: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(parser=number, metavar="X", help="Train no longer than this."),
    ] = None,
    optimizer: Annotated[str, typer.Option(metavar="NAME", help="adam or sgd.")] = "adam",
    lr: Annotated[
        float, typer.Option(parser=number, metavar="X", help="The largest learning rate.")
    ] = 5e-3,
    schedule: Annotated[
        str, typer.Option(metavar="NAME", help="Of the learning rate: cosine or constant.")
    ] = "cosine",
    warmup: Annotated[
        int, typer.Option(parser=whole_number, metavar="N", help="Steps until it is reached.")
    ] = 100,
    clip: Annotated[
        float, typer.Option(parser=number, metavar="X", help="Largest norm of a gradient.")
    ] = 1.0,
    batch: Annotated[
        int, typer.Option(parser=whole_number, metavar="N", help="Texts side by side.")
    ] = 32,
    unroll: Annotated[
        int, typer.Option(parser=whole_number, metavar="N", help="Tokens of a text per step.")
    ] = 20,
    measure_every: Annotated[
        int, typer.Option(parser=whole_number, metavar="N", help="Steps between measurements.")
    ] = 500,
    measure_tokens: Annotated[
        int,
        typer.Option(
            parser=whole_number, metavar="N", help="Held-out tokens measured on during training."
        ),
    ] = 20_000,
    seed: Annotated[
        int, typer.Option(parser=whole_number, metavar="N", help="Same seed, same model.")
    ] = 0,
    threads: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(parser=whole_number, metavar="N", help="Cores to use.  [default: all]"),
    ] = None,
    mlm: Annotated[
        bool, typer.Option("--mlm", help="Train a BERT for intents and slots on masked text.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on public text, as a starting point for private training.

    About one author in ten is held out; the table compares the model with unigram and bigram
    predictors on their text.  DIR gets model.safetensors, tokenizer.json, metrics.jsonl and
    curve.png.  Nothing here protects the authors: use text that is public.
    """
    options = dict(map(_option, model_option or []))
    if mlm:
        from tacit.cli.pretrain_masked import pretrain_masked

        pretrain_masked(texts, out, _typed(context) | {"model_option": options})
        return
    import torch

    from tacit.models import registry
    from tacit.public import pretrain as training
    from tacit.public.text import read_public_text

    settings = training.Settings(
        optimizer=optimizer,
        learning_rate=lr,
        schedule=schedule,
        warmup_steps=warmup,
        clip_norm=clip,
        batch=batch,
        unroll=unroll,
        epochs=epochs,
        minutes=minutes,
        measure_every=measure_every,
        seed=seed,
    )
    if measure_tokens < 1:
        raise ValueError(f"--measure-tokens must be at least 1, got {measure_tokens}")
    if threads is not None:
        if threads < 1:
            raise ValueError(f"--threads must be at least 1, got {threads}")
        torch.set_num_threads(threads)
    with new_directory(out) as folder:
        public = read_public_text(texts)
        words = chosen_tokenizer(tokenizer, vocab, public)
        network = registry.build(model, words.vocab_size, seed=seed, **options)
        train, held_out = words.encode_batch(public.train), words.encode_batch(public.held_out)
        facts = _facts(model, network, words, public, settings)
        log = folder / "metrics.jsonl"  # grows as the training goes, for whoever is watching
        append_rows(log, [{"event": "settings", **facts}])
        outcome = _train(network, words, train, held_out, settings, measure_tokens, log)
        facts |= _done(outcome)
        append_rows(log, [{"event": "trained", **_done(outcome)}])
        results = _results(network, words, train, held_out)
        append_rows(
            log,
            [
                {"event": "held_out", "predictor": name, **found.as_row()}
                for name, found in results.items()
            ],
        )
        _write(folder, network, words, facts, outcome, results, public.identities)
    if as_json:
        rows = {name: metrics.as_row() for name, metrics in results.items()}
        json.dump({**facts, "held_out": rows}, sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        _print(facts, results, out)


def chosen_tokenizer(which: str, vocab: int, public: PublicText) -> Tokenizer:
    """A new one from the training text or a public list, or one from a file."""
    from tacit.tokenizers import build, provenance
    from tacit.tokenizers.public import from_public
    from tacit.tokenizers.tokenizer import Tokenizer

    for kind in KINDS:
        if which == kind:
            # A corpus holds people's text: what is learnt from that is an oracle, whoever calls it
            # public, or the mark would be washed off by training here first.
            named = provenance.public("+".join(public.names))
            origin = provenance.ORACLE if public.corpora else named
            return build.learn(kind, public.train, vocab, provenance=origin)
    if which.startswith("public:"):
        return from_public(which, "word", vocab)
    if not Path(which).exists():
        raise ValueError(
            f"--tokenizer must be one of {', '.join(KINDS)}, public:NAME, or a tokenizer.json that"
            f" exists, got {which!r}"
        )
    return Tokenizer.load(which)


def _typed(context: typer.Context) -> dict[str, Any]:
    """The options that were given, without those that have their defaults."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    typed = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    return {name: context.params[name] for name in typed}


def _option(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as JSON where it is JSON, else as it stands."""
    name, equals, value = text.partition("=")
    if not (equals and name.strip() and value.strip()) or name.strip() in ("seed", "vocab_size"):
        raise ValueError(f"--model-option must be NAME=VALUE, such as cells=128, got {text!r}")
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        return name.strip(), value.strip()


def _train(
    model: LanguageModel,
    tokenizer: Tokenizer,
    train: Sequence[list[int]],
    held_out: Sequence[list[int]],
    settings: training.Settings,
    measure_tokens: int,
    log: Path,
) -> training.Outcome:
    from tacit.evaluation.accuracy import evaluate
    from tacit.public import pretrain as training

    sample = _sample(held_out, measure_tokens, settings.seed)

    def measure(model: LanguageModel) -> dict[str, Any]:
        row = evaluate(model, sample, bos=tokenizer.bos, unk=tokenizer.unk).as_row()
        return {f"held_out_{name}": value for name, value in row.items()}

    with _bar() as advance:
        return training.pretrain(
            model,
            train,
            settings,
            bos=tokenizer.bos,
            measure=measure,
            progress=advance,
            on_point=lambda point: append_rows(log, [{"event": "point", **point.as_row()}]),
        )


def _sample(texts: Sequence[list[int]], tokens: int, seed: int) -> list[list[int]]:
    """Whole texts in a random order, until they have this many tokens."""
    import numpy as np

    chosen: list[list[int]] = []
    for index in np.random.default_rng(seed).permutation(len(texts)):
        if tokens <= 0:
            break
        chosen.append(texts[index])
        tokens -= len(texts[index])
    return chosen


def _results(
    model: LanguageModel,
    tokenizer: Tokenizer,
    train: Sequence[list[int]],
    held_out: Sequence[list[int]],
) -> dict[str, Metrics]:
    """The model and the baselines on all held-out text."""
    from tacit.evaluation.accuracy import evaluate
    from tacit.evaluation.baselines import Bigram

    bigram = Bigram.fit(train, tokenizer.vocab_size, bos=tokenizer.bos)
    predictors: dict[str, LanguageModel | Predictor] = {
        "model": model,
        "bigram": bigram,
        "unigram": bigram.unigram,
    }
    return {
        name: evaluate(predictor, held_out, bos=tokenizer.bos, unk=tokenizer.unk)
        for name, predictor in predictors.items()
    }


def _facts(
    name: str,
    model: LanguageModel,
    tokenizer: Tokenizer,
    public: PublicText,
    settings: training.Settings,
) -> dict[str, Any]:
    import dataclasses

    from tacit.models.base import parameter_count

    return {
        "model": name,
        "parameters": parameter_count(model),
        "tokenizer": tokenizer.kind,
        "vocabulary": tokenizer.vocab_size,
        "provenance": tokenizer.provenance,
        "why_void": tokenizer.why_void,
        "texts": public.names,
        "authors": public.authors,
        "held_out_authors": public.held_out_authors,
        "settings": dataclasses.asdict(settings),
    }


def _done(outcome: training.Outcome) -> dict[str, Any]:
    return {
        "steps": outcome.steps,
        "tokens": outcome.tokens,
        "seconds": round(outcome.seconds, 3),
        "ran_out_of_time": outcome.ran_out_of_time,
    }


def _write(
    folder: Path,
    model: LanguageModel,
    tokenizer: Tokenizer,
    facts: dict[str, Any],
    outcome: training.Outcome,
    results: dict[str, Metrics],
    trained_on: Sequence[str],
) -> None:
    from tacit.cli.figures import perplexity_curve
    from tacit.evaluation.accuracy import perplexity
    from tacit.models import weights

    weights.save(model, folder / "model.safetensors", trained_on=trained_on)
    tokenizer.save(folder / "tokenizer.json")
    held_out = [point.measured["held_out_perplexity"] for point in outcome.curve]
    perplexity_curve(
        folder / "curve.png",
        [point.tokens for point in outcome.curve],
        [perplexity(point.train_loss) for point in outcome.curve],
        [math.nan if value is None else value for value in held_out],
        {name: results[name].perplexity for name in ("bigram", "unigram")},
        f"{facts['model']}, {facts['parameters']:,} parameters, {facts['vocabulary']:,} tokens",
    )


def _print(facts: dict[str, Any], results: dict[str, Metrics], out: Path) -> None:
    console = Console(soft_wrap=False)
    who = f"{facts['held_out_authors']:,} held-out authors" if facts["held_out_authors"] else ""
    first = results["model"]
    table = Table(
        title=f"{first.targets:,} tokens of {who or 'held-out text'},"
        f" {first.unknown_rate:.1%} of them unknown"
    )
    table.add_column("predictor")
    for name in ("perplexity", "top 1", "top 3", "top 5"):
        table.add_column(name, justify="right")
    for name, metrics in results.items():
        label = f"{facts['model']} ({facts['parameters']:,})" if name == "model" else name
        shares = (metrics.accuracy_top1, metrics.accuracy_top3, metrics.accuracy_top5)
        table.add_row(
            label,
            f"{metrics.perplexity:,.1f}",
            *(f"{share:.2%}" for share in shares),
            style="bold" if name == "model" else None,
        )
    console.print(table)
    if facts["why_void"]:
        console.print(
            f"No guarantee can be given with this tokenizer: {facts['why_void']}.  Use --tokenizer"
            " public:NAME or a tokenizer.json for one that can be trained on privately."
        )
    rate = facts["tokens"] / max(facts["seconds"], 1e-9)
    console.print(
        f"Trained on {facts['tokens']:,} tokens in {facts['steps']:,} steps, {rate:,.0f} a second"
        f"{'; the time was up' if facts['ran_out_of_time'] else ''}.  In {out}: model.safetensors,"
        " tokenizer.json, metrics.jsonl, curve.png",
        highlight=False,
    )


@contextmanager
def _bar() -> Iterator[Any]:
    """A bar with the step, the loss and the rate."""
    with bar("pre-training") as show:

        def advance(now: training.Progress) -> None:
            rate = now.tokens / max(now.seconds, 1e-9)
            state = f"step {now.step:,}  loss {now.loss:.3f}  {rate:,.0f} tokens/s"
            show("pre-training", now.share, 1.0, state)

        yield advance
