"""Whose text a run trains on: the corpus's users as the experiment looks at them.

The training users of the corpus, without their held-out texts, or the first N of them; with
canaries in some of their texts if the run is an audit; reshuffled if the experiment asks for the
IID view.  Canaries are planted before the reshuffling, as in Thakkar et al. 2020.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tacit.config.experiment import Experiment
from tacit.corpus.builtin import load_corpus
from tacit.corpus.people import is_same_people
from tacit.corpus.people_ledger import PeopleLedger, leave_copy
from tacit.corpus.source import IID, Subset, UserCorpus, UserSource
from tacit.corpus.store import Corpus
from tacit.privacy import trusted
from tacit.privacy.events import Adjacency, Event
from tacit.privacy.guarantee import default_delta
from tacit.privacy.ledger_lines import Header
from tacit.privacy.randomness import RunKey
from tacit.tasks.language import plans
from tacit.tasks.language.canaries import Frequencies, Planting
from tacit.tokenizers.public import PublicSource
from tacit.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class People:
    """The corpus, and of its training users those that take part, with the texts they train on.

    It is the `TrainingData` of a language model.  Which users take part follows from public
    choices alone: the first N, or a part by a hash of the user's id.
    """

    corpus: UserCorpus
    members: UserSource  # those who take part, with all of their texts

    @classmethod
    def of(cls, experiment: Experiment, corpus: UserCorpus | None = None) -> People:
        """The people of the experiment's corpus, or of another one that is given.

        Raises:
            ValueError: if there are fewer users than asked for, or no test users to measure on.
        """
        if corpus is None:
            corpus = load_corpus(experiment.corpus.source)
        members, limit = corpus.train, experiment.corpus.users
        if limit is not None:
            if limit > len(members):
                raise ValueError(
                    f"corpus.users must be at most the {len(members)} there are: {limit}"
                )
            members = Subset(members, range(limit))
        if experiment.corpus.part:
            number, of = map(int, experiment.corpus.part.split("/"))
            members = members.part(number, of)
        if len(corpus.test) == 0:
            raise ValueError(
                f"the corpus {experiment.corpus.source} has no test users to measure on; ingest it"
                " with a larger --test-fraction"
            )
        return cls(corpus, members)

    @property
    def people(self) -> str:
        """The id of the people; empty if the corpus is about nobody."""
        return self.corpus.identity if self.corpus.about_people else ""

    def is_of(self, experiment: Experiment) -> bool:
        """Whether these are the people that a run was started on."""
        return is_same_people(self.corpus.identity, experiment.corpus.identity)

    def commitment(self, key: RunKey) -> str:
        """The corpus's own, under its salt."""
        return self.corpus.commitment

    def ledger(self) -> PeopleLedger | None:
        """The ledger of these people; None where there is nobody."""
        return PeopleLedger.of_corpus(self.corpus) if self.corpus.about_people else None

    def leave_copy(self) -> None:
        """Let the corpus carry what is known of its people, in case it is moved elsewhere.

        A corpus that cannot be written to, or a full disk, costs no more than that.
        """
        with suppress(OSError, ValueError):  # the end of a run must come to its key
            leave_copy(self.corpus)

    def refuse_unbudgeted(self, experiment: Experiment) -> None:
        """Refuse before any work what the people's budget could not cover at all.

        Tokenizing and pre-training take minutes, so this comes before the plan is resolved, and
        looks at what is known by then; the first charge looks at all of it.
        """
        known = self.ledger()
        if known is None or known.budget is None:
            return
        plan, privacy = experiment.plan, experiment.privacy
        K = plan.population or max(self.count, math.ceil(plan.cohort))
        delta = privacy.delta or default_delta(K)
        events: list[Event] = []
        # What depends on the model, on later phases or on a search is left to the first charge.
        if not (experiment.phases or plan.layer_clip_norms or experiment.noise_target):
            filled = experiment.changed(plan={"population": K}, privacy={"delta": delta})
            events = [plans.round_plans(filled, (1,))[0].event()]
        is_noisy = plan.noise_multiplier or plan.noise_stddev or experiment.noise_target
        is_replaced = plan.sampling == "fixed" or plan.replace_one
        noisy = Adjacency.REPLACE if is_replaced else Adjacency.ADD_REMOVE
        known.refuse_hopeless(
            Header(
                run_id="planned",
                unit="user",
                population=K,
                delta=delta,
                adjacency=noisy if is_noisy else None,
                view="iid" if experiment.corpus.view == "iid" else "people",
                simulation=experiment.seed is not None,
            ),
            events,
        )

    def cache_folder(self, otherwise: Path) -> Path:
        """Where token caches go: beside the corpus, or `otherwise` where it cannot be written to.

        A corpus that is made up has no folder.
        """
        return cache_folder(self.corpus, otherwise)

    @property
    def count(self) -> int:
        """How many people take part, or how many at most by what silos say of their own."""
        return sum(self.corpus.silos.values()) or len(self.members)

    @property
    def users(self) -> UserSource:
        """The same people without their held-out texts."""
        return self.members.kept()

    def planting(self, experiment: Experiment, tokenizer: Tokenizer) -> Planting | None:
        """The canaries that the experiment plants; None if it plants none.

        Words are uniform over the vocabulary, or drawn by their frequency in public text.
        """
        settings = experiment.audit.canaries
        if settings is None:
            return None
        frequencies = None
        if settings.draw == "unigram":
            frequencies = public_frequencies(tokenizer, experiment.tokenizer.source)
        # A public constant, so that nobody's coming or going changes what others share.
        population = experiment.plan.population or len(self.members)
        return Planting.of(settings, population, tokenizer, frequencies)

    def view(self, experiment: Experiment, tokenizer: Tokenizer) -> UserSource:
        """What is trained on: texts with canaries among them, under the experiment's view.

        The IID view deals all texts out anew to synthetic users, and no claim is about people.
        """
        planting = self.planting(experiment, tokenizer)
        users = self.users if planting is None else planting.view(self.users)
        return IID(users) if experiment.corpus.view == "iid" else users


def cache_folder(corpus: UserCorpus, otherwise: Path) -> Path:
    """Where token caches of a corpus go: beside it, or `otherwise` where that cannot be.

    In a folder that is not this user's alone others could have left a cache, or could read it.
    """
    folder = corpus.path if isinstance(corpus, Corpus) else None
    if folder is None or not os.access(folder, os.W_OK):
        return otherwise
    return folder if trusted.is_of_this_user_alone(folder.stat()) else otherwise


def public_frequencies(tokenizer: Tokenizer, source: str) -> Frequencies:
    """How often each token is in a public text, or in a list's words by their weights, plus one."""
    counts = np.ones(tokenizer.vocab_size)
    batch: list[str] = []

    def count() -> None:
        for tokens in tokenizer.encode_batch(batch):
            np.add.at(counts, tokens[1:], 1)
        batch.clear()

    for text in PublicSource(source).texts_or_words():
        batch.append(text)
        if len(batch) == 5000:
            count()
    count()
    return counts
