"""One step of SGD on a recurrent model in plain torch operations: it runs everywhere.

Gradients go straight into the parameters, so that no dense gradient of the embedding exists.  The
embedding is the input and the output table at once; so all that reads a parameter comes first, and
only then is any parameter changed.

Logits are kept as [vocabulary, positions], and their exponentials P are not divided by their sums
Z.  With one-hot targets Y, output vectors O and n positions,

    d loss / d logits = (P / Z - Y) / n = (P - Y Z) / (n Z),

so 1 / (n Z) is a factor of each position and goes into the positions' vectors rather than into P.
Where Z is near the end of float32's range, the largest logit is taken off first.  Where P would be
too large to keep, it is computed again, some rows of the vocabulary at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tacit.kernels.gated_steps import LAYERS, GatedStep, Parameters
from tacit.kernels.rows import Batch
from tacit.models.recurrent import RecurrentConfig, RecurrentModel

# A sum of exponentials within these bounds has lost nothing to overflow or underflow: the largest
# of at most 2^24 terms is then above 1e-33, where float32 still has all of its digits.
_SMALLEST_SUM, _LARGEST_SUM = 1e-25, 1e30

LARGEST_SOFTMAX = 2**24  # values of P that are kept: 64 MB
_LARGEST_SHAPE = 1024  # positions up to which a shape's buffers are kept for the next batch
_MOST_SHAPES = 32

_Table = tuple[Tensor, Tensor | None]  # the embedding and the output bias


class TorchStep:
    """Buffers and the step itself."""

    name = "torch"

    def __init__(
        self, parameters: Parameters, config: RecurrentConfig, model: type[RecurrentModel]
    ) -> None:
        self.parameters, self.config = parameters, config
        self._layer = LAYERS[model]
        self._softmax = torch.empty(0)
        self._shapes: dict[tuple[int, int], GatedStep] = {}

    def step(self, batch: Batch, learning_rate: float, pull: float, project: bool) -> float:
        """One step on a batch with at least one target; returns the summed loss."""
        p, positions, targets = self.parameters, batch.positions, batch.targets
        n, eta = len(targets), learning_rate
        layer = self._layer_for(batch.rows, batch.steps)

        hidden = layer.forward(batch.inputs)
        if positions is not None:
            hidden = hidden[positions]
        outputs = torch.addmm(p.projection_bias, hidden, p.projection.t())
        words = p.embedding[targets]
        most, Z, d_outputs = self._sums(outputs)
        of_targets = (outputs * words).sum(1)
        if p.output_bias is not None:
            of_targets += p.output_bias[targets]
        losses = Z.log() + (most if most is not None else 0) - of_targets
        factor = (Z * n).reciprocal_().unsqueeze(1)
        d_outputs.mul_(factor).sub_(words, alpha=1 / n)
        trains_layer = not p.trained.isdisjoint(("embedding", "kernel", "bias"))
        if trains_layer:
            layer.backward(torch.mm(d_outputs, p.projection), positions)

        # From here on parameters change.  Only rows of the embedding are read again, each before
        # it changes, and only where P was not kept.
        table: _Table = (p.embedding, p.output_bias)
        if pull and not self._keeps(n):
            table = (p.embedding.clone(), None if p.output_bias is None else p.output_bias.clone())
        p.pull_back(pull)
        if not p.trained.isdisjoint(("embedding", "output_bias")):
            self._descend_words(table, outputs, targets, most, Z, factor, eta)
        if "projection" in p.trained:
            p.projection.addmm_(d_outputs.t(), hidden, alpha=-eta)
        if "projection_bias" in p.trained:
            p.projection_bias.sub_(d_outputs.sum(0), alpha=eta)
        if trains_layer:
            layer.descend(batch.inputs, eta)
        if project:
            p.normalise_()
        return float(losses.sum(dtype=torch.float64))

    def _descend_words(
        self,
        table: _Table,
        outputs: Tensor,
        targets: Tensor,
        most: Tensor | None,
        Z: Tensor,
        factor: Tensor,
        eta: float,
    ) -> None:
        """The words' vectors and biases less eta times what the softmax gives them."""
        p, n = self.parameters, len(targets)
        scaled = outputs * factor
        for tile in self._tiles(n):
            P = self._buffer(tile, n)
            if not self._keeps(n):
                _exponentials(table, tile, outputs, most, P)
            own = (targets >= tile.start) & (targets < tile.stop)
            P[targets[own] - tile.start, own.nonzero().squeeze(1)] -= Z[own]
            if p.word_rates is not None:
                P *= p.word_rates[tile].unsqueeze(1)
            if "embedding" in p.trained:
                p.embedding[tile].addmm_(P, scaled, alpha=-eta)
            if p.output_bias is not None and "output_bias" in p.trained:
                p.output_bias[tile].addmv_(P, factor.squeeze(1), alpha=-eta)

    def _sums(self, outputs: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """What was taken off the logits if anything, Z, and P^T times the embedding."""
        most = None
        Z, weighted = self._sums_less(outputs, most)
        smallest, largest = map(float, torch.aminmax(Z))
        if not (smallest > _SMALLEST_SUM and largest < _LARGEST_SUM):  # NaN comes here too
            most = self._largest_logits(outputs)
            Z, weighted = self._sums_less(outputs, most)
        return most, Z, weighted

    def _sums_less(self, outputs: Tensor, most: Tensor | None) -> tuple[Tensor, Tensor]:
        """Z = sum over the vocabulary of P, and P^T E, for P = exp(E O^T + b - most)."""
        p, n = self.parameters, len(outputs)
        Z, weighted = torch.zeros(n), torch.zeros_like(outputs)
        for tile in self._tiles(n):
            P = self._buffer(tile, n)
            _exponentials((p.embedding, p.output_bias), tile, outputs, most, P)
            Z += P.sum(0)
            weighted.addmm_(P.t(), p.embedding[tile])
        return Z, weighted

    def _largest_logits(self, outputs: Tensor) -> Tensor:
        """The largest logit of each position, by rows of the vocabulary that fit the buffer."""
        p, n = self.parameters, len(outputs)
        most = torch.full([n], -torch.inf)
        for tile in self._tiles(n):
            P = self._buffer(tile, n)
            _logits((p.embedding, p.output_bias), tile, outputs, P)
            torch.maximum(most, P.amax(0), out=most)
        return most

    def _keeps(self, n: int) -> bool:
        """Whether P of n positions is small enough to be kept for the backward pass."""
        return self.config.vocab_size * n <= LARGEST_SOFTMAX

    def _tiles(self, n: int) -> Iterator[slice]:
        """Rows of the vocabulary whose share of P fits the buffer."""
        rows = max(1, LARGEST_SOFTMAX // n)
        for first in range(0, self.config.vocab_size, rows):
            yield slice(first, min(first + rows, self.config.vocab_size))

    def _buffer(self, tile: slice, n: int) -> Tensor:
        """Where these rows of P are: there is only one tile if P is kept."""
        size = (tile.stop - tile.start) * n
        if self._softmax.numel() < size:
            self._softmax = torch.empty(size)
        return self._softmax[:size].view(-1, n)

    def _layer_for(self, rows: int, steps: int) -> GatedStep:
        """The layer's buffers for this shape, kept for the next batch unless they are large."""
        layer = self._shapes.get((rows, steps))
        if layer is None:
            layer = self._layer(self.parameters, self.config, rows, steps)
            if rows * steps <= _LARGEST_SHAPE:
                if len(self._shapes) == _MOST_SHAPES:
                    self._shapes.clear()
                self._shapes[rows, steps] = layer
        return layer


def _logits(table: _Table, tile: slice, outputs: Tensor, out: Tensor) -> None:
    """E O^T + b for some rows of the vocabulary, as [rows, positions]."""
    embedding, bias = table
    torch.mm(embedding[tile], outputs.t(), out=out)
    if bias is not None:
        out.add_(bias[tile].unsqueeze(1))


def _exponentials(
    table: _Table, tile: slice, outputs: Tensor, most: Tensor | None, out: Tensor
) -> None:
    """P = exp(logits), or exp(logits - most) where the largest logit is taken off."""
    _logits(table, tile, outputs, out)
    if most is not None:
        out.sub_(most)
    out.exp_()
