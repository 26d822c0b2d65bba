"""All checks, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tacit.privacy.ledger import Ledger
from tacit.runs.bundle import LEDGER_FILE
from tacit.verification import (
    card,
    chain,
    charges,
    configured,
    declared,
    digests,
    reported,
    words,
)
from tacit.verification.evidence import BUNDLE, Evidence, kind_of
from tacit.verification.findings import Checked, Findings, Remark

Function = Callable[[Evidence], Iterator[str]]
TRIES = 3  # at a run that is being trained


@dataclass(frozen=True)
class Check:
    """Functions that are about one thing, and what that is in words."""

    name: str
    what: str
    functions: tuple[Function, ...]

    def of(self, evidence: Evidence) -> Checked:
        """What they found.  Whatever damage makes a reader raise is a difference, too."""
        said: list[str] = []
        for function in self.functions:
            try:
                said += function(evidence)
            except Exception as error:  # fail closed: what cannot be read is not verified
                said.append(_sentence(self.name, error))
        return Checked(
            self.name,
            self.what,
            tuple(dict.fromkeys(one for one in said if not isinstance(one, Remark))),
            tuple(dict.fromkeys(str(one) for one in said if isinstance(one, Remark))),
        )


CHECKS = (
    Check(
        "chain",
        "every line's hash and order, every checkpoint's head, the parent, the people's ledger",
        (chain.whole, chain.checkpoints, chain.parent, chain.people),
    ),
    Check(
        "charges",
        "adjacency, rounds and attempts, as many as the checkpoint has, within the budget",
        (charges.adjacency, charges.kinds, charges.attempts, charges.enough, charges.budget),
    ),
    Check(
        "experiment",
        "its digest, and that what is accounted is what it configures",
        (configured.digest, configured.charges, configured.vocabulary),
    ),
    Check(
        "header",
        "population, delta, budget, unit, adjacency, view, accountant, simulation, audit",
        (declared.header,),
    ),
    Check(
        "claim",
        "epsilon by every sound accountant, and every word of it in other files",
        (words.figures, words.result, reported.report, words.audit, card.says_the_claim),
    ),
    Check(
        "digests",
        "models, tokenizers and their history, canaries, all files of a bundle",
        (
            digests.files,
            digests.models,
            digests.origins,
            digests.tokenizers,
            digests.origin,
            digests.canaries,
        ),
    ),
    Check("key", "that it is gone where the run says so", (digests.key,)),
)


def verify(path: Path | str) -> Findings:
    """Hold a run or a bundle against its ledger.

    Raises `ValueError` only where there is neither.
    """
    path = Path(path)
    kind = kind_of(path)
    for _ in range(TRIES):
        before = _stamp(path)
        found = _verified(path, kind)
        if not found.differences or _stamp(path) == before:
            break
    return found


def _stamp(path: Path) -> tuple[int, int] | None:
    """Another one if the run has gone on meanwhile, so that its files were of different moments."""
    try:
        about = (path / LEDGER_FILE).stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size


def _verified(path: Path, kind: str) -> Findings:
    try:
        ledger = Ledger.read(path / LEDGER_FILE, torn_is_left_out=True)
        evidence = Evidence(path, kind, ledger)
        if kind == BUNDLE:
            evidence.bundle.digests()
    except Exception as error:  # nothing can be held against what is no ledger, or no bundle's
        chain_check = CHECKS[0]
        said = _sentence(chain_check.name, error)
        return Findings(path, kind, (Checked(chain_check.name, chain_check.what, (said,)),))
    found = tuple(check.of(evidence) for check in CHECKS)
    return Findings(path, kind, found, _claim(evidence), ledger.head)


def _claim(evidence: Evidence) -> str | None:
    try:
        return evidence.guarantee.claim
    except ValueError:  # which the checks have said already
        return None


def _sentence(check: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, ValueError | OSError) and text:
        return text
    return f"the check of the {check} failed: {type(error).__name__}: {text}"
