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

from tacit.audit.membership import (
    ATTACKS,
    Likelihoods,
    Mask,
    MembershipAttack,
    MembershipResult,
    ScoredAttack,
    check_disjoint,
    measure_attacks,
)
from tacit.corpus.hashing import role_draw
from tacit.corpus.source import Subset, UserSource
from tacit.evaluation.scoring import Predictor, Tokens, score, vocab_size_of
from tacit.models.base import LanguageModel
from tacit.privacy import checks
from tacit.public.pretrain import Settings, StepReport, pretrain
from tacit.tokenizers.cache import PAPERS_CAP
from tacit.tokenizers.tokenizer import Tokenizer

UserTexts = Mapping[str, Sequence[Tokens]]  # by user id: texts as token ids, BOS to EOS

FRESH, TRAINING, ALL = "fresh", "training", "all"
_TEXTS = (FRESH, TRAINING, ALL)
_POPULATION_SHARE = 0.25  # of the non-members, for RMIA


def check_texts(which: str) -> None:
    """`ValueError` unless it says which texts of the members are scored."""
    if which not in _TEXTS:
        raise ValueError(f"texts must be one of {', '.join(_TEXTS)}, got {which!r}")


def _score_users(models: Sequence[Predictor], texts: UserTexts, *, bos: int) -> Likelihoods:
    """log p of all of each user's texts, each from a fresh state; the first model is the target.

    Refused: a user with nothing to score, and a model that gives some text no probability at all
    (its weights are NaN, or it rules a token out), for no ratio to it means anything.
    """
    if not texts:
        raise ValueError("there are no users to score; give at least one user's texts")
    every = [text for own in texts.values() for text in own]
    counts = np.array([len(own) for own in texts.values()], dtype=np.int64)
    log_probs, tokens = [], np.zeros(len(texts), np.int64)
    for model in models:
        scored = score(model, every)
        counted = scored.targets != bos
        users = np.repeat(np.arange(len(texts)), counts)
        owners = np.repeat(users, np.diff(scored.first))[counted]
        tokens = np.bincount(owners, minlength=len(texts))
        sums = np.bincount(owners, weights=scored.log_probs[counted], minlength=len(texts))
        if empty := int((tokens == 0).sum()):
            raise ValueError(f"{empty} of {len(texts)} users have no text to score; leave them out")
        if broken := int((~np.isfinite(sums)).sum()):
            raise ValueError(
                f"the model gives the texts of {broken} of {len(texts)} users no probability: its"
                " weights may be NaN, or it rules out a token"
            )
        log_probs.append(sums.astype(np.float64))
    others = np.array(log_probs[1:]).reshape(-1, len(texts))
    return Likelihoods(log_probs[0], others, tokens, counts)


def _user_texts(
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


def reference_model(
    start: LanguageModel,
    texts: UserTexts,
    settings: Settings,
    *,
    bos: int,
    seed: int = 0,
    progress: Callable[[StepReport], None] | None = None,
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
        return _user_texts(
            users, tokenizer, which, max_users=max_users, max_tokens=max_tokens, seed=seed
        )

    return _Groups(
        shown(train),
        shown(non_members),
        tuple(_user_texts(users, tokenizer, TRAINING, max_tokens=max_tokens) for users in trained),
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


def attack_users(
    target: Predictor,
    members: UserTexts,
    non_members: UserTexts,
    references: Sequence[Reference] = (),
    *,
    bos: int,
    attacks: Sequence[MembershipAttack] = ATTACKS,
    texts: str = FRESH,
    confidence: float = 0.95,
) -> MembershipResult:
    """Attack every user and count how often each attack is right.

    `texts` says which of the members' texts these are, for the record.  A quarter of the
    non-members, chosen by a hash of their ids, is RMIA's population and is not measured by it.
    """
    check_texts(texts)
    if not attacks:
        raise ValueError("there is no attack to run; give at least one")
    for attack in attacks:
        attack.check_references(len(references))
    _check_roles(target, {"members": members, "non-members": non_members}, references)
    needed = references if any(attack.needs_references for attack in attacks) else ()
    models = [target, *(reference.model for reference in needed)]
    inside, outside = (_score_users(models, side, bos=bos) for side in (members, non_members))
    units, scored = (tuple(members), tuple(non_members)), []
    for attack in attacks:
        population, left_out = None, {}
        if attack.needs_population:
            aside = _set_aside(units[1])
            population = outside.only(aside)
            left_out = {"population": (np.zeros(len(members), dtype=bool), aside)}
        scores = attack.scores(inside, population), attack.scores(outside, population)
        scored.append(ScoredAttack(attack.name, scores, left_out))
    figures, absent = measure_attacks(scored, units, confidence=confidence)
    return MembershipResult(
        texts=texts,
        members=len(members),
        non_members=len(non_members),
        references=len(needed),
        confidence=confidence,
        attacks=figures,
        absent=absent,
    )


def _set_aside(users: Sequence[str]) -> Mask:
    """Which non-members are RMIA's population: about a quarter, by a hash of their ids."""
    chosen = np.array([role_draw("population", user) < _POPULATION_SHARE for user in users])
    if not chosen.any() or chosen.all():
        raise ValueError(
            f"{len(users)} non-members are too few to set a population aside for the attack rmia;"
            " give more non-members"
        )
    return chosen


def _check_roles(
    target: Predictor, groups: Mapping[str, Collection[str]], references: Sequence[Reference]
) -> None:
    """Refuse groups that are empty or overlap, and references that do not fit or met a user."""
    check_disjoint({role: set(users) for role, users in groups.items()})
    for role, users in groups.items():
        if not users:
            raise ValueError(f"there are no {role} to attack; give at least one user's texts")
        for reference in references:
            if shared := len(reference.users.intersection(users)):
                raise ValueError(
                    f"a reference model was trained on {shared} of the {len(users)} {role};"
                    " train it on users disjoint from all that are attacked"
                )
    attacked = vocab_size_of(target)
    for reference in references:
        if (own := vocab_size_of(reference.model)) != attacked:
            raise ValueError(
                f"a reference model has a vocabulary of {own} tokens and the attacked model one of"
                f" {attacked}; references must share its tokenizer"
            )


def _cut(texts: list[list[int]], max_tokens: int | None) -> Iterator[list[int]]:
    """The texts up to the cap, and what the cap leaves of the next; a lone BOS is nothing."""
    left = max_tokens
    for text in texts:
        cut = text if left is None else text[:left]
        if len(cut) >= 2:
            yield cut
        left = None if left is None else left - len(cut)
