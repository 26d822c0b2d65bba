"""People's texts as a pool of records, for training that does not know users (Thakkar et al. 2020).

A record is one text.  In the paper's central learning a step takes a batch of records, and it
compares two orders in which an epoch goes through them:

- "iid": all records shuffled, whoever wrote them.
- "non-iid": user by user.  Users come in a random order, and the records of a user follow one
  another as they were written, so that a batch holds the text of one or a few users.

Either way each record comes exactly once in an epoch.  Nothing here protects anybody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

Order = Literal["iid", "non-iid"]


@dataclass(frozen=True)
class Records:
    """The records of all users, one user after the other, in one array of tokens."""

    tokens: NDArray[np.integer[Any]]
    starts: NDArray[np.int64]  # of each record in the tokens
    ends: NDArray[np.int64]
    users: NDArray[np.int64]  # the first record of each user, and behind the last user the count

    @classmethod
    def of(cls, users_tokens: Iterable[NDArray[np.integer[Any]]], bos: int) -> Records:
        """Each user's tokens, which are texts that begin with BOS, cut into records.

        What has no token behind its BOS, such as the end of a user's text at a cap, is no record.
        """
        kept, starts, ends, first = [], [], [], [0]
        place, count = 0, 0
        for tokens in users_tokens:
            begins = np.flatnonzero(tokens == bos)
            if len(tokens) and (not len(begins) or begins[0]):
                begins = np.concatenate([[0], begins])  # a text whose BOS is not there
            stops = np.append(begins[1:], len(tokens))[: len(begins)]
            whole = stops - begins > 1
            starts.append(place + begins[whole])
            ends.append(place + stops[whole])
            kept.append(tokens)
            place, count = place + len(tokens), count + int(whole.sum())
            first.append(count)
        if not count:
            raise ValueError("there is nothing to train on: the users have no tokens to predict")
        return cls(
            np.concatenate(kept), np.concatenate(starts), np.concatenate(ends), np.array(first)
        )

    def __len__(self) -> int:
        return len(self.starts)

    def record(self, index: int) -> NDArray[np.int64]:
        """The tokens of one record, with its BOS."""
        found: NDArray[np.int64] = self.tokens[self.starts[index] : self.ends[index]].astype(
            np.int64
        )
        return found

    def order(self, order: Order, rng: np.random.Generator) -> NDArray[np.int64]:
        """All records, in the order of one epoch."""
        check_order(order)
        if order == "iid":
            return rng.permutation(len(self))
        counts = np.diff(self.users)
        chosen = rng.permutation(len(counts))
        counts = counts[chosen]
        # Within each user: 0, 1, 2, ... on top of the user's first record.
        before = np.repeat(np.cumsum(counts) - counts, counts)
        found: NDArray[np.int64] = np.repeat(self.users[:-1][chosen], counts) + (
            np.arange(len(self)) - before
        )
        return found


def check_order(order: str) -> None:
    """One of the two orders."""
    if order not in get_args(Order):
        raise ValueError(f"order must be one of {', '.join(get_args(Order))}, got {order!r}")
