"""The gradient of each sequence by itself through a CRF, where `backward` gives their sum."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from tacit.models.crf import LinearChainCrf


def crf_grad_sample(
    crf: LinearChainCrf, emissions: Tensor, tags: Tensor, mask: Tensor, weights: Tensor
) -> dict[str, Tensor]:
    """By the names of the CRF's parameters: of w_b log p_b for each sequence b, [B, ...].

    `weights` [B] are the derivatives of the loss by log p_b.
    """
    values = {name: value.detach() for name, value in crf.named_parameters()}
    with torch.device("meta"):
        bare = LinearChainCrf(crf.tags)  # the hooks of the one that is given are not to be called

    def weighted(
        values: dict[str, Tensor], emissions: Tensor, tags: Tensor, mask: Tensor, weight: Tensor
    ) -> Tensor:
        alone = (emissions[None], tags[None], mask[None])
        found: Tensor = weight * functional_call(bare, values, alone)[0]
        return found

    of_each = vmap(grad(weighted), in_dims=(None, 0, 0, 0, 0))
    found: dict[str, Tensor] = of_each(values, emissions, tags, mask, weights)
    return found
