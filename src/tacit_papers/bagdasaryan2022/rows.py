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

import numpy as np

from tacit.corpus.source import UserSource
from tacit.evaluation.accuracy import Metrics, evaluate
from tacit.models.base import LanguageModel
from tacit.privacy.guarantee import Guarantee, finite
from tacit.privacy.projection import Projection
from tacit.runs.run import LanguageRun
from tacit.runs.stored_model import StoredModel
from tacit.tasks.language.run_tokenizers import RunTokenizers
from tacit.tokenizers.history import LearntTokenizer
from tacit.tokenizers.normalisation import count_words, split_words
from tacit.tokenizers.public import PublicSource
from tacit.tokenizers.tokenizer import Kind, Tokenizer
from tacit_papers.bagdasaryan2022.fit import Fit, fit, kl_divergence

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
    kld: float | None  # None: the words that it was learnt from are not known
    word_accuracy: float | None = None  # None: there is no model
    word_accuracy_unk_competes: float | None = None  # the paper's; see evaluation.accuracy
    perplexity_per_word: float | None = None
    epsilon: float | None = None  # None: infinite, or nothing is known if delta is None as well
    delta: float | None = None
    projected_epsilon: float | None = None  # of a larger cohort; None: none was asked for or exists
    projected_delta: float | None = None
    synthetic_users: bool = False  # then epsilon says nothing about people
    round: int | None = None
    words: int = 0  # how many it was measured on
    claim: str = ""
    projected_claim: str = ""

    @property
    def has_model(self) -> bool:
        """Whether a model was measured, and not the tokenizer alone."""
        return self.word_accuracy is not None


def whole_texts(users: UserSource, max_words: int, seed: int = 0) -> list[str]:
    """Whole texts of the users of `held_out_texts`, in its order, until there are `max_words`.

    Nothing is cut, so that each user, and all together, may give up to one text more.
    """
    chosen: list[str] = []
    left, share = max_words, max(1, max_words // 10)
    for user in np.random.default_rng(seed).permutation(len(users)).tolist():
        if left <= 0:
            break
        room = min(share, left)
        for text in users.texts(user):
            if room <= 0:
                break
            [words] = split_words([text], "papers")
            chosen.append(text)
            room -= len(words)
            left -= len(words)
    return chosen


def measured(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    progress: Progress | None = None,
) -> tuple[Fit, Metrics]:
    """How a tokenizer fits whole texts, and how a model with it predicts their words."""
    if model.config.vocab_size != tokenizer.vocab_size:
        raise ValueError(
            f"the model has a vocabulary of {model.config.vocab_size} tokens and the tokenizer one"
            f" of {tokenizer.vocab_size}: use the tokenizer that it was trained with"
        )
    fitted, metrics = _fit(tokenizer, texts), Metrics()
    for start in range(0, len(texts), _PIECE):
        words = [tokenizer.word_ids(text) for text in texts[start : start + _PIECE]]
        metrics += evaluate(
            model,
            [tokens for tokens, _ in words],
            bos=tokenizer.bos,
            unk=tokenizer.unk,
            owners=[owners for _, owners in words],
        )
        if progress is not None:
            progress(min(start + _PIECE, len(texts)), len(texts))
    return fitted, metrics


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
    fitted = _fit(learnt.tokenizer, texts)
    if reference is None:
        reference = count_words(texts, "papers")
    return _row(name, learnt.tokenizer, fitted, reference, learnt.words, data)


def row_of(
    source: LanguageRun | StoredModel,
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

    Args:
        source: a run, whose last model is measured, or a model.
        texts: the texts to measure on.
        name: what the row is called; else its folder.
        data: what the tokenizer was learnt from, in words; else its provenance.
        learnt_from: the counts of words that it was learnt from; else looked for in the run.
        reference: the counts of words that the KLD compares with; else those of the texts.
        projection: where epsilon is to be projected to, beside the actual one; else where the
            run's own experiment says.
        progress: is told how many texts are done, and of how many.

    Counts of words that are handed over are normalised as for "papers".
    """
    stored = StoredModel.open(source.path) if isinstance(source, LanguageRun) else source
    fitted, metrics = measured(stored.model, stored.tokenizer, texts, progress)
    if learnt_from is None:
        learnt_from = _words_behind(stored)
    if reference is None:
        reference = count_words(texts, "papers")
    name = name or stored.path.resolve().name
    row = replace(
        _row(name, stored.tokenizer, fitted, reference, learnt_from, data),
        word_accuracy=metrics.word_accuracy,
        word_accuracy_unk_competes=metrics.word_accuracy_unk_competes,
        perplexity_per_word=metrics.perplexity_per_word,
        round=stored.round,
        words=metrics.words,
    )
    if stored.run is None:
        return row
    return _with_guarantee(row, stored.run.guarantee(), projection or stored.run.projection())


def _row(
    name: str,
    tokenizer: Tokenizer,
    fitted: Fit,
    reference: Mapping[str, float],
    learnt_from: Mapping[str, float] | None,
    data: str | None,
) -> TokenizerRow:
    """What a row says about its tokenizer."""
    if learnt_from is None:
        learnt_from = _public_words(tokenizer.provenance)
    return TokenizerRow(
        name=name,
        kind=tokenizer.kind,
        data=data or tokenizer.provenance,
        oov=fitted.oov_share,
        tokens_per_word=fitted.tokens_per_word,
        kld=None if learnt_from is None else kl_divergence(reference, learnt_from),
        words=fitted.words,
    )


def _fit(tokenizer: Tokenizer, texts: Sequence[str]) -> Fit:
    fitted = fit(tokenizer, texts)
    if not fitted.words:
        raise ValueError("the texts have no words to measure on")
    return fitted


def _words_behind(stored: StoredModel) -> Mapping[str, float] | None:
    """The words a run's tokenizer was learnt from, if the run or its public source has them."""
    if stored.run is None:
        return None
    words = RunTokenizers(stored.run.path).words_behind(stored.tokenizer.fingerprint)
    source = PublicSource(stored.run.experiment.tokenizer.source)
    if words is None and source.is_origin_of(stored.tokenizer):
        return source.word_weights()
    return words


@functools.cache
def _public_words(provenance: str) -> Mapping[str, float] | None:
    """The words of a public text that comes with tacit; None for everything else."""
    kind, _, name = provenance.partition(": ")
    source = PublicSource(name)
    return source.word_weights() if kind == "public" and source.parts else None


def _with_guarantee(row: TokenizerRow, guarantee: Guarantee, to: Projection | None) -> TokenizerRow:
    """What may be claimed, and what could be with more people if that is asked for."""
    row = replace(
        row,
        epsilon=finite(guarantee.value),
        delta=guarantee.delta,
        claim=guarantee.claim,
        synthetic_users=not guarantee.header.about_people,
    )
    if to is None or row.epsilon is None or not guarantee.rounds or row.synthetic_users:
        return row
    try:
        projected = guarantee.projected(to)
    except ValueError:  # the table says of which rows nothing is projected
        return row
    return replace(
        row,
        projected_epsilon=finite(projected.value),
        projected_delta=projected.delta,
        projected_claim=projected.claim,
    )
