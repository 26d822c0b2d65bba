"""Processes that torchrun started, on one machine or on many: all run the same command.

Rank 0 trains; the others serve it until it ends, however many trainings it does.  All of them need
the corpus and its token caches at the same paths; the run directory is used by rank 0 alone.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import secrets
import sys
import time
from typing import Any, NoReturn

from tacit.engines.launch import Launch
from tacit.engines.ranks import PATIENCE, Ranks, WorkerLost, dist, group_of
from tacit.engines.worker import serve


class Torchrun:
    """The processes that torchrun watches: if one of them fails, it ends the others."""

    def ranks(self) -> Ranks:
        return _joined()

    def check(self) -> None:
        pass

    def end(self) -> None:
        """They are kept for the next training; the end of this process is their end."""


def serve_rank_0() -> NoReturn:
    """What all others do, until rank 0 ends; then this process does too."""
    import torch

    torch.set_num_threads(1)
    serve(_joined())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # at once: gloo's threads may be closing, and torch aborts if it finds them so


@functools.cache
def _joined() -> Ranks:
    """The one group that this process is ever in."""
    launch = Launch.of_this_process()
    store, rank, size = next(dist.rendezvous("env://", timeout=PATIENCE))
    meeting = _called(store, size) if rank == 0 else _answered(store, rank)
    alone = launch.on_this_machine == launch.size
    group = group_of(dist.PrefixStore(meeting, store), rank, size, one_machine=alone)
    if rank > 0:
        return Ranks(group, rank, size)
    ranks = Ranks(group, rank, size, check=lambda: None)  # torchrun looks after the others
    atexit.register(_release, ranks)
    return ranks


def _called(store: Any, size: int) -> str:
    """A name to meet under that only processes which are alive know of, as rank 0.

    torchrun may keep its store over a restart, with the addresses of the dead in it, and does not
    tell all machines that there was one.  So each rank asks with a word of its own, and rank 0
    answers every word that it finds until all ranks have heard it.
    """
    meeting = f"tacit/{secrets.token_hex(8)}"
    missing = set(range(1, size))
    while missing:
        for rank in missing:
            if store.check([f"tacit/asks/{rank}"]):
                word = store.get(f"tacit/asks/{rank}").decode()
                store.set(f"tacit/answer/{word}", meeting)
        missing = {rank for rank in missing if not store.check([f"{meeting}/heard/{rank}"])}
        time.sleep(0.02)
    return meeting


def _answered(store: Any, rank: int) -> str:
    """The name to meet under, as any other rank."""
    word = secrets.token_hex(8)
    store.set(f"tacit/asks/{rank}", word)
    store.wait([f"tacit/answer/{word}"], PATIENCE)
    meeting: str = store.get(f"tacit/answer/{word}").decode()
    store.set(f"{meeting}/heard/{rank}", "")
    return meeting


def _release(ranks: Ranks) -> None:
    """Let the others go; if the group is broken, torchrun ends them."""
    with contextlib.suppress(WorkerLost):
        ranks.send_stop()
