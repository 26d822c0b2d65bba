"""Which of the test utterances does what in a membership attack.

References must not have seen anything that they are asked about, so some test utterances are theirs
to learn from and some are the population of RMIA; the rest are the non-members.  The role is a draw
from a digest of the *unit*: the user, where utterances have users, and otherwise the text.  So all
of a user's utterances, or all copies of a text, have one role, and adding or removing a unit moves
no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tacit.corpus.hashing import role_draw
from tacit.privacy import checks
from tacit.tasks.nlu.data import Utterance


@dataclass(frozen=True)
class AttackRoles:
    """Test utterances: those that each reference learns from, RMIA's population, non-members."""

    references: tuple[tuple[Utterance, ...], ...]
    population: tuple[Utterance, ...]
    non_members: tuple[Utterance, ...]

    @property
    def seen(self) -> tuple[Utterance, ...]:
        """All that any reference learns from."""
        return tuple(utterance for part in self.references for utterance in part)


def attack_roles(
    test: Sequence[Utterance],
    references: int = 2,
    *,
    reference_share: float = 0.5,
    population_share: float = 0.1,
) -> AttackRoles:
    """Divide test utterances; `reference_share` is that of all references together."""
    checks.whole("references", references, at_least=1)
    checks.open_unit("reference_share", reference_share)
    checks.open_unit("population_share", population_share)
    if not reference_share + population_share < 1:
        raise ValueError(
            f"reference_share + population_share must be below 1, got {reference_share:g} +"
            f" {population_share:g}: the rest are the non-members"
        )
    parts: list[list[Utterance]] = [[] for _ in range(references)]
    population: list[Utterance] = []
    non_members: list[Utterance] = []
    for utterance in test:
        drawn = role_draw("nlu role", unit(utterance))
        if drawn < reference_share:
            parts[int(drawn / reference_share * references)].append(utterance)
        elif drawn < reference_share + population_share:
            population.append(utterance)
        else:
            non_members.append(utterance)
    if not (all(parts) and population and non_members):
        raise ValueError(
            f"{len(test)} test utterances are too few for {references} references, a population and"
            " non-members; take more of them or fewer references"
        )
    return AttackRoles(tuple(map(tuple, parts)), tuple(population), tuple(non_members))


def unit(utterance: Utterance) -> str:
    """Whose utterance it is or, where that is not known, what was said."""
    if utterance.user is not None:
        return f"user {utterance.user}"
    return f"text {' '.join(utterance.tokens)}"
