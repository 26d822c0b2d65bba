"""`tacit papers head-words`: does a model fall back on common words?  McMahan 2018, Table 3.

At each target the model's top 10 predictions are intersected with the n most frequent words of the
dictionary, n = 10, 50, 100; a histogram says how often the intersection had 0, 1, ..., 10 elements.
Models that predict head words more often have more mass to the right.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from rich.console import Console
from torch import nn

from tacit.cli.evaluate import held_out_of, pieces
from tacit.cli.options import AsJson, ModelArgument, Round, count, text
from tacit.cli.output import emit, table
from tacit.cli.progress import tracked
from tacit.evaluation.predictors import (
    IntArray,
    Predictor,
    Tokens,
    all_targets,
    as_arrays,
    as_predictor,
)
from tacit.evaluation.scores import top_k
from tacit.runs.stored_model import StoredModel

HEADS = (10, 50, 100)
EXAMPLES = """
Examples:

`tacit papers head-words runs/first`
"""


def head_words(
    run: ModelArgument,
    round: Round = None,
    corpus: str | None = text(None, "CORPUS", "Whose test users. [default: the run's own corpus]"),
    tokens: int | None = count(None, "N", "Tokens to measure on. [default: as tacit evaluate]"),
    as_json: AsJson = False,
) -> None:
    """How many of a model's top 10 are among the most frequent words: McMahan 2018, Table 3."""
    stored = StoredModel.open(run, round)
    words = stored.tokenizer
    if words.kind != "word":
        raise ValueError(f"head words need a dictionary of words, and this is {words.kind}")
    # A dictionary lists the most frequent words first.
    frequent = [id for id in range(words.vocab_size) if id not in (words.bos, words.eos, words.unk)]
    heads = [head for head in HEADS if head <= len(frequent)]
    if not heads:
        raise ValueError(f"head words need 10 words at least, and there are {len(frequent)}")
    total = {head: np.zeros(11, np.int64) for head in heads}
    sequences = held_out_of(stored, stored.corpus(corpus), tokens)
    for part in tracked(pieces(sequences), "counting head words"):
        more = head_word_histograms(stored.model, part, frequent, bos=words.bos, heads=heads)
        total = {head: total[head] + more[head] for head in heads}
    row = {
        "run": str(run),
        "round": stored.round,
        "head_words": {str(head): counts.tolist() for head, counts in total.items()},
    }

    def render(console: Console) -> None:
        shares = {head: 100 * counts / max(counts.sum(), 1) for head, counts in total.items()}
        console.print(
            table(
                *(">n", *(f">{number}" for number in range(11))),
                title="How many of the model's top 10 are among the n most frequent words: percent",
                compact=True,
                rows=[(str(n), *(f"{share:.1f}" for share in shares[n])) for n in heads],
            )
        )

    emit(row, as_json, render)


def head_word_histograms(
    predictor: Predictor | nn.Module,
    sequences: Sequence[Tokens],
    frequent: Sequence[int],
    *,
    bos: int,
    heads: Sequence[int] = HEADS,
    top: int = 10,
) -> dict[int, IntArray]:
    """For each n in `heads`: how many targets have 0, 1, ..., `top` of the n words on top.

    `frequent` lists token ids by falling frequency, without BOS, EOS and UNK, which are no words.
    """
    if len(set(frequent)) != len(frequent):
        raise ValueError("frequent lists a token twice")
    if not heads or not 1 <= min(heads) <= max(heads) <= len(frequent):
        raise ValueError(
            f"heads must be between 1 and the {len(frequent)} frequent words given, got"
            f" {list(heads)}"
        )
    predictor = as_predictor(predictor)
    vocab_size = predictor.vocab_size
    if not 1 <= top <= vocab_size:
        raise ValueError(f"top must be between 1 and {vocab_size}, got {top}")
    arrays = as_arrays([*sequences, frequent], vocab_size)[:-1]
    counted = all_targets(arrays) != bos
    frequency_rank = torch.full((vocab_size,), vocab_size)
    frequency_rank[torch.tensor(list(frequent))] = torch.arange(len(frequent))
    histograms = {n: np.zeros(top + 1, np.int64) for n in heads}
    for chunk in predictor.chunks(arrays):
        first_choices = top_k(chunk.logits, top)[torch.from_numpy(counted[chunk.positions])]
        for n, histogram in histograms.items():
            sizes = (frequency_rank[first_choices] < n).sum(1)
            np.add(histogram, np.bincount(sizes.numpy(), minlength=top + 1), out=histogram)
    return histograms
