"""Small models with utterances for them, and the clipped sum of gradients as it is written."""

import math

import numpy as np
import torch
from torch import nn

from tacit.models.clc import Clc, ClcConfig
from tacit.models.understanding import LinearChainCrf, UnderstandingModel, UtteranceScores
from tacit.tasks.nlu.data import Utterance
from tacit.tasks.nlu.encoding import Labels, WordEncoder, encode
from tacit.tasks.nlu.ghost_clipping import GhostClipping
from tacit.tasks.nlu.gradients import UtteranceGradients
from tacit_papers.dupuy2021.opacus_gradients import OpacusGradients
from tests.models.small_bert import small_tagger, together, utterance

WORDS = tuple("play a song by nobody in the kitchen x extraordinarily loud at ten or so".split())
LABELS = Labels(("music", "light", "call"), ("O", "B-song", "B-time", "B-room"))


class Given:
    """Utterances for BERT, as `EncodedUtterances` would give them."""

    def __init__(self, parts):
        self.parts = parts
        self.lengths = np.array([part.mask.shape[1] for part in parts])

    def __len__(self):
        return len(self.parts)

    def batch(self, indices):
        return together([self.parts[index] for index in indices])


def said(lengths, seed=0):
    """Encoded utterances of these lengths for CLC."""
    rng = np.random.default_rng(seed)
    made = [
        Utterance(
            tuple(rng.choice(WORDS, length)),
            tuple(rng.choice(LABELS.tags, length)),
            str(rng.choice(LABELS.intents)),
        )
        for length in lengths
    ]
    return encode(WordEncoder(WORDS[:12], "public: a list", 8), LABELS, made)


def clc(seed=0, **changes):
    """In float64, with a CRF that has learnt something, so that equal means equal."""
    encoder = WordEncoder((), "public: a list", 8)
    sizes = {"word_size": 5, "character_size": 3, "filters": 4, "hidden": 6}
    sizes |= {"dropout": 0.0, "word_dropout": 0.0, **changes}
    config = ClcConfig(
        13, encoder.sizes["characters"], len(LABELS.intents), len(LABELS.tags), **sizes
    )
    model = Clc(config, seed).double()
    with torch.no_grad():
        for values in model.crf.parameters():
            values.normal_(generator=torch.Generator().manual_seed(seed))
    return model


def bert(seed=0, **changes):
    return small_tagger(seed, **{"dropout": 0.0, **changes}).double()


def pair(kind, seed=0):
    """A model, and utterances of different lengths for it."""
    if kind == "clc":
        return clc(seed), said([3, 1, 7, 4, 2, 5], seed)
    shapes = [(3, 0), (1, 2), (6, 4), (2, 2), (5, 0), (1, 0)]
    return bert(seed), Given([utterance(*shape, seed=place) for place, shape in enumerate(shapes)])


def example_gradient(model, utterances, unit):
    """Of one utterance alone, in numbers."""
    trained = [values for values in model.parameters() if values.requires_grad]
    loss = model(utterances.batch([unit])).sum()
    found = torch.autograd.grad(loss, trained)
    return torch.cat([values.reshape(-1) for values in found]).double().numpy()


def literal(model, utterances, units, clip_norm):
    """The sum of min(1, C / |g|) g, as it is written."""
    total = 0.0
    for unit in units:
        g = example_gradient(model, utterances, unit)
        norm = math.sqrt(math.fsum(g * g))
        total = total + g * min(1.0, clip_norm / norm)
    return total


def clipping_by(way, flat, utterances):
    """Gradients that clip single utterances' in one of the ways."""
    ways = {
        "ghost": GhostClipping,
        "one-by-one": lambda flat: GhostClipping(flat, 1),
        "opacus": OpacusGradients,
    }
    return UtteranceGradients(flat, utterances, clipping=ways[way](flat))


def close(found, expected, rtol=1e-9):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * np.abs(expected).max())


class Odd(UnderstandingModel):
    """A model of layers that a test chooses; it reads words alone."""

    def __init__(self, *layers, first=False):
        super().__init__()
        self.words = nn.Embedding(13, 4)
        self.between = nn.ModuleList(layers)
        self.intent = nn.Linear(4, len(LABELS.intents))
        self.emission = nn.Linear(4, len(LABELS.tags))
        self.crf = LinearChainCrf(len(LABELS.tags))
        self.first = first

    def scores(self, inputs, mask):
        states = self.words(inputs["words"][:1] if self.first else inputs["words"])
        for layer in self.between:
            found = layer(states)
            states = found[0] if isinstance(found, tuple) else found
        states = states.expand(len(mask), -1, -1)
        return UtteranceScores(self.intent(states[:, 0]), self.emission(states))
