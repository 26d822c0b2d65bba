"""The gated layers of `models.recurrent`, forward and backward, in plain torch operations.

All parameters are views of one flat vector.  A gate's derivative by its sum is dc or dh times a
factor that is known after the forward pass, so all factors are computed at once and a step backward
is left with a product or two.

Guarantee: buffers are written before they are read, but for the state before the first step, which
is zero and stays so.  Nothing of one batch reaches the next.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tacit.models.layers import normalise_rows_
from tacit.models.recurrent import CIFG, GRU, LSTM, RecurrentConfig, RecurrentModel

# Of a row whose squares stay in the range of float32, float32 gives the norm well enough.
_SMALLEST_NORM, _LARGEST_NORM = 1e-15, 1e15


# A recurrent model's parts, in the order in which they lie in its vector.
PARTS = ("embedding", "output_bias", "kernel", "bias", "projection", "projection_bias")


class Parameters:
    """A recurrent model's parameters, by name and in its order, as views of one flat vector.

    Steps change the parts that are `trained` and keep every bit of the others.  `word_rates`, if
    there are any, multiply the step of each word's vector and bias.
    """

    word_rates: Tensor | None = None

    def __init__(
        self, config: RecurrentConfig, gates: int, trained: frozenset[str] = frozenset(PARTS)
    ) -> None:
        V, E, C = config.vocab_size, config.embedding_size, config.cells
        shapes: dict[str, list[int]] = {"embedding": [V, E]}
        if config.output_bias:
            shapes["output_bias"] = [V]
        # The gates' kernels follow one another in the vector, so stacked they are a view of it.
        shapes |= {"kernel": [gates * C, E + C], "bias": [gates * C]}
        shapes |= {"projection": [E, C], "projection_bias": [E]}
        sizes = [math.prod(shape) for shape in shapes.values()]
        self.trained = trained
        self.flat = torch.zeros(sum(sizes))
        self.anchor = torch.zeros(sum(sizes))
        self.parts = {
            name: part.view(shape)
            for (name, shape), part in zip(
                shapes.items(), torch.split(self.flat, sizes), strict=True
            )
        }
        self.embedding, self.kernel = self.parts["embedding"], self.parts["kernel"]
        self.bias, self.projection = self.parts["bias"], self.parts["projection"]
        self.projection_bias = self.parts["projection_bias"]
        self.output_bias = self.parts.get("output_bias")

    def pull_back(self, pull: float) -> None:
        """theta <- theta - pull (theta - anchor), where theta is trained."""
        if not pull:
            return
        anchors = torch.split(self.anchor, [part.numel() for part in self.parts.values()])
        for (name, part), anchor in zip(self.parts.items(), anchors, strict=True):
            if name in self.trained:
                part.lerp_(anchor.view_as(part), pull)

    def normalise_(self) -> None:
        """`normalise_rows_` of the embedding, in float32 where that is as good."""
        norms = torch.linalg.vector_norm(self.embedding, dim=1, keepdim=True)
        smallest, largest = map(float, torch.aminmax(norms))
        if smallest > _SMALLEST_NORM and largest < _LARGEST_NORM:
            self.embedding.div_(norms)
        else:
            normalise_rows_(self.embedding)


class GatedStep:
    """Buffers and views of a gated layer for one shape of batch; time is the first dimension."""

    gates: int

    def __init__(self, p: Parameters, config: RecurrentConfig, rows: int, steps: int) -> None:
        self.p, self.steps = p, steps
        E, C = config.embedding_size, config.cells
        G, N = self.gates * C, rows * steps
        # Row (t, b) is what enters step t: the word's vector, then the hidden vector before it.
        entering = torch.zeros((steps + 1) * rows, E + C)
        self.entering = entering[:N]
        self.inputs, self.hidden_before = entering[:N, :E], entering[:N, E:]
        self.hidden_after = entering[rows:, E:]
        self.before = list(torch.split(self.hidden_before, rows))
        self.after = list(torch.split(self.hidden_after, rows))
        self.input_kernel, self.recurrent = p.kernel[:, :E], p.kernel[:, E:]
        self.sums = torch.empty(N, G)  # the gates: first their sums, then their values
        self.d_sums = torch.empty(N, G)
        self.factors = torch.empty(N, G)  # d_sums = factors * (dc or dh)
        self.d_hidden = torch.empty(N, C)
        self.each_sum, self.each_d_sum = (
            torch.split(self.sums, rows),
            torch.split(self.d_sums, rows),
        )
        self.each_d_hidden = torch.split(self.d_hidden, rows)
        # Views by gate, and by step and gate: slicing a tensor costs more than small sums.
        self.values = self.sums.view(N, self.gates, C).unbind(1)
        self.factor = self.factors.view(N, self.gates, C).unbind(1)
        self.each_value = [s.view(rows, self.gates, C).unbind(1) for s in self.each_sum]
        self.sigmoids = self.sums[:, : G - C]  # all gates but the candidate, which is the last
        self.each_sigmoids = torch.split(self.sigmoids, rows)
        self.carried = torch.empty(rows, C)
        self.prepare(rows, C)

    def prepare(self, rows: int, cells: int) -> None:
        """Make the buffers and views that only this kind of layer has."""
        raise NotImplementedError

    def forward(self, inputs: Tensor) -> Tensor:
        """Hidden vectors after every step, [steps * rows, cells]."""
        torch.index_select(self.p.embedding, 0, inputs, out=self.inputs)
        torch.addmm(self.p.bias, self.inputs, self.input_kernel.t(), out=self.sums)
        self.run()
        return self.hidden_after

    def run(self) -> None:
        """Run all steps forward, then compute the factors."""
        raise NotImplementedError

    def backward(self, d_hidden: Tensor, positions: Tensor | None) -> None:
        """Derivatives by the gates' sums, from those by the hidden vectors that were scored."""
        if positions is None:
            self.d_hidden.copy_(d_hidden)
        else:
            self.d_hidden.zero_().index_copy_(0, positions, d_hidden)
        self.run_back()
        if "embedding" in self.p.trained:
            self.d_inputs = torch.mm(self.d_sums, self.input_kernel)

    def run_back(self) -> None:
        """Run all steps backward."""
        raise NotImplementedError

    def descend(self, inputs: Tensor, learning_rate: float) -> None:
        """Change what is trained of the layer and of the vectors of the words that entered."""
        p = self.p
        if "embedding" in p.trained:
            if p.word_rates is not None:
                self.d_inputs *= p.word_rates[inputs].unsqueeze(1)
            p.embedding.index_add_(0, inputs, self.d_inputs, alpha=-learning_rate)
        if "bias" in p.trained:
            p.bias.sub_(self.d_sums.sum(0), alpha=learning_rate)
        if "kernel" in p.trained:
            self.descend_kernels(learning_rate)

    def descend_kernels(self, learning_rate: float) -> None:
        """Change the kernels, which met what entered each step."""
        self.p.kernel.addmm_(self.d_sums.t(), self.entering, alpha=-learning_rate)


