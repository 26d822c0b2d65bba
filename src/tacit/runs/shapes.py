"""What the JSON of a run must hold to be read: rows of metrics and diagnostics, and the result.

Only what something reads is named; further figures may stand beside it (`privacy.documents`).
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class _Round(TypedDict):
    round: int


class _Epoch(TypedDict):
    epoch: int


class _RoundMetrics(_Round):
    """A line of the metrics.jsonl of a language model."""

    epsilon: NotRequired[float | None]
    accuracy_top1: NotRequired[float | None]
    accuracy_top3: NotRequired[float | None]
    accuracy_top5: NotRequired[float | None]
    accuracy_top1_unk_competes: NotRequired[float | None]
    accuracy_top1_smoothed: NotRequired[float | None]
    accuracy_top1_unk_competes_smoothed: NotRequired[float | None]
    perplexity: NotRequired[float | None]
    perplexity_per_word: NotRequired[float | None]
    targets: NotRequired[int]
    unknown_rate: NotRequired[float | None]
    switched: NotRequired[bool]


class _NluFigures(TypedDict):
    semantic_error_rate: NotRequired[float | None]
    intent_accuracy: NotRequired[float | None]
    slot_f1: NotRequired[float | None]
    slot_precision: NotRequired[float | None]
    slot_recall: NotRequired[float | None]
    exact_match: NotRequired[float | None]
    utterances: NotRequired[int]


class _EpochMetrics(_Epoch, _NluFigures):
    """A line of the metrics.jsonl of an intent and slot model."""


class _Result(TypedDict):
    """What result.json holds of any run."""

    run: str
    task: str
    ending: str
    claim: str
    delta: float
    epsilon: dict[str, float | None]
    accountant: str
    other_runs: str | None
    key_kept: bool
    simulation: bool
    baselines: dict[str, dict[str, float | None]]


class _LanguageResult(_Result):
    rounds: int
    accuracy_top1: NotRequired[float | None]
    accuracy_top3: NotRequired[float | None]
    accuracy_top5: NotRequired[float | None]
    accuracy_top1_unk_competes: NotRequired[float | None]
    perplexity: NotRequired[float | None]
    perplexity_per_word: NotRequired[float | None]
    unknown_rate: NotRequired[float | None]
    tokens: NotRequired[int | None]


class _NluResult(_Result):
    epochs: int
    test: _NluFigures


# By what a task counts in.
LEGS: dict[str, Any] = {"round": _Round, "epoch": _Epoch}
METRICS: dict[str, Any] = {"round": _RoundMetrics, "epoch": _EpochMetrics}
# By the task.
RESULTS: dict[str, Any] = {"language": _LanguageResult, "nlu": _NluResult}
