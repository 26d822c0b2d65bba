"""What a run began with: inputs that were declared public, and costs that others have paid.

A tokenizer or starting weights that were learnt from people's text have told about these people
already.  Who they are decides what a run with them may claim:

same       the same people: those releases come first in the run's own ledger, and the costs add up
beside     others of the same corpus: everybody is in one part only, so that the larger of the two
           epsilons holds for everybody ("parallel composition": adding or removing one person
           changes the input of one of the two, and the other sees at most its released result)
elsewhere  other people: the claim leaves them out, and says so
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tacit.privacy import checks
from tacit.privacy.events import Composition, event_from_json
from tacit.privacy.fields import expect_fields, hexadecimal, name, one_of

WHOM = ("same", "beside", "elsewhere")


@dataclass(frozen=True)
class Head:
    """How many entries a ledger has, and the hash of its last line."""

    entries: int
    hash: str

    def __post_init__(self) -> None:
        checks.whole("the head's entries", self.entries)
        hexadecimal("the head's hash", self.hash)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        expect_fields("a ledger's head", data, cls)
        return cls(**data)


@dataclass(frozen=True)
class PublicInput:
    """Something that was declared public: what it was used for, its name, and its digest."""

    what: str
    name: str
    sha256: str

    def __post_init__(self) -> None:
        name("what", self.what)
        name("name", self.name)
        hexadecimal("sha256", self.sha256)

    def __str__(self) -> str:
        return f"the {self.what} {self.name} (sha256 {self.sha256[:16]})"


@dataclass(frozen=True)
class PriorCost:
    """What the tokenizer or the starting weights have cost, and whom.

    `releases` is None where nobody knows the cost.  `head` is that of the ledger it comes from.
    """

    what: str
    whom: str
    people: str = ""
    part: str = ""
    releases: Composition | None = None
    head: Head | None = None
    excluded: tuple[str, ...] = ()  # whom else it tells about, as a claim says it

    def __post_init__(self) -> None:
        name("what", self.what)
        one_of("whom", self.whom, WHOM)
        if self.whom == "beside" and self.releases is None:
            raise ValueError("releases must be known of a cost to others of the same corpus")

    def to_json(self) -> dict[str, Any]:
        counts = self.releases.counts if self.releases is not None else None
        return {
            "what": self.what,
            "whom": self.whom,
            "people": self.people,
            "part": self.part,
            "releases": None if counts is None else [[e.to_json(), n] for e, n in counts],
            "head": self.head.to_json() if self.head else None,
            "excluded": list(self.excluded),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        expect_fields("a prior cost", data, cls)
        counts, head = data["releases"], data["head"]
        return cls(
            what=data["what"],
            whom=data["whom"],
            people=data["people"],
            part=data["part"],
            releases=None
            if counts is None
            else Composition.of([(event_from_json(event), count) for event, count in counts]),
            head=None if head is None else Head.from_json(head),
            excluded=tuple(data["excluded"]),
        )
