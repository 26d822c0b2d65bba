"""The users of a membership attack: their texts, what a model thinks of them, reference models.

A membership attack compares members, whose text was trained on, with non-members.  What counts in
a text is what counts in every metric (see `tacit.evaluation.accuracy`): all tokens but BOS, the end
of the text among them; an unknown word counts with the probability of UNK.

Some texts are likely under any model.  What gives a member away is that *this* model finds the
member's texts likelier than a model does that was trained alike, on other people.  So a reference
model starts from the same weights as the target (the public ones, or the same initial ones), is
trained plainly (`tacit.public.pretrain`), and its users are neither members nor the non-members on
whom the attack is measured: test users are halved by a hash of their id, so that one user never
moves another.

Everything here is computed from people's text, members' among it: it belongs in `private/` and in
no report for others.  A reference learns from test users' text without any protection: it is a tool
of the audit, and is not to be released.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tacit.audit.roc import Floats, Ints
from tacit.corpus.hashing import role_draw
from tacit.corpus.source import Subset, UserSource
from tacit.evaluation.scoring import Predictor, Tokens, score, vocab_size_of
from tacit.models.base import LanguageModel
from tacit.privacy import checks
from tacit.public.pretrain import Progress, Settings, pretrain
from tacit.tokenizers.cache import PAPERS_CAP
from tacit.tokenizers.tokenizer import Tokenizer

UserTexts = Mapping[str, Sequence[Tokens]]  # by user id: texts as token ids, BOS to EOS

FRESH, TRAINING, ALL = "fresh", "training", "all"
_TEXTS = (FRESH, TRAINING, ALL)


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


def check_texts(which: str) -> None:
    """`ValueError` unless it says which texts of the members are scored."""
    if which not in _TEXTS:
        raise ValueError(f"texts must be one of {', '.join(_TEXTS)}, got {which!r}")


def score_users(model: Predictor, texts: UserTexts, *, bos: int) -> UserScores:
    """Score every text of every user, each text from a fresh state.

    Refused: a user with nothing to score, and a model that gives some text no probability at all
    (its weights are NaN, or it rules a token out), for no ratio to it means anything.
    """
    if not texts:
        raise ValueError("there are no users to score; give at least one user's texts")
    every = [text for own in texts.values() for text in own]
    scored = score(model, every)
    counted = scored.targets != bos
    owners = np.repeat(np.arange(len(every)), np.diff(scored.first))[counted]
    sums = np.bincount(owners, weights=scored.log_probs[counted], minlength=len(every))
    scores = UserScores(
        tuple(texts),
        _offsets(np.array([len(own) for own in texts.values()], dtype=np.int64)),
        sums.astype(np.float64),
        np.bincount(owners, minlength=len(every)),
    )
    if empty := int((scores.token_counts() == 0).sum()):
        raise ValueError(f"{empty} of {len(texts)} users have no text to score; leave them out")
    if broken := int((~np.isfinite(scores.log_probs)).sum()):
        raise ValueError(
            f"the model gives {broken} of {len(scores.log_probs)} texts no probability: its weights"
            " may be NaN, or it rules out a token"
        )
    return scores


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
    check_texts(which)
    if max_users is not None:
        checks.whole("max_users", max_users, at_least=1)
    if max_tokens is not None:
        checks.whole("max_tokens", max_tokens, at_least=2)
    if users.is_synthetic_users:
        raise ValueError(
            "users of the IID view stand for nobody, so none can be a member; attack the users of"
            " the corpus itself"
        )
    views = {FRESH: UserSource.held_out, TRAINING: UserSource.kept}
    source = views[which](users) if which in views else users
    chosen: dict[str, list[list[int]]] = {}
    for index in np.random.default_rng(seed).permutation(len(source)).tolist():
        if len(chosen) == max_users:
            break
        texts = source.texts(index)
        needed = texts if max_tokens is None else texts[: (max_tokens + 1) // 2]
        own = list(_cut(tokenizer.encode_batch(needed), max_tokens))
        if own:
            chosen[source.user_id(index)] = own
    if not chosen:
        raise ValueError(
            f"none of {len(source)} users has {which} texts; ingest the corpus with some texts held"
            f" out, or choose other texts than {which!r}"
        )
    return chosen


@dataclass(frozen=True)
class Reference:
    """A reference model, and the users it was trained on, who must not be among those attacked."""

    model: Predictor
    users: frozenset[str] = frozenset()

    def check_fits(self, target: Predictor) -> None:
        """`ValueError` unless it has as many tokens as the attacked model."""
        own, attacked = (vocab_size_of(each) for each in (self.model, target))
        if own != attacked:
            raise ValueError(
                f"a reference model has a vocabulary of {own} tokens and the attacked model one of"
                f" {attacked}; references must share its tokenizer"
            )


def reference_model(
    start: LanguageModel,
    texts: UserTexts,
    settings: Settings,
    *,
    bos: int,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Reference:
    """A copy of `start`, trained on these users' texts; `seed` overrides that of the settings."""
    if not texts:
        raise ValueError("there are no users to train a reference model on; give at least one")
    model = copy.deepcopy(start)
    joined = [text for own in texts.values() for text in own]
    pretrain(model, joined, replace(settings, seed=seed), bos=bos, progress=progress)
    model.eval()
    return Reference(model, frozenset(texts))


