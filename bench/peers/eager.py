"""A bare eager loop: what one writes down first, with an optimizer, `backward`, a clip and a sum.

Arguments: "nn.LSTM" for torch's own layer, or "tacit" for tacit's model with its unit norms; and
the users of a round.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from workload import BATCH, CLIP_NORM, RATE, VOCABULARY, WordLSTM, serve, user_rows

Loss = Callable[[Tensor, Tensor], Tensor]


def contestant(kind: str) -> tuple[nn.Module, Loss, Callable[[], None]]:
    """The model, its mean loss, and what has to follow each step."""
    if kind == "nn.LSTM":
        plain = WordLSTM()
        return plain, plain.loss, lambda: None
    from tacit.models.base import loss as summed_loss
    from tacit.models.registry import build

    model = build("lstm", VOCABULARY)

    def mean_loss(inputs: Tensor, targets: Tensor) -> Tensor:
        total, count = summed_loss(model(inputs)[0], targets)
        return total / count

    return model, mean_loss, model.normalise_


def main() -> None:
    kind, cohort = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(0)
    model, loss, project = contestant(kind)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=RATE, fused=True)
    users = [user_rows(user) for user in range(cohort)]

    def one_round(_: list[str]) -> dict[str, object]:
        start = [p.detach().clone() for p in parameters]
        total = [torch.zeros_like(p) for p in start]
        for inputs, targets in users:
            with torch.no_grad():
                for p, value in zip(parameters, start, strict=True):
                    p.copy_(value)
            for x, y in zip(inputs.split(BATCH), targets.split(BATCH), strict=True):
                optimizer.zero_grad()
                loss(x, y).backward()
                optimizer.step()
                project()
            with torch.no_grad():
                update = [p - value for p, value in zip(parameters, start, strict=True)]
                norm = torch.stack([part.norm() for part in update]).norm()
                scale = min(1.0, CLIP_NORM / float(norm))
                for summed, part in zip(total, update, strict=True):
                    summed.add_(part, alpha=scale)
        with torch.no_grad():
            for p, value, summed in zip(parameters, start, total, strict=True):
                p.copy_(value + summed / cohort)
        return {"users": cohort, "norm": float(norm), "finite": bool(norm.isfinite())}

    serve(one_round)


if __name__ == "__main__":
    main()
