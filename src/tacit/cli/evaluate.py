"""`tacit evaluate`: how well a model does on the text of people it has never seen.

Test users are disjoint from training users and the same every time, so that figures of two rounds,
or of two runs on a corpus, compare.  Of an intent and slot model the test part is measured.  The
utterances it was trained on cannot be asked for: what a model makes of those is private.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from tacit.cli.options import (
    AsJson,
    ModelArgument,
    Round,
    check_counts,
    count,
    flag,
    real,
    refuse_unfit,
    text,
)
from tacit.cli.output import emit, models_table, table
from tacit.runs.figures import better_baselines, describe_loss, written_figures
from tacit.runs.progress import Show, bar, tracked

if TYPE_CHECKING:
    from tacit.corpus.source import UserCorpus
    from tacit.evaluation.accuracy import Metrics
    from tacit.evaluation.scoring import Predictor
    from tacit.runs.baselines import Tell
    from tacit.runs.private_baselines import PrivateBaselines
    from tacit.runs.stored_model import StoredModel
    from tacit.tokenizers.tokenizer import Tokenizer


_TOKENS = 75_000
WITHOUT_PRIVACY = (
    "fitted on the training users' text without privacy, for comparison only; not for release"
)
_LANGUAGE_ONLY = ("--round", "--tokens", "--baselines", "--private-baselines")
_PIECES = 50  # how often the bar moves


def evaluate(
    context: typer.Context,
    run: ModelArgument,
    round: Round = None,
    corpus: str | None = text(None, "CORPUS", "Whose test users. [default: the run's own corpus]"),
    tokens: int | None = count(
        None, "N", f"Tokens to measure on. [default: the run's, else {_TOKENS:,}]"
    ),
    baselines: bool = flag(
        "--baselines", "Unigram and bigram models of the training users, without privacy."
    ),
    private_baselines: float | None = real(
        None, "EPSILON", "Release both with noise: costs the people this much."
    ),
    part: str = text("test", "NAME", "Of an intent and slot model's own data: test or valid."),
    as_json: AsJson = False,
) -> None:
    """Measure a model on the text of test users, whom no training has seen.

    Accuracy and perplexity of a language model; semantic error rate, intents and slots of an intent
    and slot model.  The texts are the same every time, and the same as during training: figures of
    two rounds or two runs on a corpus compare.

    What --private-baselines releases stays with the run, and --baselines shows it again for free.

    Examples:

    `tacit evaluate runs/first`

    `tacit evaluate runs/first --round 40 --baselines`

    `tacit evaluate runs/first --private-baselines 2`

    `tacit evaluate pretrained --corpus chitchat --json`

    `tacit evaluate runs/intents --corpus other.jsonl`
    """
    from tacit.runs.directory import RunDirectory

    task = RunDirectory(run).task
    refuse_unfit(context, task, {"language": _LANGUAGE_ONLY, "nlu": ("--part",)})
    if task == "nlu":
        _evaluate_nlu(run, corpus, part, as_json)
        return
    from tacit.runs.baselines import fit_baselines
    from tacit.runs.stored_model import StoredModel

    if private_baselines is not None and corpus is not None:
        raise ValueError("--private-baselines is for a run's own people: leave out --corpus")
    stored = StoredModel.open(run, round)
    users = stored.corpus(corpus)
    sequences = held_out_of(stored, users, tokens)
    predictors: dict[str, Predictor] = {"model": stored.model}
    if baselines:
        with bar("counting") as show:
            predictors |= fit_baselines(
                stored, users, is_own=corpus is None, progress=_without_state(show)
            )
    private = _private_baselines(stored, private_baselines, baselines and corpus is None)
    if private is not None:
        predictors |= private.predictors
    rows = {
        name: measure(predictor, sequences, stored.tokenizer, f"the {name}").as_row()
        for name, predictor in predictors.items()
    }
    for each in rows.values():
        each["tokens"] = each.pop("targets")
    own = stored.run.experiment.corpus.source if stored.run else None
    about = {"run": str(stored.path), "round": stored.round, "corpus": corpus or own}
    result: dict[str, Any] = {**about, **rows["model"]}
    if baselines:
        result["baselines"] = {"fitted": WITHOUT_PRIVACY} | {
            name: rows[name] for name in ("unigram", "bigram")
        }
    if private is not None:
        result["private_baselines"] = private.guarantee.as_row() | {
            name.removeprefix("private "): rows[name] for name in private.predictors
        }
    emit(result, as_json, lambda console: _print(console, about, rows, private))


def _without_state(show: Show) -> Tell:
    """A bar as functions outside of the command line move it."""
    return lambda step, done, of: show(step, done, of, "")


def _private_baselines(
    stored: StoredModel, epsilon: float | None, is_shown: bool
) -> PrivateBaselines | None:
    """A new release at this epsilon, or the last one if there was one and it is to be shown."""
    from tacit.runs.private_baselines import PrivateBaselines, release_baselines

    if epsilon is not None:
        with bar("counting") as show:
            return release_baselines(stored, epsilon, progress=_without_state(show))
    if not is_shown or stored.run is None:
        return None
    released = PrivateBaselines.read(stored.run.path)
    is_same = released is not None and released.tokenizer == stored.tokenizer.fingerprint
    return released if is_same else None


def held_out_of(stored: StoredModel, users: UserCorpus, tokens: int | None) -> list[list[int]]:
    """The test users' texts as tokens: the first `tokens` of them, by default as in training."""
    from tacit.evaluation.held_out import held_out_texts

    check_counts(tokens=tokens)
    own = stored.experiment.evaluation.max_tokens if stored.experiment else _TOKENS
    sequences = held_out_texts(users.test, stored.tokenizer, tokens or own).sequences
    if not sequences:
        raise ValueError("the test users have no text to measure on")
    return sequences


