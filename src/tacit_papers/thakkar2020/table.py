"""The secret sharer's table: a row for each arm, as the tables of Thakkar et al. 2020 have it.

Counts are per seed, in the order of the seeds.  The lowest configuration memorized is that of the
paper's Table 6: of the canaries that Random Sampling calls memorized, the cell with the fewest
expected insertions, which are sharers times p_e.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from tacit.privacy.claims import PROJECTED, format_delta, format_epsilon
from tacit_papers.thakkar2020.estimates import Estimate, Interval, estimate

Found = Mapping[str, Any]  # one memorization.json
Rows = Sequence[Mapping[str, Any]]

HEADERS = (
    "Optimizer",
    "Data",
    "Batch",
    "RS",
    "BS",
    "Controls",
    "Exposure",
    "Lowest",
    "Acc. %",
    "Perp.",
    "Epsilon",
)
NAMES = {
    "sgd": "SGD",
    "momentum": "Momentum",
    "adam": "Adam",
    "fedavg": "FedAvg",
    "fedavg+clip": "FedAvg+Clip",
    "dp-fedavg": "DP-FedAvg",
    "fedavg+adam": "FedAvg+Adam",
}


def table_rows(found: Sequence[Found]) -> list[dict[str, Any]]:
    """One row for each arm over all of its seeds."""
    by_arm: dict[str, list[Found]] = {}
    for one in found:
        by_arm.setdefault(one["arm"], []).append(one)
    return [_row(arm, runs) for arm, runs in by_arm.items()]


def _row(arm: str, runs: Sequence[Found]) -> dict[str, Any]:
    first = runs[0]
    return {
        "arm": arm,
        **{key: first[key] for key in ("optimizer", "data", "batch", "unit")},
        "seeds": [run["seed"] for run in runs],
        "canaries": [len(run["canaries"]) for run in runs],
        "copies": [sum(canary["copies"] for canary in run["canaries"]) for run in runs],
        "memorized_rs": [_count(run["canaries"], "memorized_rs") for run in runs],
        "memorized_bs": [_count(run["canaries"], "memorized_bs") for run in runs],
        "controls": [len(run["controls"]) for run in runs],
        "controls_rs": [_count(run["controls"], "memorized_rs") for run in runs],
        "controls_bs": [_count(run["controls"], "memorized_bs") for run in runs],
        "exposure": _exposure(runs),
        "control_exposure": _mean([c["exposure"] for run in runs for c in run["controls"]]),
        "lowest_memorized": lowest_memorized([c for run in runs for c in run["canaries"]]),
        "accuracy_top1": [run["held_out"]["accuracy_top1"] for run in runs],
        "perplexity": [run["held_out"]["perplexity"] for run in runs],
        "epsilon": [run["epsilon"] for run in runs],
        "delta": first.get("delta"),
        "projected": first.get("projected"),
        "claim": first["claim"],
    }


def lowest_memorized(canaries: Rows) -> dict[str, float] | None:
    """The configuration with the fewest expected insertions that was memorized."""
    memorized = [canary for canary in canaries if canary["memorized_rs"]]
    if not memorized:
        return None
    least = min(memorized, key=lambda c: (c["expected_sharers"] * c["example_prob"], c["copies"]))
    return {
        "expected_sharers": least["expected_sharers"],
        "example_prob": least["example_prob"],
        "copies": least["copies"],
    }


def _exposure(runs: Sequence[Found]) -> dict[str, Any] | None:
    """None if ranks were not asked for."""
    values = {
        run["seed"]: [
            ((c["expected_sharers"], c["example_prob"]), c["exposure"])
            for c in run["canaries"]
            if c["exposure"] is not None
        ]
        for run in runs
    }
    return asdict(estimate(values)) if any(values.values()) else None


def comparisons(found: Sequence[Found]) -> list[dict[str, Any]]:
    """Pairs of arms that differ in one thing, canary by canary: they plant the same ones.

    Each is the first arm minus the second: canaries memorized, and exposure with its intervals.
    """
    runs = {(one["arm"], one["seed"]): one for one in found}
    arms = {one["arm"]: one for one in found}
    pairs = [(a, b) for a in arms.values() for b in arms.values() if _differ_in_one(a, b)]
    made = []
    for one, other in pairs:
        seeds = [s for (arm, s) in runs if arm == one["arm"] and (other["arm"], s) in runs]
        both = [(runs[one["arm"], s], runs[other["arm"], s]) for s in seeds]
        if not both:
            continue
        made.append(
            {
                "arm": one["arm"],
                "minus": other["arm"],
                "seeds": seeds,
                **{
                    key: [_count(a["canaries"], key) - _count(b["canaries"], key) for a, b in both]
                    for key in ("memorized_rs", "memorized_bs")
                },
                "exposure": _difference(both),
            }
        )
    return made


def _difference(both: Sequence[tuple[Found, Found]]) -> dict[str, Any] | None:
    values = {
        a["seed"]: [
            ((c["expected_sharers"], c["example_prob"]), c["exposure"] - d["exposure"])
            for c, d in zip(a["canaries"], b["canaries"], strict=True)
            if c["exposure"] is not None and d["exposure"] is not None
        ]
        for a, b in both
    }
    return asdict(estimate(values)) if any(values.values()) else None


_STEPS = (("fedavg", "fedavg+clip"), ("fedavg+clip", "dp-fedavg"))


def _differ_in_one(one: Found, other: Found) -> bool:
    """IID against non-IID; FedAvg against clipping against noise; else nothing."""
    if one["batch"] != other["batch"] or one["unit"] != other["unit"]:
        return False
    if one["optimizer"] == other["optimizer"]:
        return (one["data"], other["data"]) == ("iid", "non-iid")
    return one["data"] == other["data"] and (one["optimizer"], other["optimizer"]) in _STEPS


def cells(row: Mapping[str, Any]) -> list[str]:
    """A row as text, in the order of HEADERS."""
    lowest = row["lowest_memorized"]
    return [
        NAMES[row["optimizer"]],
        "IID" if row["data"] == "iid" else "Non-IID",
        f"{row['batch']:,} {row['unit']}",
        f"{_listed(row['memorized_rs'])} of {_once(row['canaries'])}",
        _listed(row["memorized_bs"]),
        f"{_listed(row['controls_rs'])} of {_once(row['controls'])}",
        _exposed(row["exposure"]),
        f"{lowest['expected_sharers']:g} x {lowest['example_prob']:g}" if lowest else "-",
        _figure([100 * a for a in row["accuracy_top1"] if a is not None], 2),
        _figure([p for p in row["perplexity"] if p is not None], 1),
        _epsilon(row),
    ]


def _epsilon(row: Mapping[str, Any]) -> str:
    finite = [value for value in row["epsilon"] if value is not None]
    if not finite:
        return "infinity"
    if row["data"] == "iid":
        return "no claim"  # its users are synthetic
    actual = f"{format_epsilon(max(finite))} at {format_delta(row['delta'])}"
    made = row["projected"]
    if made is None or made["epsilon"] is None:
        return actual
    there = f"{format_epsilon(made['epsilon'])} at {format_delta(made['delta'])}"
    return f"{actual} ({there} {PROJECTED})"


def markdown(rows: Rows, compared: Rows) -> str:
    """The table and what its figures mean, as a file to keep."""
    lines = [_line(HEADERS), _line(["---"] * len(HEADERS))]
    lines += [_line(cells(row)) for row in rows]
    if compared:
        headers = ("Arm", "Minus", "RS", "BS", "Exposure")
        lines += ["", "Differences, canary by canary:", "", _line(headers), _line(["---"] * 5)]
        for pair in compared:
            texts = [_listed(pair["memorized_rs"], "+d"), _listed(pair["memorized_bs"], "+d")]
            lines.append(_line([pair["arm"], pair["minus"], *texts, _exposed(pair["exposure"])]))
    claims = [
        f"{row['arm']}: {row['claim']}" for row in rows if row["data"] != "iid" and _has_claim(row)
    ]
    return "\n".join([*lines, "", *notes(rows), *claims, ""])


def _has_claim(row: Mapping[str, Any]) -> bool:
    return any(value is not None for value in row["epsilon"])


def notes(rows: Rows) -> list[str]:
    """What the figures mean."""
    seeds = sorted({seed for row in rows for seed in row["seeds"]})
    several = f"seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]}"
    said = [
        f"RS and BS: canaries memorized by Random Sampling and Beam Search, for {several}, one"
        " number for each.  Controls: phrases that were never planted, called memorized by RS.",
        "Exposure in bits: the mean over canaries, in brackets its 95% interval over canaries (the"
        " models being what they are)"
        + (
            ", and behind it the 95% interval over seeds (Student's t on the seeds' means)."
            if len(seeds) > 1
            else "; one seed says nothing about how trainings vary."
        ),
        "Lowest: expected sharers x p_e of the least inserted configuration that RS found"
        " memorized.  All runs are simulations with planted text: none is for release.",
    ]
    chance = [row["control_exposure"] for row in rows if row["control_exposure"] is not None]
    if chance:
        said.append(
            f"Mean exposure of the controls, which is 1.44 bits by chance: {min(chance):.2f} to"
            f" {max(chance):.2f}."
        )
    return said


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _exposed(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "-"
    one = Estimate(**found)
    text = f"{one.mean:.1f}"
    if one.over_canaries is not None:
        text += f" [{_interval(one.over_canaries)}]"
    return text if one.over_seeds is None else f"{text}, {_interval(one.over_seeds)}"


def _interval(interval: Interval) -> str:
    return f"{interval[0]:.1f} to {interval[1]:.1f}"


def _count(rows: Rows, key: str) -> int:
    return sum(bool(row[key]) for row in rows)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _listed(values: Sequence[int], form: str = "d") -> str:
    return ", ".join(format(value, form) for value in values)


def _once(values: Sequence[int]) -> str:
    return ", ".join(map(str, dict.fromkeys(values)))


def _figure(values: Sequence[float], places: int) -> str:
    return f"{np.mean(values):.{places}f}" if values else "-"
