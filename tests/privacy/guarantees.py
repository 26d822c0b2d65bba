"""Guarantees of made-up releases."""

from __future__ import annotations

import dataclasses

from tacit.privacy.claims import ALWAYS_EXCLUDED
from tacit.privacy.events import Adjacency, Composition, Event, PoissonGaussian
from tacit.privacy.guarantee import Guarantee, ReleaseGroup
from tacit.privacy.ledger_lines import Header, PriorCost

ADD_REMOVE, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE
HEADER = Header(
    run_id="run-1",
    unit="user",
    population=1000,
    delta=1e-6,
    adjacency=ADD_REMOVE,
    excluded=ALWAYS_EXCLUDED,
)
ROUND = PoissonGaussian(0.01, 1.0)
SHA = "0123456789abcdef" * 4


def of(*releases: ReleaseGroup | tuple[Event, int] | Event, **changes: object) -> Guarantee:
    """The guarantee of some rounds, under a header with some changes."""
    header = dataclasses.replace(HEADER, **changes)  # type: ignore[arg-type]
    return Guarantee.for_releases(header, [_part(one) for one in releases])


def _part(release: ReleaseGroup | tuple[Event, int] | Event) -> ReleaseGroup:
    if isinstance(release, ReleaseGroup):
        return release
    return (
        ReleaseGroup("round", release, 1)
        if isinstance(release, Event)
        else ReleaseGroup("round", *release)
    )


def beside(*events: Event | tuple[Event, int], **changes: object) -> PriorCost:
    cost = PriorCost("tokenizer", "beside", "", "1/2", Composition.of(events))
    return dataclasses.replace(cost, **changes)  # type: ignore[arg-type]
