"""Local SGD of the recurrent models with a forward and backward pass written by hand.

The same mathematics as autograd on `models.recurrent`, less what autograd spends on it: every
buffer is made once per batch shape, every parameter is a view of one flat vector, and gradients go
straight into the parameters.  Positions that are masked are left out of the softmax rather than
computed and ignored, and steps after the last one that counts are left out of everything.

There are two forms, which agree to rounding: `torch_step`, in plain torch operations, and a small
C++ kernel, built on first use where there is a compiler and used where it is faster.  The choice
between them is kept beside what was built, because a second timing might choose otherwise, and a
run that is resumed has to compute the same bits.  `TACIT_KERNEL=torch` or `TACIT_KERNEL=c++` makes
the choice by hand.

Guarantee: a step is a function of its arguments and of the weights and anchor last set; whatever
ran before leaves no trace, so nothing of one user reaches the next (design rule 8).
"""

from __future__ import annotations

import ctypes
import functools
import os
import secrets
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.kernels.gated_steps import LAYERS, Parameters
from tacit.kernels.local_sgd import resized_model
from tacit.kernels.rows import Batch, TokenRows
from tacit.kernels.torch_step import LARGEST_SOFTMAX, TorchStep
from tacit.models.base import LanguageModel
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
_KINDS: dict[type[RecurrentModel], int] = {LSTM: 0, CIFG: 1, GRU: 2}

_REPEATS = 7


class _Step(Protocol):
    """The step in one of its two forms."""

    name: str

    def step(self, batch: Batch, learning_rate: float, pull: float, project: bool) -> float:
        """One step on a batch with at least one target; returns the summed loss."""


@dataclass(frozen=True)
class _Kernel:
    """The loaded C++ library; its name says what the bits of a step may depend on."""

    name: str
    library: ctypes.CDLL


class _KernelStep:
    """The step itself, with memory to work in that grows to the largest batch so far."""

    def __init__(
        self,
        kernel: _Kernel,
        parameters: Parameters,
        config: RecurrentConfig,
        model: type[RecurrentModel],
    ) -> None:
        self.name = kernel.name
        self._library, self._parameters = kernel.library, parameters
        self._sizes = (_KINDS[model], config.vocab_size, config.embedding_size, config.cells)
        self._output_bias = int(config.output_bias)
        self._workspace = torch.empty(0)

    def step(self, batch: Batch, learning_rate: float, pull: float, project: bool) -> float:
        """The same step as `TorchStep.step`, on the same memory."""
        p = self._parameters
        shape = (ctypes.c_int64 * 9)(
            *self._sizes,
            self._output_bias,
            batch.rows,
            batch.steps,
            len(batch.targets),
            LARGEST_SOFTMAX,
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
            None if batch.positions is None else batch.positions.data_ptr(),
            learning_rate,
            pull,
            int(project),
            self._workspace.data_ptr(),
        )
        return loss


@functools.cache
def chosen_kernel() -> _Kernel | None:
    """The kernel if it is there, right and faster than plain torch operations; else None."""
    setting = os.environ.get("TACIT_KERNEL", "")
    if setting not in ("", "torch", "c++"):
        raise ValueError(f"TACIT_KERNEL must be torch or c++, got {setting!r}")
    if setting == "torch":
        return None
    kernel = built_kernel()
    if kernel is None and setting == "c++":
        raise ValueError("TACIT_KERNEL is c++, but no compiler here builds the kernel")
    if kernel is None or setting == "c++":
        return kernel
    return kernel if _is_chosen(kernel) else None


@functools.cache
def built_kernel() -> _Kernel | None:
    """The kernel, built now if it was not before; None where it cannot be."""
    built = native.build(SOURCE)
    if built is None:
        return None
    library = built.functions
    pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    library.tacit_workspace.argtypes = [pointer]
    library.tacit_workspace.restype = number
    library.tacit_step.argtypes = [pointer] * 6 + [real, real, number, pointer]
    library.tacit_step.restype = ctypes.c_double
    return _Kernel(f"c++ {built.digest}", library)


def _is_chosen(kernel: _Kernel) -> bool:
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


