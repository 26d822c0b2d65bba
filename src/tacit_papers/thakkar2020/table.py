"""The secret sharer's table: a row for each arm, as the tables of Thakkar et al. 2020 have it.

Counts are per seed, in the order of the seeds.  The lowest configuration memorized is that of the
paper's Table 6: of the canaries that Random Sampling calls memorized, the cell with the fewest
expected insertions, which are sharers times p_e.

Results come in as the JSON of each arm's memorization.json.  `table_rows` and `comparisons` make
typed rows of them, from which the terminal, the Markdown file and the picture are all made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.privacy.claims import PROJECTED, format_delta, format_epsilon
from tacit.runs.figures import UNK_COMPETES
from tacit_papers.markdown import markdown_table
from tacit_papers.thakkar2020.estimates import Estimate, Interval, estimate

Result = Mapping[str, Any]  # one memorization.json, as training.py writes it
_Json = Mapping[str, Any]  # a canary or a control of a result

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
    f"Acc. % {UNK_COMPETES}",
    "Perp.",
    "Epsilon",
)
_OPTIMIZERS = {
    "sgd": "SGD",
    "momentum": "Momentum",
    "adam": "Adam",
    "fedavg": "FedAvg",
    "fedavg+clip": "FedAvg+Clip",
    "dp-fedavg": "DP-FedAvg",
    "fedavg+adam": "FedAvg+Adam",
}


@dataclass(frozen=True)
class ArmRow:
    """An arm over all of its seeds, under the names that scripts rely on.

    Lists have a value for each seed.  `memorized_rs` and `memorized_bs` count the canaries that
    Random Sampling and Beam Search call memorized, `controls_rs` and `controls_bs` the same of
    phrases that were never planted, and `copies` those that were planted and not cut off by caps.
    """

    arm: str
    optimizer: str
    data: str
    batch: int
    unit: str
    seeds: list[int]
    canaries: list[int]
    copies: list[int]
    memorized_rs: list[int]
    memorized_bs: list[int]
    controls: list[int]
    controls_rs: list[int]
    controls_bs: list[int]
    exposure: Estimate | None  # None if ranks were not asked for
    control_exposure: float | None
    lowest_memorized: dict[str, float] | None
    accuracy_top1: list[float | None]
    accuracy_top1_unk_competes: list[float | None]  # None: an older result does not have it
    perplexity: list[float | None]
    epsilon: list[float | None]  # None: infinite
    delta: float | None
    projected: dict[str, Any] | None
    claim: str

    @property
    def has_claim(self) -> bool:
        """Whether any seed's epsilon is finite and about people: users of IID data are made up."""
        return self.data != "iid" and any(value is not None for value in self.epsilon)


@dataclass(frozen=True)
class Comparison:
    """What one arm has more than another, seed by seed, on the same canaries."""

    arm: str
    minus: str
    seeds: list[int]
    memorized_rs: list[int]
    memorized_bs: list[int]
    exposure: Estimate | None


def table_rows(results: Sequence[Result]) -> list[ArmRow]:
    """One row for each arm over all of its seeds."""
    by_arm: dict[str, list[Result]] = {}
    for result in results:
        by_arm.setdefault(result["arm"], []).append(result)
    return [_row(arm, seeds) for arm, seeds in by_arm.items()]


