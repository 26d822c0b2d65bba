"""Whose text it is: people are recognised when their text comes again, so that what was spent on
them is not forgotten (see `people_ledger`).

What is remembered here, under the installation's state folder, is a folder per group of people:

    people/ID/people.json   sketches of the sets of user ids known as these people, digests of the
                            files that they came in, and a sketch of lines of their text

Everything in it is keyed with the installation's secret.  Two sets of ids are the same people if at
least half of the smaller one is in the other: a refreshed export, a sample, a file that has grown.
If a set turns out to be the people of several groups, those groups are merged into the one that was
made first, and the others' files say no more than which one that is.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tacit.corpus import installation
from tacit.corpus.lines import LineSketch
from tacit.corpus.sketch import Sketch, SketchMaker, shared
from tacit.privacy import durable

SAME = 0.5  # of the smaller set: the same people
SOME = 0.01  # fewer than that in common is not worth a word
# More than a sketch has by itself: a hundredth of the people known must still be recognised.
SKETCH_SIZE = 8192
FILE = "people.json"
_MERGED_BYTES = 256  # a file of a group that was merged is smaller than this

OnMerge = Callable[[str, str], None]


def merge_ledgers(kept: str, other: str) -> None:
    """What was spent on two groups that are one from now on was spent on the one that is kept."""
    from tacit.corpus.people_ledger import PeopleLedger  # accountants are slow to import

    PeopleLedger(_folder(kept)).absorb(PeopleLedger(_folder(other)))


@dataclass(frozen=True)
class Recognition:
    """Who some people were found to be.

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


@dataclass(frozen=True)
class _Group:
    """What people.json says of a group that was not merged into another."""

    id: str
    number: int  # groups are numbered as they are made
    sketches: tuple[Sketch, ...] = ()
    inputs: tuple[str, ...] = ()
    lines: LineSketch = field(default_factory=lambda: LineSketch({}))
    declared_not: tuple[str, ...] = ()

    def share(self, sketches: Sequence[Sketch]) -> float:
        pairs = ((known, new) for known in self.sketches for new in sketches)
        return max((shared(known, new) for known, new in pairs), default=0.0)

    def joined(self, other: _Group) -> _Group:
        sketches = {s.values.tobytes(): s for s in (*self.sketches, *other.sketches)}
        return replace(
            self,
            sketches=tuple(sketches.values()),
            inputs=tuple(dict.fromkeys((*self.inputs, *other.inputs))),
            lines=self.lines.joined(other.lines),
            declared_not=tuple(dict.fromkeys((*self.declared_not, *other.declared_not))),
        )


def recognise(
    user_keys: Iterable[bytes],
    *,
    inputs: Sequence[str] = (),
    new_people: bool = False,
    on_merge: OnMerge = merge_ledgers,
) -> Recognition:
    """Find out who the people are, and remember them.

    user_keys: a set of byte strings that says who they are: ids of users, or of records.
    inputs: the SHA-256 of each file that they came in.
    new_people: declare that they are nobody known, whatever it looks like.
    on_merge: called with (the group kept, the other) before two groups become one, while nobody
        else can change either; it may be called again for the same two if it is interrupted.
    """
    sketch = sketch_maker()
    sketch.add(user_keys)
    made = [sketch.finish()]
    found = find(made, inputs=inputs, new_people=new_people)
    return register(found, made, inputs=inputs, on_merge=on_merge)


def sketch_maker() -> SketchMaker:
    """Makes a sketch of ids as `find` and `register` take it."""
    return SketchMaker(installation.secret(), SKETCH_SIZE)


def find(
    sketches: Sequence[Sketch], *, inputs: Sequence[str] = (), new_people: bool = False
) -> Recognition:
    """Who the people are, without remembering anything; a new group gets a random id."""
    with _locked():
        return _found(list(_groups()), sketches, inputs, new_people)


def register(
    found: Recognition,
    sketches: Sequence[Sketch],
    *,
    inputs: Sequence[str] = (),
    lines: LineSketch | None = None,
    on_merge: OnMerge = merge_ledgers,
) -> Recognition:
    """Remember the people who were found; groups that they turn out to join become one.

    Who was found by two processes at once, as new by both, is one group from here on: the id of
    the answer may be another than that of the question, which `resolve` will lead to.
    """
    with _locked():
        groups = list(_groups())
        # A group may have been merged, or the people made known, since they were found.
        own = resolve(found.people)
        new = _Group(own, 0, tuple(sketches), tuple(inputs), lines or LineSketch({}))
        if found.declared_new is not None:
            declared = (found.declared_new, resolve(found.declared_new))
            new = replace(new, declared_not=tuple(dict.fromkeys(declared)))
        matching = [] if found.declared_new else _matching(groups, sketches, inputs)
        same = [group for group in groups if group.id == own or group in matching]
        same.sort(key=lambda group: group.number)
        if not same:
            number = 1 + max((group.number for group in groups), default=0)
            _write(replace(new, number=number))
            return found
        kept = same[0]
        whole = kept.joined(new)
        for other in same[1:]:
            on_merge(kept.id, other.id)
            whole = whole.joined(other)
        _write(whole)
        for other in same[1:]:
            _write_merged(other.id, kept.id)
        if own not in (group.id for group in same):
            _write_merged(own, kept.id)
        return replace(found, people=kept.id, is_known=found.is_known or own != kept.id)


