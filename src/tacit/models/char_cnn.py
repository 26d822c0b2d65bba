"""Words from their characters: a convolution, and of each filter its largest answer in the word.

Ma & Hovy 2016, section 2.1.  It gives a word that no vocabulary has a vector by its spelling.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.models.base import check_size

PADDING = 0  # the id of no character


class CharCnn(nn.Module):
    """Character ids [B, T, C] in, a vector per word [B, T, filters] out; zeros for no word.

    All characters of an utterance are one sequence for the convolution, with gaps of zeros between
    its words in which one word's window ends before the next word begins.  So the first dimension
    of every layer's input counts utterances, which per-example gradients need.
    """

    def __init__(self, characters: int, size: int = 30, filters: int = 50, width: int = 3) -> None:
        super().__init__()
        check_size("width", width)
        if width % 2 == 0:
            raise ValueError(f"width must be odd, so that a window has a middle, got {width}")
        self.gap = width // 2
        self.embedding = nn.Embedding(characters, size)
        self.convolution = nn.Conv1d(size, filters, width, padding=self.gap)

    def forward(self, characters: Tensor) -> Tensor:
        characters = functional.pad(characters, (0, self.gap), value=PADDING)
        rows, words, length = characters.shape
        is_character = characters != PADDING
        vectors = self.embedding(characters) * is_character[..., None]
        sequence = vectors.reshape(rows, words * length, -1).transpose(1, 2)
        # Nothing negative is left by the ReLU, so zeros in the gaps are no larger than any answer.
        found = torch.relu(self.convolution(sequence)).reshape(rows, -1, words, length)
        largest = (found * is_character[:, None]).amax(dim=3)
        return largest.transpose(1, 2)