def _row(arm: str, results: Sequence[Result]) -> ArmRow:
    """An arm's row from its results, one for each seed; what all seeds share is the first's."""
    first = results[0]
    controls = [each["exposure"] for result in results for each in result["controls"]]
    ranked = [exposure for exposure in controls if exposure is not None]
    return ArmRow(
        arm=arm,
        optimizer=first["optimizer"],
        data=first["data"],
        batch=first["batch"],
        unit=first["unit"],
        seeds=[result["seed"] for result in results],
        canaries=[len(result["canaries"]) for result in results],
        copies=[sum(canary["copies"] for canary in result["canaries"]) for result in results],
        memorized_rs=[_count(result["canaries"], "memorized_rs") for result in results],
        memorized_bs=[_count(result["canaries"], "memorized_bs") for result in results],
        controls=[len(result["controls"]) for result in results],
        controls_rs=[_count(result["controls"], "memorized_rs") for result in results],
        controls_bs=[_count(result["controls"], "memorized_bs") for result in results],
        exposure=_exposure([(result, None) for result in results]),
        control_exposure=float(np.mean(ranked)) if ranked else None,
        lowest_memorized=lowest_memorized([c for result in results for c in result["canaries"]]),
        accuracy_top1=[result["held_out"]["accuracy_top1"] for result in results],
        accuracy_top1_unk_competes=[
            result["held_out"].get("accuracy_top1_unk_competes") for result in results
        ],
        perplexity=[result["held_out"]["perplexity"] for result in results],
        epsilon=[result["epsilon"] for result in results],
        delta=first.get("delta"),
        projected=first.get("projected"),
        claim=first["claim"],
    )


def lowest_memorized(canaries: Sequence[_Json]) -> dict[str, float] | None:
    """The configuration with the fewest expected insertions that was memorized."""
    memorized = [canary for canary in canaries if canary["memorized_rs"]]
    if not memorized:
        return None
    least = min(memorized, key=lambda c: (c["expected_sharers"] * c["example_prob"], c["copies"]))
    return {name: least[name] for name in ("expected_sharers", "example_prob", "copies")}


def _exposure(pairs: Sequence[tuple[Result, Result | None]]) -> Estimate | None:
    """The mean exposure of results, or what they have more than others, canary by canary."""
    values = {}
    for result, minus in pairs:
        others = [0.0] * len(result["canaries"])
        if minus is not None:
            others = [canary["exposure"] for canary in minus["canaries"]]
        values[result["seed"]] = [
            ((c["expected_sharers"], c["example_prob"]), c["exposure"] - other)
            for c, other in zip(result["canaries"], others, strict=True)
            if c["exposure"] is not None and other is not None
        ]
    return estimate(values) if any(values.values()) else None


def comparisons(results: Sequence[Result]) -> list[Comparison]:
    """Pairs of arms that differ in one thing, canary by canary: they plant the same ones.

    Each is the first arm minus the second: canaries memorized, and exposure with its intervals.
    """
    by_seed = {(result["arm"], result["seed"]): result for result in results}
    arms = {result["arm"]: result for result in results}
    compared = []
    for one, other in ((a, b) for a in arms.values() for b in arms.values()):
        seeds = [s for (arm, s) in by_seed if arm == one["arm"] and (other["arm"], s) in by_seed]
        if not seeds or not _differ_in_one(one, other):
            continue
        pairs = [(by_seed[one["arm"], s], by_seed[other["arm"], s]) for s in seeds]

        def more(key: str, pairs: Sequence[tuple[Result, Result]] = pairs) -> list[int]:
            return [_count(a["canaries"], key) - _count(b["canaries"], key) for a, b in pairs]

        compared.append(
            Comparison(
                arm=one["arm"],
                minus=other["arm"],
                seeds=seeds,
                memorized_rs=more("memorized_rs"),
                memorized_bs=more("memorized_bs"),
                exposure=_exposure(pairs),
            )
        )
    return compared


_STEPS = (("fedavg", "fedavg+clip"), ("fedavg+clip", "dp-fedavg"))


def _differ_in_one(one: Result, other: Result) -> bool:
    """IID against non-IID; FedAvg against clipping against noise; else nothing."""
    if one["batch"] != other["batch"] or one["unit"] != other["unit"]:
        return False
    if one["optimizer"] == other["optimizer"]:
        return (one["data"], other["data"]) == ("iid", "non-iid")
    return one["data"] == other["data"] and (one["optimizer"], other["optimizer"]) in _STEPS


