"""Local SGD of the recurrent models with a forward and backward pass written by hand.

The same mathematics as autograd on `models.recurrent`, less what autograd spends on it: every
buffer is made once per batch shape, every parameter is a view of one flat vector, and gradients go
straight into the parameters.  Positions that are masked are left out of the softmax rather than
computed and ignored, and steps after the last one that counts are left out of everything.

There are two forms, which agree to rounding: `torch_step`, in plain torch operations, and `kernel`,
a small C++ kernel where there is a compiler to build it and where it is faster.

Guarantee: a step is a function of its arguments and of the weights and anchor last set; whatever
ran before leaves no trace, so nothing of one user reaches the next (design rule 8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.kernels import kernel
from tacit.kernels.batch import Batch
from tacit.kernels.gated_steps import LAYERS
from tacit.kernels.local_sgd import resized_model
from tacit.kernels.parameters import Parameters
from tacit.kernels.rows import Rows
from tacit.kernels.torch_step import TorchStep
from tacit.models.base import LanguageModel
from tacit.models.recurrent import RecurrentConfig, RecurrentModel

Form = Literal["chosen", "torch", "c++"]

# Batches that are made ready at once.  A step leaves nothing of Python in the processor's caches,
# so that what is done between two steps takes several times as long as it does before them.
_READY = 64


def serves(model: LanguageModel) -> bool:
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
    found = kernel.chosen_kernel()
    return TorchStep.name if found is None else found.name


class HandwrittenSGD:
    """`LocalSGD` for the models that `serves` names."""

    serves = staticmethod(serves)

    def __init__(self, model: LanguageModel, form: Form = "chosen") -> None:
        if not serves(model):
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
        """Go on from these weights from place `first` on, and from the others as they are."""
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
        rows: Rows | Batch,
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
        self, batches: Iterable[Rows], learning_rate: float, *, penalty: float = 0.0
    ) -> Iterator[tuple[float, int]]:
        """A step on each batch in turn: the summed loss, and how many targets it is of."""
        waiting = iter(batches)
        while ready := [Batch.of(r, self._config.vocab_size) for r in islice(waiting, _READY)]:
            for batch in ready:
                yield self.step(batch, learning_rate, penalty=penalty), len(batch.targets)


def _step_in(
    form: Form, parameters: Parameters, config: RecurrentConfig, model: type[RecurrentModel]
) -> kernel.Step:
    if form not in get_args(Form):
        raise ValueError(f"form must be one of {', '.join(get_args(Form))}, got {form!r}")
    found = None
    if form == "chosen":
        found = kernel.chosen_kernel()
    elif form == "c++":
        found = kernel.built_kernel()
        if found is None:
            raise ValueError("form is 'c++', but no compiler here builds the kernel")
    if found is None:
        return TorchStep(parameters, config, model)
    return kernel.KernelStep(found, parameters, config, model)
