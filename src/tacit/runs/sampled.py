"""A tokenizer from what a run's model says: it costs the people of the run nothing more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tacit.evaluation.sampling import DEFAULT, Sampling, sample_texts
from tacit.runs.run import LanguageRun
from tacit.tokenizers import learn
from tacit.tokenizers.history import History, LearntTokenizer
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

    The history is the run's ledger up to that round: its people have paid for the model.  A run
    whose own tokenizer was learnt from others of the corpus is refused before anything is sampled,
    since there would be two histories to pass on.  `key` decides about the samples and protects
    nobody: the model was released already.
    """
    for cost in run.ledger.header.prior_costs:
        if cost.whom == "beside":
            raise ValueError(
                f"the tokenizer of {run.path} was learnt from part {cost.part} of the users, and"
                " what is sampled from its model would tell about both parts; sample from a run"
                " with a public tokenizer"
            )
    checkpoint = run.directory.checkpoints.read(round)
    model, old = run.model(checkpoint.leg), run.tokenizer_at(checkpoint.leg)
    texts = sample_texts(model, old, key, tokens=tokens, sampling=sampling, progress=progress)
    how = (
        f"{tokens} tokens sampled from the model of the run {run.ledger.header.run_id} after round"
        f" {checkpoint.leg}"
    )
    learnt = learn.from_samples(texts, old, kind=kind, size=size, of=how)
    history = History.of(run.ledger, checkpoint.head, learnt.tokenizer, how, checkpoint.leg)
    return replace(learnt, history=history)