def resolve(people: str) -> str:
    """The group that a group was merged into, or the id itself; an unknown id is itself."""
    for _ in range(1000):
        path = _folder(people) / FILE
        try:
            if path.stat().st_size >= _MERGED_BYTES:
                return people
            merged_into = json.loads(path.read_bytes()).get("merged_into")
        except OSError:
            return people
        except (ValueError, AttributeError):
            raise ValueError(f"{str(path)!r} is damaged") from None
        if merged_into is None:
            return people
        people = str(merged_into)
    raise ValueError(f"{str(_folder(people) / FILE)!r} is damaged: it is merged into itself")


def is_same_people(one: str, other: str) -> bool:
    """Whether two ids stand for the same people: groups may have been merged since."""
    return one == other or resolve(one) == resolve(other)


def folder(people: str) -> Path:
    """The folder of a group, where what is known about its people is kept.

    A group that is not known here (of a corpus that was made elsewhere) is made, without anything
    by which its people could be recognised.
    """
    path = _folder(resolve(people))
    if not (path / FILE).exists():
        with _locked():
            if not (path / FILE).exists():
                number = 1 + max((group.number for group in _groups()), default=0)
                _write(_Group(people, number))
    return path


def known_inputs(people: str) -> frozenset[str]:
    """The SHA-256 of all files that text of these people came in, as far as is known here."""
    group = _read(resolve(people))
    return frozenset() if group is None else frozenset(group.inputs)


def known_lines(people: str) -> LineSketch:
    """A sketch of lines of these people's text, under the installation's secret."""
    group = _read(resolve(people))
    return LineSketch({}) if group is None else group.lines


def everybody_known() -> tuple[frozenset[str], list[LineSketch]]:
    """The SHA-256 of all files that were ingested here, and a sketch of lines of each group."""
    if not (installation.state_path() / "people").is_dir():
        return frozenset(), []
    groups = list(_groups())
    inputs = frozenset(digest for group in groups for digest in group.inputs)
    return inputs, [group.lines for group in groups if len(group.lines)]


def _found(
    groups: list[_Group], sketches: Sequence[Sketch], inputs: Sequence[str], new_people: bool
) -> Recognition:
    shares = {group.id: group.share(sketches) for group in groups}
    matching = _matching(groups, sketches, inputs)
    left_out = {group.id for group in matching}
    overlaps = tuple(
        (group.id, shares[group.id])
        for group in groups
        if shares[group.id] >= SOME and group.id not in left_out
    )
    first = matching[0].id if matching else None
    share = max((shares[group.id] for group in matching), default=0.0)
    if first is not None and not new_people:
        return Recognition(first, True, share, None, overlaps)
    return Recognition(secrets.token_hex(8), False, share, first, overlaps)


def _matching(
    groups: list[_Group], sketches: Sequence[Sketch], inputs: Sequence[str]
) -> list[_Group]:
    """The groups that are the same people, the one made first first.

    Two data sets may number their users from 1 and be declared to be different people.  When the
    file of one of them comes again, it is that one's, and the declaration still holds.
    """
    same = [group for group in groups if group.share(sketches) >= SAME]
    for group in same:
        if set(inputs) & set(group.inputs):
            return [
                other
                for other in same
                if other.id not in group.declared_not and group.id not in other.declared_not
            ]
    return same


def _folder(people: str) -> Path:
    if not re.fullmatch(r"[0-9a-f]{16}", people):
        raise ValueError(f"people must be 16 hexadecimal digits, got {people!r}")
    return installation.state_path() / "people" / people


@contextmanager
def _locked() -> Iterator[None]:
    """One process at a time looks for people and remembers them."""
    path = installation.state_folder() / "people"
    path.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _groups() -> Iterator[_Group]:
    """All groups that were not merged into others, in the order in which they were made."""
    names = [path.name for path in (installation.state_path() / "people").iterdir()]
    found = [_read(name) for name in names if re.fullmatch(r"[0-9a-f]{16}", name)]
    yield from sorted((group for group in found if group), key=lambda group: group.number)


def _read(people: str) -> _Group | None:
    """A group, or None if it is not known or was merged into another."""
    path = _folder(people) / FILE
    try:
        data: dict[str, Any] = json.loads(path.read_bytes())
        if "merged_into" in data:
            return None
        return _Group(
            people,
            int(data["number"]),
            tuple(map(Sketch.from_json, data["sketches"])),
            tuple(map(str, data["inputs"])),
            LineSketch.from_json(data["lines"]),
            tuple(map(str, data["declared_not"])),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"{str(path)!r} is damaged, so that people cannot be recognised: restore it from a"
            " backup"
        ) from None


def _write(group: _Group) -> None:
    data = {
        "number": group.number,
        "sketches": [sketch.as_json() for sketch in group.sketches],
        "inputs": list(group.inputs),
        "lines": group.lines.as_json(),
        "declared_not": list(group.declared_not),
    }
    _write_file(group.id, data)


def _write_merged(people: str, into: str) -> None:
    _write_file(people, {"merged_into": into})


def _write_file(people: str, data: dict[str, Any]) -> None:
    path = _folder(people)
    path.mkdir(mode=0o700, exist_ok=True)
    durable.write_whole(path / FILE, (json.dumps(data) + "\n").encode(), mode=0o600)
