"""What a tokenizer does for a model: one row of Bagdasaryan et al. 2022, Tables 1 and 2.

All figures are of the same texts, of test users, who are unprotected: nothing here reads a training
user.  So the reference of the KLD, too, is the words of those texts unless others are given; the
paper's is the training users' words.  Hence an oracle is near 0 and not at it.

Few words are a poor reference.  On court transcripts, the training users' words were at 0.32 from
34,000 words of test users and at 0.03 from 1.7 million: take all that test users say (`words_of`).

Epsilon is that of the whole run, with what its tokenizer has cost, also where the model is one from
before the run's end.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tacit.corpus.source import UserSource
from tacit.evaluation.words import WordMetrics, evaluate_words
from tacit.models.base import LanguageModel
from tacit.privacy.guarantee import Guarantee, Projection, finite
from tacit.runs.run import LanguageRun as Run
from tacit.runs.stored_model import StoredModel
from tacit.tasks.language import run_tokenizers
from tacit.tokenizers.history import LearntTokenizer
from tacit.tokenizers.normalisation import count_words
from tacit.tokenizers.public import is_origin, public_texts, word_weights
from tacit.tokenizers.tokenizer import Kind, Tokenizer
from tacit_papers.bagdasaryan2022 import fit as stats
from tacit_papers.bagdasaryan2022.fit import kl_divergence

Progress = Callable[[int, int], None]  # how much is done, of how much

_PIECE = 500  # texts scored together: enough for full batches, few enough for a bar to move


@dataclass(frozen=True)
class TokenizerRow:
    """One tokenizer, with its model if it has one, under the names that files and scripts know."""

    name: str
    kind: Kind
    data: str  # what the tokenizer was learnt from
    oov: float  # the share of words with UNK in them
    tokens_per_word: float
    kld: float | None  # None: nobody knows the words that it was learnt from
    word_accuracy: float | None = None  # None: there is no model
    perplexity_per_word: float | None = None
    epsilon: float | None = None  # None: infinite, or nothing is known if delta is None as well
    delta: float | None = None
    projected_epsilon: float | None = None  # of a larger cohort; None: none was asked for or exists
    projected_delta: float | None = None
    synthetic_users: bool = False  # then epsilon says nothing about people
    round: int | None = None
    words: int = 0  # how many were measured on
    claim: str = ""
    projected_claim: str = ""

    @property
    def has_model(self) -> bool:
        return self.word_accuracy is not None


@dataclass(frozen=True)
class Measured:
    """How a tokenizer fits texts, and how a model with it predicts them."""

    fit: stats.Fit
    words: WordMetrics


def measured(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    progress: Progress | None = None,
) -> Measured:
    """The figures of whole texts."""
    if model.config.vocab_size != tokenizer.vocab_size:
        raise ValueError(
            f"the model has a vocabulary of {model.config.vocab_size} tokens and the tokenizer one"
            f" of {tokenizer.vocab_size}: use the tokenizer that it was trained with"
        )
    fit, total = _fit(tokenizer, texts), WordMetrics()
    for start in range(0, len(texts), _PIECE):
        total += evaluate_words(model, tokenizer, texts[start : start + _PIECE])
        if progress is not None:
            progress(min(start + _PIECE, len(texts)), len(texts))
    return Measured(fit, total)


def words_of(users: UserSource, progress: Progress | None = None) -> Counter[str]:
    """How often each word occurs in all texts of users: a reference for the KLD."""

    def texts() -> Iterator[str]:
        for user in range(len(users)):
            yield from users.texts(user)
            if progress is not None:
                progress(user + 1, len(users))

    return count_words(texts(), "papers")


def row_of_tokenizer(
    learnt: LearntTokenizer,
    texts: Sequence[str],
    *,
    name: str,
    data: str | None = None,
    reference: Mapping[str, float] | None = None,
) -> TokenizerRow:
    """The row of a tokenizer that no model was trained with."""
    fit = _fit(learnt.tokenizer, texts)
    return _row(name, learnt.tokenizer, fit, _reference(reference, texts), learnt.words, data)


def row_of(
    found: Run | StoredModel,
    texts: Sequence[str],
    *,
    name: str | None = None,
    data: str | None = None,
    learnt_from: Mapping[str, float] | None = None,
    reference: Mapping[str, float] | None = None,
    projection: Projection | None = None,
    progress: Progress | None = None,
) -> TokenizerRow:
    """The row of a model, measured on test users' texts: the same ones for every row of a table.

    The counts of words in what the tokenizer was `learnt_from` are looked for in the run, and those
    of the `reference` are of the texts; if given, their words are normalised as for "papers".
    """
    stored = StoredModel.open(found.path) if isinstance(found, Run) else found
    figures = measured(stored.model, stored.tokenizer, texts, progress)
    if learnt_from is None:
        learnt_from = _words_behind(stored)
    name = name or stored.path.resolve().name
    against = _reference(reference, texts)
    row = replace(
        _row(name, stored.tokenizer, figures.fit, against, learnt_from, data),
        word_accuracy=figures.words.word_accuracy,
        perplexity_per_word=figures.words.perplexity_per_word,
        round=stored.round,
        words=figures.words.words,
    )
    return row if stored.run is None else _with_guarantee(row, stored.run.guarantee(), projection)


def _row(
    name: str,
    tokenizer: Tokenizer,
    fit: stats.Fit,
    reference: Mapping[str, float],
    learnt_from: Mapping[str, float] | None,
    data: str | None,
) -> TokenizerRow:
    if learnt_from is None:
        learnt_from = _public_words(tokenizer.provenance)
    return TokenizerRow(
        name=name,
        kind=tokenizer.kind,
        data=data or tokenizer.provenance,
        oov=fit.oov_share,
        tokens_per_word=fit.tokens_per_word,
        kld=None if learnt_from is None else kl_divergence(reference, learnt_from),
        words=fit.words,
    )


def _fit(tokenizer: Tokenizer, texts: Sequence[str]) -> stats.Fit:
    fit = stats.fit(tokenizer, texts)
    if not fit.words:
        raise ValueError("the texts have no words to measure on")
    return fit


def _reference(given: Mapping[str, float] | None, texts: Sequence[str]) -> Mapping[str, float]:
    return count_words(texts, "papers") if given is None else given


def _words_behind(stored: StoredModel) -> Mapping[str, float] | None:
    if stored.run is None:
        return None
    found = run_tokenizers.words_behind(stored.run.path, stored.tokenizer.fingerprint)
    source = stored.run.experiment.tokenizer.source
    if found is None and is_origin(source, stored.tokenizer):
        return word_weights(source)
    return found


@functools.cache
def _public_words(provenance: str) -> Mapping[str, float] | None:
    """The words of a public text that comes with tacit; None for everything else."""
    kind, _, name = provenance.partition(": ")
    try:
        return count_words(public_texts(name), "papers") if kind == "public" else None
    except ValueError:  # there is no text of that name
        return None


def _with_guarantee(row: TokenizerRow, found: Guarantee, to: Projection | None) -> TokenizerRow:
    """What may be claimed, and what could be with more people if that is asked for."""
    row = replace(
        row,
        epsilon=finite(found.value),
        delta=found.delta,
        claim=found.claim,
        synthetic_users=not found.header.about_people,
    )
    if to is None or row.epsilon is None or not found.rounds or row.synthetic_users:
        return row
    try:
        there = found.projected(to)
    except ValueError:  # the table says of which rows nothing is projected
        return row
    return replace(
        row,
        projected_epsilon=finite(there.value),
        projected_delta=there.delta,
        projected_claim=there.claim,
    )
