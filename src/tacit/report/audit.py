"""The audit of a language model as a report shows it: tables, warnings and charts.

`audit.json` holds what an audit found by planted canaries and the released model, and its verdicts
on phrases: free to publish.  `private/audit.json` holds the phrases with their figures, and what
was computed from people's text; it is opened for an internal report only (design rule 5).

The phrases of `tacit audit --phrases` are secrets that somebody is afraid for.  The verdicts on
them are in every report.  Their words, and the figures by which they could be found (of millions of
phrases that one may try, the one with that very log-perplexity), are in an internal one only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field, model_validator

from tacit.privacy.claims import format_epsilon
from tacit.report import results
from tacit.report.figures import Facts, heat_map, histogram, level_chart, roc_chart
from tacit.report.results import Table
from tacit.report.warnings import Warning, note, serious
from tacit.runs.directory import RunDirectory

_AUDIT_FILE = "audit.json"


class _Verdict(Table):
    """Whether a phrase was drawn out of the model: all that is public of one."""

    text: str
    memorized_rs: bool  # by Random Sampling: it beats all the random suffixes it is held against
    memorized_bs: bool  # by Beam Search: it is among the likeliest continuations of its first word

    @property
    def is_memorized(self) -> bool:
        """Whether either attack draws it out."""
        return self.memorized_rs or self.memorized_bs


class _Phrase(_Verdict):
    """How likely a model finds a phrase (Carlini et al. 2019)."""

    log_perplexity: float
    rank: float | None = None  # among all phrases of its length, the likeliest being 1
    rank_standard_error: float | None = None  # where the rank is estimated from a sample
    exposure: float | None = None  # log2 of the number of phrases, less log2 of the rank


class _Canary(_Phrase):
    """A phrase that was planted in users' texts."""

    expected_sharers: float  # how many users were to have it
    example_prob: float  # the share of a sharer's texts that it replaces
    sharers: int  # how many users really have it
    copies: int  # how often it stands in all their texts together


class _Controls(Table):
    """Phrases like the canaries that were never planted.

    None of them should count as memorized; if one does, so may a canary for the same reason.
    """

    count: int
    memorized_rs: int
    memorized_bs: int


class _EmpiricalEpsilon(Table):
    """What the audit could show of epsilon, and the most that it could have shown."""

    estimate: float | None  # under normal laws, which the warnings may doubt
    lower_bound: float  # at this confidence, which presumes nothing but the coins
    confidence: float
    ceiling: float  # the largest bound that so many guesses could have shown
    canaries: int  # made-up clients, of whom coins decided who took part
    took_part: int | None = None
    guesses: int | None = None
    correct: int | None = None
    says: str | None = None  # what it means for the claim, in one sentence
    try_number: int | None = None  # at this run; the confidence allows for the earlier ones
    confidence_asked: float | None = None  # of all tries together
    highest_lower_bound: float | None = None  # that any of them has shown
    warnings: tuple[str, ...] = ()


class _Audit(Table):
    """The whole of audit.json; its counts must be those of its rows."""

    round: int
    settings: dict[str, Any] = Field(default_factory=dict)
    canaries: int
    memorized_rs: int
    memorized_bs: int
    controls: _Controls | None = None
    rows: tuple[_Canary, ...]
    phrases: tuple[_Verdict, ...] | None = None
    empirical_epsilon: _EmpiricalEpsilon | None = None
    accounted_epsilon: float | None = None
    delta: float

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        counted = {
            "canaries": len(self.rows),
            "memorized_rs": sum(row.memorized_rs for row in self.rows),
            "memorized_bs": sum(row.memorized_bs for row in self.rows),
        }
        for name, count in counted.items():
            if getattr(self, name) != count:
                raise ValueError(f"{name} is {getattr(self, name)}, and its rows say {count}")
        return self


class _TruePositives(Table):
    """How many members an attack finds at a rate of false positives, or why that is not known."""

    fpr: float
    tpr: float | None  # null if there are too few non-members to know
    interval: tuple[float, float] | None = None
    fpr_high: float | None = None  # of the threshold, at the same confidence
    why_not: str | None = None


