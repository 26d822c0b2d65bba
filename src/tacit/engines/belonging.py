"""Two processes of a training prove to each other that they belong to it, before they talk.

Gloo asks nobody who connects.  On one machine another user who is quicker than a worker could take
its place, and be sent the run key.  So all processes are handed one secret by the process that
starts them, through a pipe that nobody else has; and over each connection both sides answer a
random challenge under it.  An answer names who gives it to whom, so that it is of no use between
any two others.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch

_SIZE = 32  # bytes of a challenge, and of an answer
_PATIENCE = timedelta(minutes=2)  # they are all there already, and have nothing else to do
_CHALLENGE, _ANSWER = 1, 2  # tags


def prove(group: Any, rank: int, size: int, secret: bytes) -> None:
    """Prove to each other process that this one has the secret, and see that it has it too.

    Raises `PermissionError` for one that has not.
    """
    others = [other for other in range(size) if other != rank]
    own = {other: secrets.token_bytes(_SIZE) for other in others}
    asked = _exchange(group, own, _CHALLENGE)
    answers = {to: _answer(secret, rank, to, asked[to], own[to]) for to in others}
    given = _exchange(group, answers, _ANSWER)
    for other in others:
        expected = _answer(secret, other, rank, own[other], asked[other])
        if not hmac.compare_digest(given[other], expected):
            raise PermissionError(
                f"what answers as process {other} of {size} is not the one that was started: does"
                " another user of this machine take its place?"
            )


def _answer(secret: bytes, giver: int, taker: int, challenge: bytes, own: bytes) -> bytes:
    """What one process answers to the challenge of another, which it has challenged, too."""
    return hmac.digest(secret, f"{giver} to {taker}: ".encode() + challenge + own, "sha256")


def _exchange(group: Any, messages: Mapping[int, bytes], tag: int) -> dict[int, bytes]:
    """Send each other process its message, and take the one that it sends."""
    sent = [group.send([_tensor(data)], other, tag) for other, data in messages.items()]
    got = {other: torch.zeros(_SIZE, dtype=torch.uint8) for other in messages}
    for other, tensor in got.items():
        group.recv([tensor], other, tag).wait(_PATIENCE)
    for work in sent:
        work.wait(_PATIENCE)
    return {other: tensor.numpy().tobytes() for other, tensor in got.items()}


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
