"""One lane of a sampled corpus: its share of the tokens, text by text, in slots of one batch.

When a slot's text ends, the slot begins another, so that the batch stays full.  Once the lane has
its share of tokens no text is begun any more, and all that were begun are finished: to drop them
would favour short texts, for the longer a text, the more likely it is unfinished at any time.

Guarantee.  Whether a text is begun depends on other texts only, so each is a fair draw.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt
import torch

from tacit.evaluation.draws import Choice
from tacit.evaluation.walks import most_rows, walk_of
from tacit.models.base import LanguageModel

SLOTS = 256
SLOT_TOKENS = 128  # at least so many for each, or there are fewer of them
HOPELESS = 1_000  # texts ended with less than a hundredth as many tokens: it only says EOS

IntArray = npt.NDArray[np.int64]


class Lane:
    """A share of the corpus: `quota` tokens, in slots that are computed together.

    A row is a slot that has a text; the arrays have one entry per row.
    """

    def __init__(
        self,
        model: LanguageModel,
        choice: Choice,
        generator: np.random.Generator,
        quota: int,
        bos: int,
        eos: int,
        longest: int,
    ) -> None:
        self.done = 0  # tokens so far; only grows, so that another thread may read it
        self._model, self._choice, self._generator = model, choice, generator
        self._quota, self._bos, self._eos = quota, bos, eos
        self._longest = longest
        self._slots = min(SLOTS, max(1, quota // SLOT_TOKENS), most_rows(model, longest))
        self._slot = np.arange(self._slots)
        self._number = np.arange(self._slots)  # of the row's text, in the order of beginning
        self._lengths = np.zeros(self._slots, np.int64)
        self._texts = np.empty((self._slots, self._longest), np.int64)
        self._ended: dict[int, list[int]] = {}

    def run(self, stop: threading.Event) -> list[list[int]]:
        """The texts in the order of beginning; when `stop` is set, soon and only some of them."""
        tokens, begun = np.full(self._slots, self._bos), np.arange(self._slots)
        with torch.no_grad():
            walk = walk_of(self._model, self._slots, self._longest)
            while len(self._slot) and not stop.is_set():
                output = walk.advance(torch.from_numpy(tokens), torch.from_numpy(begun))
                # Drawn for every slot, also where no text is left: a slot's numbers are its own.
                uniform = self._generator.random(self._slots)[self._slot]
                tokens = self._choice(output, torch.from_numpy(uniform)).numpy()
                begun = self._take(tokens)
                if self.done < self._quota:
                    self._begin(begun)
                    tokens[begun] = self._bos
                elif len(begun):
                    left = np.delete(np.arange(len(tokens)), begun)
                    tokens, begun = tokens[left], begun[:0]
                    self._keep(left)
                    walk.keep(torch.from_numpy(left))
        return [text for _, text in sorted(self._ended.items())]

    def _take(self, tokens: IntArray) -> IntArray:
        """Append a token to each row's text; the rows whose text is over."""
        said = tokens != self._eos
        self._texts[np.arange(len(tokens)), self._lengths] = tokens
        self._lengths += said
        self.done += int(said.sum())
        over = np.flatnonzero(~said | (self._lengths == self._longest))
        for row in over:
            text = self._texts[row, : self._lengths[row]]
            self._ended[int(self._number[row])] = text.tolist()
        if len(self._ended) >= HOPELESS and 100 * self.done < len(self._ended):
            raise ValueError(
                f"the model says almost nothing but EOS ({self.done} tokens in"
                f" {len(self._ended):,} texts), so that the corpus would never fill: train it"
                " longer, or sample at another temperature"
            )
        return over

    def _begin(self, rows: IntArray) -> None:
        """A new text in each of the rows."""
        first = len(self._ended) + len(self._slot) - len(rows)
        self._number[rows] = np.arange(first, first + len(rows))
        self._lengths[rows] = 0

    def _keep(self, rows: IntArray) -> None:
        """Go on with these rows only."""
        self._slot, self._number = self._slot[rows], self._number[rows]
        self._lengths, self._texts = self._lengths[rows], self._texts[rows]
