"""What an audit of a language model found, and how results are read back from the run's files.

`audit.json` holds what an audit found by planted canaries and the released model, and its verdicts
on phrases: free to publish.  `private/audit.json` holds the phrases with their figures, and what
was computed from people's text (design rule 5).

The phrases of `tacit audit --phrases` are secrets that somebody is afraid for.  Of a phrase only
the verdicts are public.  Its log-perplexity would be enough to find it: anyone who has the model
can try millions of phrases until one has that very figure.

Results are JSON files that were perhaps written on another day and another machine.  A file that
was cut off or edited is refused in one sentence, before any of it is shown.  What else a file holds
is not read, so that no path and no private figure gets into a report unless a field names it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from tacit.audit.empirical_epsilon import AUDIT_FILE, EmpiricalEpsilon
from tacit.audit.membership import MembershipResult
from tacit.config.sections import sentence
from tacit.privacy.documents import read_json
from tacit.runs.directory import RunDirectory

_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a phrase was drawn out of the model: all that is public of one."""

    text: str
    memorized_rs: bool  # by Random Sampling: it beats all the random suffixes it is held against
    memorized_bs: bool  # by Beam Search: it is among the likeliest continuations of its first word

    @property
    def is_memorized(self) -> bool:
        """Whether either attack draws it out."""
        return self.memorized_rs or self.memorized_bs


@dataclass(frozen=True, kw_only=True)
class PhraseFigures(Verdict):
    """How likely a model finds a phrase (Carlini et al. 2019)."""

    log_perplexity: float
    rank: float | None = None  # among all phrases of its length, the likeliest being 1
    rank_standard_error: float | None = None  # 0 if the rank is exact
    exposure: float | None = None  # in bits: log2 of the number of phrases, less log2 of the rank


@dataclass(frozen=True, kw_only=True)
class CanaryFigures(PhraseFigures):
    """A phrase that was planted in users' texts."""

    expected_sharers: float  # how many users were to have it
    example_prob: float  # the share of a sharer's texts that it replaces
    sharers: int  # how many users really have it
    copies: int  # how often it stands in all their texts together


@dataclass(frozen=True, kw_only=True)
class ControlCounts:
    """Phrases like the canaries that were never planted.

    None of them should count as memorized; if one does, so may a canary for the same reason.
    """

    count: int
    memorized_rs: int
    memorized_bs: int


@dataclass(frozen=True, kw_only=True)
class _CanaryCell:
    """What came out of the canaries that were meant to be shared equally widely."""

    expected_sharers: float
    example_prob: float
    canaries: int
    mean_sharers: float
    mean_copies: float
    memorized_rs: int
    memorized_bs: int
    mean_exposure: float | None  # of those whose exposure is known

    @classmethod
    def of(cls, rows: Sequence[CanaryFigures]) -> _CanaryCell:
        """The canaries of one cell added up."""
        exposures = [row.exposure for row in rows if row.exposure is not None]
        return cls(
            expected_sharers=rows[0].expected_sharers,
            example_prob=rows[0].example_prob,
            canaries=len(rows),
            mean_sharers=sum(row.sharers for row in rows) / len(rows),
            mean_copies=sum(row.copies for row in rows) / len(rows),
            memorized_rs=sum(row.memorized_rs for row in rows),
            memorized_bs=sum(row.memorized_bs for row in rows),
            mean_exposure=sum(exposures) / len(exposures) if exposures else None,
        )


@dataclass(frozen=True, kw_only=True)
class PublicAudit:
    """The whole of audit.json, which may be published; fields that were not looked at are None."""

    round: int | None  # after which the model was audited; None for a model without a run
    accounted_epsilon: float | None = None
    delta: float | None = None
    accountant: str | None = None
    synthetic_users: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    controls: ControlCounts | None = None
    rows: tuple[CanaryFigures, ...] = ()
    phrases: tuple[Verdict, ...] | None = None
    empirical_epsilon: EmpiricalEpsilon | None = None

    @classmethod
    def read(cls, directory: RunDirectory) -> PublicAudit | None:
        """The last audit of a run, if there was one; its counts must be those of its rows."""
        path = directory.path / AUDIT_FILE
        audit = read(cls, path)
        stored = read_object(path) or {}
        for name, count in audit.counts().items() if audit else ():
            if stored.get(name, count) != count:
                raise ValueError(
                    f"{path} is damaged: {name} is {stored[name]}, and its rows say {count}"
                )
        return audit

    def counts(self) -> dict[str, int]:
        """How many canaries there are, and how many came out."""
        return {
            "canaries": len(self.rows),
            "memorized_rs": sum(row.memorized_rs for row in self.rows),
            "memorized_bs": sum(row.memorized_bs for row in self.rows),
            "memorized": sum(row.is_memorized for row in self.rows),
        }

    def cells(self) -> list[_CanaryCell]:
        """The canaries added up by how widely they were meant to be shared."""
        cells: dict[tuple[float, float], list[CanaryFigures]] = {}
        for row in self.rows:
            cells.setdefault((row.expected_sharers, row.example_prob), []).append(row)
        return [_CanaryCell.of(cells[key]) for key in sorted(cells)]

    def as_row(self) -> dict[str, Any]:
        """Plain JSON."""
        return self.counts() | asdict(self)


@dataclass(frozen=True, kw_only=True)
class PrivateAudit:
    """The whole of private/audit.json: what is internal."""

    round: int | None = None
    membership: MembershipResult | None = None
    phrases: tuple[PhraseFigures, ...] | None = None


def read(kind: type[_Result], path: Path) -> _Result | None:
    """The result that a file holds, or None if there is no such file.

    Raises `ValueError` with one sentence if it is not JSON, or not such a result.
    """
    data = read_object(path)
    return None if data is None else check(kind, data, path)


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object that a file holds, or None if there is no such file."""
    try:
        return read_json(path, dict[str, Any])
    except FileNotFoundError:
        return None


def check(kind: type[_Result], data: dict[str, Any], path: Path) -> _Result:
    """Data of the file at `path` as a dataclass; the first mistake in it is one sentence."""
    try:
        hashable: Any = kind  # which a type is
        result: _Result = _adapter(hashable).validate_python(data)
        return result
    except ValidationError as error:
        raise ValueError(sentence(error, f"{path} is damaged", BaseModel)) from None


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """What checks data of this kind: it takes much longer to make than to use."""
    return TypeAdapter(kind)
