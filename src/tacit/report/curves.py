"""Charts that any report can have: epsilon, curves over the training, and the ROC of attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from tacit.privacy.claims import format_delta
from tacit.report.axes import Axis, short
from tacit.report.svg import Line, line_chart

Facts = Mapping[str, Any]
Points = list[tuple[float, float]]


def epsilon_chart(facts: Facts | None) -> Markup | None:
    """Of what `epsilon.over_releases` found."""
    if facts is None:
        return None
    lines = [
        Line(_legend(curve), known_points(facts["after"], curve["epsilon"]))
        for curve in facts["curves"]
    ]
    return lines_chart(
        "Epsilon over the training",
        f"epsilon at delta {format_delta(facts['delta'])}",
        facts["counted"],
        lines,
    )


def _legend(curve: Facts) -> str:
    name, title = curve["accountant"], curve["title"]
    return str(title) if title.startswith(name) else f"{name}: {title}"


def lines_chart(
    title: str, up: str, across: str, lines: Sequence[Line], *, is_log: bool = False
) -> Markup | None:
    """Lines over what was done or spent; None if none of them has a point."""
    lines = [line for line in lines if line.points]
    if not lines:
        return None
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    ends = "; ".join(
        f"{line.name} from {short(line.points[0][1])} to {short(line.points[-1][1])}"
        for line in lines
    )
    return line_chart(
        title,
        f"{up} over {across}, {ends}",
        Axis.over(across, xs),
        Axis.over(up, ys, is_log=is_log and min(ys) > 0),
        lines,
    )


def roc_chart(title: str, attacks: Sequence[Facts]) -> Markup | None:
    """On logarithmic axes: what counts is how many are found when few may be wronged."""
    lines = []
    for attack in attacks:
        points = [(fpr, tpr) for fpr, tpr in attack["roc"] if fpr > 0 and tpr > 0]
        if points:
            lines.append(Line(attack["name"], points, is_plain=True))
    if not lines:
        return None
    low = min(min(point) for line in lines for point in line.points)
    low = min(low, 0.1)
    lines.append(Line("chance", [(low, low), (1.0, 1.0)], is_plain=True))
    about = "; ".join(f"{attack['name']} with an AUC of {attack['auc']:.3f}" for attack in attacks)
    across = Axis("non-members taken for members (FPR)", low, 1.0, is_log=True)
    up = Axis("members found (TPR)", low, 1.0, is_log=True)
    return line_chart(title, about, across, up, lines)


def known_points(xs: Sequence[float], ys: Sequence[float | None]) -> Points:
    """What is known of the values."""
    return [(x, y) for x, y in zip(xs, ys, strict=True) if y is not None]


def percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
