"""Local SGD of the recurrent models with a forward and backward pass written by hand.

The same mathematics as autograd on `models.recurrent`, less what autograd spends on it: every
buffer is made once per batch shape, every parameter is a view of one flat vector, and gradients go
straight into the parameters.  Positions that are masked are left out of the softmax rather than
computed and ignored, and steps after the last one that counts are left out of everything.

There are two forms, which agree to rounding: a small C++ kernel, built on first use, and
`torch_step`, in plain torch operations, for where there is no compiler or what it builds computes
wrongly.  Nothing is timed to choose between them (the kernel took 0.6 to 0.75 of the time for every
model that was measured), because a run that is resumed has to compute the same bits.
`TACIT_KERNEL=torch` or `TACIT_KERNEL=c++` makes the choice by hand.

Guarantee: a step is a function of its arguments and of the weights and anchor last set; whatever
ran before leaves no trace, so nothing of one user reaches the next (design rule 8).
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.kernels.gated_steps import LAYERS, PARTS, Parameters
from tacit.kernels.local_sgd import resized_model, set_ranges
from tacit.kernels.rows import Batch, TokenRows
from tacit.kernels.torch_step import LARGEST_SOFTMAX, TorchStep
from tacit.models.base import LanguageModel, trained_ranges, whole_vector
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
    ("tacit_workspace", "tacit_step"),
)
_KINDS: dict[type[RecurrentModel], int] = {LSTM: 0, CIFG: 1, GRU: 2}

Form = Literal["", "torch", "c++"]  # "": as the environment says, or else the faster there is

# Batches that are made ready at once.  A step leaves nothing of Python in the processor's caches,
# so that what is done between two steps takes several times as long as it does before them.
_READY = 64


class _KernelStep:
    """The step in C++, with memory to work in that grows to the largest batch so far."""

    def __init__(
        self,
        kernel: native.Library,
        parameters: Parameters,
        config: RecurrentConfig,
        model: type[RecurrentModel],
    ) -> None:
        self.name = f"c++ {kernel.digest}"  # says what the bits of a step may depend on
        self._library, self._parameters = kernel.functions, parameters
        self._sizes = (_KINDS[model], config.vocab_size, config.embedding_size, config.cells)
        self._trained = sum(
            1 << bit for bit, part in enumerate(PARTS) if part in parameters.trained
        )
        self._output_bias = int(config.output_bias)
        self._workspace = torch.empty(0)

    def step(self, batch: Batch, learning_rate: float, pull: float, project: bool) -> float:
        """The same step as `TorchStep.step`, on the same memory."""
        p = self._parameters
        shape = (ctypes.c_int64 * 10)(
            *self._sizes,
            self._output_bias,
            batch.rows,
            batch.steps,
            len(batch.targets),
            LARGEST_SOFTMAX,
            self._trained,
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
            None if p.word_rates is None else p.word_rates.data_ptr(),
            learning_rate,
            pull,
            int(project),
            self._workspace.data_ptr(),
        )
        return loss


@functools.cache
def built_kernel() -> native.Library | None:
    """The kernel, built now if it was not before; None where it cannot be or computes wrongly."""
    built = native.build(SOURCE)
    if built is None:
        return None
    library = built.functions
    pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    library.tacit_workspace.argtypes = [pointer]
    library.tacit_workspace.restype = number
    library.tacit_step.argtypes = [pointer] * 7 + [real, real, number, pointer]
    library.tacit_step.restype = ctypes.c_double
    return built if _agrees(built) else None


def _agrees(kernel: native.Library) -> bool:
    """Whether the kernel agrees with plain torch operations, on one step of a model of 1,000 words.

    A compiler can be told (by `CXX`, say) to do strange things to floats.
    """
    config = LSTMConfig(1000)
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randint(config.vocab_size, (2, 80), generator=generator)
    batch = Batch(inputs, targets, None, 8, 10)
    one, other = (Parameters(config, 4) for _ in range(2))
    start = torch.empty_like(one.flat).normal_(std=0.1, generator=generator)
    with torch.inference_mode():
        one.flat.copy_(start)
        other.flat.copy_(start)
        loss = TorchStep(one, config, LSTM).step(batch, 1.0, 0.0, True)
        again = _KernelStep(kernel, other, config, LSTM).step(batch, 1.0, 0.0, True)
        moved, apart = float((one.flat - start).norm()), float((one.flat - other.flat).norm())
    return apart < 1e-4 * moved and abs(loss - again) < 1e-4 * abs(loss)


class HandwrittenSGD:
    """`LocalSGD` for the recurrent models of one layer: see `serves`."""

    @staticmethod
    def serves(model: LanguageModel) -> bool:
        """Is it a recurrent model of one layer without context, in float32 on the CPU?

        Of its parts each is trained or frozen as a whole: all gates' kernels, say, or none.
        """
        if type(model) not in LAYERS:
            return False
        config = cast(RecurrentConfig, model.config)
        named = list(model.named_parameters())
        states = {(_part_of(name), values.requires_grad) for name, values in named}
        return (
            config.layers == 1
            and config.context_size == 0
            and len(states) == len({part for part, _ in states})
            and all(v.dtype == torch.float32 and v.device.type == "cpu" for _, v in named)
        )

    def __init__(self, model: LanguageModel, form: Form = "", *, frozen_too: bool = False) -> None:
        if not self.serves(model):
            raise ValueError(
                f"model must be an LSTM, CIFG or GRU of one layer and context_size 0, in float32 on"
                f" the CPU with no part half frozen, got {type(model).__name__}: {model.config}"
            )
        self.config, self._form = cast(RecurrentConfig, model.config), form
        self._resized: dict[int, HandwrittenSGD] = {}
        recurrent = cast(RecurrentModel, model)
        self._model, self.trained = recurrent, trained_ranges(model)
        parts = frozenset(_part_of(name) for name, _ in model.parameter_vectors())
        self._parameters = Parameters(self.config, len(recurrent.layer.gates), parts)
        self._flat: NDArray[np.float32] = self._parameters.flat.numpy()
        self._flat[:] = whole_vector(model)
        everything = (slice(0, len(self._flat)),)
        self._ranges = everything if frozen_too else self.trained
        self._is_all, self._size = self._ranges == everything, _length(self._ranges)
        self._step = _step_in(form, self._parameters, self.config, type(recurrent))
        self.name = self._step.name  # equal names on equal machines give equal bits
        self._loaded, self._anchored = self.weights(), False
        # Nothing here needs a gradient; saying so makes torch faster, and takes time by itself.
        self._mode: Callable[[], AbstractContextManager[Any]] = (
            torch.inference_mode if isinstance(self._step, TorchStep) else nullcontext
        )

    def load(self, weights: NDArray[np.float32]) -> None:
        """Start from these weights; the penalty pulls towards them."""
        self.set_weights(weights)
        self._loaded, self._anchored = weights, False

    def set_weights(self, weights: NDArray[Any]) -> None:
        """Go on from these weights; the penalty's anchor stays."""
        if weights.shape != (self._size,):
            raise ValueError(
                f"weights must be one flat vector of {self._size} values, got {weights.shape}"
            )
        set_ranges(self._flat, self._ranges, weights)

    def set_word_rates(self, rates: NDArray[np.float32]) -> None:
        """Multiply the step of each word's vector and bias by its rate."""
        self._parameters.word_rates = torch.from_numpy(rates)

    def whole(self, weights: NDArray[np.float32]) -> NDArray[np.float32]:
        """All weights with these among them, as a view of the memory that steps work on."""
        if self._is_all:
            return weights
        self.set_weights(weights)
        return self._flat

    def resized(self, vocab_size: int) -> HandwrittenSGD:
        """For a model with another number of words, and with an output bias."""
        if vocab_size not in self._resized:
            model = resized_model(self._model, vocab_size)
            self._resized[vocab_size] = HandwrittenSGD(model, self._form, frozen_too=True)
        return self._resized[vocab_size]

    def weights(self) -> NDArray[np.float32]:
        """A copy of the weights as they are now."""
        if self._is_all:
            return self._flat.copy()
        return np.concatenate([self._flat[each] for each in self._ranges])

    def update(self) -> NDArray[np.float32]:
        """The weights as they are now less those that were loaded."""
        return (self._flat if self._is_all else self.weights()) - self._loaded

    def step(
        self,
        rows: TokenRows | Batch,
        learning_rate: float,
        *,
        penalty: float = 0.0,
        project: bool = True,
    ) -> float:
        """One step on the mean loss of what counts in these rows; returns the summed loss."""
        batch = rows if isinstance(rows, Batch) else Batch.of(rows, self.config.vocab_size)
        pull = learning_rate * penalty
        project = project and self.config.unit_norm and "embedding" in self._parameters.trained
        if pull and not self._anchored:  # most users need no anchor: a copy less for them
            set_ranges(self._parameters.anchor.numpy(), self._ranges, self._loaded)
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
        while ready := [Batch.of(r, self.config.vocab_size) for r in islice(waiting, _READY)]:
            for batch in ready:
                yield self.step(batch, learning_rate, penalty=penalty), len(batch.targets)


def _part_of(name: str) -> str:
    """The part of `Parameters` that a recurrent model's parameter belongs to, by its name."""
    if name.startswith("layers."):
        return name.rpartition("_")[2]  # of all gates together
    owner, _, kind = name.partition(".")
    return owner if kind == "weight" else {"bias": "projection_bias"}.get(kind, kind)


def _length(ranges: Sequence[slice]) -> int:
    return sum(each.stop - each.start for each in ranges)


def _step_in(
    form: Form, parameters: Parameters, config: RecurrentConfig, model: type[RecurrentModel]
) -> TorchStep | _KernelStep:
    """The step in the form that is asked for; `ValueError` if it cannot be built here."""
    asked = form or os.environ.get("TACIT_KERNEL", "")
    if asked not in get_args(Form):
        raise ValueError(f"TACIT_KERNEL must be torch or c++, got {asked!r}")
    kernel = None if asked == "torch" else built_kernel()
    if kernel is None and asked == "c++":
        raise ValueError("TACIT_KERNEL is c++, but no compiler here builds the kernel")
    if kernel is None:
        return TorchStep(parameters, config, model)
    return _KernelStep(kernel, parameters, config, model)
