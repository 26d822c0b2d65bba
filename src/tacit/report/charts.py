"""The pictures of a language model's report; one that has nothing to show is left out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from tacit.privacy.claims import format_epsilon
from tacit.report.axes import Axis, short
from tacit.report.curves import (
    Facts,
    epsilon_chart,
    known_points,
    lines_chart,
    percent,
    roc_chart,
)
from tacit.report.svg import Line, bar_chart, heat_map, level_chart

BARS = 12  # of the histogram, at most
ACCURACIES = {"accuracy_top1": "top-1", "accuracy_top3": "top-3", "accuracy_top5": "top-5"}


def draw(facts: Facts) -> dict[str, Markup]:
    """All charts by name."""
    metrics, audit = facts["metrics"], facts["audit"]
    found: dict[str, Markup | None] = {
        "epsilon": epsilon_chart(facts["epsilon"]),
        "accuracy": _accuracy(metrics),
        "perplexity": _perplexity(metrics),
        "accuracy_over_epsilon": _accuracy_over_epsilon(metrics),
    }
    if audit is not None and audit["cells"]:
        found["heat_rs"] = _heat(audit["cells"], "memorized_rs", "Random Sampling")
        found["heat_bs"] = _heat(audit["cells"], "memorized_bs", "Beam Search")
        found["exposure"] = _exposure(audit["rows"])
    if audit is not None and audit["empirical_epsilon"]:
        found["empirical_epsilon"] = _levels(audit["empirical_epsilon"], audit["accounted_epsilon"])
    if facts.get("membership"):
        found["roc"] = roc_chart("Membership attacks on users", facts["membership"]["attacks"])
    return {name: chart for name, chart in found.items() if chart is not None}


def _accuracy(rows: Sequence[Facts]) -> Markup | None:
    rounds = [row["round"] for row in rows]
    lines = [
        Line(title, known_points(rounds, [percent(row[name]) for row in rows]))
        for name, title in ACCURACIES.items()
    ]
    return lines_chart("Accuracy over the training", "accuracy in %", "rounds", lines)


def perplexity_of(rows: Sequence[Facts]) -> tuple[str, str]:
    """Per token; per word where the tokenizer was switched, since only that compares."""
    switched = any(row["switched"] for row in rows)
    return ("word", "perplexity_per_word") if switched else ("token", "perplexity")


def _perplexity(rows: Sequence[Facts]) -> Markup | None:
    of, name = perplexity_of(rows)
    points = known_points([row["round"] for row in rows], [row[name] for row in rows])
    lines = [Line("perplexity", points)]
    title = f"Perplexity per {of} over the training"
    return lines_chart(title, f"perplexity per {of}", "rounds", lines, is_log=True)


def _accuracy_over_epsilon(rows: Sequence[Facts]) -> Markup | None:
    costly = [row for row in rows if row["epsilon"]]
    epsilons = [row["epsilon"] for row in costly]
    lines = [
        Line(title, known_points(epsilons, [percent(row[name]) for row in costly]))
        for name, title in ACCURACIES.items()
    ]
    return lines_chart("Accuracy over epsilon", "accuracy in %", "epsilon so far", lines)


def _heat(cells: Sequence[Facts], name: str, attack: str) -> Markup:
    shares = {
        (cell["expected_sharers"], cell["example_prob"]): (
            cell[name] / cell["canaries"],
            f"{cell[name]} of {cell['canaries']}",
        )
        for cell in cells
    }
    return heat_map(
        f"Memorized, by {attack}",
        "; ".join(
            f"{said} with {short(sharers)} expected sharers and p_e {short(prob)}"
            for (sharers, prob), (_, said) in shares.items()
        ),
        ("expected sharers", sorted({sharers for sharers, _ in shares})),
        ("p_e", sorted({prob for _, prob in shares})),
        shares,
    )


def _exposure(rows: Sequence[Facts]) -> Markup | None:
    known = [row for row in rows if row["exposure"] is not None]
    if not known:
        return None
    most = max(1.0, *(row["exposure"] for row in known))
    step = math.ceil(most / BARS)
    edges = [float(step * number) for number in range(math.floor(most / step) + 2)]

    def counts(memorized: bool) -> list[int]:
        bars = [0] * (len(edges) - 1)
        for row in known:
            if row["memorized_rs"] is memorized:
                bars[max(0, math.floor(row["exposure"] / step))] += 1
        return bars

    stacks = [("not memorized", counts(False)), ("memorized", counts(True))]
    tallest = max(sum(bar) for bar in zip(*(bars for _, bars in stacks), strict=True))
    about = ", ".join(
        f"{sum(bar)} from {short(edges[place])} to {short(edges[place + 1])} bits"
        for place, bar in enumerate(zip(*(bars for _, bars in stacks), strict=True))
        if sum(bar)
    )
    across = Axis("exposure in bits", 0.0, edges[-1])
    up = Axis("canaries", 0.0, float(max(5, tallest)))
    return bar_chart("Exposure of the canaries", about, across, up, edges, stacks)


def _levels(shown: Facts, accounted: float | None) -> Markup:
    at = f"lower bound, with {100 * shown['confidence']:g}% confidence"
    levels = [(at, shown["lower_bound"], f"{shown['lower_bound']:.4g}")]
    if shown["estimate"] is not None:
        levels.append(("estimate", shown["estimate"], f"{shown['estimate']:.4g}"))
    most = f"ceiling: the most that {shown['canaries']:,} clients can show"
    levels.append((most, shown["ceiling"], f"{shown['ceiling']:.4g}"))
    if accounted is not None:
        levels.append(("accounted: what the ledger allows", accounted, format_epsilon(accounted)))
    about = "; ".join(f"{name} {said}" for name, _, said in levels)
    return level_chart("Empirical and accounted epsilon", about, levels)
