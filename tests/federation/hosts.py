"""Several hosts on one machine: network namespaces whose packets pass through this process.

Each host is a process with a network of its own, in which there is nothing but a TUN device.  What
it sends is read here as IP packets, which are delayed, lost and held back from hosts that are cut
off, and written to the device of the host that they are for.  The kernel's own TCP deals with that,
as it does between machines.  It is what `tc netem` does, which not every kernel has.
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_MTU = 1500
FIRST = 1  # the last number of the first host's address

# What a script that makes hosts is started by: root in namespaces of its own, whoever starts it.
UNSHARED = ("unshare", "--user", "--map-root-user", "--net")


def address(host: int) -> str:
    """Where a host is."""
    return f"10.77.0.{host + FIRST}"


def what_is_missing() -> str | None:
    """Why there can be no hosts on this machine; None if there can."""
    made = "ip tuntap add dev hosts0 mode tun && ip link set hosts0 up"
    try:
        tried = subprocess.run(
            [*UNSHARED, "sh", "-c", made], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return "there is no unshare here"
    return None if tried.returncode == 0 else tried.stderr.strip() or "no TUN device can be made"


class Network:
    """Hosts, and what happens to packets between them."""

    def __init__(self, hosts: int, *, delay: float, loss: float, seed: int) -> None:
        self._delay, self._loss, self._draw = delay, loss, random.Random(seed)
        self._devices = [_device(f"host{number}") for number in range(hosts)]
        self._gone: set[int] = set()
        self._cut: dict[int, float] = {}  # hosts that are cut off, and until when
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self.passed = self.lost = self.held = 0  # packets

    def host(self, number: int, log: Path, fork: Callable, act: Callable[[], None]) -> int:
        """The process id of a host that does this, once it has its network."""
        ready, go = os.pipe(), os.pipe()

        def begin() -> None:
            if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "no network namespace")
            os.write(ready[1], b".")
            os.read(go[0], 1)
            name = f"host{number}"
            _ip("link", "set", "lo", "up")
            _ip("address", "add", f"{address(number)}/24", "dev", name)
            _ip("link", "set", name, "mtu", str(_MTU), "up")
            act()

        process = fork(log, begin)
        os.read(ready[0], 1)
        _ip("link", "set", f"host{number}", "netns", str(process))
        os.write(go[1], b".")
        for end in (*ready, *go):
            os.close(end)
        return process

    def cut(self, host: int, seconds: float) -> None:
        """No packet reaches the host or leaves it from now on, for so long."""
        self._cut[host] = time.monotonic() + seconds

    def carry(self, seconds: float) -> None:
        """Carry packets for so long."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            while self._under_way and self._under_way[0][0] <= now:
                self._deliver(*heapq.heappop(self._under_way)[2:])
            due = self._under_way[0][0] if self._under_way else end
            wait = max(0.0, min(due, end) - time.monotonic())
            alive = [one for one in self._devices if one not in self._gone]
            for device in select.select(alive, [], [], wait)[0]:
                try:
                    self._take(self._devices.index(device), os.read(device, _MTU + 100))
                except OSError:  # its host has ended
                    self._gone.add(device)

    def _take(self, source: int, packet: bytes) -> None:
        target = packet[19] - FIRST if len(packet) >= 20 and packet[0] >> 4 == 4 else -1
        if not 0 <= target < len(self._devices):  # not IPv4, or for everybody
            return
        now = time.monotonic()
        if any(self._cut.get(host, 0.0) > now for host in (source, target)):
            self.held += 1
        elif self._draw.random() < self._loss:
            self.lost += 1
        else:
            self.passed += 1
            entry = (now + self._delay, self.passed, target, packet)
            heapq.heappush(self._under_way, entry)

    def _deliver(self, target: int, packet: bytes) -> None:
        try:
            os.write(self._devices[target], packet)
        except OSError:  # the host is gone
            self.lost += 1


def _device(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
