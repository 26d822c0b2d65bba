"""All checks, in order, and what they found.

Every check runs even if another one fails, and a file that cannot be read is a difference: what
cannot be checked is not verified.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Head
from tacit.runs.bundle import LEDGER_FILE, is_bundle
from tacit.verification.chain import CHAIN, CHARGES
from tacit.verification.claimed import CLAIM
from tacit.verification.configured import EXPERIMENT, HEADER
from tacit.verification.digests import DIGESTS, KEY
from tacit.verification.evidence import Check, Evidence, Remark

_CHECKS = (CHAIN, CHARGES, EXPERIMENT, HEADER, CLAIM, DIGESTS, KEY)
_TRIES = 3  # at a run that is being trained


@dataclass(frozen=True)
class Checked:
    """One check: what was held against what, and what came of it.

    It is verified if there are no differences; remarks alone do not count against it.
    """

    name: str
    what: str
    differences: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()  # what could not be checked, and why


@dataclass(frozen=True)
class Findings:
    """All checks of a run or a bundle.  `claim` and `head` are None without a ledger to trust."""

    path: Path
    kind: str
    checks: tuple[Checked, ...]
    claim: str | None = None
    head: Head | None = None

    @property
    def differences(self) -> tuple[str, ...]:
        """All differences, each of them once."""
        return tuple(dict.fromkeys(one for check in self.checks for one in check.differences))

    @property
    def remarks(self) -> tuple[str, ...]:
        """All that could not be checked, each of them once."""
        return tuple(dict.fromkeys(one for check in self.checks for one in check.remarks))

    def as_row(self) -> dict[str, Any]:
        """Under the names that scripts rely on."""
        return {
            "path": str(self.path),
            "kind": self.kind,
            "verified": not self.differences,
            "differences": list(self.differences),
            "checks": [dataclasses.asdict(check) for check in self.checks],
            "claim": self.claim,
            "head": self.head.to_json() if self.head else None,
        }


def verify(path: Path | str) -> Findings:
    """Hold a run or a bundle against its ledger.

    Raises `ValueError` only where there is neither.  A run that has gone on meanwhile, so that its
    files were of different moments, is looked at again.
    """
    path = Path(path)
    if not path.is_dir():
        raise ValueError(f"there is no run or bundle at {path}")
    if not (path / LEDGER_FILE).is_file() and not (path / "experiment.toml").is_file():
        if (path / "model.safetensors").is_file():
            raise ValueError(f"{path} has a model, but no ledger: it was not trained privately")
        raise ValueError(f"{path} is neither a run nor a bundle: it has no {LEDGER_FILE}")
    for _ in range(_TRIES):
        stamp = _stamp(path)
        findings = _run_checks(path)
        if not findings.differences or _stamp(path) == stamp:
            break
    return findings


def _stamp(path: Path) -> tuple[int, int] | None:
    """Changes whenever the run charges something."""
    try:
        about = (path / LEDGER_FILE).stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size


def _run_checks(path: Path) -> Findings:
    """Run all checks on the files as they are now; without a ledger there is one difference."""
    kind = "bundle" if is_bundle(path) else "run"
    try:
        ledger = Ledger.read(path / LEDGER_FILE, torn_is_left_out=True)
        evidence = Evidence(path, ledger)
        if evidence.is_bundle:
            evidence.bundle.digests()
    except Exception as error:  # nothing can be held against what is no ledger, or no bundle's
        said = _sentence(CHAIN, error)
        return Findings(path, kind, (Checked(CHAIN.name, CHAIN.what, (said,)),))
    checks = tuple(_run(check, evidence) for check in _CHECKS)
    try:
        claim = evidence.guarantee.claim
    except ValueError:  # which the checks have said already
        claim = None
    return Findings(path, kind, checks, claim, ledger.head)


def _run(check: Check, evidence: Evidence) -> Checked:
    """What a check finds.  Damage that makes a reader raise is a difference, too."""
    said: list[str] = []
    for function in check.functions:
        try:
            said += function(evidence)
        except Exception as error:  # fail closed: what cannot be read is not verified
            said.append(_sentence(check, error))
    unique = dict.fromkeys(said)
    return Checked(
        check.name,
        check.what,
        tuple(one for one in unique if not isinstance(one, Remark)),
        tuple(str(one) for one in unique if isinstance(one, Remark)),
    )


def _sentence(check: Check, error: Exception) -> str:
    """What made a check fail, in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, ValueError | OSError) and text:
        return text
    return f"the check of the {check.name} failed: {type(error).__name__}: {text}"
