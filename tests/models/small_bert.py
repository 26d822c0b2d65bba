"""A BERT of a few hundred weights and utterances for it, made of nothing."""

import torch

from tacit.models.bert import BertTagger, BertTaggerConfig, pretrained_sizes
from tacit.models.understanding import UtteranceBatch

PIECES, INTENTS, TAGS = 40, 3, 5
SIZES = {"width": 12, "layers": 2, "heads": 3, "intermediate": 16, "positions": 16}


def small_config(**changes) -> BertTaggerConfig:
    return BertTaggerConfig(
        **{"pieces": PIECES, "intents": INTENTS, "tags": TAGS, **SIZES, **changes}
    )


def small_tagger(seed: int = 0, **changes) -> BertTagger:
    """With weights large enough for every one of them to be felt."""
    model = BertTagger(small_config(**changes), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for values in model.parameters():
            values.add_(torch.randn(values.shape, generator=generator), alpha=0.3)
    return model


def utterance(tokens: int, extra: int, seed: int) -> UtteranceBatch:
    """One utterance: [CLS], a piece for each token and `extra` more here and there, [SEP]."""
    generator = torch.Generator().manual_seed(seed)
    length = tokens + extra + 2
    begins = 1 + torch.randperm(tokens + extra - 1, generator=generator)[: tokens - 1] + 1
    first = torch.cat([torch.tensor([1]), begins.sort().values])
    return UtteranceBatch(
        {
            "pieces": torch.randint(1, PIECES, (1, length), generator=generator),
            "piece_mask": torch.ones(1, length, dtype=torch.bool),
            "first": first[None],
        },
        torch.ones(1, tokens, dtype=torch.bool),
        torch.randint(TAGS, (1, tokens), generator=generator),
        torch.randint(INTENTS, (1,), generator=generator),
    )


def together(parts: list[UtteranceBatch], *, more: int = 0) -> UtteranceBatch:
    """Side by side, padded `more` places further than they need."""
    pieces = max(part.inputs["pieces"].shape[1] for part in parts) + more
    tokens = max(part.mask.shape[1] for part in parts) + more

    def joined(tensors: list[torch.Tensor], width: int) -> torch.Tensor:
        found = tensors[0].new_zeros(len(tensors), width)
        for row, tensor in enumerate(tensors):
            found[row, : tensor.shape[1]] = tensor
        return found

    return UtteranceBatch(
        {
            "pieces": joined([part.inputs["pieces"] for part in parts], pieces),
            "piece_mask": joined([part.inputs["piece_mask"] for part in parts], pieces),
            "first": joined([part.inputs["first"] for part in parts], tokens),
        },
        joined([part.mask for part in parts], tokens),
        joined([part.tags for part in parts], tokens),
        torch.cat([part.intents for part in parts]),
    )


def pretrained_options(folder):
    """The sizes of a folder's model that no vocabulary decides."""
    sizes = pretrained_sizes(folder)
    return {name: getattr(sizes, name) for name in ("width", "layers", "heads", "intermediate")}