def _trial(kernel: _Kernel) -> tuple[bool, float]:
    """Whether the kernel agrees with plain torch operations, and how many times faster it is."""
    config = LSTMConfig(10_000)
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randint(config.vocab_size, (2, 80), generator=generator)
    batch = Batch(inputs, targets, None, 8, 10)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in training
    every = [Parameters(config, 4) for _ in range(2)]
    start = torch.empty_like(every[0].flat).normal_(std=0.1, generator=generator)
    steps: list[_Step] = [
        TorchStep(every[0], config, LSTM),
        _KernelStep(kernel, every[1], config, LSTM),
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


Form = Literal["chosen", "torch", "c++"]

# Batches that are made ready at once.  A step leaves nothing of Python in the processor's caches,
# so that what is done between two steps takes several times as long as it does before them.
_READY = 64


def _serves(model: LanguageModel) -> bool:
    """Is it one of the recurrent models with one layer and no context, in float32 on the CPU?"""
    if type(model) not in LAYERS:
        return False
    config = cast(RecurrentConfig, model.config)
    vectors = model.parameter_vectors()
    return (
        config.layers == 1
        and config.context_size == 0
        and len(vectors) == len(list(model.parameters()))  # none is frozen
        and all(v.dtype == torch.float32 and v.device.type == "cpu" for _, v in vectors)
    )


def kernel_name() -> str:
    """The form that is chosen here: "torch", or "c++" and what its bits may depend on."""
    kernel = chosen_kernel()
    return TorchStep.name if kernel is None else kernel.name


class HandwrittenSGD:
    """`LocalSGD` for the recurrent models of one layer: see `serves`."""

    serves = staticmethod(_serves)

    def __init__(self, model: LanguageModel, form: Form = "chosen") -> None:
        if not _serves(model):
            raise ValueError(
                f"model must be an LSTM, CIFG or GRU of one layer and context_size 0, in float32 on"
                f" the CPU with no parameter frozen, got {type(model).__name__}: {model.config}"
            )
        self._config, self._form = cast(RecurrentConfig, model.config), form
        self._resized: dict[int, HandwrittenSGD] = {}
        recurrent = cast(RecurrentModel, model)
        self._parameters = Parameters(self._config, len(recurrent.layer.gates))
        self._flat: NDArray[np.float32] = self._parameters.flat.numpy()
        self._step = _step_in(form, self._parameters, self._config, type(recurrent))
        self._loaded, self._anchored = self.weights(), False
        # Nothing here needs a gradient; saying so makes torch faster, and takes time by itself.
        self._mode: Callable[[], AbstractContextManager[Any]] = (
            torch.inference_mode if isinstance(self._step, TorchStep) else nullcontext
        )

    @property
    def config(self) -> RecurrentConfig:
        """The configuration of the model."""
        return self._config

    @property
    def name(self) -> str:
        """Which arithmetic this is: equal names on equal machines give equal bits."""
        return self._step.name

    def load(self, weights: NDArray[np.float32]) -> None:
        """Start from these weights; the penalty pulls towards them."""
        self.set_weights(weights)
        self._loaded, self._anchored = weights, False

    def set_weights(self, weights: NDArray[Any]) -> None:
        """Go on from these weights; the penalty's anchor stays."""
        if weights.shape != self._flat.shape:
            raise ValueError(
                f"weights must be one flat vector of {len(self._flat)} values, got {weights.shape}"
            )
        self._flat[:] = weights

    def set_part(self, first: int, values: NDArray[Any]) -> None:
        """Replace the weights from index `first` on; the others stay as they are."""
        self._flat[first : first + len(values)] = values

    def resized(self, vocab_size: int) -> HandwrittenSGD:
        """For a model with another number of words, and with an output bias."""
        if vocab_size not in self._resized:
            model = resized_model(self._config, vocab_size)
            self._resized[vocab_size] = HandwrittenSGD(model, self._form)
        return self._resized[vocab_size]

    def weights(self) -> NDArray[np.float32]:
        """A copy of the weights as they are now."""
        return self._flat.copy()

    def update(self) -> NDArray[np.float32]:
        """The weights as they are now less those that were loaded."""
        return self._flat - self._loaded

    def step(
        self,
        rows: TokenRows | Batch,
        learning_rate: float,
        *,
        penalty: float = 0.0,
        project: bool = True,
    ) -> float:
        """One step on the mean loss of what counts in these rows; returns the summed loss."""
        batch = rows if isinstance(rows, Batch) else Batch.of(rows, self._config.vocab_size)
        pull = learning_rate * penalty
        project = project and self._config.unit_norm
        if pull and not self._anchored:  # most users need no anchor: a copy less for them
            self._parameters.anchor.numpy()[:] = self._loaded
            self._anchored = True
        with self._mode():
            if len(batch.targets):
                return self._step.step(batch, learning_rate, pull, project)
            if pull:
                self._parameters.pull_back(pull)
                if project:
                    self._parameters.normalise_()
        return 0.0

    def steps(
        self, batches: Iterable[TokenRows], learning_rate: float, *, penalty: float = 0.0
    ) -> Iterator[tuple[float, int]]:
        """A step on each batch in turn: the summed loss, and how many targets it is of."""
        waiting = iter(batches)
        while ready := [Batch.of(r, self._config.vocab_size) for r in islice(waiting, _READY)]:
            for batch in ready:
                yield self.step(batch, learning_rate, penalty=penalty), len(batch.targets)


def _step_in(
    form: Form, parameters: Parameters, config: RecurrentConfig, model: type[RecurrentModel]
) -> _Step:
    """The step in the form that is asked for; `ValueError` if it cannot be built here."""
    if form not in get_args(Form):
        raise ValueError(f"form must be one of {', '.join(get_args(Form))}, got {form!r}")
    kernel = None
    if form == "chosen":
        kernel = chosen_kernel()
    elif form == "c++":
        kernel = built_kernel()
        if kernel is None:
            raise ValueError("form is 'c++', but no compiler here builds the kernel")
    if kernel is None:
        return TorchStep(parameters, config, model)
    return _KernelStep(kernel, parameters, config, model)