def measure(
    predictor: Predictor,
    sequences: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
    name: str,
) -> Metrics:
    """Accuracy and perplexity of a model or another predictor on held-out texts, with a bar.

    Args:
        predictor: a model, or a baseline such as a unigram.
        sequences: tokens of each text, without the token at its beginning.
        tokenizer: what made the tokens; unknown words count as missed.
        name: what the bar says is being measured.
    """
    from tacit.evaluation.accuracy import Metrics
    from tacit.evaluation.accuracy import evaluate as evaluated

    size = max(200, -(-len(sequences) // _PIECES))
    total = Metrics()
    for start in tracked(range(0, len(sequences), size), f"measuring {name}"):
        part = sequences[start : start + size]
        total += evaluated(predictor, part, bos=tokenizer.bos, unk=tokenizer.unk)
    return total


def _print(
    console: Console,
    about: dict[str, Any],
    rows: dict[str, dict[str, Any]],
    private: PrivateBaselines | None,
) -> None:
    """A line for the model and each baseline."""
    after = f" after round {about['round']}" if about["round"] is not None else ""
    model = rows["model"]
    title = (
        f"{about['run']}{after}: {model['tokens']:,} tokens of test users of {about['corpus']},"
        f" {model['unknown_rate']:.1%} unknown"
    )
    unprotected = [name for name in ("unigram", "bigram") if name in rows]
    named = {f"{name} (not private)" if name in unprotected else name: rows[name] for name in rows}
    console.print(models_table("language", "predictor", named, {}, title))
    if unprotected:
        console.print(f"Unigram and bigram: {WITHOUT_PRIVACY}.")
    if private is not None:
        guarantee = private.guarantee
        console.print(f"Private unigram and bigram: {guarantee.claim}")
        console.print(
            "They are a release of their own about the same people, on top of what the model has"
            f" cost them.  {guarantee.others}"
        )
    beaten_by = better_baselines(model, {name: named[name] for name in named if name != "model"})
    if beaten_by:
        console.print(f"Warning: {describe_loss('The model', model, beaten_by)}")


def _evaluate_nlu(run: Path, data: str | None, part: str, as_json: bool) -> None:
    """Semantic error rate, intent accuracy and slot F1, in all and by intent."""
    from tacit.runs.run import NluRun
    from tacit.runs.stored_model import open_nlu_model
    from tacit.tasks.nlu.metrics import NLUMetrics, by_intent
    from tacit.tasks.nlu.predictions import predict
    from tacit.tasks.nlu.readers import load_nlu

    if part not in ("test", "valid"):
        raise ValueError(f"--part must be test or valid, got {part!r}")
    stored = open_nlu_model(run)
    if data is None:
        if not (run / "checkpoints").is_dir():
            raise ValueError(f"{run} is no run, so say on which utterances: add --corpus FILE")
        utterances = getattr(NluRun.open(run).data(), part)
    else:
        other = load_nlu(data, unseen_intents="keep")
        utterances = (*other.train, *other.valid, *other.test)
    if not utterances:
        raise ValueError(f"{data or run} has no utterance in {part}")
    with bar("evaluating") as show:
        answers = predict(
            stored,
            [utterance.tokens for utterance in utterances],
            progress=lambda done, of: show("evaluating", done, of, f"{done:,} utterances"),
        )
    measured = by_intent(utterances, answers)
    intents = {name: metrics.as_row() for name, metrics in measured.items()}
    total_row = sum(measured.values(), NLUMetrics()).as_row()
    what = f"on {part if data is None else data}"

    def render(console: Console) -> None:
        console.print(table(what, ">", rows=written_figures("nlu", total_row)))
        counts = {">utterances": [f"{row['utterances']:,}" for row in intents.values()]}
        console.print(models_table("nlu", "intent", intents, counts))

    emit({"run": str(run), "part": what, **total_row, "by_intent": intents}, as_json, render)
