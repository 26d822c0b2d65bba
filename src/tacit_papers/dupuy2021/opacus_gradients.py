"""Clipped sums of gradients that Opacus writes out: one whole gradient for every utterance.

This is the usual way to clip single gradients, to compare the time of ghost clipping with.
Opacus's samplers make the gradients, of all kinds of layers but two: the CRF, and what stands for
an LSTM in a twin (see `tacit.tasks.nlu.ghost_clipping`), whose samplers are registered here.
Norms and sums are tacit's own, in float64.

A batch needs memory for each utterance's gradient by all trained parameters, which is why a
training step goes through it in several pieces; the sum is the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from opacus import GradSampleModule
from opacus.grad_sample import register_grad_sampler
from torch import Tensor, nn

from tacit.models.understanding import LinearChainCrf, UtteranceBatch, crf_grad_sample
from tacit.tasks.nlu.ghost_clipping import AT_ONCE, GhostClipping, Recurrence, Whole
from tacit.tasks.nlu.gradients import FlatModel

_MAX_BYTES = 2 << 30  # of gradients that are written out

# Opacus holds the gradients by a parameter twice for a moment, and `backward` has its own.
_COPIES = 2


@dataclass(frozen=True)
class _Written(Whole):
    """Gradients by one parameter tensor, as large as the parameter for each utterance."""

    def squares(self) -> Tensor:
        """In blocks, since whole gradients in float64 would not stay in a cache."""
        squares = torch.zeros((), dtype=torch.float64)
        for block in self.blocks():
            squares = squares + block.double().square().sum(dim=1)
        return squares


class OpacusGradients(GhostClipping):
    """Clipped sums of batches, from gradients that are written out.

    `max_bytes` is roughly what the gradients of a batch may take; a lower bound makes batches
    smaller, down to one utterance.
    """

    way = "Opacus"

    def __init__(self, flat: FlatModel, max_bytes: int = _MAX_BYTES) -> None:
        super().__init__(flat, max(1, min(AT_ONCE, max_bytes // (_COPIES * 4 * len(flat)))))

    def _watch_twin(self) -> None:
        self._trained_modules(GradSampleModule.GRAD_SAMPLERS)  # refuses others
        # "sum": gradients of the utterances' own losses, not of their parts in a mean.
        self._module = GradSampleModule(self._twin, loss_reduction="sum")

    def _parts(self, batch: UtteranceBatch) -> Mapping[str, Whole]:
        self._follow_mode()
        with torch.enable_grad(), warnings.catch_warnings():
            # Of layers that read ids rather than values, which is as it should be.
            warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
            losses: Tensor = self._module(batch)
            losses.sum().backward()  # type: ignore[no-untyped-call]
        parts: dict[str, Whole] = {}
        for name in self._flat.names:
            sample = self._parameters[name].grad_sample  # type: ignore[attr-defined]
            if sample is None:
                continue  # it was not used
            if len(sample) != len(batch):
                raise ValueError(
                    f"{name} must be used with all utterances of a batch side by side, got"
                    f" {len(sample)} for {len(batch)}"
                )
            parts[name] = _Written(sample)
        self._module.zero_grad(set_to_none=True)
        return parts

    def _follow_mode(self) -> None:
        """Dropout as in the model; but Opacus looks only at layers that are in training."""
        self._module.train(self._flat.model.training)
        for module in self._twin.modules():
            if next(module.parameters(recurse=False), None) is not None:
                module.training = True


@register_grad_sampler(LinearChainCrf)  # type: ignore[untyped-decorator]
def _crf(
    crf: LinearChainCrf, inputs: Sequence[Tensor], slopes: Tensor
) -> dict[nn.Parameter, Tensor]:
    emissions, tags, mask = inputs
    samples = crf_grad_sample(crf, emissions, tags, mask, slopes)
    return {parameter: samples[name] for name, parameter in crf.named_parameters()}


@register_grad_sampler(Recurrence)  # type: ignore[untyped-decorator]
def _recurrence(
    module: Recurrence, inputs: Sequence[Tensor], slopes: Tensor
) -> dict[nn.Parameter, Tensor]:
    by_gates, before = module.noted()
    return {
        module.weight: by_gates.transpose(1, 2) @ before,
        module.bias: by_gates.sum(dim=1),
    }
