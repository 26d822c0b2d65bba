"""A declared budget as a hard stop, an epoch at a time."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.privacy.accountant import Accountant
from tacit.privacy.events import Composition, Event
from tacit.privacy.ledger import Ledger


def affordable(
    ledger: Ledger, events: Sequence[Event], budget: float, accountant: Accountant
) -> bool:
    """Whether epsilon stays within the budget with these events as well."""
    spent = Composition.of([*(entry.event for entry in ledger.entries), *events])
    if not spent.is_private:
        return False
    return accountant.epsilon(spent, ledger.header.delta) <= budget
