"""The privacy cost that a run inherits from its tokenizer's training data.

A tokenizer from public text costs nothing.  One that was learnt under differential privacy was paid
for by the people whose text it was learnt from (design rule 9).  If these are the run's own people,
its ledger begins with that cost; `PriorCost` says what follows for the claim otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.config.experiment import Experiment
from tacit.corpus.people import is_same_people
from tacit.corpus.source import UserCorpus
from tacit.privacy.claims import excluded_by, format_epsilon
from tacit.privacy.events import Adjacency, Event, NonPrivate, PostProcessing
from tacit.privacy.guarantee import figures
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Header, PriorCost, PublicInput
from tacit.tokenizers.history import History, LearntTokenizer

COUNTED = "the number of users from whose text the tokenizer was learnt, which is published"


@dataclass(frozen=True)
class TokenizerCost:
    """What a run has to record because of its tokenizer.

    `event` is the ledger's entry for it.  `inherited` is a ledger whose entries come before that
    one, because they were paid by the same people.  `header_entry` names what others have paid.
    """

    event: Event | None = None  # the first entry of the run's ledger
    inherited: Ledger | None = None  # of the same people: its entries come before that
    header_entry: PriorCost | None = None
    public_inputs: tuple[PublicInput, ...] = ()  # what its own learning declared public

    def refuse_above_budget(self, experiment: Experiment) -> None:
        """Refuse a tokenizer that cost other people of the same corpus more than the budget."""
        privacy, cost = experiment.privacy, self.header_entry
        if cost is None or cost.whom != "beside" or privacy.budget_epsilon is None:
            return
        assert cost.releases is not None
        assert privacy.delta is not None
        epsilon = min(figures(cost.releases, privacy.delta, privacy.accountant).values())
        if epsilon > privacy.budget_epsilon:
            raise ValueError(
                f"the tokenizer {experiment.tokenizer.source} has cost its users epsilon"
                f" {format_epsilon(epsilon)}, above privacy.budget_epsilon ="
                f" {privacy.budget_epsilon:g}"
            )


def cost_of(experiment: Experiment, corpus: UserCorpus, learnt: LearntTokenizer) -> TokenizerCost:
    """What the tokenizer of an experiment, on this corpus, has cost whom.

    A tokenizer whose history is not there, or whose noise follows from a seed while the run's does
    not, is refused.
    """
    if why := learnt.why_void:
        return TokenizerCost(NonPrivate(f"the tokenizer voids the guarantee: {why}"))
    if not learnt.needs_history:
        return TokenizerCost()
    if learnt.history is None:
        raise ValueError(
            f"the tokenizer {experiment.tokenizer.source} was learnt from people's text"
            f" ({learnt.tokenizer.provenance}), and the ledger.jsonl that says what that cost is"
            " not beside it; `tacit tokenizer train` writes both"
        )
    if learnt.history.ledger.header.simulation and experiment.seed is None:
        raise ValueError(
            f"the tokenizer {experiment.tokenizer.source} comes from a simulation, whose noise"
            " protects nobody; give --seed for another simulation, or learn it without a seed"
        )
    if _is_of(learnt.history.header, corpus):
        _refuse_replacement(experiment, learnt.history)
    return _cost_to(experiment, corpus, learnt.history)


def _refuse_replacement(experiment: Experiment, history: History) -> None:
    """Both sides must be stated for add/remove-one.

    Somebody who takes another's place may belong to the other part, and then both change; and an
    epsilon for one adjacency cannot be added to one for the other.
    """
    samplings = {experiment.plan.sampling, *(p.plan.get("sampling") for p in experiment.phases)}
    adjacency = history.ledger.composition().adjacency
    if "fixed" in samplings or adjacency is Adjacency.REPLACE:
        raise ValueError(
            f"the tokenizer {experiment.tokenizer.source} was learnt from users of this corpus, and"
            " what both cost together is known under add/remove-one adjacency only, not with"
            ' plan.sampling = "fixed"; take "poisson" for both'
        )


def _is_of(header: Header, corpus: UserCorpus) -> bool:
    """Whether a ledger is about the people of a corpus; made-up users are those of one split."""
    if not header.people:
        return header.split == corpus.split_identity
    return is_same_people(header.people, corpus.identity)


def _cost_to(experiment: Experiment, corpus: UserCorpus, history: History) -> TokenizerCost:
    """What a tokenizer with this history has cost the people whose text it was learnt from."""
    header = history.header
    counted = (COUNTED,) if header.population_is_counted else ()
    is_disjoint = are_disjoint(header.part, experiment.corpus.part)
    if not _is_of(header, corpus):
        whom = "elsewhere"
    elif header.split == corpus.split_identity and is_disjoint:
        whom = "beside"
    else:
        whom = "same"
    cost = PriorCost(
        what="tokenizer",
        whom=whom,
        people=header.people,
        part=header.part,
        releases=history.ledger.composition(),
        head=history.released,
        excluded=(*excluded_by(header.prior_costs), *counted),
    )
    return TokenizerCost(
        PostProcessing(f"the tokenizer: {history.how}"),
        history.ledger if whom == "same" else None,
        cost,
        header.public_inputs,
    )


def are_disjoint(one: str, other: str) -> bool:
    """Whether two parts, such as "1/2" and "2/2", have no user in common; "" is everybody.

    A user is in part a/m if its hash is a - 1 modulo m; both a/m and b/n are possible if and only
    if a and b are equal modulo the greatest common divisor of m and n.
    """
    if not one or not other:
        return False
    (a, m), (b, n) = (map(int, part.split("/")) for part in (one, other))
    return (a - b) % math.gcd(m, n) != 0
