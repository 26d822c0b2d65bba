"""What a run owes for its tokenizer: whoever learnt it from people's text has told about them.

A tokenizer from public text owes nothing.  One that was learnt under differential privacy was paid
for by the people of its origin (design rule 9).  Who they are decides what the run may claim:

the same people      its releases come first in the run's own ledger: the costs add up
others of the corpus everybody is in one part only, so that the larger of the two epsilons holds for
                     everybody ("parallel composition": adding or removing one person changes the
                     input of one of the two, and the other sees at most its released result;
                     under replace-one both may change, so that this is refused)
another corpus       the claim leaves those people out, and says so
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.privacy.accountants import accountant_named
from tacit.privacy.claims import format_epsilon
from tacit.privacy.events import Adjacency, Composition, Event, NonPrivate, PostProcessing
from tacit.privacy.ledger import Ledger
from tacit.runs.experiment import Experiment
from tacit.tokenizers.folder import History, LearntTokenizer

ELSEWHERE = "the users of another corpus, from whose text the tokenizer was learnt"


@dataclass(frozen=True)
class Debt:
    """What has to be recorded and claimed because of a tokenizer."""

    event: Event | None = None  # the first entry of the run's ledger
    inherited: Ledger | None = None  # of the same people
    beside: Ledger | None = None  # of other people of the same corpus
    part: str = ""  # theirs
    excluded: tuple[str, ...] = ()

    def epsilon_beside(self, accountant: str, delta: float) -> float:
        """What the people of the other part have paid; 0 if there are none."""
        if self.beside is None:
            return 0.0
        return spent(self.beside.composition(), accountant, delta)

    def refuse_above_budget(self, experiment: Experiment) -> None:
        """A budget is for everybody: also for those whose text the tokenizer was learnt from."""
        privacy = experiment.privacy
        if self.beside is None or privacy.budget_epsilon is None:
            return
        assert privacy.accountant is not None
        assert privacy.delta is not None
        theirs = self.epsilon_beside(privacy.accountant, privacy.delta)
        if theirs > privacy.budget_epsilon:
            raise ValueError(
                f"the tokenizer {experiment.tokenizer.source} has cost its users epsilon"
                f" {format_epsilon(theirs)}, above privacy.budget_epsilon ="
                f" {privacy.budget_epsilon:g}"
            )

    def sentence(self, accountant: str, delta: float) -> str:
        """To be said after the claim; empty if there is nothing to say."""
        if self.inherited is not None:
            return "This includes what it cost to learn the tokenizer from the same users."
        if self.beside is None:
            return ""
        theirs = format_epsilon(self.epsilon_beside(accountant, delta))
        return (
            f"The tokenizer was learnt from part {self.part} of the corpus's users, none of whom"
            f" are trained on here, at epsilon {theirs}: the epsilon stated is the larger of the"
            " two, and holds for the users of both parts."
        )


def spent(composition: Composition, accountant: str, delta: float) -> float:
    """Epsilon, also of nothing and of what has no noise."""
    if not composition.is_private:
        return math.inf
    if not composition.costly():
        return 0.0
    return accountant_named(accountant).epsilon(composition, delta)


def debt_of(experiment: Experiment, identity: str, learnt: LearntTokenizer) -> Debt:
    """What the experiment, on the corpus of that identity, owes for its tokenizer.

    A tokenizer whose history is not there, or whose noise follows from a seed while the run's does
    not, is refused.
    """
    if why := learnt.why_void:
        return Debt(NonPrivate(f"the tokenizer voids the guarantee: {why}"))
    if not learnt.needs_history:
        return Debt()
    if learnt.history is None:
        raise ValueError(
            f"the tokenizer {experiment.tokenizer.source} was learnt from people's text"
            f" ({learnt.tokenizer.provenance}), and the origin.json and ledger.jsonl that say what"
            " that cost are not beside it; `tacit tokenizer train` writes all of them"
        )
    if learnt.history.origin.simulation and experiment.seed is None:
        raise ValueError(
            f"the tokenizer {experiment.tokenizer.source} comes from a simulation, whose noise"
            " protects nobody; give --seed for another simulation, or learn it without a seed"
        )
    if learnt.history.origin.corpus == identity:
        _refuse_replacement(experiment, learnt.history)
    return debt_to(experiment, identity, learnt.history)


def _refuse_replacement(experiment: Experiment, history: History) -> None:
    """Both sides must be stated for add/remove-one.

    Somebody who takes another's place may belong to the other part, and then both change; and an
    epsilon for one adjacency cannot be added to one for the other.
    """
    samplings = {experiment.plan.sampling, *(p.plan.get("sampling") for p in experiment.phases)}
    theirs = history.ledger.composition().adjacency
    if "fixed" in samplings or theirs is Adjacency.REPLACE:
        raise ValueError(
            f"the tokenizer {experiment.tokenizer.source} was learnt from users of this corpus, and"
            " what both cost together is known under add/remove-one adjacency only, not with"
            ' plan.sampling = "fixed"; take "poisson" for both'
        )


def debt_to(experiment: Experiment, identity: str, history: History | None) -> Debt:
    """What is owed to the people of a history."""
    if history is None or not history.is_private:
        return Debt()
    origin = history.origin
    event = PostProcessing(f"the tokenizer: {origin.how}")
    if origin.corpus != identity:
        return Debt(event, excluded=(*origin.excluded, ELSEWHERE))
    if are_disjoint(origin.part, experiment.corpus.part):
        beside = history.ledger
        return Debt(event, beside=beside, part=origin.part, excluded=origin.excluded)
    return Debt(event, inherited=history.ledger, excluded=origin.excluded)


def are_disjoint(one: str, other: str) -> bool:
    """Whether two parts, such as "1/2" and "2/2", have no user in common; "" is everybody.

    A user is in part a/m if its hash is a - 1 modulo m; both a/m and b/n are possible if and only
    if a and b are equal modulo the greatest common divisor of m and n.
    """
    if not one or not other:
        return False
    (a, m), (b, n) = (map(int, part.split("/")) for part in (one, other))
    return (a - b) % math.gcd(m, n) != 0
