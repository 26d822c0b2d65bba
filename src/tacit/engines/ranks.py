"""What the processes of a training say to each other, over torch.distributed (gloo).

Rank 0 trains and the others serve it.  They are sent one of two things:

- a cohort (`Assignment`): a round of a language model is one message from rank 0 to all, and one
  all-reduce of integers that joins what they computed; nothing is ever sent per user;
- a `Service`: code that takes part in what rank 0 does, step by step, until it is told to stop.

Guarantee: the sum is the one that a single process would have computed, bit for bit, because
integers are summed.  What is sent (the run key, sums before the noise) is as private as `private/`,
and gloo does not encrypt it: between machines, use a network that you trust.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from torch import Tensor

from tacit.engines.belonging import prove
from tacit.federated.cohort import CohortJob, CohortSum, CohortTask, Diagnostics

dist: Any = torch.distributed  # its type stubs leave out most of what is used here

# A process that ends is noticed at once, since its connections close.  This is for a machine that
# vanishes without a word; it has to be longer than rank 0 may take between two rounds.
PATIENCE = timedelta(hours=2)
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.002  # seconds between looking whether others are done
_SLOT = 1 + len(fields(Diagnostics))  # whether a rank failed, and its diagnostics


class WorkerLost(ConnectionError):
    """A process that this one works with is gone.

    What the run has on disk is whole: it can be resumed.
    """


@dataclass(frozen=True)
class Assignment:
    """A round, as rank 0 tells it: the model and the task only if they are new."""

    kernel: str
    model: Any  # a LanguageModel
    task: CohortTask | None
    job: CohortJob
    parts: list[NDArray[np.int64]]  # users by rank


class _Service(Protocol):
    """Work that all ranks do side by side; rank 0 sends it to the others and does its own part."""

    def serve(self, ranks: Ranks) -> None:
        """What a rank other than 0 does, until rank 0 tells it that there is nothing more."""


@dataclass(frozen=True)
class Message:
    """What rank 0 sent, not unpickled yet; `values` and `bits` are the sizes of a cohort's sum."""

    values: int
    bits: int
    pickled: NDArray[np.uint8]

    @property
    def is_cohort(self) -> bool:
        """Whether it is an `Assignment`; a `Service` has no sum of its own."""
        return self.values > 0

    def read(self) -> Any:
        """The assignment or service; fails if it refers to something not on this machine."""
        try:
            return pickle.loads(self.pickled.data)
        except (AttributeError, ImportError) as error:
            raise ValueError(
                f"it does not find what it was sent ({error}); classes of your own have to be in a"
                " module that can be imported, not in the script that is run"
            ) from error