@dataclass(frozen=True)
class _Groups:
    """The texts of all users whom an attack needs."""

    members: UserTexts
    non_members: UserTexts
    references: tuple[UserTexts, ...]  # to train on, one group for each reference model


def gather(
    train: UserSource,
    test: UserSource,
    tokenizer: Tokenizer,
    which: str = FRESH,
    *,
    references: int = 1,
    max_users: int | None = None,
    max_tokens: int | None = PAPERS_CAP,
    seed: int = 0,
) -> _Groups:
    """Texts of training users (of those that took part) and of test users in their roles.

    `which`, `max_users` of each group and `max_tokens` of each user are those of `user_texts`.
    References learn from the texts that training would have taken, and from all their users.
    Without references, all test users are non-members.
    """
    trained, non_members = [], test
    if references:
        ids = [test.user_id(index) for index in range(len(test))]
        parts, others = _split_test_users(ids, references)
        trained, non_members = [Subset(test, part) for part in parts], Subset(test, others)

    def shown(users: UserSource) -> UserTexts:
        return user_texts(
            users, tokenizer, which, max_users=max_users, max_tokens=max_tokens, seed=seed
        )

    return _Groups(
        shown(train),
        shown(non_members),
        tuple(user_texts(users, tokenizer, TRAINING, max_tokens=max_tokens) for users in trained),
    )


def _split_test_users(
    user_ids: Sequence[str], references: int = 1
) -> tuple[list[list[int]], list[int]]:
    """Indices of the test users that each reference model learns from, and of the non-members.

    Half of the users are for the references, each of which has its own part.
    """
    checks.whole("references", references, at_least=1)
    parts: list[list[int]] = [[] for _ in range(references)]
    non_members: list[int] = []
    for index, user in enumerate(user_ids):
        part = int(2 * references * role_draw("role", user))
        (parts[part] if part < references else non_members).append(index)
    if not non_members or not all(parts):
        raise ValueError(
            f"{len(user_ids)} test users are too few for {references} reference models and"
            " non-members to measure on; take more test users or fewer reference models"
        )
    return parts, non_members


def check_roles(
    groups: Mapping[str, Collection[str]], references: Sequence[Reference] = ()
) -> None:
    """Refuse groups that are empty or overlap, and references trained on any of their users."""
    roles = list(groups)
    for index, role in enumerate(roles):
        if not groups[role]:
            raise ValueError(f"there are no {role} to attack; give at least one user's texts")
        for other in roles[index + 1 :]:
            if shared := len(set(groups[role]).intersection(groups[other])):
                raise ValueError(
                    f"{shared} users are among both the {role} and the {other}; the groups must"
                    " be disjoint"
                )
        for reference in references:
            if shared := len(reference.users.intersection(groups[role])):
                raise ValueError(
                    f"a reference model was trained on {shared} of the {len(groups[role])} {role};"
                    " train it on users disjoint from all that are attacked"
                )


def _cut(texts: list[list[int]], max_tokens: int | None) -> Iterator[list[int]]:
    """The texts up to the cap, and what the cap leaves of the next; a lone BOS is nothing."""
    left = max_tokens
    for text in texts:
        cut = text if left is None else text[:left]
        if len(cut) >= 2:
            yield cut
        left = None if left is None else left - len(cut)


def _offsets(counts: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
