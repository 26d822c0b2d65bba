"""CLC: character CNN and word vectors, bi-LSTM, and a CRF (Ma & Hovy 2016) with an intent layer.

    x_t = [word vector, character CNN of the word]
    h_t = the last of the bi-LSTM layers over x_1 ... x_T
    emissions_t = W_e h_t + b_e,   intent logits = W_i max_t h_t + b_i

As in Dupuy et al. 2021, section 4.2: two layers of 384 cells (here in each direction).  The paper
does not say what the intent layer reads.  Here it is the largest value of each cell over the
utterance's tokens: what tells the intent may stand anywhere, and the way from it to the loss does
not lead through the whole sequence, as it would from the last state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tacit.models.base import check_size, check_sizes
from tacit.models.layers import seeded
from tacit.models.understanding import LinearChainCrf, UnderstandingModel, UtteranceScores

PADDING = 0  # the id of no character


class _CharCnn(nn.Module):
    """Words from their characters (Ma & Hovy 2016, section 2.1).

    A convolution over the characters, and of each filter its largest answer in the word: so a word
    outside of the vocabulary has a vector by its spelling.  Character ids [B, T, C] in, a vector
    per word [B, T, filters] out; zeros for no word.

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
        """The vector of each word: max over its windows of relu(W [e_1, ..., e_width] + b)."""
        characters = functional.pad(characters, (0, self.gap), value=PADDING)
        rows, words, length = characters.shape
        is_character = characters != PADDING
        vectors = self.embedding(characters) * is_character[..., None]
        sequence = vectors.reshape(rows, words * length, -1).transpose(1, 2)
        # Nothing negative is left by the ReLU, so zeros in the gaps are no larger than any answer.
        answers = torch.relu(self.convolution(sequence)).reshape(rows, -1, words, length)
        largest = (answers * is_character[:, None]).amax(dim=3)
        return largest.transpose(1, 2)


class _TwoWayLstm(nn.Module):
    """An LSTM layer that reads every sequence from both of its ends.

    [B, T, inputs] in, [B, T, 2 hidden] out; zeros where there is no token.

    The two directions are two layers, and a sequence is turned round within its own length: each
    is then a plain LSTM over padded sequences, for which ghost clipping and Opacus know what every
    single example contributed.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.from_start = nn.LSTM(inputs, hidden, batch_first=True)
        self.from_end = nn.LSTM(inputs, hidden, batch_first=True)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """The tokens of every row come first, and there is at least one."""
        lengths = mask.sum(dim=1, keepdim=True)
        steps = torch.arange(mask.shape[1], device=mask.device)
        turned = torch.where(mask, lengths - 1 - steps, steps)
        onward = _run(self.from_start, values, lengths)
        backward = _turn(_run(self.from_end, _turn(values, turned), lengths), turned)
        return torch.cat([onward, backward], dim=2) * mask[..., None]


def _run(lstm: nn.Module, values: Tensor, lengths: Tensor) -> Tensor:
    """The LSTM's states [B, T, hidden]; zeros behind the end of each sequence if it is packed."""
    if isinstance(lstm, nn.LSTM):  # packing only saves the steps over padding
        packed = pack_padded_sequence(
            values, lengths.flatten().cpu(), batch_first=True, enforce_sorted=False
        )
        padded: Tensor
        padded, _ = pad_packed_sequence(
            lstm(packed)[0], batch_first=True, total_length=values.shape[1]
        )
        return padded
    states: Tensor = lstm(values)[0]
    return states


def _turn(values: Tensor, order: Tensor) -> Tensor:
    """The values with the tokens of each row in another order."""
    return values.gather(1, order[..., None].expand(-1, -1, values.shape[2]))


UNKNOWN_WORD = 0


