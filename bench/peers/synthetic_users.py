"""Token caches of any number of synthetic users, written directly in the format of `TokenCache`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from workload import DISTINCT, TOKENS, user_tokens

from tacit.federated.cohort import CachedUsers
from tacit.tokenizers.cache import Description, TokenCache, write_cache


@dataclass(frozen=True)
class Nobody:
    """A source of users who are known by their tokens only."""

    users: int
    is_synthetic_users: bool = True

    def __len__(self) -> int:
        return self.users

    def user_id(self, index: int) -> str:
        return f"{index:032x}"

    def texts(self, index: int) -> list[str]:
        return []

    @property
    def fingerprint(self) -> str:
        return f"{self.users:032x}"


def write(path: Path, users: int) -> None:
    """Write a cache of this many users, who repeat after the first `DISTINCT` of them."""
    needed = 2 * users * TOKENS
    free = shutil.disk_usage(path.parent).free
    if free < 1.5 * needed:
        raise OSError(f"{users:,} users need {needed / 1e9:.1f} GB of disk, {free / 1e9:.1f} free")
    path.mkdir()
    each = [user_tokens(user) for user in range(DISTINCT)]
    key = Description("0" * 64, "0" * 64, None, users, "uint16")
    write_cache(path, key, islice(cycle(each), users))


def opened(path: Path) -> CachedUsers:
    """Its users."""
    cache = TokenCache.open(path)
    return CachedUsers(cache, Nobody(len(cache)))
