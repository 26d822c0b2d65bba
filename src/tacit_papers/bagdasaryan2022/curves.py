"""The picture of a switch of tokenizers: Bagdasaryan et al. 2022, Figure 4.

Perplexity per word over rounds: one curve for the baseline, which keeps the public tokenizer, and
one for each round at which another training leaves it with a new one.  A switch is a step: the same
round is measured before and after it, because the first remapping is not perfect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.cli import plots
from tacit.evaluation.accuracy import evaluate
from tacit.evaluation.held_out import held_out_texts
from tacit.runs.run import LanguageRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = Sequence[tuple[int, float]]  # round and perplexity per word

_ABOVE, _BELOW = 1.5, 0.97  # of the final values: what the second panel shows


def curve_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """The curve of a run's metrics; what was not finite is a gap in it.

    Of a round with a switch, what was measured before comes first, wherever it stands.
    """
    measured = [row for row in rows if "perplexity_per_word" in row]
    if not measured:
        raise ValueError(
            "the metrics have no perplexity_per_word; `measure_again` finds it from the checkpoints"
        )
    ordered = sorted(measured, key=lambda row: (row["round"], bool(row.get("switched"))))
    values = [(row["round"], row["perplexity_per_word"]) for row in ordered]
    return [(int(round), math.nan if value is None else float(value)) for round, value in values]


def measure_again(run: LanguageRun, max_tokens: int | None = None) -> list[tuple[int, float]]:
    """The curve of the models that a run has kept, measured as in training.

    Each has the tokenizer of its round: of a round with a switch, one side only is there.
    """
    users, limit = run.corpus().test, max_tokens or run.experiment.evaluation.max_tokens
    curve = []
    for round in run.directory.checkpoints.legs():
        if round != run.round and not run.experiment.keeps_checkpoint(round):
            continue  # there for a resume only, and gone any moment
        tokenizer = run.tokenizer_at(round)
        texts = held_out_texts(users, tokenizer, limit)
        metrics = evaluate(
            run.model(round),
            texts.sequences,
            bos=tokenizer.bos,
            unk=tokenizer.unk,
            owners=texts.owners,
        )
        curve.append((round, metrics.perplexity_per_word))
    return curve


def draw(curves: Mapping[str, Curve], path: str | Path) -> None:
    """The figure as a file; the name's ending says of which format."""
    plots.save(figure(curves), Path(path))


def figure(curves: Mapping[str, Curve]) -> Figure:
    """All of the training on a logarithmic axis, and beside it where the curves end."""
    from matplotlib.ticker import StrMethodFormatter

    finals = [_final(name, curve) for name, curve in curves.items()]
    if not finals:
        raise ValueError("there must be one curve at least to draw, got none")
    drawing = plots.new_figure(11.0, 4.2)
    whole, end = drawing.subplots(1, 2)
    for axes in (whole, end):
        for number, (name, curve) in enumerate(curves.items()):
            _add(axes, number, name, curve)
        axes.set_xlabel("rounds (x: a new tokenizer begins)")
        axes.set_ylabel("perplexity per word")
        axes.grid(True, which="both", alpha=0.25)
    whole.set_yscale("log")
    for set_formatter in (whole.yaxis.set_major_formatter, whole.yaxis.set_minor_formatter):
        set_formatter(StrMethodFormatter("{x:,g}"))
    whole.legend(fontsize="small")
    whole.set_title("all rounds")
    end.set_title("where the curves end")
    # Untrained models are thousands above the rest, and late ones a few percent apart.
    lowest = min(value for curve in curves.values() for _, value in curve if math.isfinite(value))
    end.set_ylim(_BELOW * lowest, _ABOVE * max(finals))
    return drawing


def _add(axes: Axes, number: int, name: str, curve: Curve) -> None:
    """A line, with a cross at each switch: where the new tokenizer begins.

    A curve that does not begin at round 0 left another training, with a tokenizer of its own.
    """
    style: dict[str, Any] = {"color": f"C{number % 10}"}
    style["linestyle"] = ("-", "--", ":")[number // 10 % 3]
    rounds, values = zip(*curve, strict=True)
    axes.plot(rounds, values, marker=".", label=name, **style)
    switched = [after for before, after in pairwise(curve) if before[0] == after[0]]
    if rounds[0] > 0 and rounds[0] not in dict(switched):
        switched.append(curve[0])
    if switched:
        axes.plot(*zip(*switched, strict=True), linestyle="", marker="x", color=style["color"])


def _final(name: str, curve: Curve) -> float:
    """The last value of a curve, which must have one."""
    if any(after[0] < before[0] for before, after in pairwise(curve)):
        raise ValueError(f"the rounds of the curve {name!r} must not go back")
    finite = [value for _, value in curve if math.isfinite(value)]
    if not finite:
        raise ValueError(f"the curve {name!r} has no finite value to draw")
    if not min(finite) > 0:
        raise ValueError(f"the curve {name!r} must be above 0, got {min(finite)}")
    return finite[-1]
