"""The shadow attack (Shokri et al. 2017, as in Dupuy et al. 2021, section 4.2).

A shadow model is trained on a corpus of the attacker's own, so it is known who its members are.  A
classifier learns to tell them from non-members by their sorted scores (`attack_features`), and is
then used on the scores of the model under attack.  It needs no label of an utterance, and is one
for all classes: another corpus has other ones.

Features are standardised by the shadow's utterances.  If the target is less sure of everything (it
was trained for less long, or with noise), its features lie where the classifier learnt nothing,
and the attack is weaker than it could be.  An attacker who holds the utterances in question needs
no label to see that: `rescaled` standardises by these instead.  The paper does not speak of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tacit.audit.nlu_attack_classifier import (
    Classifier,
    ClassifierSettings,
    fitted,
    standardisation,
)
from tacit.audit.nlu_attack_features import SortedScores
from tacit.tasks.nlu.scored import Floats, Scored


@dataclass(frozen=True, eq=False)
class Shadow:
    """What a shadow model says of what it was trained on and of what it was not."""

    name: str  # the corpus, for the record
    members: Scored
    non_members: Scored

    def __post_init__(self) -> None:
        for side in ("members", "non_members"):
            if not len(getattr(self, side)):
                raise ValueError(
                    f"the shadow {self.name} has no {side.replace('_', '-')}: score some utterances"
                    " of its train as members and of its test as non-members"
                )


@dataclass(frozen=True, eq=False)
class TrainedShadowAttack:
    """A classifier with the features that it was trained on."""

    features: SortedScores
    classifier: Classifier

    def scores(self, scored: Scored) -> Floats:
        """[n]: higher for likelier members; that of an utterance depends on it alone."""
        return self.classifier.scores(self.features.of(scored))

    def rescaled(self, *pool: Scored) -> TrainedShadowAttack:
        """The same, standardised by utterances of the target, whoever among them is a member."""
        mean, scale = standardisation(np.concatenate([self.features.of(each) for each in pool]))
        return replace(self, classifier=replace(self.classifier, mean=mean, scale=scale))


@dataclass(frozen=True)
class ShadowAttack:
    """Which features, and how the classifier is fitted."""

    features: SortedScores = field(default_factory=SortedScores)
    classifier: ClassifierSettings = field(default_factory=ClassifierSettings)

    def trained(self, shadows: Sequence[Shadow]) -> TrainedShadowAttack:
        """Learn from one or several shadows, each with as many members as non-members."""
        if not shadows:
            raise ValueError("there is no shadow model to learn from; give at least one")
        drawn = [self._balanced(shadow) for shadow in shadows]
        members, non_members = (np.concatenate(side) for side in zip(*drawn, strict=True))
        return TrainedShadowAttack(self.features, fitted(members, non_members, self.classifier))

    def _balanced(self, shadow: Shadow) -> tuple[Floats, Floats]:
        sides = [self.features.of(side) for side in (shadow.members, shadow.non_members)]
        count = min(map(len, sides))
        stream = np.random.default_rng(self.classifier.seed)
        # In an order of their own first, so that theirs plays no part.
        drawn = [side[np.lexsort(side.T)][stream.permutation(len(side))[:count]] for side in sides]
        return drawn[0], drawn[1]