@dataclass(frozen=True)
class ClcConfig:
    """Sizes; `words` and `characters` count ids, those of the unknown and of padding included.

    `word_dropout` is the share of words that training replaces by the unknown word, without which
    nothing would teach the model to read a word by its characters alone.  `freeze_words` leaves the
    word vectors as they are given.
    """

    words: int
    characters: int
    intents: int
    tags: int
    word_size: int = 100
    character_size: int = 30
    filters: int = 50
    width: int = 3
    hidden: int = 384
    layers: int = 2
    dropout: float = 0.3
    word_dropout: float = 0.05
    freeze_words: bool = False

    kind: ClassVar[str] = "clc"

    def __post_init__(self) -> None:
        widths = ("word_size", "character_size", "filters", "hidden")
        check_sizes(
            self, dict.fromkeys(widths, (1, 100_000)) | {"layers": (1, 100), "width": (1, 99)}
        )


class Clc(UnderstandingModel):
    """Reads "words" [B, T] and "characters" [B, T, C]; every draw of dropout is torch's."""

    def __init__(self, config: ClcConfig, seed: int | Generator = 0) -> None:
        super().__init__()
        self.config = config
        inputs, states = config.word_size + config.filters, 2 * config.hidden
        with torch.random.fork_rng(devices=[]):  # torch draws initial weights that are not used
            self.words = nn.Embedding(config.words, config.word_size)
            self.characters = _CharCnn(
                config.characters, config.character_size, config.filters, config.width
            )
            self.layers = nn.ModuleList(
                _TwoWayLstm(inputs if layer == 0 else states, config.hidden)
                for layer in range(config.layers)
            )
            self.dropout = nn.Dropout(config.dropout)
            self.intent = nn.Linear(states, config.intents)
            self.emission = nn.Linear(states, config.tags)
        self.crf = LinearChainCrf(config.tags)
        _initialise(self, seeded(seed))
        self.words.weight.requires_grad_(not config.freeze_words)

    def scores(self, inputs: dict[str, Tensor], mask: Tensor) -> UtteranceScores:
        """The scores; in training, some words are read by their characters alone."""
        words = inputs["words"]
        if self.training and self.config.word_dropout:
            draws = torch.rand(words.shape, device=words.device)
            words = words.masked_fill(draws < self.config.word_dropout, UNKNOWN_WORD)
        characters: Tensor = self.characters(inputs["characters"])
        states = torch.cat([self.words(words), characters], dim=2)
        for layer in self.layers:
            states = layer(self._dropped(states), mask)
        states = self._dropped(states)
        largest = states.masked_fill(~mask[..., None], -torch.inf).amax(dim=1)
        return UtteranceScores(self.intent(largest), self.emission(states))

    def _dropped(self, states: Tensor) -> Tensor:
        """With the same dropout for all tokens of an utterance (Gal & Ghahramani 2016).

        So the draws do not depend on how far the utterances are padded, and they are few.
        """
        kept: Tensor = self.dropout(states.new_ones(len(states), 1, states.shape[2]))
        return states * kept

    @torch.no_grad()
    def set_word_vector(self, word: int, vector: NDArray[np.float32]) -> None:
        """Begin from this vector of the word with this id; other words keep their random ones."""
        self.words.weight[word] = torch.from_numpy(vector)


@torch.no_grad()
def _initialise(model: nn.Module, generator: Generator) -> None:
    """Weights from the generator alone: even variances, and a memory that is kept at first."""
    for module in model.modules():
        if any(values.is_meta for values in module.parameters(recurse=False)):
            continue
        if isinstance(module, nn.Embedding):
            bound = math.sqrt(3 / module.embedding_dim)
            module.weight.uniform_(-bound, bound, generator=generator)
        elif isinstance(module, nn.Linear | nn.Conv1d):
            nn.init.xavier_uniform_(module.weight, generator=generator)
            assert module.bias is not None
            module.bias.zero_()
        elif isinstance(module, nn.LSTM):
            for name, values in module.named_parameters():
                if name.startswith("weight"):
                    for gate in values.chunk(4):
                        nn.init.xavier_uniform_(gate, generator=generator)
                else:
                    values.zero_()
            forget = module.get_parameter("bias_ih_l0").chunk(4)[1]  # input, forget, cell, output
            forget.fill_(1.0)
