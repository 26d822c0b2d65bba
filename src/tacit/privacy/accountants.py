"""All accountants by name, and which of them may speak about given events."""

from __future__ import annotations

import difflib

from tacit.privacy.accountant import Accountant
from tacit.privacy.events import Composition, NonPrivate
from tacit.privacy.moments import MomentsAccountant
from tacit.privacy.pld import PldAccountant
from tacit.privacy.rdp import RdpAccountant
from tacit.privacy.zcdp import ZcdpAccountant

NAMES: tuple[str, ...] = ("pld", "rdp", "moments", "zcdp")


def accountant_named(name: str, *, precise: bool = False) -> Accountant:
    """The accountant of that name; `precise` gives pld its finest grid."""
    match name:
        case "pld":
            return PldAccountant.precise() if precise else PldAccountant()
        case "rdp":
            return RdpAccountant()
        case "moments":
            return MomentsAccountant()
        case "zcdp":
            return ZcdpAccountant()
    near = difflib.get_close_matches(name, NAMES, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"accountant must be one of {', '.join(NAMES)}, got {name!r}{hint}")


def sound_accountants(
    composition: Composition, *, precise: bool = False
) -> tuple[list[Accountant], dict[str, str]]:
    """The accountants that may account the composition, tightest first, and why the others not."""
    sound: list[Accountant] = []
    refused: dict[str, str] = {}
    for name in NAMES:
        accountant = accountant_named(name, precise=precise)
        reasons = [
            reason
            for event, _ in composition.costly()
            if not isinstance(event, NonPrivate) and (reason := accountant.refusal(event))
        ]
        if reasons:
            refused[name] = reasons[0]
        else:
            sound.append(accountant)
    return sound, refused


def default_accountant(composition: Composition, *, precise: bool = False) -> Accountant:
    """The tightest accountant that is sound for the composition."""
    return sound_accountants(composition, precise=precise)[0][0]
