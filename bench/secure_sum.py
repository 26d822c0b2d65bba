"""Seconds and bytes of a secure sum: per client, and on the server, as the group grows.

    python bench/secure_sum.py [--size 1350000] [--clients 10 50 100] [--gone 0.1]

Everybody is in one process, one after the other.  Seconds are the processor's, so a
machine that is busy with other things gives about the same.  Clients who are gone drop out
before they send their input, which costs the server most: for each of them it makes the masks of
all pairs.
"""

from __future__ import annotations

import argparse
import resource
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacit.mechanisms.clipping import ClipState
from tacit.mechanisms.distributed_noise import DistributedNoise
from tacit.mechanisms.fixed_point import IntegerGrid
from tacit.privacy.stream import Stream
from tacit.secure_sum import (
    Session,
    SessionMemory,
    SumClient,
    SumRules,
    SumServer,
    width_for,
)

LIMIT = IntegerGrid.for_clip(1.0, population=10_000, relative_noise=1.0).limit


@dataclass
class Meter:
    """Seconds by what was done, and how often."""

    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def time(self, what: str, act: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = act()
        self.seconds[what] = self.seconds.get(what, 0.0) + time.process_time() - start
        self.counts[what] = self.counts.get(what, 0) + 1
        return result

    def mean(self, *whats: str) -> float:
        return sum(self.seconds[what] / self.counts[what] for what in whats)


def measure(clients: int, size: int, gone: float) -> None:
    """One sum; prints a row."""
    away = round(gone * clients)
    rules = SumRules(
        clients=clients,
        threshold=2 * clients // 3 + 1,
        survivors=2 * clients // 3 + 1,
        size=size,
        width=width_for(clients, LIMIT),
        limit=LIMIT,
    )
    session, meter = Session("bench", 0, 0), Meter()
    signing = {one: Ed25519PrivateKey.generate() for one in range(1, clients + 1)}
    roster = {one: key.public_key().public_bytes_raw() for one, key in signing.items()}
    server = SumServer(session, rules, roster)
    group = {
        one: SumClient(one, key, roster, session, rules, SessionMemory())
        for one, key in signing.items()
    }
    sent = received = 0

    def phase(
        name: str, act: Callable[[SumClient, bytes], bytes], inbox: dict[int, bytes]
    ) -> dict[int, bytes]:
        nonlocal sent, received
        for one, message in inbox.items():
            answer = meter.time(name, lambda c=group[one], m=message: act(c, m))
            if one == clients:  # the last one: it stays
                sent, received = sent + len(answer), received + len(message)
            meter.time(f"server {name}", lambda m=answer: server.receive(m))
        return meter.time(f"server ends {name}", server.advance)

    vector = np.random.default_rng(0).integers(-LIMIT, LIMIT, size)
    inbox = phase("advertise", lambda c, _: c.advertise(), dict.fromkeys(group, b""))
    inbox = phase("share", SumClient.share, inbox)
    inbox = phase("mask", lambda c, m: c.mask(m, vector), dict(list(inbox.items())[away:]))
    inbox = phase("confirm", SumClient.confirm, inbox)
    phase("reveal", SumClient.reveal, inbox)
    assert np.array_equal(server.total, (clients - away) * vector)
    phases = ("advertise", "share", "mask", "confirm", "reveal")
    taking = sum(s for what, s in meter.seconds.items() if what.startswith("server"))
    print(
        f"| {clients} | {away} | {rules.width} | {meter.mean('mask'):.2f} |"
        f" {meter.mean(*(one for one in phases if one != 'mask')):.3f} |"
        f" {sent / 1e6:.2f} | {received / 1e3:.1f} |"
        f" {taking - meter.seconds['server ends reveal']:.2f} |"
        f" {meter.seconds['server ends reveal']:.2f} | {clients * sent / 1e6:.0f} |",
        flush=True,
    )


def measure_noise(size: int, clients: int) -> None:
    """What noise that the clients share adds to one of them, and what 16 bits save."""
    noise = DistributedNoise(1.0, size, clients, survivors=clients * 9 // 10, colluding=0)
    meter, clip = Meter(), ClipState((1.0,))
    update = np.random.default_rng(0).normal(size=size) / size**0.5
    own = Stream(secrets.token_bytes(32))
    meter.time("rounded", lambda: noise.rounded(update, clip, own))
    vector = meter.time("all", lambda: noise.share(update, clip, own))
    meter.time("restored", lambda: noise.total(vector, clip))
    print(
        f"{clients} clients, 16 bits: {meter.mean('all'):.2f} s a client, of which"
        f" {meter.mean('rounded'):.2f} s to rotate and round; {meter.mean('restored'):.2f} s on the"
        f" server; {2 * noise.rotation.padded / 1e6:.2f} MB a client;"
        f" {100 * (noise.inflation - 1):.2f}% more noise than central"
    )


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1_350_000)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 50, 100])
    parser.add_argument("--gone", type=float, nargs="+", default=[0.1])
    asked = parser.parse_args(arguments)
    print(
        "| clients | gone | bits | client: s to mask | s besides | MB sent | kB received |"
        " server: s to take | s to unmask | MB received |\n" + "|---" * 10 + "|"
    )
    for clients in asked.clients:
        for gone in asked.gone:
            measure(clients, asked.size, gone)
    for clients in asked.clients:
        measure_noise(asked.size, clients)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{peak:.0f} MB resident at most, everybody's in one process")


if __name__ == "__main__":
    main(sys.argv[1:])
