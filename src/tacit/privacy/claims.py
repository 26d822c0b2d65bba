"""How a guarantee is put into words: everything an epsilon means, wherever one is printed.

This is the only place where a claim's words are made, and nothing ever reads them back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, Context, Decimal
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from tacit.privacy.events import (
    CyclicPoissonGaussian,
    DistributedGaussian,
    Event,
    FixedSizeGaussian,
    Gaussian,
    Horizon,
    Lapse,
    NonPrivate,
    PoissonGaussian,
    PureDP,
    TruncatedPoissonGaussian,
    TurnsDistributedGaussian,
)

if TYPE_CHECKING:
    from tacit.privacy.guarantee import Guarantee, ReleaseGroup
    from tacit.privacy.ledger_lines import Header, PriorCost

# What an epsilon of training never covers, in words for a header's `excluded`.
SETTINGS = "the choice of settings"
TEST_USERS = "test users, who are disjoint from the training users and unprotected"
ALWAYS_EXCLUDED: tuple[str, ...] = (SETTINGS, TEST_USERS)
ELSEWHERE = {
    "tokenizer": "the users of another corpus, from whose text the tokenizer was learnt",
    "starting weights": "the users of other corpora on whose text the starting model was trained",
}
COUNTED = "the number of training {unit}s, which is published"
LARGE_DELTA = "any one {unit}, since delta is not below 1 in {population:,}"

# Above this epsilon a guarantee is one in name only: e^100 is a number of 44 digits.
LARGEST_MEANINGFUL_EPSILON = 100.0

PROJECTED = "projected, not trained with this guarantee"


def format_epsilon(epsilon: float, digits: int = 4) -> str:
    """An epsilon in `digits` significant digits, rounded up: print never understates."""
    if not math.isfinite(epsilon):
        return "infinity"
    if epsilon == 0:
        return "0"
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(
        Decimal(repr(float(epsilon)))
    )
    decimals = max(digits - 1 - rounded.adjusted(), 0)
    return f"{rounded:.{decimals}f}" if 1e-5 <= epsilon < 1e9 else f"{rounded:.{digits - 1}e}"


def format_delta(delta: float) -> str:
    """A delta in at most six significant digits, rounded up."""
    rounded = Context(prec=6, rounding=ROUND_CEILING).create_decimal(Decimal(repr(float(delta))))
    return f"{float(rounded):g}"


def format_number(value: float) -> str:
    """A public constant, short but exact enough to recompute with."""
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:.6g}"


Noisy = (
    Gaussian
    | PoissonGaussian
    | TruncatedPoissonGaussian
    | FixedSizeGaussian
    | DistributedGaussian
    | Horizon
)
# What is released, by kind of entry.
RELEASED = {
    "scaling": "scaling factors of the layers",
    "counts": "counts of tokens and of pairs of them",
}
MANY_NOISES = 4  # from so many noise multipliers on, only the largest and the least are named


def claim(of: Guarantee) -> str:
    """What may be said of a run, to be quoted by itself (design rule 2)."""
    header = of.header
    if not header.about_people:
        nobody = (
            f"No claim about people: the {header.unit}s of this run are synthetic, and a guarantee"
            " for them says nothing about anybody."
        )
        return f"{nobody}  {_sentence(of)}" if of.reasons else nobody
    said = [_sentence(of), *_of_prior_costs(of)]
    if header.simulation:
        said.insert(0, "Simulation, not for release, because its noise follows from a seed.")
    if header.audit:
        said.insert(0, "Audit run, with canaries planted among its texts or users.")
    return "  ".join(said)


def excluded_by(costs: Sequence[PriorCost]) -> tuple[str, ...]:
    """Whom a claim leaves out because of what was paid before the run, and elsewhere."""
    said: list[str] = []
    for cost in costs:
        said += cost.excluded
        if cost.whom == "elsewhere":
            said.append(ELSEWHERE.get(cost.what, f"those who paid for the {cost.what}"))
    return tuple(dict.fromkeys(said))


def _sentence(of: Guarantee) -> str:
    header = of.header
    if of.reasons:
        return f"No differential privacy: {'; '.join(of.reasons)}."
    if not of.parts:
        return f"Nothing was released yet: no {header.counted.removesuffix('s')} has been run."
    released = "; then ".join(_described(header, of.parts))
    label = f" ({PROJECTED})" if of.is_projected else ""
    if not math.isfinite(of.value):
        return f"No guarantee{label}: {of.accountant} gives no finite epsilon for {released}."
    meaning = ""
    if of.value > LARGEST_MEANINGFUL_EPSILON:
        meaning = f"No meaningful guarantee: epsilon is above {LARGEST_MEANINGFUL_EPSILON:g}.  "
    excluded = f"; excluded: {'; '.join(of.excluded)}" if of.excluded else ""
    public = [str(one) for one in header.public_inputs]
    declared = f"; declared public: {'; '.join(public)}" if public else ""
    return (
        f"{meaning}{header.unit.capitalize()}-level ({format_epsilon(of.value)},"
        f" {format_delta(header.delta)})-differential privacy{label} under"
        f" {of.adjacency} adjacency, with the population of {header.population:,}"
        f" {header.unit}s declared public: {released}, accounted by {of.accountant}"
        f"{excluded}{declared}."
    )


def _described(header: Header, parts: Sequence[ReleaseGroup]) -> list[str]:
    """Each kind of release with how often it was made."""

    def alike(part: ReleaseGroup) -> tuple[str, str, str, str]:
        event = part.event
        is_noisy = isinstance(event, Noisy)
        horizon = event.horizon if isinstance(event, Horizon) else ""
        return part.kind, event.sampling, horizon, "" if is_noisy else _other(part.kind, event)

    said = []
    for (kind, sampling, _, other), group in groupby(parts, alike):
        same = list(group)
        count = sum(part.count for part in same)
        if other:
            said.append(_repeated(other, count))
            continue
        noise = _noise(same)
        if kind != "round":
            said.append(_repeated(f"{_named(kind)} released with {noise}", count))
            continue
        is_reshuffled = header.counted == "epochs" and isinstance(same[0].event, Gaussian)
        drawn = "reshuffled, without amplification by sampling" if is_reshuffled else sampling
        said.append(f"{_number_of(count, header.counted)}, {drawn}, {noise}")
    return said


def _number_of(count: int, what: str) -> str:
    return f"{count:,} {what if count != 1 else what.removesuffix('s')}"


def _repeated(what: str, count: int) -> str:
    return what if count == 1 else f"{what}, {count:,} times"


def _named(kind: str) -> str:
    return RELEASED.get(kind, kind)


def _noise(parts: Sequence[ReleaseGroup]) -> str:
    """How much noise there was, and in how many releases if not in all the same."""
    if isinstance(parts[0].event, Horizon):
        return _noise_of_horizon(parts[0].event)
    counts: dict[float, int] = {}
    for part in parts:
        assert isinstance(part.event, Noisy)
        z = part.event.noise_multiplier
        counts[z] = counts.get(z, 0) + part.count
    values, multipliers = list(counts), list(counts.items())
    if len(values) == 1:
        kind = (
            "discrete Gaussian" if isinstance(parts[0].event, DistributedGaussian) else "Gaussian"
        )
        return f"{kind} noise of {format_number(values[0])} times the sensitivity"
    if len(values) < MANY_NOISES:
        (first, count), *rest = multipliers
        more = "".join(f" and of {format_number(z)} times in {n:,}" for z, n in rest)
        return (
            f"Gaussian noise of {format_number(first)} times the sensitivity in {count:,} of"
            f" them{more}"
        )
    falls = all(one >= next for one, next in pairwise(values))
    least, most = format_number(min(values)), format_number(max(values))
    how = f"that falls from {most} to {least}" if falls else f"of between {least} and {most}"
    return f"Gaussian noise {how} times the sensitivity"


def _noise_of_horizon(event: Horizon) -> str:
    """The noise of all rounds of a horizon, which are one release, or one of each turn."""
    is_by_turn = isinstance(event, CyclicPoissonGaussian | TurnsDistributedGaussian)
    how = event.noise if event.noise == "independent" else f"correlated ({event.noise})"
    law = "discrete Gaussian" if isinstance(event, TurnsDistributedGaussian) else "Gaussian"
    return (
        f"{how} {law} noise of {format_number(event.noise_multiplier)} times the sensitivity of"
        f" {'each turn' if is_by_turn else 'all of them together'}"
    )


def _other(kind: str, event: Event) -> str:
    """A release without Gaussian noise, in words."""
    match event:
        case PureDP():
            how = f"under pure differential privacy of epsilon {format_epsilon(event.epsilon)}"
            return f"{_named(kind)} reported {how}"
        case Lapse():
            return f"a failure with probability {format_delta(event.probability)}, part of delta"
        case NonPrivate():
            return event.reason
    return f"a release of kind {event.kind!r}"


def _of_prior_costs(of: Guarantee) -> list[str]:
    """What was paid before the run began, and by whom."""
    if of.reasons or not of.parts:
        return []
    said = []
    for cost in of.header.prior_costs:
        if cost.whom == "same":
            said.append(f"This includes what it cost to learn the {cost.what} from the same users.")
        elif cost.whom == "beside":
            paid = format_epsilon(of.cost_of(cost))
            said.append(
                f"The {cost.what} was learnt from part {cost.part} of the corpus's users, none of"
                f" whom are trained on here, at epsilon {paid}: the epsilon stated is the larger"
                " of the two, and holds for the users of both parts."
            )
    return said
