"""The step in C++: built on first use where there is a compiler, and used where it is faster.

Without a compiler the plain torch operations do the same.  The choice between the two forms is kept
beside what was built, because a second timing might choose otherwise, and a run that is resumed has
to compute the same bits.

`TACIT_KERNEL=torch` or `TACIT_KERNEL=c++` makes the choice by hand.
"""

from __future__ import annotations

import ctypes
import functools
import os
import secrets
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from tacit.kernels import torch_step
from tacit.kernels.batch import Batch
from tacit.kernels.parameters import Parameters
from tacit.models.recurrent import CIFG, GRU, LSTM, LSTMConfig, RecurrentConfig, RecurrentModel
from tacit.privacy import native

_FILES = (
    "kernel.cpp",
    "kernel_layer.h",
    "kernel_buffers.h",
    "kernel_products.h",
    "kernel_ends.h",
    "kernel_vectors.h",
)
SOURCE = native.Source(
    "step",
    tuple(Path(__file__).with_name(file) for file in _FILES),
    # A product and a sum may become one rounding; nothing else of the arithmetic may change.
    tuple(
        "-std=gnu++17 -O3 -march=native -ffp-contract=fast -fno-math-errno -fno-trapping-math"
        " -fno-exceptions -fno-rtti -falign-functions=64 -falign-loops=64 -fPIC -shared".split()
    ),
)
KINDS: dict[type[RecurrentModel], int] = {LSTM: 0, CIFG: 1, GRU: 2}

_REPEATS = 7


class Step(Protocol):
    """One of the two forms."""

    name: str

    def step(self, batch: Batch, learning_rate: float, pull: float, project: bool) -> float:
        """One step on a batch with at least one target; returns the summed loss."""
        ...


@dataclass(frozen=True)
class Kernel:
    """The loaded library."""

    name: str
    library: ctypes.CDLL

    @classmethod
    def of(cls, built: native.Library) -> Kernel:
        library = built.functions
        pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
        library.tacit_workspace.argtypes = [pointer]
        library.tacit_workspace.restype = number
        library.tacit_step.argtypes = [pointer] * 6 + [real, real, number, pointer]
        library.tacit_step.restype = ctypes.c_double
        return cls(f"c++ {built.digest}", library)


class KernelStep:
    """The step itself, with memory to work in that grows to the largest batch so far."""

    def __init__(
        self,
        kernel: Kernel,
        parameters: Parameters,
        config: RecurrentConfig,
        model: type[RecurrentModel],
    ) -> None:
        self.name = kernel.name
        self._library, self._parameters = kernel.library, parameters
        self._sizes = (KINDS[model], config.vocab_size, config.embedding_size, config.cells)
        self._output_bias = int(config.output_bias)
        self._workspace = torch.empty(0)

    def step(self, batch: Batch, learning_rate: float, pull: float, project: bool) -> float:
        p = self._parameters
        shape = (ctypes.c_int64 * 9)(
            *self._sizes,
            self._output_bias,
            batch.rows,
            batch.steps,
            len(batch.targets),
            torch_step.LARGEST_SOFTMAX,
        )
        needed = self._library.tacit_workspace(shape)
        if self._workspace.numel() < needed:
            self._workspace = torch.empty(needed)
        loss: float = self._library.tacit_step(
            shape,
            p.flat.data_ptr(),
            p.anchor.data_ptr(),
            batch.inputs.data_ptr(),
            batch.targets.data_ptr(),
            None if batch.places is None else batch.places.data_ptr(),
            learning_rate,
            pull,
            int(project),
            self._workspace.data_ptr(),
        )
        return loss


@functools.cache
def chosen_kernel() -> Kernel | None:
    """The kernel if it is there, right and faster than plain torch operations; else None."""
    wanted = os.environ.get("TACIT_KERNEL", "")
    if wanted not in ("", "torch", "c++"):
        raise ValueError(f"TACIT_KERNEL must be torch or c++, got {wanted!r}")
    if wanted == "torch":
        return None
    kernel = built_kernel()
    if kernel is None and wanted == "c++":
        raise ValueError("TACIT_KERNEL is c++, but no compiler here builds the kernel")
    if kernel is None or wanted == "c++":
        return kernel
    return kernel if _is_chosen(kernel) else None


@functools.cache
def built_kernel() -> Kernel | None:
    """The kernel, built now if it was not before; None where it cannot be."""
    built = native.build(SOURCE)
    return None if built is None else Kernel.of(built)


def _is_chosen(kernel: Kernel) -> bool:
    """The choice made before, or one made now and kept."""
    path = native.cache_folder() / f"choice-{kernel.name.split()[1]}-torch-{torch.__version__}"
    with suppress(OSError):
        return path.read_text(encoding="utf-8") == kernel.name
    is_right, gain = _trial(kernel)
    fresh = path.with_name(f"{path.name}-{secrets.token_hex(4)}")
    try:
        fresh.write_text(kernel.name if is_right and gain > 1 else "torch", encoding="utf-8")
        try:
            os.link(fresh, path)  # fails if another process has chosen: then its choice counts
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
        return path.read_text(encoding="utf-8") == kernel.name
    except OSError:  # nowhere to keep a choice: one that does not depend on timing
        return is_right


def _trial(kernel: Kernel) -> tuple[bool, float]:
    """Whether the kernel agrees with plain torch operations, and how many times faster it is."""
    config = LSTMConfig(10_000)
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randint(config.vocab_size, (2, 80), generator=generator)
    batch = Batch(inputs, targets, None, 8, 10)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in training
    every = [Parameters(config, 4) for _ in range(2)]
    start = torch.empty_like(every[0].flat).normal_(std=0.1, generator=generator)
    steps: list[Step] = [
        torch_step.TorchStep(every[0], config, LSTM),
        KernelStep(kernel, every[1], config, LSTM),
    ]
    times: list[list[float]] = [[], []]
    with torch.inference_mode():
        for parameters in every:
            parameters.flat.copy_(start)
        losses = [step.step(batch, 1.0, 0.0, True) for step in steps]
        moved = float((every[0].flat - start).norm())
        apart = float((every[0].flat - every[1].flat).norm())
        for _ in range(_REPEATS):  # interleaved, so that a busy machine slows both
            for step, taken in zip(steps, times, strict=True):
                began = time.perf_counter()
                step.step(batch, 1.0, 0.0, True)
                taken.append(time.perf_counter() - began)
    torch.set_num_threads(threads)
    is_right = apart < 1e-4 * moved and abs(losses[0] - losses[1]) < 1e-4 * abs(losses[0])
    return is_right, statistics.median(times[0]) / statistics.median(times[1])
