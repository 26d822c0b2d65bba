"""Reference models: what a model would think of somebody's texts had it never met that person.

Some texts are likely under any model.  What gives a member away is that *this* model finds the
member's texts likelier than a model does that was trained alike, on other people.  So a reference
starts from the same weights as the target (the public ones, or the same initial ones), is trained
plainly (`tacit.public.pretrain`), and its users are neither members nor the non-members on whom
the attack is measured: test users are halved by a hash of their id, so that one user never moves
another.

A reference learns from test users' text without any protection.  It is a tool of the audit, and
is not to be released.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tacit.audit.user_scores import FRESH, TRAINING, Model, UserTexts, user_texts
from tacit.corpus.source import UserSource
from tacit.corpus.views import Subset
from tacit.evaluation.predictors import as_predictor
from tacit.models.base import LanguageModel, ModelConfig
from tacit.models.registry import from_config
from tacit.privacy import checks
from tacit.public.pretrain import pretrain
from tacit.public.steps import Progress, Settings
from tacit.tokenizers.cache import PAPERS_CAP
from tacit.tokenizers.tokenizer import Tokenizer

_DRAWS = 2**64


@dataclass(frozen=True)
class Reference:
    """A model, and the users it was trained on, who must not be among those attacked."""

    model: Model
    users: frozenset[str] = frozenset()

    def check_fits(self, target: Model) -> None:
        """`ValueError` unless it speaks of the same tokens as the attacked model."""
        ours, theirs = (as_predictor(each).vocab_size for each in (self.model, target))
        if ours != theirs:
            raise ValueError(
                f"a reference model has a vocabulary of {ours} tokens and the attacked model one of"
                f" {theirs}; references must share its tokenizer"
            )


@dataclass(frozen=True)
class Halves:
    """Indices of test users: those of each reference model, and the non-members."""

    references: tuple[tuple[int, ...], ...]
    non_members: tuple[int, ...]


def split_test_users(user_ids: Sequence[str], references: int = 1) -> Halves:
    """Half of the test users for the reference models, each with its own part; half non-members."""
    checks.whole("references", references, at_least=1)
    groups: list[list[int]] = [[] for _ in range(references)]
    non_members: list[int] = []
    for index, user in enumerate(user_ids):
        place = 2 * references * draw("role", user) // _DRAWS
        (groups[place] if place < references else non_members).append(index)
    if not non_members or not all(groups):
        raise ValueError(
            f"{len(user_ids)} test users are too few for {references} reference models and"
            " non-members to measure on; take more test users or fewer reference models"
        )
    return Halves(tuple(map(tuple, groups)), tuple(non_members))


@dataclass(frozen=True)
class Groups:
    """The texts of everybody whom an attack needs."""

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
) -> Groups:
    """Texts of training users (of those that took part) and of test users in their roles.

    `which`, `max_users` of each group and `max_tokens` of each user are those of `user_texts`.
    References learn from the texts that training would have taken, and from all their users.
    """
    halves = split_test_users([test.user_id(index) for index in range(len(test))], references)

    def shown(users: UserSource) -> UserTexts:
        return user_texts(
            users, tokenizer, which, max_users=max_users, max_tokens=max_tokens, seed=seed
        )

    return Groups(
        shown(train),
        shown(Subset(test, halves.non_members)),
        tuple(
            user_texts(Subset(test, group), tokenizer, TRAINING, max_tokens=max_tokens)
            for group in halves.references
        ),
    )


def reference_model(
    start: LanguageModel | ModelConfig,
    texts: UserTexts,
    settings: Settings,
    *,
    bos: int,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Reference:
    """A copy of `start`, trained on these users' texts; a configuration starts from the seed.

    The seed takes the place of that of the settings.
    """
    if not texts:
        raise ValueError("there are no users to train a reference model on; give at least one")
    model = copy.deepcopy(start) if isinstance(start, LanguageModel) else from_config(start, seed)
    joined = [text for mine in texts.values() for text in mine]
    pretrain(model, joined, replace(settings, seed=seed), bos=bos, progress=progress)
    model.eval()
    return Reference(model, frozenset(texts))


def check_roles(
    groups: Mapping[str, Collection[str]], references: Sequence[Reference] = ()
) -> None:
    """Every group has users, nobody is in two, and no reference was trained on any of them."""
    roles = list(groups)
    for place, role in enumerate(roles):
        if not groups[role]:
            raise ValueError(f"there are no {role} to attack; give at least one user's texts")
        for other in roles[place + 1 :]:
            shared = len(set(groups[role]).intersection(groups[other]))
            if shared:
                raise ValueError(
                    f"{shared} users are among both the {role} and the {other}; the groups must"
                    " be disjoint"
                )
        for reference in references:
            shared = len(reference.users.intersection(groups[role]))
            if shared:
                raise ValueError(
                    f"a reference model was trained on {shared} of the {len(groups[role])} {role};"
                    " train it on users disjoint from all that are attacked"
                )


def draw(purpose: str, user_id: str) -> int:
    """64 bits that depend on the purpose and this user alone."""
    digest = hashlib.sha256(f"tacit audit {purpose}\0{user_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big")
