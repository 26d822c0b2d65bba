"""Every built-in model in a size for tests, on a vocabulary of 11 tokens."""

from __future__ import annotations

import torch

from tacit.models.base import LanguageModel
from tacit.models.registry import build
from tacit.models.weights import to_bytes
from tacit.privacy import durable

VOCABULARY = 11
SIZES = {
    "lstm": {"embedding_size": 6, "cells": 10},
    "cifg": {"embedding_size": 6, "cells": 10},
    "cifg-projected": {"embedding_size": 6, "cells": 10},
    "gru": {"embedding_size": 6, "cells": 10},
    "lstm-14m": {"embedding_size": 6, "cells": 10},
    "transformer-14m": {"embedding_size": 8, "heads": 2, "feed_forward": 12, "layers": 3},
}
NAMES = tuple(SIZES)
RECURRENT = NAMES[:5]


def small(name: str, *, seed: int = 0, **overrides) -> LanguageModel:
    return build(name, VOCABULARY, seed=seed, **(SIZES[name] | overrides))


def save(model: LanguageModel, path) -> None:
    """Write a model as trainings do."""
    durable.write_whole(path, to_bytes(model))


def jittered(model: LanguageModel, seed: int = 0) -> LanguageModel:
    """The model in float64 with all of its weights moved, so that no bias is zero."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double()
    with torch.no_grad():
        for _, values in model.parameter_vectors():
            values.add_(torch.empty_like(values).normal_(std=0.5, generator=generator))
    return model


def random_tokens(batch: int, steps: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (batch, steps), generator=generator)
