"""What a run's model is held against wherever the run is shown to others.

Every baseline here may be published (docs/privacy/baselines.md): the model that the run started
from, which is public or was paid for; a unigram and a bigram of the test users, who are not
protected; and those that were released with a ledger entry of their own.  Baselines that were
fitted on the training users' text without noise are not here: they are for the eyes of whoever runs
`tacit evaluate --baselines`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tacit.runs.run import LanguageRun

if TYPE_CHECKING:
    from tacit.runs.private_baselines import PrivateBaselines


def published_baselines(run: LanguageRun) -> dict[str, dict[str, Any]]:
    """The figures of all baselines that may be published, by the names in `figures.BASELINES`.

    Most are measured when a training ends (`LanguageRun.measure_baselines`).
    """
    baselines: dict[str, dict[str, Any]] = (run.directory.result() or {}).get("baselines") or {}
    released = _released(run)
    if released is not None:
        baselines |= {f"private_{name}": row for name, row in released.figures.items()}
    return baselines


def released_claim(run: LanguageRun) -> str | None:
    """What may be claimed for the private baselines; None if there are none."""
    released = _released(run)
    return None if released is None else released.guarantee.claim


def _released(run: LanguageRun) -> PrivateBaselines | None:
    """The private baselines in the tokens of the run's last model."""
    if not run.directory.baselines.is_dir():
        return None
    from tacit.runs.private_baselines import PrivateBaselines

    released = PrivateBaselines.read(run.path)
    is_same = released is not None and released.tokenizer == run.tokenizer.fingerprint
    return released if is_same else None
