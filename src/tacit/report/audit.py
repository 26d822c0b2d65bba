"""The audit of a language model as a report shows it: tables, warnings and charts.

`private/audit.json` is opened for an internal report only (design rule 5): what is public of an
audit, and what is not, is in `tacit.audit.results`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from tacit.audit import results
from tacit.audit.empirical_epsilon import AUDIT_FILE
from tacit.audit.membership import MembershipResult
from tacit.audit.results import PhraseFigures, PrivateAudit, PublicAudit
from tacit.privacy.claims import format_epsilon
from tacit.report.figures import Facts, heat_map, histogram, level_chart, roc_chart
from tacit.report.warnings import ReportWarning
from tacit.runs.directory import RunDirectory


@dataclass(frozen=True)
class AuditSection:
    """What a report tells of the last audit of a run.

    `public` is None if the run was never audited.  `private` is None if that audit kept nothing
    private, and in every report that is not internal, for which the private folder stays closed.
    """

    public: PublicAudit | None
    private: PrivateAudit | None

    @classmethod
    def read(cls, directory: RunDirectory, *, internal: bool) -> AuditSection:
        """The audit of a run, if there was one; the private folder is opened only if `internal`."""
        public = PublicAudit.read(directory)
        private = directory.private / AUDIT_FILE
        return cls(public, results.read(PrivateAudit, private) if internal else None)

    def facts(self) -> dict[str, Any] | None:
        """What audit.json says, with its canaries added up by cell; None without an audit.

        There is a row for each phrase, with the same names in every report: what is hidden is null.
        Words and figures are those of the private part, if it is of the same audit, that is, of the
        same round.
        """
        if self.public is None:
            return None
        known: Sequence[PhraseFigures] = ()
        if self.private is not None and self.private.round in (None, self.public.round):
            known = self.private.phrases or ()
        hidden = dict.fromkeys(field.name for field in fields(PhraseFigures))
        phrases = [
            asdict(known[index])
            if index < len(known)
            else hidden | asdict(verdict) | {"text": f"phrase {index + 1}"}
            for index, verdict in enumerate(self.public.phrases or ())
        ]
        cells = [asdict(cell) for cell in self.public.cells()]
        return self.public.as_row() | {"cells": cells, "phrases": phrases}

    def membership(self) -> dict[str, Any] | None:
        """What attacks on real users found, for an internal report; None if there were none."""
        return membership_facts(self.private.membership if self.private else None)

    def warnings(self) -> Iterator[ReportWarning]:
        """Where the audit casts doubt on the claim, or on itself."""
        audit = self.public
        if audit is None:
            return
        bound, accounted = audit.empirical_epsilon, audit.accounted_epsilon
        if bound is not None and accounted is not None and bound.lower_bound > accounted:
            yield ReportWarning.serious(
                "claim-refuted",
                f"The audit refutes the claim: with {100 * bound.confidence:g}% confidence epsilon"
                f" is at least {bound.lower_bound:.4g}, above the accounted"
                f" {format_epsilon(accounted)}. The training does not do what is accounted for.",
            )
        for doubt in bound.warnings if bound is not None else ():
            yield ReportWarning.note("empirical-epsilon", doubt)
        if audit.controls and (audit.controls.memorized_rs or audit.controls.memorized_bs):
            yield ReportWarning.note(
                "controls-memorized",
                "Some controls count as memorized although they were never planted, so that some"
                " of the canaries may count for the same reason.",
            )
        if count := sum(row.is_memorized for row in audit.rows):
            of = f"{count} of the {len(audit.rows)} planted canaries"
            yield ReportWarning.note("memorized", f"{of} can be drawn out of the model.")
        phrases = audit.phrases or ()
        if count := sum(row.is_memorized for row in phrases):
            of = f"{count} of the {len(phrases)} phrases that must not come out"
            yield ReportWarning.serious("phrases-memorized", f"{of} can be drawn out of the model.")


def membership_facts(result: MembershipResult | None) -> dict[str, Any] | None:
    """The attacks as the page and its ROC show them; None if there were none.

    `stated` is the name under which an attack was chosen before anything was measured, or null: the
    best of several attacks would be no honest figure.
    """
    if result is None:
        return None
    attacks = [asdict(attack) | {"name": attack.title} for attack in result.attacks]
    return asdict(result) | {"attacks": attacks}


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
