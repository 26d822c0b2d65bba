"""A model with several users' weights at once: one call of `torch.func` computes all gradients.

Row u of a matrix theta holds the weights of user u, flat and in the order of `parameter_vectors`.
Every operation of the model's is mapped over these rows (`vmap`), so that a product of one user
becomes a batch of products, which is what keeps an accelerator busy.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from tacit.models.base import LanguageModel, frozen_kept, layer_sizes
from tacit.models.base import loss as summed_loss

_Parts = dict[str, Tensor]


class StackedModel:
    """Gradients and projections of many users; it works on a copy of the model.

    Guarantee: row u of a result is a function of row u of the arguments.  That is what `vmap`
    means, and a model that steps out of it (dropout, buffers that change) is refused.
    """

    def __init__(self, model: LanguageModel, device: torch.device) -> None:
        self.device = device
        self.model = copy.deepcopy(model).train().to(device)
        named = self.model.parameter_vectors()
        kinds = {values.dtype for _, values in named}
        if len(kinds) != 1:
            raise ValueError(
                "all parameters of a model must have one type, got"
                f" {', '.join(sorted(map(str, kinds)))}"
            )
        [self.dtype] = kinds
        self.vocab_size = model.config.vocab_size
        self.sizes = layer_sizes(model)
        self._shapes = {name: values.shape for name, values in named}
        self._per_user = grad_and_value(self._mean_loss, has_aux=True)
        self._projection = _Projection(self.model)
        _check(self)

    def descend_(
        self,
        theta: Tensor,
        batch: tuple[Tensor, Tensor, Tensor],
        counts: Tensor,
        learning_rate: float,
        *,
        at: Tensor | None = None,
        pull: tuple[Tensor, float] | None = None,
    ) -> Tensor:
        """theta_u <- theta_u - eta / count_u (gradient of the summed loss); returns those losses.

        `batch` is inputs, targets and mask, each [users, rows, time].  The gradient is that at
        theta, or for all users at one point `at`.  `pull` is a point and a share: before the
        gradient goes in, theta_u is moved by that share of the way to the point.
        """
        parts, over = (self._parts(theta), 0) if at is None else (self._parts(at), None)
        # The fused kernels of attention have no rule for vmap.
        with sdpa_kernel(SDPBackend.MATH):
            gradients, (_, totals) = vmap(self._per_user, in_dims=(over, 0, 0, 0, 0))(
                parts, *batch, counts
            )
        if pull is not None:
            theta.lerp_(*pull)
        for name, part in self._parts(theta).items():
            part.sub_(gradients[name], alpha=learning_rate)
        return totals  # type: ignore[no-any-return]

    def project_(self, theta: Tensor) -> None:
        """`normalise_` of every user's weights."""
        with frozen_kept(self.model):
            vmap(self._project)(self._parts(theta))

    def bytes_per_user(self, rows: int, time: int) -> int:
        """About how much memory a user takes who is trained on batches of this shape.

        What the forward pass keeps for the backward pass, which is measured; two more of the
        logits' size, which the backward pass makes; and seven times the weights: themselves, their
        gradient with its parts, and the copies that batches of products are computed from.  At the
        papers' sizes a process was seen to grow by as much, within a tenth.
        """
        one, two = self._kept_bytes(1, time), self._kept_bytes(2, time)  # it grows by the row
        more = 7 * sum(self.sizes) + 2 * rows * time * self.vocab_size
        return one + (rows - 1) * (two - one) + more * self.dtype.itemsize

    def _kept_bytes(self, rows: int, time: int) -> int:
        """What the forward pass keeps of one user, besides the weights."""
        weights = {values.untyped_storage().data_ptr() for values in self.model.parameters()}
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        tokens = torch.zeros(rows, time, dtype=torch.int64, device=self.device)
        with (
            sdpa_kernel(SDPBackend.MATH),
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        ):
            total, _ = summed_loss(self.model(tokens)[0], tokens)
        del total  # only now may what was kept be freed, and its address be used again
        return sum(kept.values())

    def _mean_loss(
        self, parts: _Parts, inputs: Tensor, targets: Tensor, mask: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One user's loss over its count, which is differentiated, and the summed loss."""
        total, _ = summed_loss(functional_call(self.model, parts, (inputs,))[0], targets, mask)
        return total / count, total.detach()

    def _project(self, parts: _Parts) -> _Parts:
        """`normalise_` on one user's parts, in place."""
        functional_call(self._projection, {f"model.{name}": part for name, part in parts.items()})
        return parts  # changed in place; vmap asks for a result

    def _parts(self, theta: Tensor) -> _Parts:
        """The parameters by name, as views of [users, values] or of one flat vector."""
        blocks = torch.split(theta, list(self.sizes), dim=-1)
        return {
            name: block.view(*theta.shape[:-1], *shape)
            for (name, shape), block in zip(self._shapes.items(), blocks, strict=True)
        }


class _Projection(nn.Module):
    """A module whose call is `normalise_`: `functional_call` knows no other method."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self) -> None:
        """Project the parameters that `functional_call` has put in."""
        self.model.normalise_()


def _check(stacked: StackedModel) -> None:
    """Try two users with one token: whatever goes wrong would go wrong in training too."""
    model = stacked.model
    buffers = [buffer.clone() for buffer in model.buffers()]
    theta = torch.cat([values.detach().flatten() for _, values in model.parameter_vectors()])
    theta = theta.repeat(2, 1)
    zeros = torch.zeros(2, 1, 1, dtype=torch.int64, device=stacked.device)
    counts = torch.ones(2, dtype=stacked.dtype, device=stacked.device)
    where = f"a model of {type(model).__name__} cannot be trained by the vectorized engine"
    try:
        stacked.descend_(theta, (zeros, zeros, zeros == 0), counts, 0.1)
        stacked.project_(theta)
    except Exception as mistake:
        what = " ".join(str(mistake).split())
        if "random operation" in what:
            what = "it draws at random, as dropout does"
        raise ValueError(f"{where}: {what}; use another engine") from mistake
    pairs = zip(model.buffers(), buffers, strict=True)
    if not all(torch.equal(now, before) for now, before in pairs):
        raise ValueError(f"{where}: a buffer of it changes in a call; use another engine")
