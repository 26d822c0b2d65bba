"""The ledger itself: its chain, its checkpoints, its parent, and what its people's ledger knows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tacit.corpus.people_ledger import PeopleLedger
from tacit.privacy.ledger import Ledger
from tacit.verification.evidence import Evidence


def whole(evidence: Evidence) -> Iterator[str]:
    """Every line's hash and order were verified by reading it; the last line has to be whole."""
    file = evidence.ledger.path
    if not file.read_bytes().endswith(b"\n"):
        yield (
            f"{file}: its last line is cut off, by a crash while it was written or by somebody;"
            " a run that is resumed repairs the first"
        )


def checkpoints(evidence: Evidence) -> Iterator[str]:
    """Each checkpoint's head is that of the ledger's beginning, and a later one's is no shorter."""
    if evidence.is_bundle:
        return
    hashes = evidence.ledger.hashes
    for one in evidence.checkpoints:
        where = f"{evidence.ledger.path} is not the ledger of the checkpoint of round {one.leg}"
        if one.head.entries >= len(hashes):
            yield f"{where}: it has {len(hashes) - 1} entries, and that has {one.head.entries}"
        elif hashes[one.head.entries] != one.head.hash:
            yield f"{where}: the hash of entry {one.head.entries} is another"
    for before, after in pairwise(evidence.checkpoints):
        if after.head.entries < before.head.entries:
            yield (
                f"{evidence.directory.checkpoints.state_file(after.leg)} has a shorter ledger"
                f" than the checkpoint of round {before.leg}"
            )


def parent(evidence: Evidence) -> Iterator[str]:
    """What a branch inherited is another's; and is that other's, where that is known."""
    ledger = evidence.ledger
    header, file = ledger.header, ledger.path
    if header.parent is None:
        if header.branch != "main":
            yield f"{file} is of the branch {header.branch!r}, and names no parent"
        return
    expected = f"{header.run_id}-{header.first_round}"
    if header.branch != expected:
        yield (
            f"{file} is of the branch {header.branch!r}, and that of run {header.run_id} after"
            f" round {header.first_round} would be {expected!r}"
        )
    upto = header.parent.head.entries
    for entry in ledger.entries[:upto]:
        if entry.branch == header.branch:
            yield f"{file}: entry {entry.index} is inherited, and says that it is of this branch"
    if header.parent.run_id == header.run_id:
        yield f"{file} names itself as its parent"
    known = PeopleLedger.find(header.people) if header.people else None
    origin = known.runs().get(header.parent.run_id) if known else None
    if origin is None or origin.header.simulation:
        return
    if origin.hashes[upto : upto + 1] != [header.parent.head.hash]:
        yield f"{file} says of its parent, run {header.parent.run_id}, what its people know not"
    elif origin.events[:upto] != [entry.event for entry in ledger.entries[:upto]]:
        yield f"{file} inherits other charges than its parent, run {header.parent.run_id}, has"


def people(evidence: Evidence) -> Iterator[str]:
    """The same lines as in the people's ledger, if this installation knows the run.

    The run's own ledger is written first, so that it may be longer.  A bundle is of one moment, and
    its run may have gone on.
    """
    ledger = evidence.ledger
    known = PeopleLedger.find(ledger.header.people) if ledger.header.people else None
    run = known.runs().get(ledger.header.run_id) if known else None
    if run is None:
        return
    theirs, own = run.hashes, _own_hashes(evidence, ledger)
    # Of a simulation the people's ledger keeps the header only.
    shared = min(len(theirs), len(own))
    if theirs[:shared] != own[:shared]:
        yield f"{ledger.path} has other charges than the ledger of its people: it is another copy"
    elif len(theirs) > len(own) and not evidence.is_bundle:
        yield (
            f"{ledger.path} has {len(own) - 1} entries, and the ledger of its people knows of"
            f" {len(theirs) - 1}: it was cut off, or restored from a backup"
        )


def _own_hashes(evidence: Evidence, ledger: Ledger) -> list[str]:
    """Without the line that an export adds."""
    return list(ledger.hashes[:-1] if evidence.is_bundle else ledger.hashes)
