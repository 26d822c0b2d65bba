"""What a model thinks of each user's texts: their log-probabilities, the raw matter of attacks.

What counts in a text is what counts in every metric (see `tacit.evaluation.accuracy`): all tokens
but BOS, the end of the text among them; an unknown word counts with the probability of UNK.

Everything here is computed from people's text, members' among it, and is internal to whoever holds
that text: it belongs in `private/` and in no report for others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import nn

from tacit.corpus.source import UserSource
from tacit.corpus.views import held_out, kept
from tacit.evaluation.predictors import Predictor, Tokens, as_predictor
from tacit.evaluation.scores import score
from tacit.privacy import checks
from tacit.tokenizers.cache import PAPERS_CAP
from tacit.tokenizers.tokenizer import Tokenizer

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
UserTexts = Mapping[str, Sequence[Tokens]]  # by user id: texts as token ids, BOS to EOS
Model = Predictor | nn.Module

FRESH, TRAINING, ALL = "fresh", "training", "all"
TEXTS = (FRESH, TRAINING, ALL)

_TOKENS_AT_ONCE = 500_000  # bounds the memory, and leaves enough texts to sort by length


@dataclass(frozen=True)
class UserScores:
    """Per text: the sum of its tokens' log-probabilities and their number; texts by user."""

    users: tuple[str, ...]
    first: Ints  # where each user's texts begin; one more entry than users
    log_probs: Floats  # natural logarithms
    tokens: Ints

    def totals(self) -> Floats:
        """Per user, log p of all texts together."""
        return self._summed(self.log_probs)

    def token_counts(self) -> Ints:
        """Per user, how many tokens were scored."""
        return self._summed(self.tokens).astype(np.int64)

    def text_counts(self) -> Ints:
        """Per user, how many texts were scored."""
        return np.diff(self.first)

    def text_means(self, values: Floats) -> Floats:
        """Per user, the mean of a value that every text has."""
        means: Floats = self._summed(values) / self.text_counts()
        return means

    def only(self, chosen: npt.NDArray[np.bool_]) -> UserScores:
        """The scores of some of the users."""
        counts = self.text_counts()
        texts = np.repeat(chosen, counts)
        return UserScores(
            tuple(user for user, keep in zip(self.users, chosen, strict=True) if keep),
            _offsets(counts[chosen]),
            self.log_probs[texts],
            self.tokens[texts],
        )

    def _summed(self, values: Floats | Ints) -> Floats:
        owners = np.repeat(np.arange(len(self.users)), self.text_counts())
        sums = np.bincount(owners, weights=values, minlength=len(self.users))
        return sums.astype(np.float64)


def score_users(model: Model, texts: UserTexts, *, bos: int) -> UserScores:
    """Score every text of every user, each text from a fresh state.

    Refused: a user with nothing to score, and a model that gives some text no probability at all
    (its weights are NaN, or it rules a token out), for no ratio to it means anything.
    """
    if not texts:
        raise ValueError("there are no users to score; give at least one user's texts")
    predictor = as_predictor(model)
    log_probs, tokens = [], []
    for batch in _batches(texts):
        sums, counts = _score_texts(predictor, batch, bos)
        log_probs.append(sums)
        tokens.append(counts)
    found = UserScores(
        tuple(texts),
        _offsets(np.array([len(mine) for mine in texts.values()], dtype=np.int64)),
        np.concatenate([np.empty(0), *log_probs]),
        np.concatenate([np.empty(0, np.int64), *tokens]),
    )
    _check(found)
    return found


def user_texts(
    users: UserSource,
    tokenizer: Tokenizer,
    which: str = FRESH,
    *,
    max_users: int | None = None,
    max_tokens: int | None = PAPERS_CAP,
    seed: int = 0,
) -> dict[str, list[list[int]]]:
    """Tokenized texts by user id, of users in a random but fixed order; who has none is left out.

    `which` is "fresh" (texts that training leaves out), "training" (those it does not), or "all".
    Choose the same for non-members, although none of theirs was trained on: otherwise members are
    told by how many texts they show.  A user's tokens are cut where training cuts them, at
    `max_tokens`, so "training" texts are those that were really trained on.
    """
    if which not in TEXTS:
        raise ValueError(f"texts must be one of {', '.join(TEXTS)}, got {which!r}")
    if max_users is not None:
        checks.whole("max_users", max_users, at_least=1)
    if max_tokens is not None:
        checks.whole("max_tokens", max_tokens, at_least=2)
    if users.is_synthetic_users:
        raise ValueError(
            "users of the IID view stand for nobody, so none can be a member; attack the users of"
            " the corpus itself"
        )
    views = {FRESH: held_out, TRAINING: kept}
    source = views[which](users) if which in views else users
    found: dict[str, list[list[int]]] = {}
    for index in np.random.default_rng(seed).permutation(len(source)).tolist():
        if len(found) == max_users:
            break
        texts = source.texts(index)
        needed = texts if max_tokens is None else texts[: (max_tokens + 1) // 2]
        mine = list(_cut(tokenizer.encode_batch(needed), max_tokens))
        if mine:
            found[source.user_id(index)] = mine
    if not found:
        raise ValueError(
            f"none of {len(source)} users has {which} texts; ingest the corpus with some texts held"
            f" out, or choose other texts than {which!r}"
        )
    return found


def _cut(texts: list[list[int]], max_tokens: int | None) -> Iterator[list[int]]:
    """The texts up to the cap, and what the cap leaves of the next; a lone BOS is nothing."""
    left = max_tokens
    for text in texts:
        mine = text if left is None else text[:left]
        if len(mine) >= 2:
            yield mine
        left = None if left is None else left - len(mine)


def _batches(texts: UserTexts) -> Iterator[list[Tokens]]:
    """All texts in order, many at a time."""
    batch: list[Tokens] = []
    size = 0
    for mine in texts.values():
        batch += mine
        size += sum(len(text) for text in mine)
        if size >= _TOKENS_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _score_texts(predictor: Predictor, texts: list[Tokens], bos: int) -> tuple[Floats, Ints]:
    scores = score(predictor, texts)
    kept_targets = scores.targets != bos
    owners = np.repeat(np.arange(len(texts)), np.diff(scores.first))[kept_targets]
    sums = np.bincount(owners, weights=scores.log_probs[kept_targets], minlength=len(texts))
    counts = np.bincount(owners, minlength=len(texts))
    return sums.astype(np.float64), counts.astype(np.int64)


def _check(found: UserScores) -> None:
    empty = int((found.token_counts() == 0).sum())
    if empty:
        raise ValueError(
            f"{empty} of {len(found.users)} users have no text to score; leave such users out"
        )
    broken = int((~np.isfinite(found.log_probs)).sum())
    if broken:
        raise ValueError(
            f"the model gives {broken} of {len(found.log_probs)} texts no probability: its weights"
            " may be NaN, or it rules out a token"
        )


def _offsets(counts: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
