"""Clipped sums of gradients that Opacus writes out: one whole gradient for every utterance.

Opacus's samplers make the gradients, of all kinds of layers but two: the CRF, and what stands for
an LSTM in a twin (see `twin`), whose samplers are registered here.  Norms and sums are our own, in
float64.

A batch needs memory for each utterance's gradient by all trained parameters, which is why a
training step goes through it in several pieces; the sum is the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from opacus import GradSampleModule
from opacus.grad_sample import register_grad_sampler
from torch import Tensor, nn

from tacit.models.crf import LinearChainCrf, crf_grad_sample
from tacit.models.understanding import UtteranceBatch
from tacit.tasks.nlu.clipped_sums import FEW, clip_factors, views
from tacit.tasks.nlu.gradients import FlatModel
from tacit.tasks.nlu.twin import Recurrence, twin_of

_BLOCK = 1 << 15  # columns at once: what float64 copies of them take stays in a cache
# Opacus holds the gradients by a parameter twice for a moment, and `backward` has its own.
_COPIES = 2


class OpacusGradients:
    """Adds up the clipped gradients of batches; `max_bytes` is roughly what one may take."""

    def __init__(self, flat: FlatModel, max_bytes: int) -> None:
        self._flat = flat
        twin = twin_of(flat.model)
        self._twin = twin.module
        self._parameters = {name: twin.parameters[name] for name in flat.names}
        twin.trained(GradSampleModule.GRAD_SAMPLERS, "vectorised")
        # "sum": gradients of the utterances' own losses, not of their parts in a mean.
        self._module = GradSampleModule(self._twin, loss_reduction="sum")
        self.at_once = max(1, min(FEW, max_bytes // (_COPIES * 4 * len(flat))))

    def add_(
        self, total: Tensor, batch: UtteranceBatch, clip_norm: float, counted: Tensor | None = None
    ) -> None:
        """total += the sum of min(1, C / |g|) g over the batch's utterances that count."""
        self._follow_mode()
        with torch.enable_grad(), warnings.catch_warnings():
            # Of layers that read ids rather than values, which is as it should be.
            warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
            losses: Tensor = self._module(batch)
            losses.sum().backward()  # type: ignore[no-untyped-call]
        found = self._taken(len(batch))
        squares = total.new_zeros(len(batch))
        for values in found.values():
            for block in torch.split(values, _BLOCK, dim=1):
                squares += block.double().square().sum(dim=1)
        chosen, factors = clip_factors(squares, len(self._flat), clip_norm, counted)
        places, is_whole = views(self._flat, total), bool(chosen.all())
        for name, values in found.items():
            place = torch.split(places[name].view(-1), _BLOCK)
            for into, block in zip(place, torch.split(values, _BLOCK, dim=1), strict=True):
                into.addmv_((block if is_whole else block[chosen]).double().t(), factors)

    def _taken(self, size: int) -> dict[str, Tensor]:
        """The gradients [B, parameters] by name, which are then no longer Opacus's."""
        found = {}
        for name, parameter in self._parameters.items():
            sample = parameter.grad_sample  # type: ignore[attr-defined]
            if sample is None:
                continue  # it was not used
            if len(sample) != size:
                raise ValueError(
                    f"{name} must be used with all utterances of a batch side by side, got"
                    f" {len(sample)} for {size}"
                )
            found[name] = sample.reshape(size, -1)
        self._module.zero_grad(set_to_none=True)
        return found

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
    found = crf_grad_sample(crf, emissions, tags, mask, slopes)
    return {parameter: found[name] for name, parameter in crf.named_parameters()}


@register_grad_sampler(Recurrence)  # type: ignore[untyped-decorator]
def _recurrence(
    module: Recurrence, inputs: Sequence[Tensor], slopes: Tensor
) -> dict[nn.Parameter, Tensor]:
    by_gates, before = module.noted()
    return {
        module.weight: by_gates.transpose(1, 2) @ before,
        module.bias: by_gates.sum(dim=1),
    }
