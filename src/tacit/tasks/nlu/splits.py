"""Which utterance goes where: the split of Dupuy et al. 2021 (section 4.1), and folds.

The paper trains on 45% of a set, chooses with 5% and measures on 50%, so that there are about as
many non-members as members to attack.  Each place is a draw from a digest:

- of the user, where there is one: all of a user's utterances are in one part.  The draw is the
  one that divides the users of a corpus, so the test users of a corpus are test users here;
- otherwise of the utterance's content and of which copy of it this is (the first, the second, ...).
  With `together`, the copies of one utterance go together: then no non-member has the very
  words of a member, at the price of parts that differ more from their nominal size.

Guarantee: to add or to take away an utterance (or a user) moves no other; the shares therefore hold
only on average.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence

from tacit.corpus.hashing import threshold, user_key
from tacit.tasks.nlu.data import PARTS, NLUData, Utterance

PAPER = (0.45, 0.05, 0.50)
_LABEL = b"tacit nlu split\0"


def hash_split(
    name: str,
    utterances: Iterable[Utterance],
    shares: tuple[float, float, float] = PAPER,
    *,
    together: bool = False,
    unseen_intents: str = "refuse",
) -> NLUData:
    """Divide by digest into the shares of train, valid and test."""
    if not (all(share >= 0 for share in shares) and math.isclose(sum(shares), 1)):
        raise ValueError(f"the shares of train, valid and test must add up to 1, got {shares}")
    _, valid, test = shares
    in_test, in_valid = threshold(test), threshold(test + valid)
    parts: dict[str, list[Utterance]] = {part: [] for part in PARTS}
    copies: dict[bytes, int] = {}
    for utterance in utterances:
        if utterance.user is not None:
            key = user_key(utterance.user)
        else:
            key = hashlib.sha256(_LABEL + utterance.content).digest()
            if not together:
                copy = copies[key] = copies.get(key, 0) + 1
                key = hashlib.sha256(key + copy.to_bytes(8, "big")).digest() if copy > 1 else key
        bits = int.from_bytes(key[:8], "big")
        part = "test" if bits < in_test else "valid" if bits < in_valid else "train"
        parts[part].append(utterance)
    ratio = ":".join(f"{100 * share:g}" for share in shares)
    split = f"{ratio} by digest" + (", equal utterances together" if together else "")
    return _assembled(name, parts, split, unseen_intents)


def fold_split(
    name: str,
    folds: Mapping[str, Sequence[Utterance]],
    test_fold: str | None = None,
    *,
    unseen_intents: str = "refuse",
) -> NLUData:
    """Cross-validation: one fold to test, the one after it to choose with, the others to train.

    After the last fold comes the first.  Where no fold is named, the first is the test fold.
    """
    names = sorted(folds, key=lambda fold: (len(fold), fold))  # 2 before 10
    if len(names) < 3:
        raise ValueError(
            f"{name} has {len(names)} folds ({', '.join(names)}): at least 3 are needed, to train,"
            " to choose and to test"
        )
    test_fold = names[0] if test_fold is None else test_fold
    if test_fold not in names:
        raise ValueError(
            f"{name} has no fold {test_fold!r}: test_fold is one of {', '.join(names)}"
        )
    valid_fold = names[(names.index(test_fold) + 1) % len(names)]
    parts: dict[str, list[Utterance]] = {part: [] for part in PARTS}
    for fold in names:
        part = {test_fold: "test", valid_fold: "valid"}.get(fold, "train")
        parts[part].extend(folds[fold])
    split = f"fold {test_fold} of {len(names)} to test, fold {valid_fold} to choose"
    return _assembled(name, parts, split, unseen_intents)


def given_split(
    name: str, parts: Mapping[str, Sequence[Utterance]], *, unseen_intents: str = "refuse"
) -> NLUData:
    """The parts that a set comes with; it may have no valid."""
    return _assembled(name, parts, "the set's own", unseen_intents)


def _assembled(
    name: str, parts: Mapping[str, Sequence[Utterance]], split: str, unseen_intents: str
) -> NLUData:
    train, valid, test = (tuple(parts.get(part, ())) for part in PARTS)
    return NLUData(name, train, valid, test, split=split, unseen_intents=unseen_intents)
