"""How this process was started: by torchrun, or alone.

It imports no torch, because commands ask this before they do anything else: a process that serves
another must not read options, print or open a run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

TRUST_NETWORK = "TACIT_TRUST_NETWORK"


@dataclass(frozen=True)
class Launch:
    """Which of how many processes this is, and how often torchrun has started them again.

    `rank` is from 0 to `size` - 1, over all machines; `on_this_machine` counts the processes here.
    """

    rank: int = 0
    size: int = 1
    on_this_machine: int = 1
    restarts: int = 0

    def refuse_open_network(self) -> None:
        """Raise if processes are on several machines, unless the network is declared to be safe.

        What they send is not encrypted, and is believed: it has the run key in it, sums before the
        noise, and pickled objects, by which whoever can write to the connection runs code.
        """
        if self.on_this_machine < self.size and os.environ.get(TRUST_NETWORK) != "1":
            raise ValueError(
                "torchrun has started processes on several machines, which send each other the run"
                f" key and pickled objects in clear; set {TRUST_NETWORK}=1 on all of them if nobody"
                " else can read or write on the network between them (a cable of your own, or a VPN"
                " such as WireGuard)"
            )

    @classmethod
    def of_this_process(cls) -> Launch:
        """As the environment says; rank 0 of 1 without torchrun.

        Raises `ValueError` for variables of torchrun's that make no sense.
        """
        names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
        if not all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")):
            return cls()
        try:
            launch = cls(*(int(os.environ.get(name, "0")) for name in names))
        except ValueError as error:
            raise ValueError(f"{', '.join(names)} must be whole numbers: {error}") from error
        if not 0 <= launch.rank < launch.size:
            raise ValueError(
                f"RANK must be from 0 to WORLD_SIZE - 1 = {launch.size - 1}, got {launch.rank}"
            )
        return launch
