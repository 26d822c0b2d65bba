"""`tacit model pretrain --mlm`: a masked model of public text, to start a BERT from."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tacit.cli.output import append_rows, new_directory
from tacit.cli.progress import Show, bar

if TYPE_CHECKING:
    from transformers import BertForMaskedLM

    from tacit.models.bert import BertSizes
    from tacit.public.masked import MaskedScore, MaskedSettings
    from tacit.public.masking import MaskedBatch, Masking, Sequences
    from tacit.public.steps import Outcome, Progress
    from tacit.public.text import PublicText
    from tacit.tokenizers.wordpiece import PieceVocabulary

# Options of `tacit model pretrain` that mean nothing here.
_NOT_HERE = {
    "model": "--model: the model is a BERT; --model-option has its sizes",
    "tokenizer": "--tokenizer: its pieces are learnt from the text; --vocab says how many",
    "optimizer": "--optimizer: it is trained with Adam",
}
_SETTINGS = {
    "lr": "learning_rate",
    "warmup": "warmup_steps",
    "clip": "clip_norm",
    **{name: name for name in ("schedule", "batch", "unroll", "epochs", "minutes", "seed")},
    "measure_every": "measure_every",
}
_HELD_OUT_PIECES = 200_000  # that the figures at the end are of


@dataclass(frozen=True)
class Request:
    """What was asked for, checked before any text is read."""

    settings: MaskedSettings
    sizes: Mapping[str, Any]  # of the model, besides its pieces
    pieces: int
    measure_tokens: int
    as_json: bool


def pretrain_masked(texts: list[str], out: Path, given: Mapping[str, Any]) -> None:
    """Train on public text and write a folder; `given` are the options that were typed."""
    request = _request(given)
    from tacit.public.masked import write_folder

    with new_directory(out) as folder, bar("reading") as show:
        public, vocabulary, train, held_out = _read(texts, request, show)
        model, masking = _begin(request, vocabulary, train, show)
        log = folder / "metrics.jsonl"
        facts = _facts(model, vocabulary, public, request)
        append_rows(log, [{"event": "settings", **facts}])
        outcome = _train(model, train, held_out, masking, request, log, show)
        facts |= {
            "steps": outcome.steps,
            "tokens": outcome.tokens,
            "seconds": round(outcome.seconds, 3),
            "ran_out_of_time": outcome.ran_out_of_time,
        }
        results = _results(model, train, held_out, masking, vocabulary, show)
        facts["held_out"] = {name: found.as_row() for name, found in results.items()}
        append_rows(log, [{"event": "trained", **facts}])
        write_folder(folder, model, vocabulary, facts)
        _draw(folder / "curve.png", facts, outcome, results)
    if request.as_json:
        json.dump(facts, sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        _print(facts, results, out)


def _request(given: Mapping[str, Any]) -> Request:
    from tacit.models.base import require

    require("transformers", extra="nlu", what="--mlm")
    import torch

    from tacit.models.bert import BertSizes
    from tacit.public.masked import MaskedSettings

    for name, why in _NOT_HERE.items():
        if name in given:
            raise ValueError(f"--mlm does not go with {why}")
    options: dict[str, Any] = dict(given.get("model_option", {}))
    known = [field.name for field in fields(BertSizes) if field.name != "pieces"]
    more = {name: options.pop(name) for name in ("masked_share", "bfloat16") if name in options}
    for name in options:
        if name not in known:
            raise ValueError(
                f"--model-option of --mlm must be one of {', '.join(known)}, masked_share,"
                f" bfloat16, got {name!r}"
            )
    settings = {_SETTINGS[name]: value for name, value in given.items() if name in _SETTINGS}
    request = Request(
        MaskedSettings(**settings, **more),
        {"dropout": 0.0, **options},  # a text is hardly ever seen twice
        given.get("vocab", 10_000),
        given.get("measure_tokens", 20_000),
        given.get("as_json", False),
    )
    sizes = BertSizes(max(request.pieces, 1), **request.sizes)
    if request.settings.unroll > sizes.positions:
        raise ValueError(
            f"unroll must be at most positions, {sizes.positions}, got {request.settings.unroll}"
        )
    if not request.measure_tokens >= 1:
        raise ValueError(f"--measure-tokens must be at least 1, got {request.measure_tokens}")
    threads = given.get("threads")
    if threads is not None:
        if not threads >= 1:
            raise ValueError(f"--threads must be at least 1, got {threads}")
        torch.set_num_threads(threads)
    return request


def _read(
    texts: list[str], request: Request, show: Show
) -> tuple[PublicText, PieceVocabulary, Sequences, Sequences]:
    from tacit.public.masking import Sequences
    from tacit.public.text import read_public_text
    from tacit.tokenizers import provenance
    from tacit.tokenizers.wordpiece import PieceVocabulary

    public = read_public_text(texts, people=False)
    show("learning pieces", 0, None, f"{len(public.train):,} texts")
    origin = provenance.public("+".join(public.names))
    vocabulary = PieceVocabulary.learn(public.train, request.pieces, provenance=origin)
    show("cutting text into pieces", 0, None, "")
    length = request.settings.unroll
    train, held_out = (
        Sequences.of(vocabulary.cut(part), length, vocabulary)
        for part in (public.train, public.held_out)
    )
    return public, vocabulary, train, held_out


def _begin(
    request: Request, vocabulary: PieceVocabulary, train: Sequences, show: Show
) -> tuple[BertForMaskedLM, Masking]:
    from tacit.models.bert import BertSizes
    from tacit.public.masked import new_model
    from tacit.public.masking import Masking, starting_vectors

    sizes: BertSizes = BertSizes(len(vocabulary), **request.sizes)
    seed = request.settings.seed
    show("word vectors to begin with", 0, None, "")
    vectors = starting_vectors(train, vocabulary, sizes.width, seed=seed)
    model = new_model(sizes, train.counts(vocabulary), seed, vectors)
    return model, Masking(vocabulary, request.settings.masked_share)


def _train(
    model: BertForMaskedLM,
    train: Sequences,
    held_out: Sequences,
    masking: Masking,
    request: Request,
    log: Path,
    show: Show,
) -> Outcome:
    from tacit.public import masked

    sample = _hidden(held_out.some(request.measure_tokens, request.settings.seed), masking)

    def measure(model: BertForMaskedLM) -> dict[str, Any]:
        row = masked.score(model, sample).as_row()
        return {f"held_out_{name}": value for name, value in row.items()}

    def advance(now: Progress) -> None:
        rate = now.tokens / max(now.seconds, 1e-9)
        state = f"step {now.step:,}  loss {now.loss:.3f}  {rate:,.0f} pieces/s"
        show("pre-training", now.share, 1.0, state)

    return masked.pretrain_masked(
        model,
        train,
        masking,
        request.settings,
        measure=measure,
        progress=advance,
        on_point=lambda point: append_rows(log, [{"event": "point", **point.as_row()}]),
    )


def _results(
    model: BertForMaskedLM,
    train: Sequences,
    held_out: Sequences,
    masking: Masking,
    vocabulary: PieceVocabulary,
    show: Show,
) -> dict[str, MaskedScore]:
    """The model and the baseline on the same hidden pieces of held-out text."""
    from tacit.public import masked

    show("measuring", 0, None, "")
    hidden = _hidden(held_out.some(_HELD_OUT_PIECES, 0), masking)
    return {
        "model": masked.score(model, hidden),
        "unigram": masked.score_unigram(train.counts(vocabulary), hidden),
    }


def _hidden(sequences: Sequences, masking: Masking) -> list[MaskedBatch]:
    """At the usual share, whichever is trained with, so that figures of two models compare."""
    from tacit.public.masked import held_out_batches
    from tacit.public.masking import Masking

    return held_out_batches(sequences, Masking(masking.vocabulary))


def _facts(
    model: BertForMaskedLM, vocabulary: PieceVocabulary, public: PublicText, request: Request
) -> dict[str, Any]:
    return {
        "model": "bert",
        "parameters": sum(values.numel() for values in model.parameters()),
        "vocabulary": len(vocabulary),
        "provenance": vocabulary.provenance,
        "texts": public.names,
        "authors": public.authors,
        "held_out_authors": public.held_out_authors,
        "settings": asdict(request.settings),
    }


def _draw(
    path: Path, facts: dict[str, Any], outcome: Outcome, results: dict[str, MaskedScore]
) -> None:
    from tacit.cli.figures import perplexity_curve

    held_out = [point.measured["held_out_perplexity"] for point in outcome.curve]
    perplexity_curve(
        path,
        [point.tokens for point in outcome.curve],
        [math.exp(min(point.train_loss, 700)) for point in outcome.curve],
        [math.nan if value is None else value for value in held_out],
        {"unigram": results["unigram"].perplexity},
        f"BERT, {facts['parameters']:,} parameters, {facts['vocabulary']:,} pieces",
    )


def _print(facts: dict[str, Any], results: dict[str, MaskedScore], out: Path) -> None:
    console = Console(soft_wrap=False)
    table = Table(title=f"{results['model'].targets:,} masked pieces of held-out text")
    table.add_column("predictor")
    for name in ("perplexity", "right"):
        table.add_column(name, justify="right")
    for name, found in results.items():
        label = f"BERT ({facts['parameters']:,})" if name == "model" else name
        style = "bold" if name == "model" else None
        table.add_row(label, f"{found.perplexity:,.1f}", f"{found.accuracy:.2%}", style=style)
    console.print(table)
    rate = facts["tokens"] / max(facts["seconds"], 1e-9)
    console.print(
        f"Trained on {facts['tokens']:,} pieces in {facts['steps']:,} steps, {rate:,.0f} a second"
        f"{'; the time was up' if facts['ran_out_of_time'] else ''}.  In {out}: a BERT in"
        " HuggingFace's layout, and origin.json, which says on which text",
        highlight=False,
    )
