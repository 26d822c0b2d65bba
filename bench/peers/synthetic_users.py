"""Token caches of any number of synthetic users, written directly in the format of `TokenCache`."""

from __future__ import annotations

import json
import shutil
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from workload import DISTINCT, TOKENS, user_tokens

from tacit.federated.cohort import CachedUsers
from tacit.privacy import durable
from tacit.tokenizers import cache as cache_folder
from tacit.tokenizers.cache import Description, TokenCache


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
    """A cache of so many users, who repeat after the first `DISTINCT` of them."""
    needed = 2 * users * TOKENS
    free = shutil.disk_usage(path.parent).free
    if free < 1.5 * needed:
        raise OSError(f"{users:,} users need {needed / 1e9:.1f} GB of disk, {free / 1e9:.1f} free")
    path.mkdir()
    each = [user_tokens(user) for user in range(DISTINCT)]
    block, sums = np.concatenate(each), [zlib.crc32(tokens.data) for tokens in each]
    whole, rest = divmod(users, DISTINCT)
    with cache_folder.growing_array(path / "tokens.npy", "uint16") as append:
        for _ in range(whole):
            append(block)
        append(block[: rest * TOKENS])
    offsets = np.arange(users + 1, dtype=np.int64) * TOKENS
    cache_folder.write_array(path / "offsets.npy", offsets)
    cache_folder.write_array(path / "sums.npy", np.resize(np.array(sums, np.uint32), users))
    description = Description("0" * 64, "0" * 64, None, users, "uint16", users * TOKENS)
    durable.write_whole(path / "cache.json", json.dumps(asdict(description)).encode())


def opened(path: Path) -> CachedUsers:
    """Its users."""
    cache = TokenCache.open(path)
    return CachedUsers(cache, Nobody(len(cache)))
