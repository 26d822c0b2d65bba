"""What the servers of `bench/federation.py` have in common: a model, and what a round takes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np


class Meter:
    """What this process uses from now on."""

    def __init__(self) -> None:
        self._since = time.perf_counter(), time.process_time()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # a new peak begins

    def row(self) -> dict[str, float]:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        seconds, processor = self._since
        return {
            "seconds": time.perf_counter() - seconds,
            "processor": time.process_time() - processor,
            "memory": int(status.partition("VmHWM:")[2].split()[0]) / 1024,  # its peak
        }


def model_of(weights: int | None, number: int) -> np.ndarray[Any, Any]:
    """The weights of a round's model, which is another one in each."""
    from tacit.models import registry
    from tacit.models.base import parameter_count

    size = weights or parameter_count(registry.build("lstm", 10_000))
    return np.random.default_rng(number).standard_normal(size).astype(np.float32)