class _WithCells(GatedStep):
    """LSTM and CIFG: memory cells c, h = o tanh(c), and the way back through both.

    dc += dh o (1 - tanh(c)^2); then the output gate's sum gets dh times its factor, every other
    gate's dc times its own, and the step before gets dc f.
    """

    output_gate: int
    forget_gate: int

    def prepare(self, rows: int, cells: int) -> None:
        """The memory cells, and views of what the way back needs of each step."""
        N, C = rows * self.steps, cells
        memory = torch.zeros(N + rows, C)  # the first of them is the state before any step
        self.cells_before = memory[:N]
        self.each_before, self.each_after = (
            torch.split(memory[:N], rows),
            torch.split(memory[rows:], rows),
        )
        self.squashed = torch.empty(N, C)  # tanh(c)
        self.each_squashed = torch.split(self.squashed, rows)
        self.through = torch.empty(N, C)  # o (1 - tanh(c)^2)
        self.each_through = torch.split(self.through, rows)
        self.scratch = torch.empty(N, C)
        self.each_candidate = torch.split(self.values[-1], rows)
        self.each_factor = self.factors.view(self.steps, rows, self.gates, C).unbind(0)
        self.each_d_value = self.d_sums.view(self.steps, rows, self.gates, C).unbind(0)
        self.d_cells = self.carried.unsqueeze(1)

    def run(self) -> None:
        """Steps forward; then, for all steps at once, the factors of the backward pass.

        For a sigmoid s the factor is s (1 - s) times what the gate multiplies; for the output gate
        that is tanh(c), and `through` is o (1 - tanh(c)^2), which leads from dh to dc.
        """
        for t in range(self.steps):
            self.each_sum[t].addmm_(self.before[t], self.recurrent.t())
            self.each_sigmoids[t].sigmoid_()
            self.each_candidate[t].tanh_()
            self.next_cells(t)
            torch.tanh(self.each_after[t], out=self.each_squashed[t])
            output = self.each_value[t][self.output_gate]
            torch.mul(output, self.each_squashed[t], out=self.after[t])
        s, o = self.sigmoids, self.values[self.output_gate]
        torch.addcmul(s, s, s, value=-1, out=self.factors[:, : s.shape[1]])
        self.factor[self.output_gate].mul_(self.squashed)
        self.cell_factors()
        torch.mul(o, self.squashed, out=self.scratch)
        torch.addcmul(o, self.scratch, self.squashed, value=-1, out=self.through)

    def next_cells(self, t: int) -> None:
        """Write c' into `each_after[t]`."""
        raise NotImplementedError

    def cell_factors(self) -> None:
        """Write the factors of the gates that act on the cells, where sigmoids' hold s (1 - s)."""
        raise NotImplementedError

    def run_back(self) -> None:
        """From the last step to the first, with dc carried in place:

        dh_t += d_sums_(t+1) W_h,   dc_t = dc_(t+1) f_(t+1) + dh_t o_t (1 - tanh(c_t)^2)
        """
        dc = self.carried.zero_()
        for t in reversed(range(self.steps)):
            dh = self.each_d_hidden[t]
            if t + 1 < self.steps:
                dh.addmm_(self.each_d_sum[t + 1], self.recurrent)
                dc.mul_(self.each_value[t + 1][self.forget_gate])
            dc.addcmul_(dh, self.each_through[t])
            d_value, factor = self.each_d_value[t], self.each_factor[t]
            torch.mul(factor, self.d_cells, out=d_value)
            torch.mul(factor[:, self.output_gate], dh, out=d_value[:, self.output_gate])


