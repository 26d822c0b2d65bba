"""Which engine computes the cohorts of a training, from words such as a command line's.

What cannot be is refused before anything is opened: an engine that does not exist, a device that
torch does not find here, processes on an accelerator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tacit.engines import processes
from tacit.engines.engine import Engine
from tacit.engines.vectorized import VectorizedEngine


def choose_engine(name: str, workers: int | None, device: str) -> Callable[[Any], Engine]:
    """How cohorts are computed: in this process, in several, or on an accelerator.

    All of them compute the same sum, so that the choice changes the speed and, on an accelerator,
    the last bits.

    Args:
        name: processes, vectorized, or empty for what the device is good at.
        workers: how many processes; None for one per core.
        device: cpu, cuda or mps, as torch names it.

    Returns:
        A function that makes an engine for the model of the run.

    Raises:
        ValueError: if these contradict each other, or torch finds no such device.
    """
    name = name or ("processes" if device == "cpu" else "vectorized")
    if name not in ("processes", "vectorized"):
        raise ValueError(f"--engine must be processes or vectorized, got {name!r}")
    if workers is not None and workers < 1:
        raise ValueError(f"--workers must be at least 1, got {workers}")
    if name == "processes":
        if device != "cpu":
            raise ValueError(f"--engine processes computes on the cpu; with {device} leave it out")
        count = workers or processes.available_cores()
        return lambda model: processes.engine_for(model, count)
    if workers not in (None, 1):
        raise ValueError("--workers is for --engine processes; leave it out with vectorized")
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    kind = device.partition(":")[0]
    if kind not in available:
        raise ValueError(f"--device must be cpu, cuda or mps, got {device!r}")
    if not available[kind]:
        raise ValueError(f"--device {device}: torch finds none here; leave it out to use the cpu")
    return lambda model: VectorizedEngine(model, device)