class Attack(Table):
    """A membership attack on users."""

    name: str
    non_members: int | None = None  # those it was measured on
    auc: float
    auc_interval: tuple[float, float]
    confidence: float
    tpr_at: tuple[_TruePositives, ...] = ()
    roc: tuple[tuple[float, float], ...] = ()


class _Membership(Table):
    """What attacks on real users found."""

    members: int
    non_members: int
    texts: str | None = None  # which of the members' texts were looked at
    references: int | None = None  # how many models the attacks compare with
    attacks: tuple[Attack, ...]


class _PrivateAudit(Table):
    """The whole of private/audit.json."""

    membership: _Membership | None = None
    phrases: tuple[_Phrase, ...] | None = None
    round: int | None = None


@dataclass(frozen=True)
class AuditResult:
    """What the last audit of a run found.

    `public` is None if the run was never audited.  `private` is None if that audit kept nothing
    private, and in every report that is not internal, for which the private folder stays closed.
    """

    public: _Audit | None
    private: _PrivateAudit | None

    @classmethod
    def read(cls, directory: RunDirectory, *, internal: bool) -> AuditResult:
        """The audit of a run, if there was one; the private folder is opened only if `internal`."""
        private = directory.private / _AUDIT_FILE
        return cls(
            results.read(_Audit, directory.path / _AUDIT_FILE),
            results.read(_PrivateAudit, private) if internal else None,
        )

    def facts(self) -> dict[str, Any] | None:
        """What audit.json says, with its canaries added up by cell; None without an audit.

        The words and figures of phrases are those of the private part, if there is one.
        """
        if self.public is None:
            return None
        facts = self.public.model_dump(mode="json") | {"cells": _cells(self.public.rows)}
        if self.public.phrases is not None:
            facts["phrases"] = self._phrases(self.public.phrases)
        return facts

    def _phrases(self, verdicts: Sequence[_Verdict]) -> list[dict[str, Any]]:
        """A row for each phrase with the same names in every report: what is hidden is null.

        The private part counts only if it is of the same audit, that is, of the same round.
        """
        hidden = dict.fromkeys(_Phrase.model_fields)
        known: Sequence[_Phrase] = ()
        if self.private is not None and self.private.round in (None, self.round):
            known = self.private.phrases or ()
        return [
            known[index].model_dump(mode="json")
            if index < len(known)
            else hidden | verdict.model_dump(mode="json") | {"text": f"phrase {index + 1}"}
            for index, verdict in enumerate(verdicts)
        ]

    @property
    def round(self) -> int | None:
        """The round after which the model was audited."""
        return None if self.public is None else self.public.round

    def membership(self) -> dict[str, Any] | None:
        """What attacks on real users found, for an internal report; None if there were none."""
        if self.private is None or self.private.membership is None:
            return None
        return self.private.membership.model_dump(mode="json")

    def warnings(self) -> Iterator[Warning]:
        """Where the audit casts doubt on the claim, or on itself."""
        audit = self.public
        if audit is None:
            return
        bound, accounted = audit.empirical_epsilon, audit.accounted_epsilon
        if bound is not None and accounted is not None and bound.lower_bound > accounted:
            yield serious(
                "claim-refuted",
                f"The audit refutes the claim: with {100 * bound.confidence:g}% confidence epsilon"
                f" is at least {bound.lower_bound:.4g}, above the accounted"
                f" {format_epsilon(accounted)}. The training does not do what is accounted for.",
            )
        for doubt in bound.warnings if bound is not None else ():
            yield note("empirical-epsilon", doubt)
        if audit.controls and (audit.controls.memorized_rs or audit.controls.memorized_bs):
            yield note(
                "controls-memorized",
                "Some controls count as memorized although they were never planted, so that some"
                " of the canaries may count for the same reason.",
            )
        if count := sum(row.is_memorized for row in audit.rows):
            of = f"{count} of the {audit.canaries} planted canaries"
            yield note("memorized", f"{of} can be drawn out of the model.")
        phrases = audit.phrases or ()
        if count := sum(row.is_memorized for row in phrases):
            of = f"{count} of the {len(phrases)} phrases that must not come out"
            yield serious("phrases-memorized", f"{of} can be drawn out of the model.")