def cells(row: ArmRow) -> list[str]:
    """A row as text, in the order of HEADERS."""
    lowest = row.lowest_memorized
    return [
        _OPTIMIZERS[row.optimizer],
        "IID" if row.data == "iid" else "Non-IID",
        f"{row.batch:,} {row.unit}",
        f"{_listed(row.memorized_rs)} of {_once(row.canaries)}",
        _listed(row.memorized_bs),
        f"{_listed(row.controls_rs)} of {_once(row.controls)}",
        _exposure_text(row.exposure),
        f"{lowest['expected_sharers']:g} x {lowest['example_prob']:g}" if lowest else "-",
        _percent(row.accuracy_top1),
        _percent(row.accuracy_top1_unk_competes),
        _mean(row.perplexity, 1),
        _epsilon(row),
    ]


def _epsilon(row: ArmRow) -> str:
    """The largest of the seeds, and beside it the projected one, which says that it is."""
    finite = [value for value in row.epsilon if value is not None]
    if not finite:
        return "infinity"
    if not row.has_claim or row.delta is None:
        return "no claim"
    actual = f"{format_epsilon(max(finite))} at {format_delta(row.delta)}"
    projected = row.projected
    if projected is None or projected["epsilon"] is None:
        return actual
    text = f"{format_epsilon(projected['epsilon'])} at {format_delta(projected['delta'])}"
    return f"{actual} ({text} {PROJECTED})"


def markdown(rows: Sequence[ArmRow], compared: Sequence[Comparison]) -> str:
    """The table and what its figures mean, as a file to keep."""
    parts = [markdown_table(HEADERS, map(cells, rows), left=3)]
    if compared:
        differences = [
            (
                pair.arm,
                pair.minus,
                _listed(pair.memorized_rs, "+d"),
                _listed(pair.memorized_bs, "+d"),
                _exposure_text(pair.exposure),
            )
            for pair in compared
        ]
        headers = ("Arm", "Minus", "RS", "BS", "Exposure")
        parts += ["Differences, canary by canary:", markdown_table(headers, differences, left=2)]
    claims = [f"{row.arm}: {row.claim}" for row in rows if row.has_claim]
    return "\n\n".join([*parts, "\n".join([*notes(rows), *claims])]) + "\n"


def notes(rows: Sequence[ArmRow]) -> list[str]:
    """What the figures mean."""
    seeds = sorted({seed for row in rows for seed in row.seeds})
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
    if any(share is not None for row in rows for share in row.accuracy_top1_unk_competes):
        said.append(
            "Acc.: top-1 on test users' text, UNK being no choice; if UNK competes, it may be the"
            " first choice and is a mistake, which is what a paper's figure is held against."
        )
    chance = [row.control_exposure for row in rows if row.control_exposure is not None]
    if chance:
        said.append(
            f"Mean exposure of the controls, which is 1.44 bits by chance: {min(chance):.2f} to"
            f" {max(chance):.2f}."
        )
    return said


def _exposure_text(exposure: Estimate | None) -> str:
    """The mean, its interval over canaries in brackets, and behind it the one over seeds."""
    if exposure is None:
        return "-"
    text = f"{exposure.mean:.1f}"
    if exposure.over_canaries is not None:
        text += f" [{_interval(exposure.over_canaries)}]"
    return text if exposure.over_seeds is None else f"{text}, {_interval(exposure.over_seeds)}"


def _interval(interval: Interval) -> str:
    return f"{interval[0]:.1f} to {interval[1]:.1f}"


def _count(rows: Sequence[_Json], key: str) -> int:
    """How many rows have a true value under a key."""
    return sum(bool(row[key]) for row in rows)


def _listed(values: Sequence[int], form: str = "d") -> str:
    """The counts of the seeds, one after another."""
    return ", ".join(format(value, form) for value in values)


def _once(values: Sequence[int]) -> str:
    """What is the same for most seeds, without repetitions."""
    return ", ".join(map(str, dict.fromkeys(values)))


def _percent(shares: Sequence[float | None]) -> str:
    """The mean of the shares that there are, in percent."""
    return _mean([None if share is None else 100 * share for share in shares], 2)


def _mean(values: Sequence[float | None], digits: int) -> str:
    """The mean of the values that there are, or a dash."""
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.{digits}f}" if known else "-"
