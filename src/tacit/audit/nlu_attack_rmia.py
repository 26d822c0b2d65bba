"""RMIA on single utterances (Zarifzadeh et al. 2024), and the choice of its `a`.

The attack itself is that of `tacit.audit.attacks`, each utterance a text of its own.  What p(x)
means differs: the probability of a user's whole text is tiny, while that of an utterance's labels
is often near 1.  So the paper's offline form p(x) = ((1 + a) p_out(x) + (1 - a)) / 2 says
something for every a from 0 to 1: with a = 0, p(x) stays between 1/2 and 1, and a label that no
reference expects counts little; with a = 1, p(x) = p_out(x), and whoever is rare wins by a huge
ratio, which is often the weakest attack of all.  Where no a is chosen it is 0.3.

`chosen_a` takes a from the references alone, each in turn attacked by means of the others; the
target plays no part in it, or the figure would be that of an attack fitted to its own test.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tacit.audit.attacks import Evidence, Rmia
from tacit.audit.roc import auc
from tacit.audit.user_scores import UserScores
from tacit.tasks.nlu.scored import Scored

DEFAULT_A = 0.3
A_GRID = tuple(place / 10 for place in range(10, -1, -1))


def evidence(target: Scored, references: Sequence[Scored]) -> Evidence:
    """Of utterances all of whose labels are known, each as a user with one text."""
    return Evidence(_as_users(target), tuple(map(_as_users, references)))


def chosen_a(
    trained: Sequence[Sequence[Scored]],
    outside: Sequence[Scored],
    *,
    gamma: float = 1.0,
    grid: Sequence[float] = A_GRID,
    seed: int = 0,
) -> float:
    """The a with the largest AUC on average over the references; of equals, the first of the grid.

    `trained[r][s]` is what reference s says of the utterances that reference r was trained on, and
    no other was; `outside[s]` is what it says of utterances that none was trained on.
    """
    count = len(outside)
    if count < 2 or len(trained) != count or any(len(each) != count for each in trained):
        raise ValueError(
            f"a needs at least 2 references to be chosen, each scoring what every one was trained"
            f" on, got {count} references and {[len(each) for each in trained]}: give a instead"
        )
    cases = [_case(place, trained[place], outside, seed) for place in range(count)]

    def mean_auc(a: float) -> float:
        attack = Rmia(gamma, a)
        found = [
            auc(attack.scores(inside, population), attack.scores(others, population)).value
            for inside, others, population in cases
        ]
        return float(np.mean(found))

    return max(grid, key=mean_auc)  # the first of equals


def _case(
    place: int, trained: Sequence[Scored], outside: Sequence[Scored], seed: int
) -> tuple[Evidence, Evidence, Evidence]:
    """Members, non-members and population, with one reference as the target."""
    inside, others = (_known(place, each) for each in (trained, outside))
    order = np.random.default_rng(seed).permutation(len(others.target.users))
    is_population = np.zeros(len(order), dtype=bool)
    is_population[order[::2]] = True
    if not len(inside.target.users) or is_population.all():
        raise ValueError(
            "the references know the labels of too few utterances to choose a: give a instead"
        )
    return inside, others.only(~is_population), others.only(is_population)


def _known(place: int, scored: Sequence[Scored]) -> Evidence:
    """As one reference and the others see them: the utterances whose labels all know."""
    known = np.all([each.known for each in scored], axis=0)
    kept = [each.only(known) for each in scored]
    return evidence(kept.pop(place), kept)


def _as_users(scored: Scored) -> UserScores:
    count = len(scored)
    labels = np.array([1 + len(each) for each in scored.tokens], dtype=np.int64)  # the intent, tags
    return UserScores(
        tuple(map(str, range(count))), np.arange(count + 1), scored.log_likelihood, labels
    )
