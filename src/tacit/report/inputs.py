"""What a report reads besides the run itself, checked: metrics, how it ended, and its audits.

`audit.json` holds what an audit found by planted canaries and the released model, and its verdicts
on phrases: free to publish.  `private/audit.json` holds the phrases with their figures, and what
was computed from real users' text.  It is opened for an internal report only (design rule 5).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from tacit.config.sections import sentence
from tacit.runs.directory import RunDirectory

AUDIT_FILE = "audit.json"


class Part(BaseModel):
    """A table of a file.  Whoever wrote it may have put more into it than a report shows."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class Metrics(Part):
    """A line of metrics.jsonl: what was measured after a round on the text of test users."""

    round: int
    targets: int | None = None
    accuracy_top1: float | None = None
    accuracy_top3: float | None = None
    accuracy_top5: float | None = None
    perplexity: float | None = None
    word_accuracy: float | None = None
    perplexity_per_word: float | None = None
    switched: bool = False  # measured right after the tokenizer was switched
    unknown_rate: float | None = None
    epsilon: float | None = None


class Verdict(Part):
    """Was a phrase drawn out by Random Sampling, by Beam Search?  All that is public of one.

    Whatever else a file says of it is not read: from its log-perplexity a phrase can be found.
    """

    text: str
    memorized_rs: bool
    memorized_bs: bool


class Phrase(Verdict):
    """How a model took to a phrase."""

    log_perplexity: float
    rank: float | None = None
    rank_standard_error: float | None = None
    exposure: float | None = None


class CanaryRow(Phrase):
    """A canary, and how it was planted."""

    expected_sharers: float
    example_prob: float
    sharers: int
    copies: int


class Controls(Part):
    """Phrases like the canaries that were never planted."""

    count: int
    memorized_rs: int
    memorized_bs: int


class EmpiricalEpsilon(Part):
    """What the audit could show of epsilon, and the most that it could have shown."""

    estimate: float | None
    lower_bound: float
    confidence: float
    ceiling: float
    canaries: int
    took_part: int | None = None
    guesses: int | None = None
    correct: int | None = None
    says: str | None = None  # what it means for the claim, in one sentence
    try_number: int | None = None  # the how many-th at this run; the confidence allows for it
    confidence_asked: float | None = None  # of all tries together
    highest_lower_bound: float | None = None  # that any of them has shown
    warnings: tuple[str, ...] = ()


class Audit(Part):
    """The whole of audit.json."""

    round: int
    settings: dict[str, Any] = {}
    canaries: int
    memorized_rs: int
    memorized_bs: int
    controls: Controls | None = None
    rows: tuple[CanaryRow, ...]
    phrases: tuple[Verdict, ...] | None = None
    empirical_epsilon: EmpiricalEpsilon | None = None
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


class RateAt(Part):
    """How many members an attack finds when so few non-members may be taken for one."""

    fpr: float
    tpr: float | None
    interval: tuple[float, float] | None = None
    fpr_high: float | None = None  # of the threshold, at the same confidence
    why_not: str | None = None


class Attack(Part):
    """A membership attack on users."""

    name: str
    non_members: int | None = None  # those it was measured on
    auc: float
    auc_interval: tuple[float, float]
    confidence: float
    tpr_at: tuple[RateAt, ...] = ()
    roc: tuple[tuple[float, float], ...] = ()


class Membership(Part):
    """What attacks on real users found: internal."""

    members: int
    non_members: int
    texts: str | None = None  # which of the members' texts were looked at
    references: int | None = None  # models that the attacks compare with
    attacks: tuple[Attack, ...]


class PrivateAudit(Part):
    """The whole of private/audit.json."""

    membership: Membership | None = None
    phrases: tuple[Phrase, ...] | None = None
    round: int | None = None


Table = TypeVar("Table", bound=Part)


def metrics(directory: RunDirectory) -> list[Metrics]:
    """Held-out metrics by round."""
    return [checked(Metrics, row, directory.metrics_file) for row in directory.metrics()]


def ending(directory: RunDirectory) -> str | None:
    """How the run ended, in its own words; None while it has not."""
    found = read_json(directory.result_file)
    if found is None:
        return None
    if not isinstance(found, dict):
        _refuse(directory.result_file, "it holds no table")
    return str(found.get("ending") or "complete")


def audit(directory: RunDirectory) -> Audit | None:
    """What an audit found by its canaries; None if there was no audit."""
    path = directory.path / AUDIT_FILE
    found = read_json(path)
    return None if found is None else checked(Audit, found, path)


def private_audit(directory: RunDirectory) -> PrivateAudit | None:
    """What an audit found by real users' text: for an internal report only."""
    path = directory.private / AUDIT_FILE
    found = read_json(path)
    return None if found is None else checked(PrivateAudit, found, path)


def read_json(path: Path) -> Any:
    """What a file holds; None if there is none."""

    def no_number(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no number")

    try:
        return json.loads(path.read_bytes(), parse_constant=no_number)
    except FileNotFoundError:
        return None
    except ValueError as error:
        _refuse(path, f"it is not JSON ({error})")


def checked(table: type[Table], data: Any, path: Path) -> Table:
    """The data of a file as a table; one that is damaged is refused in one sentence."""
    if not isinstance(data, dict):
        _refuse(path, "it holds no table")
    try:
        return table.model_validate(data)
    except ValidationError as error:
        raise ValueError(sentence(error, f"{path} is damaged", table)) from None


def _refuse(path: Path, why: str) -> NoReturn:
    raise ValueError(f"{path} is damaged: {why}")
