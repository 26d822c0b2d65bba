"""Small intent and slot models over generated utterances, for tests."""

import torch

from tacit.models.clc import Clc
from tacit.tasks.nlu.data import NLUData
from tacit.tasks.nlu.encoding import Labels, WordEncoder, encode
from tacit.tasks.nlu.models import build
from tacit.tasks.nlu.readers import load_nlu

SIZES = {"word_size": 16, "character_size": 8, "filters": 8, "hidden": 24}


def small_data(count: int = 300) -> NLUData:
    return load_nlu(f"generated:utterances={count}")


def small_parts(seed: int = 0, data: NLUData | None = None) -> tuple[Clc, WordEncoder, Labels]:
    """An untrained model with all that it needs."""
    data = data or small_data()
    encoder, labels = WordEncoder.oracle(data.train), Labels(data.intents, data.tags)
    model = build("clc", labels, encoder, SIZES, seed)
    assert isinstance(model, Clc)
    return model, encoder, labels


def trained(model: Clc, encoder: WordEncoder, labels: Labels, data: NLUData, steps: int) -> Clc:
    """After a few steps of Adam on all training utterances."""
    examples = encode(encoder, labels, data.train)
    batch = examples.batch(range(len(examples)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    torch.manual_seed(0)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    return model
