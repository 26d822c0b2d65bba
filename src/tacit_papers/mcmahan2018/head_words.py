"""`tacit papers head-words`: does a model fall back on common words?

McMahan et al. 2018, Table 3.  At each target the model's top 10 predictions are intersected with
the n most frequent words of the dictionary, n = 10, 50, 100; a histogram says how often the
intersection had 0, 1, ..., 10 elements.  Models that predict head words more often have more mass
to the right.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from tacit.cli.options import AsJson, ModelArgument, Round, check_counts, count, text
from tacit.cli.output import emit, table

if TYPE_CHECKING:
    from tacit.evaluation.scoring import IntArray, Tokens
    from tacit.models.base import LanguageModel

HEADS = (10, 50, 100)
TOP = 10
EXAMPLES = """
Examples:

`tacit papers head-words runs/first`

`tacit papers head-words runs/first --round 40 --tokens 75000`
"""


def head_words(
    run: ModelArgument,
    round: Round = None,
    corpus: str | None = text(None, "CORPUS", "Whose test users. [default: the run's own corpus]"),
    tokens: int = count(75_000, "N", "Tokens to measure on."),
    as_json: AsJson = False,
) -> None:
    """How often common words are among a model's top 10 predictions, on the text of test users.

    The dictionary's order is taken as the order of frequency.
    """
    from tacit.evaluation.held_out import held_out_texts
    from tacit.runs.stored_model import StoredModel

    check_counts(tokens=tokens)
    stored = StoredModel.open(run, round)
    words = stored.tokenizer
    if words.kind != "word":
        raise ValueError(f"head words need a dictionary of words, and this is {words.kind}")
    frequent = [id for id in range(words.vocab_size) if id not in (words.bos, words.eos, words.unk)]
    heads = [head for head in HEADS if head <= len(frequent)]
    if not heads:
        raise ValueError(f"head words need a dictionary of 10 at least, and it has {len(frequent)}")
    sequences = held_out_texts(stored.corpus(corpus).test, words, tokens).sequences
    if not sequences:
        raise ValueError("the test users have no text to measure on")
    histograms = head_word_histograms(stored.model, sequences, frequent, bos=words.bos, heads=heads)
    shown = table(
        *(">n", *(f">{common}" for common in range(TOP + 1))),
        title="How many of the model's top 10 are among the n most frequent words: percent",
        compact=True,
        rows=[
            (str(head), *(f"{100 * share:.1f}" for share in counts / max(counts.sum(), 1)))
            for head, counts in histograms.items()
        ],
    )
    row = {str(head): counts.tolist() for head, counts in histograms.items()}
    emit(
        {"run": str(stored.path), "round": stored.round, "head_words": row},
        as_json,
        lambda console: console.print(shown),
    )


def head_word_histograms(
    model: LanguageModel,
    sequences: Sequence[Tokens],
    frequent: Sequence[int],
    *,
    bos: int,
    heads: Sequence[int] = HEADS,
    top: int = TOP,
) -> dict[int, IntArray]:
    """For each n in `heads`: how many targets have 0, 1, ..., `top` of the n words on top.

    `frequent` lists token ids by falling frequency, without BOS, EOS and UNK, which are no words.
    """
    import numpy as np
    import torch

    from tacit.evaluation.scoring import as_arrays, batches, evaluating, pairs, top_k

    vocab_size = model.config.vocab_size
    if len(set(frequent)) != len(frequent):
        raise ValueError("frequent lists a token twice")
    if not heads or not 1 <= min(heads) <= max(heads) <= len(frequent):
        raise ValueError(
            f"heads must be between 1 and the {len(frequent)} frequent words given, got"
            f" {list(heads)}"
        )
    if not 1 <= top <= vocab_size:
        raise ValueError(f"top must be between 1 and {vocab_size}, got {top}")
    arrays = as_arrays([*sequences, frequent], vocab_size)[:-1]
    _, targets = pairs(arrays)
    frequency_rank = torch.full((vocab_size,), vocab_size)
    frequency_rank[torch.tensor(list(frequent))] = torch.arange(len(frequent))
    histograms = {n: np.zeros(top + 1, np.int64) for n in heads}
    with evaluating(model):
        for positions, logits in chain.from_iterable(batches(model, arrays)):
            counted = torch.from_numpy(targets[positions] != bos)
            first_choices = top_k(logits, top)[counted]
            for n, histogram in histograms.items():
                sizes = (frequency_rank[first_choices] < n).sum(1)
                np.add(histogram, np.bincount(sizes.numpy(), minlength=top + 1), out=histogram)
    return histograms
