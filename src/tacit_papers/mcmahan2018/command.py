"""`tacit papers head-words`: does a model fall back on common words?"""

from __future__ import annotations

from rich.console import Console

from tacit.cli.options import AsJson, ModelArgument, Round, count, text
from tacit.cli.output import emit, table

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
    from tacit.cli.evaluate import held_out_of
    from tacit.runs.stored_model import StoredModel
    from tacit_papers.mcmahan2018.head_words import HEADS, head_word_histograms

    stored = StoredModel.open(run, round)
    words = stored.tokenizer
    if words.kind != "word":
        raise ValueError(f"head words need a dictionary of words, and this is {words.kind}")
    # A dictionary lists the most frequent words first.
    frequent = [id for id in range(words.vocab_size) if id not in (words.bos, words.eos, words.unk)]
    heads = [head for head in HEADS if head <= len(frequent)]
    if not heads:
        raise ValueError(f"head words need 10 words at least, and there are {len(frequent)}")
    sequences = held_out_of(stored, stored.corpus(corpus), tokens)
    total = head_word_histograms(stored.model, sequences, frequent, bos=words.bos, heads=heads)
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