@dataclass
class Ranks:
    """The processes of a training, seen from one of them.

    `check` is called while waiting, and raises if it is known that another process is gone;
    without one, waiting cannot be interrupted, and costs nothing.
    `in_step` is false from an assignment until its sum, and from a service until its end: a rank
    that leaves in between leaves the others waiting for it, and must not speak to them again.
    """

    group: Any  # a ProcessGroupGloo
    rank: int
    size: int
    check: Callable[[], None] | None = None
    in_step: bool = True

    def send(self, work: Assignment | _Service, values: int = 0, bits: int = 0) -> None:
        """As rank 0: tell all others what to do.

        `values` and `bits` are the sizes of a cohort's sum, which a rank has to know even if it
        cannot unpack the rest; a service has none.
        """
        if not self.in_step:
            raise WorkerLost("a round was cut short, so its processes cannot be used any more")
        try:
            data = np.frombuffer(pickle.dumps(work, protocol=5), np.uint8)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ValueError(
                f"the model or its users cannot be sent to other processes: {error}; train with one"
                " process"
            ) from error
        self.in_step = False
        self._broadcast(torch.tensor([len(data), values, bits]), 0)
        self._broadcast(torch.from_numpy(data.copy()), 0)

    def send_stop(self) -> None:
        """As rank 0: tell all others that there is nothing more to do."""
        if self.in_step:
            self._broadcast(torch.zeros(3, dtype=torch.int64), 0)

    def receive(self) -> Message | None:
        """As any other rank: what rank 0 sends next, or None for the end."""
        length, values, bits = self._broadcast(torch.zeros(3, dtype=torch.int64), 0).tolist()
        if not length:
            return None
        data = self._broadcast(torch.empty(length, dtype=torch.uint8), 0)
        return Message(values, bits, data.numpy())

    def tell(self, number: int) -> None:
        """As rank 0, in a service: what `told` returns to the others."""
        if self.size > 1:
            self._broadcast(torch.tensor([number]), 0, poll=False)

    def told(self) -> int:
        """As one of the others, in a service: what rank 0 tells next."""
        return int(self._broadcast(torch.zeros(1, dtype=torch.int64), 0, poll=False))

    def end_service(self, stop: int) -> None:
        """As rank 0: let the others leave a service, which they do when told `stop`."""
        self.tell(stop)
        self.in_step = True

    def sum_(self, values: Tensor) -> None:
        """Replace `values` by the sum over all ranks; every rank gets the same bits."""
        if self.size > 1:
            self._wait(self.group.allreduce([values]), poll=False)

    def exchange(self, digest: bytes) -> list[bytes]:
        """The 16 bytes that each rank gave, in the order of the ranks."""
        table = torch.zeros(self.size, 2, dtype=torch.int64)
        table[self.rank] = torch.frombuffer(bytearray(digest), dtype=torch.int64)
        self.sum_(table)
        return [row.tobytes() for row in table.numpy()]

    def join(self, own: CohortSum | None, values: int, bits: int, mistake: str = "") -> CohortSum:
        """The sum over all ranks, by one all-reduce of what each has or of its word that it failed.

        `own` is None if this rank failed, and `mistake` says why.
        """
        vector = np.empty(values + bits + 1 + self.size * _SLOT, np.int64)
        slots = vector[values + bits + 1 :].reshape(self.size, _SLOT)
        slots[:] = 0
        if own is None:
            vector[: values + bits + 1] = 0
            slots[self.rank, 0] = 1
        else:
            vector[:values] = own.total.update
            vector[values : values + bits] = own.total.bits
            vector[values + bits] = own.total.weight
            slots[self.rank, 1:] = np.array(astuple(own.diagnostics), np.float64).view(np.int64)
        self._wait(self.group.allreduce([torch.from_numpy(vector)]))
        failed = np.flatnonzero(slots[:, 0])
        if len(failed):
            self._raise_mistake(int(failed[0]), mistake)
        self.in_step = True
        each = slots[:, 1:].copy().view(np.float64)
        diagnostics = sum((Diagnostics(*row) for row in each.tolist()), Diagnostics())
        update, clip_bits = vector[:values], vector[values : values + bits]
        return CohortSum.of(update, int(vector[values + bits]), clip_bits, diagnostics)

    def _raise_mistake(self, source: int, mistake: str) -> None:
        """All learn what went wrong at one of them, and rank 0 raises it."""
        data = mistake.encode() if self.rank == source else b""
        length = self._broadcast(torch.tensor([len(data)]), source)
        text = torch.zeros(int(length), dtype=torch.uint8)
        if self.rank == source:
            text = torch.tensor(list(data), dtype=torch.uint8)
        self._broadcast(text, source)
        self.in_step = True
        if self.rank == 0:
            said = text.numpy().tobytes().decode()
            raise ValueError(f"process {source} of {self.size} could not do its part: {said}")

    def _broadcast(self, tensor: Tensor, source: int, *, poll: bool = True) -> Tensor:
        """The tensor of rank `source`, written into that of every other rank."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        self._wait(self.group.broadcast([tensor], options), poll=poll)
        return tensor

    def _wait(self, work: Any, *, poll: bool = True) -> None:
        """Wait until it is done; without `poll` at once, but Ctrl-C has to wait as well."""
        pause = _SHORTEST_PAUSE
        try:
            while poll and self.check is not None and not work.is_completed():
                self.check()
                time.sleep(pause)
                pause = min(1.5 * pause, _LONGEST_PAUSE)
            work.wait()
        except RuntimeError as error:
            # Connections close a moment before a process can be seen to be gone.
            deadline = time.monotonic() + 1
            while self.check is not None and time.monotonic() < deadline:
                self.check()
                time.sleep(_LONGEST_PAUSE)
            what = re.sub(r"^\[\S+\] ", "", str(error)).split(". ")[0]
            raise WorkerLost(
                f"another process of this training is gone ({what}); the run is whole: go on with"
                " it by --resume"
            ) from error


def join_group(
    store: Any, rank: int, size: int, *, one_machine: bool, secret: bytes | None = None
) -> Any:
    """The group of the processes that meet in a store, with this one in it.

    The group is ours alone: torch's global one is left to the user, and there may be several.
    With a `secret`, which all of them were handed, nothing is said before each has proved to each
    that it has it.
    """
    with _loopback() if one_machine else contextlib.nullcontext():
        group = dist.ProcessGroupGloo(store, rank, size, PATIENCE)
    if secret is not None:
        try:
            prove(group, rank, size, secret)
        except (RuntimeError, PermissionError) as error:
            raise WorkerLost(f"the processes of this training do not meet: {error}") from error
    return group


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Gloo stays on this machine, unless the user says otherwise.

    By itself it looks up the name of the machine, which need not be known to anybody.
    """
    name = "GLOO_SOCKET_IFNAME"
    interfaces = [interface for _, interface in socket.if_nameindex() if interface[:2] == "lo"]
    if name in os.environ or not interfaces:
        yield
        return
    os.environ[name] = interfaces[0]
    try:
        yield
    finally:
        del os.environ[name]