def _cells(rows: Sequence[_Canary]) -> list[dict[str, Any]]:
    """The canaries added up by how widely they were meant to be shared."""
    cells: dict[tuple[float, float], list[_Canary]] = {}
    for row in rows:
        cells.setdefault((row.expected_sharers, row.example_prob), []).append(row)
    return [_cell(*key, cells[key]) for key in sorted(cells)]


def _cell(sharers: float, example_prob: float, rows: Sequence[_Canary]) -> dict[str, Any]:
    """What came out of the canaries of one cell; an exposure that is not known is left out."""
    exposures = [row.exposure for row in rows if row.exposure is not None]
    return {
        "expected_sharers": sharers,
        "example_prob": example_prob,
        "canaries": len(rows),
        "mean_sharers": sum(row.sharers for row in rows) / len(rows),
        "mean_copies": sum(row.copies for row in rows) / len(rows),
        "memorized_rs": sum(row.memorized_rs for row in rows),
        "memorized_bs": sum(row.memorized_bs for row in rows),
        "mean_exposure": sum(exposures) / len(exposures) if exposures else None,
    }


def audit_charts(facts: Facts) -> dict[str, Facts | None]:
    """The charts of an audit by name; one that has nothing to show is None or left out."""
    audit, membership = facts["audit"], facts.get("membership")
    charts: dict[str, Facts | None] = {}
    if membership:
        charts["roc"] = roc_chart("Membership attacks on users", membership["attacks"])
    if audit and audit["cells"]:
        charts["heat_rs"] = _heat(audit["cells"], "memorized_rs", "Random Sampling")
        charts["heat_bs"] = _heat(audit["cells"], "memorized_bs", "Beam Search")
        charts["exposure"] = _exposures(audit["rows"])
    if audit and (shown := audit["empirical_epsilon"]):
        charts["empirical_epsilon"] = _levels(shown, audit["accounted_epsilon"])
    return charts


def _heat(cells: Sequence[Facts], name: str, attack: str) -> Facts:
    """The share of the canaries of each cell that an attack draws out.

    `name` is the count of a cell that it is taken from, and `attack` names it in the title.
    """
    shares = [
        (
            cell["expected_sharers"],
            cell["example_prob"],
            cell[name] / cell["canaries"],
            f"{cell[name]} of {cell['canaries']}",
        )
        for cell in cells
    ]
    return heat_map(f"Memorized, by {attack}", ("expected sharers", "p_e"), shares)


def _exposures(rows: Sequence[Facts]) -> Facts | None:
    """How many canaries have which exposure, those that are memorized on top of the others."""
    stacks: dict[str, list[float]] = {"not memorized": [], "memorized": []}
    for row in rows:
        if row["exposure"] is not None:
            stacks["memorized" if row["memorized_rs"] else "not memorized"].append(row["exposure"])
    labels = ("exposure in bits", "canaries")
    return histogram("Exposure of the canaries", labels, "bits", stacks)


def _levels(shown: Facts, accounted: float | None) -> Facts:
    """What the audit showed of epsilon beside what is accounted.

    The accounted epsilon is an upper bound, so a lower bound above it refutes the claim; an
    estimate may lie on either side.
    """
    names = {
        "lower_bound": f"lower bound, with {100 * shown['confidence']:g}% confidence",
        "estimate": "estimate",
        "ceiling": f"ceiling: the most that {shown['canaries']:,} clients can show",
    }
    levels = [
        (name, shown[key], f"{shown[key]:.4g}")
        for key, name in names.items()
        if shown[key] is not None
    ]
    if accounted is not None:
        levels.append(("accounted: what the ledger allows", accounted, format_epsilon(accounted)))
    return level_chart("Empirical and accounted epsilon", levels)
