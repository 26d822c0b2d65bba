"""Utterances that an attack is asked about, and which of the test utterances does what.

The unit of an interval is a user, where utterances have users.  Otherwise it is a text: copies of
one text have one score, and say once what they say.

References must not have seen anything that they are asked about, so some test utterances are theirs
to learn from and some are the population of RMIA; the rest are the non-members.  The role is a
draw from a digest of the unit: all of a user's utterances, or all copies of a text, have one role,
and nobody moves anybody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tacit.audit.references import draw
from tacit.privacy import checks
from tacit.tasks.nlu.data import Utterance
from tacit.tasks.nlu.scored import Scored

Mask = npt.NDArray[np.bool_]

_DRAWS = 2**64


@dataclass(frozen=True, eq=False)
class Candidates:
    """Utterances, what the attacked model says of them, and what each reference says of them."""

    utterances: tuple[Utterance, ...]
    target: Scored
    references: tuple[Scored, ...] = ()

    def __post_init__(self) -> None:
        if not self.utterances:
            raise ValueError("there are no utterances to attack; give at least one")
        for scored in (self.target, *self.references):
            if len(scored) != len(self.utterances):
                raise ValueError(
                    f"{len(self.utterances)} utterances and scores of {len(scored)}: score each"
                    " utterance once, in the same order"
                )

    def __len__(self) -> int:
        return len(self.utterances)

    def only(self, indices: npt.NDArray[np.int64]) -> Candidates:
        """Some of them, by their places, in the order asked for."""
        return Candidates(
            tuple(self.utterances[place] for place in indices.tolist()),
            self.target.only(indices),
            tuple(each.only(indices) for each in self.references),
        )

    def unknown_to_any(self) -> Mask:
        """Where the target or a reference does not know a label."""
        found: Mask = ~self.target.known
        for each in self.references:
            found = found | ~each.known
        return found

    def said_among(self, others: Iterable[Utterance]) -> Mask:
        """Where some other utterance has the same words, whatever its labels."""
        words = {other.tokens for other in others}
        return np.array([utterance.tokens in words for utterance in self.utterances])

    def met_among(self, others: Iterable[Utterance]) -> Mask:
        """Where some other utterance has the same words or is of the same user."""
        others = list(others)
        users = {other.user for other in others} - {None}
        same_user: Mask = np.array([each.user in users for each in self.utterances])
        return self.said_among(others) | same_user


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
        place = draw("nlu role", unit(utterance)) / _DRAWS
        if place < reference_share:
            parts[int(place / reference_share * references)].append(utterance)
        elif place < reference_share + population_share:
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
    """Whose it is or, where that is not known, what was said."""
    if utterance.user is not None:
        return f"user {utterance.user}"
    return f"text {' '.join(utterance.tokens)}"


def is_population(utterance: Utterance, share: float) -> bool:
    """Whether a non-member is set aside as population, where none is given."""
    return draw("nlu population", unit(utterance)) < share * _DRAWS
