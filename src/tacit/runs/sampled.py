"""A tokenizer from what a run's model says: it costs the people of the run nothing more."""

from __future__ import annotations

from collections.abc import Callable

from tacit.evaluation.sampling import DEFAULT, Sampling, sample_texts
from tacit.runs.run import LanguageRun
from tacit.tokenizers import learn
from tacit.tokenizers.history import LearntTokenizer
from tacit.tokenizers.tokenizer import Kind


def sampled_tokenizer(
    run: LanguageRun,
    round: int | None,
    kind: Kind,
    size: int,
    key: bytes,
    *,
    tokens: int = 1_000_000,
    sampling: Sampling = DEFAULT,
    progress: Callable[[int, int], None] | None = None,
) -> LearntTokenizer:
    """Sample the model after a round (None: the last), learn a tokenizer, and keep its history.

    `key` decides about the samples and protects nobody: the model was released already.
    """
    checkpoint = run.directory.checkpoints.read(round)
    old = run.tokenizer_at(checkpoint.leg)

    def sample() -> list[str]:
        model = run.model(checkpoint.leg)
        return sample_texts(model, old, key, tokens=tokens, sampling=sampling, progress=progress)

    return learn.from_run(
        sample,
        old,
        run.ledger,
        checkpoint.head,
        checkpoint.leg,
        kind=kind,
        size=size,
        tokens=tokens,
    )
