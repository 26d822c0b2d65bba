"""The ledger by itself: its chain, its checkpoints and people, and its charges as a sequence.

A hash chain shows what was changed in the middle of a ledger, and nothing of what was cut off at
its end.  Two other records know how long it has to be: every checkpoint stores the head that it
was made with, and the ledger of the people has the lines of all runs on them.  The charges are then
looked at as a sequence that a training can have made: attempts and rounds in order, as many as the
last checkpoint needs, no more than planned, and within the budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tacit.privacy.claims import format_epsilon
from tacit.privacy.events import NonPrivate, PostProcessing
from tacit.runs.bundle import EXPORTED
from tacit.tasks.language.canary_clients import COMMITTED
from tacit.verification.evidence import Check, Evidence

_FREE = ("canaries", COMMITTED, EXPORTED)
_KINDS = ("round", "tokenizer", "vocabulary", "scaling", *_FREE)


def _whole(evidence: Evidence) -> Iterator[str]:
    """The last line has to be whole.

    Every other line's hash and order were verified when the ledger was read, which leaves out what
    stands after the last newline.
    """
    file = evidence.ledger.path
    if not file.read_bytes().endswith(b"\n"):
        yield (
            f"{file}: its last line is cut off, by a crash while it was written or by somebody;"
            " a run that is resumed repairs the first"
        )


def _checkpoints(evidence: Evidence) -> Iterator[str]:
    """Each checkpoint's head is that of the ledger's beginning, and a later one's is no shorter.

    A ledger that was cut off, restored from a backup or taken from another run has too few entries,
    or another hash at the entry that the checkpoint names.  A bundle has no checkpoints: the last
    line of its ledger holds the digests of its files.
    """
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


def _parent(evidence: Evidence) -> Iterator[str]:
    """What a branch inherited is of another branch, and is that other's where that is known.

    A branch pays for all that its starting model has cost, so its ledger begins with the entries of
    the run that it left.  Its id follows from its own run and the round, since ids key the
    randomness.  If the people's ledger of this installation knows the parent, the inherited events
    have to be the parent's, up to the head that the header names.
    """
    header, file = evidence.header, evidence.ledger.path
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
    for entry in evidence.inherited:
        if entry.branch == header.branch:
            yield f"{file}: entry {entry.index} is inherited, and says that it is of this branch"
    if header.parent.run_id == header.run_id:
        yield f"{file} names itself as its parent"
    origin = evidence.known_run(header.parent.run_id)
    if origin is None or origin.header.simulation:
        return
    upto = header.parent.head.entries
    if origin.hashes[upto : upto + 1] != [header.parent.head.hash]:
        yield f"{file} says of its parent, run {header.parent.run_id}, what its people know not"
    elif origin.events[:upto] != [entry.event for entry in evidence.inherited]:
        yield f"{file} inherits other charges than its parent, run {header.parent.run_id}, has"


def _people(evidence: Evidence) -> Iterator[str]:
    """The same lines as in the people's ledger, if this installation knows the run.

    The run's own ledger is written first, so that it may be longer.  A bundle is of one moment, and
    its run may have gone on.
    """
    file, run = evidence.ledger.path, evidence.known_run(evidence.header.run_id)
    if run is None:
        return
    own = list(evidence.ledger.hashes)
    if evidence.is_bundle:
        own.pop()  # the line that an export adds
    # Of a simulation the people's ledger keeps the header only.
    shared = min(len(run.hashes), len(own))
    if run.hashes[:shared] != own[:shared]:
        yield f"{file} has other charges than the ledger of its people: it is another copy"
    elif len(run.hashes) > len(own) and not evidence.is_bundle:
        yield (
            f"{file} has {len(own) - 1} entries, and the ledger of its people knows of"
            f" {len(run.hashes) - 1}: it was cut off, or restored from a backup"
        )


def _adjacency(evidence: Evidence) -> Iterator[str]:
    """Each event is stated for the header's adjacency, or for any.

    An epsilon under add/remove-one is none under replace-one: the sensitivities differ by a factor
    of up to two.
    """
    stated = evidence.header.adjacency
    for entry in evidence.ledger.entries:
        if entry.event.adjacency not in (None, stated):
            yield (
                f"{evidence.ledger.path}: entry {entry.index} is stated for"
                f" {entry.event.adjacency} adjacency, and the header for {stated}"
            )


def _kinds(evidence: Evidence) -> Iterator[str]:
    """A run makes releases of a few kinds; those that only record something cost nothing.

    A charge under an unknown kind could hide a round, and a cost on a record that is free could
    stand in for one that is missing elsewhere.
    """
    for entry in evidence.own:
        what = f"{evidence.ledger.path}: entry {entry.index}"
        if entry.kind not in _KINDS:
            yield f"{what} is of a kind that no training makes, {entry.kind!r}"
        if entry.kind in _FREE and not isinstance(entry.event, PostProcessing):
            yield f"{what} ({entry.kind}) must cost nothing"
        if entry.kind == "tokenizer" and not isinstance(entry.event, PostProcessing | NonPrivate):
            yield f"{what}: a tokenizer's cost is in entries of its own"


def _attempts(evidence: Evidence) -> Iterator[str]:
    """The attempts at a round are 0, 1, 2, ..., and no round is left out.

    A round is attempted again, with a fresh cohort, fresh noise and a second charge, if what it is
    made from has changed since the first attempt was charged.  Both charges stay.
    """
    file, counted = evidence.ledger.path, evidence.header.counted.removesuffix("s")
    attempts: dict[int, int] = {}
    for entry in evidence.charged:
        expected = attempts.get(entry.round, -1) + 1
        if entry.attempt != expected:
            what = "a second time" if entry.attempt < expected else f"and not attempt {expected}"
            yield (
                f"{file}: entry {entry.index} charges {counted} {entry.round}, attempt"
                f" {entry.attempt}, {what}"
            )
        attempts[entry.round] = max(entry.attempt, attempts.get(entry.round, 0))
    rounds = sorted(attempts)
    first, step = evidence.header.first_round * (evidence.epoch_charges or 1), 1
    if evidence.epoch_charges == 1 and len(rounds) > 1:
        # Where an epoch is one charge, its number is that of its first step.
        step = rounds[1] - rounds[0]
        first *= step
    for index, round in enumerate(rounds):
        if round != first + index * step:
            yield f"{file}: no charge of the {counted} before {counted} {round}"
            return


def _enough(evidence: Evidence) -> Iterator[str]:
    """As many charges as the last checkpoint has behind it, and no more than were planned.

    A checkpoint is written after its releases were charged, so a ledger with fewer charges than the
    checkpoint has rounds (or epochs times their steps) lacks some.  More are possible: a run may
    have been killed between a charge and the checkpoint.
    """
    file, first, in_epoch = evidence.ledger.path, evidence.header.first_round, 1
    if evidence.is_bundle:
        done, where = evidence.bundle.round, f"the model of {evidence.path}"
    else:
        done = evidence.last.leg
        where = str(evidence.directory.checkpoints.state_file(done))
    planned = range(first, evidence.experiment.legs)
    if evidence.epoch_charges is not None:
        in_epoch = evidence.epoch_charges
        # How many steps an epoch without noise has depends on the data.
        planned = range(evidence.experiment.legs * in_epoch if in_epoch > 1 else 2**62)
    rounds = {entry.round for entry in evidence.charged}
    missing = (done - first) * in_epoch - len(rounds)
    if missing > 0:
        yield f"{where} is after round {done}, and {file} has {missing} too few charges for it"
    if rounds and (max(rounds) not in planned or min(rounds) not in planned):
        yield (
            f"{file} charges round {max(rounds)}, and {evidence.directory.experiment_file} plans"
            f" {planned.stop}"
        )


def _budget(evidence: Evidence) -> Iterator[str]:
    """What is charged is within the run's own budget, by the accountant and delta of the budget.

    A budget is a hard stop, so a ledger above it was not written by a training.
    """
    budget, file = evidence.header.budget, evidence.ledger.path
    if budget is None or not evidence.charged:
        return
    composition = evidence.ledger.composition()
    if not composition.is_private:
        yield f"{file} has a budget, and releases without any noise"
        return
    known = evidence.guarantee.epsilon.get(budget.accountant)
    if known is None or budget.delta != evidence.header.delta or evidence.header.prior_costs:
        known = budget.spent_by(composition)
    if known > budget.epsilon:
        yield (
            f"{file} has charged epsilon {format_epsilon(known)} by {budget.accountant}, and its"
            f" budget is {budget.epsilon:g}"
        )


CHAIN = Check(
    "chain",
    "every line's hash and order, every checkpoint's head, the parent, the people's ledger",
    (_whole, _checkpoints, _parent, _people),
)
CHARGES = Check(
    "charges",
    "adjacency, rounds and attempts, as many as the checkpoint has, within the budget",
    (_adjacency, _kinds, _attempts, _enough, _budget),
)
