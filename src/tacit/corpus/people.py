"""Whose text it is: people are recognised when their text comes again.

What was spent on people (`corpus.people_ledger`) must not be forgotten because their text is
ingested again, grown, sampled or under another name.  So each group of people has a folder under
the installation's state folder:

    people/ID/people.json   sketches of the sets of user ids known as these people, digests of the
                            files that they came in, and a sketch of lines of their text
    people/ID/ledger.jsonl  what was spent on them

That is `$TACIT_STATE`, or else `$XDG_STATE_HOME/tacit`, or else `~/.local/state/tacit`: outside of
every corpus and run directory, so that it outlives them.  Everything in people.json is keyed with
the installation's secret, so the folder reveals nobody to a reader without it.

Two sets of ids are the same people if at least half of the smaller one is in the other: a refreshed
export, a sample, a file that has grown.  If a set turns out to be the people of several groups,
those groups are merged into the one that was made first, and the others' files say no more than
which one that is.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from tacit.corpus.sketches import LineSketch, Sketch
from tacit.privacy import durable, trusted
from tacit.privacy.documents import read_json
from tacit.privacy.records import Count, Record

SAME = 0.5  # of the smaller set: the same people
_SOME = 0.01  # fewer than that in common is not worth a word
FILE = "people.json"
_SECRET_BYTES = 32
_MERGED_BYTES = 256  # the file of a group that was merged is smaller than this


@dataclass(frozen=True)
class Recognition:
    """Who some people turned out to be.

    people: the id of the group, 16 hexadecimal digits.
    is_known: whether it was known before.
    shared: the share of the smaller set in common with the group, or with the group that they
        were declared not to be.
    declared_new: the group that they were declared not to be, though they look like it.
    overlaps: other groups with some of the same people, too few to be the same, with their shares.
    """

    people: str
    is_known: bool
    shared: float
    declared_new: str | None = None
    overlaps: tuple[tuple[str, float], ...] = ()


class _Merged(TypedDict, total=False):
    """What people.json says of a group that was merged into another."""

    merged_into: str


@dataclass(frozen=True)
class _Group(Record):
    """What people.json says of a group that was not merged into another.

    inputs: the SHA-256 of all files that these people's text came in.
    lines: a sketch of lines of their text, under the installation's secret.
    """

    id: str
    number: Count  # groups are numbered as they are made
    sketches: tuple[Sketch, ...] = ()
    inputs: tuple[str, ...] = ()
    lines: LineSketch = field(default_factory=lambda: LineSketch({}))
    declared_not: tuple[str, ...] = ()

    def share(self, sketches: Sequence[Sketch]) -> float:
        """The largest share that any set known as this group has in common with any of these."""
        pairs = ((known, new) for known in self.sketches for new in sketches)
        return max((known.share(new) for known, new in pairs), default=0.0)

    def joined(self, other: _Group) -> _Group:
        """This group with all that is known of another one added."""
        sketches = {s.values.tobytes(): s for s in (*self.sketches, *other.sketches)}
        return replace(
            self,
            sketches=tuple(sketches.values()),
            inputs=tuple(dict.fromkeys((*self.inputs, *other.inputs))),
            lines=self.lines.joined(other.lines),
            declared_not=tuple(dict.fromkeys((*self.declared_not, *other.declared_not))),
        )


def recognise(
    sketches: Sequence[Sketch],
    *,
    inputs: Sequence[str] = (),
    lines: LineSketch | None = None,
    new_people: bool = False,
) -> Recognition:
    """Find out who some people are, and remember them.

    Groups that they turn out to join become one, and so do their ledgers.

    Args:
        sketches: sketches, under the installation's secret, of sets that say who they are: ids of
            users, or of records.
        inputs: the SHA-256 of each file that they came in.
        lines: a sketch of lines of their text, under the same secret.
        new_people: a declaration that they are none of the people known, whatever it looks like.
    """
    with _locked():
        groups = known_groups()
        new = _Group("", 0, tuple(sketches), tuple(inputs), lines or LineSketch({}))
        shares = {group.id: group.share(sketches) for group in groups}
        same = _matching(groups, shares, inputs)
        known = {group.id for group in same}
        share = max((shares[group] for group in known), default=0.0)
        overlaps = tuple(
            pair for pair in shares.items() if pair[1] >= _SOME and pair[0] not in known
        )
        if new_people or not same:
            declared_not = tuple(group.id for group in same[:1])
            people = secrets.token_hex(8)
            _write_group(replace(new, id=people, number=_next(groups), declared_not=declared_not))
            return Recognition(people, False, share, next(iter(declared_not), None), overlaps)
        kept, *others = same
        whole = kept.joined(new)
        for other in others:
            _merge_ledgers(kept.id, other.id)
            whole = whole.joined(other)
        _write_group(whole)
        for other in others:
            _write(other.id, {"merged_into": kept.id})
        return Recognition(kept.id, True, share, None, overlaps)


def _matching(
    groups: Sequence[_Group], shares: dict[str, float], inputs: Sequence[str]
) -> list[_Group]:
    """The groups that are the same people, the one made first first.

    Two data sets may number their users from 1 and be declared to be different people.  When the
    file of one of them comes again, it is that one's, and the declaration still holds.
    """
    same = [group for group in groups if shares[group.id] >= SAME]
    for group in same:
        if set(inputs) & set(group.inputs):
            return [
                other
                for other in same
                if other.id not in group.declared_not and group.id not in other.declared_not
            ]
    return same


def _merge_ledgers(kept: str, other: str) -> None:
    """Charge what was spent on two groups that become one to the group that is kept.

    It runs before either group's file changes, and may run again if it was interrupted.
    """
    from tacit.corpus.people_ledger import PeopleLedger  # accountants are slow to import

    PeopleLedger(_folder(kept)).absorb(PeopleLedger(_folder(other)))


def resolve(people: str) -> str:
    """The group that a group was merged into, or the id itself; an unknown id is itself."""
    for _ in range(1000):
        path = _folder(people) / FILE
        try:
            if path.stat().st_size >= _MERGED_BYTES:
                return people
            merged_into = read_json(path, _Merged).get("merged_into")
        except OSError:
            return people
        if merged_into is None:
            return people
        people = merged_into
    raise ValueError(f"{str(_folder(people) / FILE)!r} is damaged: it is merged into itself")


def is_same_people(one: str, other: str) -> bool:
    """Whether two ids stand for the same people: groups may have been merged since."""
    return one == other or resolve(one) == resolve(other)


def folder(people: str, *, create: bool = True) -> Path:
    """The folder of a group, where what is known about its people is kept.

    A group that is not known here (of a corpus that was made elsewhere) is made, without anything
    by which its people could be recognised; without `create` nothing is made.
    """
    people = resolve(people)
    path = _folder(people)
    if create and not (path / FILE).exists():
        with _locked():
            if not (path / FILE).exists():
                _write_group(_Group(people, _next(known_groups())))
    return path


def known_group(people: str) -> _Group | None:
    """What is known here of these people, or None."""
    return _read(resolve(people))


def known_groups() -> list[_Group]:
    """All groups that were not merged into others, in the order in which they were made."""
    path = state_folder(create=False) / "people"
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    groups = [_read(name) for name in names if re.fullmatch(r"[0-9a-f]{16}", name)]
    return sorted((group for group in groups if group), key=lambda group: group.number)


def _next(groups: Sequence[_Group]) -> int:
    """The number of the group that is made next."""
    return 1 + max((group.number for group in groups), default=0)


def _folder(people: str) -> Path:
    """The folder of an id, whether it exists or not; what is no id is refused."""
    if not re.fullmatch(r"[0-9a-f]{16}", people):
        raise ValueError(f"people must be 16 hexadecimal digits, got {people!r}")
    return state_folder(create=False) / "people" / people


@contextmanager
def _locked() -> Iterator[None]:
    """One process at a time looks for people and remembers them."""
    path = state_folder() / "people"
    durable.make_folder(path)
    with durable.locked(path / ".lock"):
        yield


def _read(people: str) -> _Group | None:
    """A group, or None if it is not known or was merged into another."""
    path = _folder(people) / FILE
    try:
        data = read_json(path, dict[str, Any])
        return None if "merged_into" in data else _Group.from_json({"id": people, **data})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"{str(path)!r} is damaged, so that people cannot be recognised: restore it from a"
            " backup"
        ) from None


def _write_group(group: _Group) -> None:
    """Write a group's people.json; the folder's name is its id."""
    data = group.to_json()
    _write(data.pop("id"), data)


def _write(people: str, data: dict[str, Any]) -> None:
    path = _folder(people)
    durable.make_folder(path)
    durable.write_whole(path / FILE, (json.dumps(data) + "\n").encode())


def state_folder(*, create: bool = True) -> Path:
    """The state folder, made on first use and readable by its owner only.

    Without `create` it is where the folder is or would be, and nothing is made.
    """
    path = durable.user_folder("state")
    if not create:
        return path
    try:
        durable.make_folder(path)
    except OSError as problem:
        raise _unusable(path, problem.strerror) from None
    if not path.is_dir():
        raise _unusable(path, "it is a file")
    if not os.access(path, os.W_OK | os.X_OK):
        raise _unusable(path, "no permission")
    if not trusted.is_of_this_user_alone(path.stat()):
        raise _unusable(path, "another user owns it, or may write to it")
    return path


def secret() -> bytes:
    """32 bytes from the operating system, made once for this installation.

    A damaged secret is refused and never replaced: with another one, nobody known here would be
    recognised, and what was spent on them would be forgotten.
    """
    path = state_folder() / "secret"
    try:
        if not path.exists():
            with _locked(), suppress(FileExistsError):  # of two processes at once one makes it
                durable.write_whole(path, secrets.token_bytes(_SECRET_BYTES), new=True)
        data = trusted.read_bytes(path)
    except OSError as problem:
        raise _unusable(path.parent, problem.strerror) from None
    if len(data) != _SECRET_BYTES:
        raise ValueError(
            f"{str(path)!r} is damaged: it has {len(data)} bytes instead of {_SECRET_BYTES};"
            " without it nobody known here is recognised again, so restore it from a backup"
        )
    return data


def _unusable(path: Path, why: str | None) -> ValueError:
    return ValueError(
        f"cannot write to {str(path)!r}, where tacit remembers what was spent on whom ({why}): set"
        " TACIT_STATE to a folder that can be written to"
    )