class _LSTMStep(_WithCells):
    """Gates i, f, o, candidate g;  c' = f c + i g."""

    gates, output_gate, forget_gate = 4, 2, 1

    def next_cells(self, t: int) -> None:
        """c' = f c + i g."""
        i, f, _, g = self.each_value[t]
        torch.mul(f, self.each_before[t], out=self.each_after[t]).addcmul_(i, g)

    def cell_factors(self) -> None:
        """dc/d i = i (1 - i) g,   dc/d f = f (1 - f) c,   dc/d g = i (1 - g^2)."""
        i, _, _, g = self.values
        self.factor[0].mul_(g)
        self.factor[1].mul_(self.cells_before)
        torch.mul(i, g, out=self.scratch)
        torch.addcmul(i, self.scratch, g, value=-1, out=self.factor[3])


class _CIFGStep(_WithCells):
    """Gates f, o, candidate g;  c' = f c + (1 - f) g."""

    gates, output_gate, forget_gate = 3, 1, 0

    def next_cells(self, t: int) -> None:
        """c' = f c + (1 - f) g."""
        f, _, g = self.each_value[t]
        torch.lerp(g, self.each_before[t], f, out=self.each_after[t])

    def cell_factors(self) -> None:
        """dc/d f = f (1 - f) (c - g),   dc/d g = (1 - f) (1 - g^2)."""
        f, _, g = self.values
        torch.sub(self.cells_before, g, out=self.scratch)
        self.factor[0].mul_(self.scratch)
        torch.mul(g, g, out=self.scratch).sub_(1)
        torch.addcmul(self.scratch, self.scratch, f, value=-1, out=self.factor[2]).neg_()


