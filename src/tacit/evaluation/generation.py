"""Text from a model: ancestral sampling with temperature and top-k, many texts at once.

Each step of each text has one uniform number of its own, drawn up front, and takes the token whose
share of the cumulative distribution holds that number.  So the text of a row depends on the
generator and the row only: not on the batch, and not on when other rows end.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from tacit.evaluation.network import evaluating
from tacit.evaluation.ranking import top_k as first_choices
from tacit.models.base import LanguageModel, State


def generate(
    model: LanguageModel,
    count: int,
    *,
    bos: int,
    eos: int,
    seed: int | torch.Generator,
    max_length: int = 100,
    temperature: float = 1.0,
    top_k: int | None = None,
    prompt: Sequence[int] = (),
    forbidden: Collection[int] = (),
    batch_size: int = 256,
) -> list[list[int]]:
    """`count` texts as tokens: BOS, the prompt, then up to `max_length` tokens until EOS.

    EOS is part of a text that reached it.  BOS is never sampled, nor is what is `forbidden` (UNK,
    for instance).  Temperature 0 takes the first choice every time.
    """
    _check(model, count, max_length, temperature, top_k, batch_size)
    for token in (bos, eos, *prompt, *forbidden):
        if not 0 <= token < model.config.vocab_size:
            raise ValueError(
                f"token {token} is not among the model's {model.config.vocab_size}: the tokenizer"
                " does not fit the model"
            )
    if len({*forbidden, bos}) >= model.config.vocab_size:
        raise ValueError("forbidden leaves no token to sample")
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    banned = torch.tensor(sorted({bos, *forbidden}))
    texts: list[list[int]] = []
    with evaluating(model), torch.no_grad():
        for start in range(0, count, batch_size):
            rows = min(batch_size, count - start)
            # In float64, so that also an event of probability 1e-12 gets its share.
            uniform = torch.rand(rows, max_length, generator=generator, dtype=torch.float64)
            begin = torch.tensor([bos, *prompt]).expand(rows, -1)
            sampled = _batch(model, begin, uniform, eos, banned, temperature, top_k)
            texts += [[bos, *prompt, *_until(row, eos)] for row in sampled.tolist()]
    return texts


def _batch(
    model: LanguageModel,
    begin: Tensor,
    uniform: Tensor,
    eos: int,
    banned: Tensor,
    temperature: float,
    top_k: int | None,
) -> Tensor:
    """The sampled tokens of each row, EOS behind its end; rows that ended leave the batch."""
    rows, length = uniform.shape
    sampled = torch.full((rows, length), eos)
    alive = torch.arange(rows)
    tokens, state = begin, None
    for step in range(length):
        logits, new_state = model(tokens, state)
        chosen = sample(logits[:, -1], uniform[alive, step], banned, temperature, top_k)
        sampled[alive, step] = chosen
        going = chosen != eos
        alive = alive[going]
        if not len(alive):
            break
        tokens, state = _next(tokens, chosen, going, new_state, model.carries_state)
    return sampled


def _next(
    tokens: Tensor, chosen: Tensor, going: Tensor, state: State, carries_state: bool
) -> tuple[Tensor, State]:
    """What the model is given next: the new token and the state, or else the text so far."""
    if carries_state:
        assert state is not None
        return chosen[going, None], tuple(part[going] for part in state)
    return torch.cat([tokens, chosen[:, None]], dim=1)[going], None


def sample(
    logits: Tensor, uniform: Tensor, banned: Tensor, temperature: float, top_k: int | None
) -> Tensor:
    """One token per row: the first whose cumulative probability is above the row's number."""
    logits = logits.to(torch.float64)
    logits = logits.index_fill(1, banned, -torch.inf)
    if not torch.isfinite(logits.amax(1)).all():  # NaN and +inf are largest of all
        raise ValueError("the model's logits are not finite numbers: its weights are broken")
    if temperature == 0:
        return first_choices(logits, 1).squeeze(1)
    if top_k is not None and top_k < logits.shape[1]:
        kept = first_choices(logits, top_k)
        logits = torch.full_like(logits, -torch.inf).scatter(1, kept, logits.gather(1, kept))
    # The maximum goes first: a tiny temperature must not make infinities of both.
    cumulative = torch.softmax((logits - logits.amax(1, keepdim=True)) / temperature, 1).cumsum(1)
    # Scaled by the actual total and kept below it, so that rounding never picks a token of
    # probability 0 behind the last one that has any.
    total = cumulative[:, -1:]
    drawn = torch.minimum(uniform.unsqueeze(1) * total, torch.nextafter(total, 0 * total))
    return torch.searchsorted(cumulative, drawn, right=True).squeeze(1)


def _until(tokens: list[int], eos: int) -> list[int]:
    """Up to and with the first EOS."""
    return tokens[: tokens.index(eos) + 1] if eos in tokens else tokens


def _check(
    model: LanguageModel,
    count: int,
    max_length: int,
    temperature: float,
    top_k: int | None,
    batch_size: int,
) -> None:
    if count < 0:
        raise ValueError(f"count must be at least 0, got {count}")
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1, got {max_length}")
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be a finite number of at least 0, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
