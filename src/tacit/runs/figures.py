"""The figures that the models of each task are measured by: their names, and how they are written.

There is one list, so that `tacit train`, `evaluate` and `compare` and the model card show the same
figures under the same names with the same number of digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


def percent(share: float | None) -> str:
    """A share such as 0.1234 as 12.34%, or a dash where nothing was measured."""
    return "-" if share is None else f"{100 * share:.2f}%"


def perplexity(value: float | None) -> str:
    """A perplexity in few characters at any size, or a dash where nothing was measured."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if value < 1e7 else f"{value:.2e}"


def _whole(value: int | None) -> str:
    """A count such as 12,345, or a dash where nothing was counted."""
    return "-" if value is None else f"{value:,}"


UNK_COMPETES = "if UNK competes"
"""What the accuracies of McMahan et al. 2018 are called; see `evaluation.accuracy`."""


@dataclass(frozen=True)
class Figure:
    """A figure that models of a task are measured by."""

    key: str  # its name in result.json
    name: str
    heading: str = ""  # of its column where several runs are shown; without one it has none
    show: Callable[[Any], str] = percent
    compared: bool = False  # `tacit compare` shows its difference to the first run


FIGURES = {
    "language": (
        Figure("accuracy_top1", "top-1 accuracy", "top-1", compared=True),
        Figure(
            "accuracy_top1_unk_competes",
            f"top-1 accuracy {UNK_COMPETES}",
            f"top-1 {UNK_COMPETES}",
        ),
        Figure("accuracy_top3", "top-3 accuracy", "top-3"),
        Figure("accuracy_top5", "top-5 accuracy", "top-5"),
        Figure("perplexity", "perplexity", "perplexity", perplexity, compared=True),
        Figure("perplexity_per_word", "perplexity per word", show=perplexity),
        Figure("unknown_rate", "unknown words", "unknown"),
        Figure("tokens", "tokens measured on", show=_whole),
    ),
    "nlu": (
        Figure("semantic_error_rate", "semantic error rate", "SER", compared=True),
        Figure("intent_accuracy", "intent accuracy", "intents", compared=True),
        Figure("slot_f1", "slot F1", "slot F1", compared=True),
        Figure("slot_precision", "slot precision"),
        Figure("slot_recall", "slot recall"),
        Figure("exact_match", "all of it right"),
        Figure("utterances", "utterances measured on", show=_whole),
    ),
}
"""What is shown of the models of each task, in this order."""


def written_figures(task: str, measured: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The name and the written value of each figure, from a row of metrics.jsonl or result.json."""
    row = {"tokens": measured.get("targets"), **measured}  # as metrics.jsonl calls them
    return [(figure.name, figure.show(row.get(figure.key))) for figure in FIGURES[task]]


BASELINES = {
    "start": "the starting model",
    "unigram": "the test users' unigram",
    "bigram": "the test users' bigram",
    "private_unigram": "the private unigram",
    "private_bigram": "the private bigram",
}
"""What a language model is held against in public, by the names that result.json has for them."""


def better_baselines(
    model: Mapping[str, Any], baselines: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """The baselines that a language model loses to: their names and their top-1 accuracies.

    A model that was not measured, or was measured on no tokens, loses to none.
    """
    own = model.get("accuracy_top1")
    if own is None:
        return {}
    accuracies = {name: row.get("accuracy_top1") for name, row in baselines.items()}
    return {name: value for name, value in accuracies.items() if value is not None and value > own}


def describe_loss(what: str, model: Mapping[str, Any], better: Mapping[str, float]) -> str:
    """One sentence on what a model loses to, from `better_baselines`."""
    *most, last = (
        f"{BASELINES.get(name, name)} ({percent(accuracy)})" for name, accuracy in better.items()
    )
    named = f"{', '.join(most)} and {last}" if most else last
    return (
        f"{what} is right less often ({percent(model['accuracy_top1'])}) than these baselines:"
        f" {named}. It should beat them before it is used."
    )