class _GRUStep(GatedStep):
    """Gates r, z, candidate n = tanh(W_n [x, r h] + b_n);  h' = z h + (1 - z) n."""

    gates = 3

    def prepare(self, rows: int, cells: int) -> None:
        """Views of the gates r and z, and of the candidate n, by their kind and by step."""
        N, C = rows * self.steps, cells
        self.cut = 2 * C
        self.reset_hidden = torch.empty(N, C)  # r h, what the candidate sees of the state
        self.d_reset_hidden = torch.empty(rows, C)
        self.each_reset_hidden = torch.split(self.reset_hidden, rows)
        self.gates_recurrent = self.recurrent[: self.cut]
        self.candidate_recurrent = self.recurrent[self.cut :]
        self.each_factor = [f.view(rows, 3, C).unbind(1) for f in torch.split(self.factors, rows)]
        self.each_d_value = [d.view(rows, 3, C).unbind(1) for d in self.each_d_sum]

    def run(self) -> None:
        """Steps forward; then the factors, for all steps at once:

        dh'/d z = z (1 - z) (h - n),   dh'/d n = (1 - z) (1 - n^2),   d(r h)/d r = r (1 - r) h
        """
        for t in range(self.steps):
            h, gates = self.before[t], self.each_sigmoids[t]
            r, z, n = self.each_value[t]
            gates.addmm_(h, self.gates_recurrent.t()).sigmoid_()
            torch.mul(r, h, out=self.each_reset_hidden[t])
            n.addmm_(self.each_reset_hidden[t], self.candidate_recurrent.t()).tanh_()
            torch.lerp(n, h, z, out=self.after[t])
        s, (_, z, n) = self.sigmoids, self.values
        torch.addcmul(s, s, s, value=-1, out=self.factors[:, : self.cut])
        self.factor[0].mul_(self.hidden_before)
        self.factor[1].mul_(self.hidden_before - n)
        torch.mul(1 - z, 1 - n * n, out=self.factor[2])

    def run_back(self) -> None:
        """From the last step to the first, with W_n and W_rz the recurrent kernels:

        d(r h)_t = dn_t W_n,   dh_t += dh_(t+1) z + d(r h)_(t+1) r + [dr, dz]_(t+1) W_rz
        """
        for t in reversed(range(self.steps)):
            dh = self.each_d_hidden[t]
            if t + 1 < self.steps:
                r, z, _ = self.each_value[t + 1]
                dh.addcmul_(self.each_d_hidden[t + 1], z).addcmul_(self.d_reset_hidden, r)
                dh.addmm_(self.each_d_sum[t + 1][:, : self.cut], self.gates_recurrent)
            (dr, dz, dn), factors = self.each_d_value[t], self.each_factor[t]
            torch.mul(factors[2], dh, out=dn)
            torch.mul(factors[1], dh, out=dz)
            torch.mm(dn, self.candidate_recurrent, out=self.d_reset_hidden)
            torch.mul(factors[0], self.d_reset_hidden, out=dr)

    def descend_kernels(self, learning_rate: float) -> None:
        """The step on the kernels; the candidate's met r h where those of the gates met h."""
        kernel, cut, eta = self.p.kernel, self.cut, learning_rate
        kernel[:cut].addmm_(self.d_sums[:, :cut].t(), self.entering, alpha=-eta)
        self.hidden_before.copy_(self.reset_hidden)  # nothing reads h again
        kernel[cut:].addmm_(self.d_sums[:, cut:].t(), self.entering, alpha=-eta)
        self.hidden_before[: len(self.carried)] = 0  # the state before the first step


LAYERS: dict[type[RecurrentModel], type[GatedStep]] = {
    LSTM: _LSTMStep,
    CIFG: _CIFGStep,
    GRU: _GRUStep,
}
