"""Whose text a run trains on: the corpus's users as the experiment looks at them.

The training users of the corpus, without their held-out texts, or the first so many of them; with
canaries in some of their texts if the run is an audit; reshuffled if the experiment asks for the
IID view.  Canaries are planted before the reshuffling, as in Thakkar et al. 2020.
"""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tacit.config.experiment import Experiment
from tacit.corpus.builtin import load_corpus
from tacit.corpus.people_ledger import PeopleLedger, leave_copy
from tacit.corpus.source import UserCorpus, UserSource
from tacit.corpus.views import IID, Subset, kept, part
from tacit.privacy import durable
from tacit.privacy.events import Adjacency, Event, PostProcessing
from tacit.privacy.guarantee import default_delta
from tacit.privacy.ledger import Charge, Ledger
from tacit.privacy.ledger_lines import Header, LedgerError
from tacit.runs.directory import RunDirectory
from tacit.tasks.language import plans
from tacit.tasks.language.canaries import Canary, Cell, Frequencies, Grid, draw_canaries
from tacit.tasks.language.planting import Planted, Planting, count_planted
from tacit.tokenizers.cache import TokenCache
from tacit.tokenizers.public import PublicSource
from tacit.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class People:
    """The corpus, and of its training users those that take part, with the texts they train on."""

    corpus: UserCorpus
    members: UserSource  # those who take part, with all of their texts

    @classmethod
    def of(cls, experiment: Experiment, corpus: UserCorpus | None = None) -> People:
        """Those of the experiment's corpus."""
        if corpus is None:
            corpus = load_corpus(experiment.corpus.source)
        members, wanted = corpus.train, experiment.corpus.users
        if wanted is not None:
            if wanted > len(members):
                raise ValueError(
                    f"corpus.users must be at most the {len(members)} there are: {wanted}"
                )
            members = Subset(members, range(wanted))
        if experiment.corpus.part:
            number, of = map(int, experiment.corpus.part.split("/"))
            members = part(members, number, of)
        if len(corpus.test) == 0:
            raise ValueError(
                f"the corpus {experiment.corpus.source} has no test users to measure on; ingest it"
                " with a larger --test-fraction"
            )
        return cls(corpus, members)

    def ledger(self) -> PeopleLedger | None:
        """The ledger of these people; None where there is nobody."""
        return PeopleLedger.of_corpus(self.corpus) if self.corpus.about_people else None

    def leave_copy(self) -> None:
        """Let the corpus carry what is known of its people, in case it is moved elsewhere.

        A corpus that cannot be written to, or a full disk, costs no more than that.
        """
        with suppress(OSError, ValueError):  # the end of a run must come to its key
            leave_copy(self.corpus)

    def witness(self, ledger: Ledger) -> None:
        """Let the people's ledger know of every charge, or refuse a run that it knows better."""
        if (known := self.ledger()) is not None:
            known.witness(ledger)

    def refuse_unbudgeted(self, experiment: Experiment) -> None:
        """Refuse before any work what the people's budget could not cover at all."""
        known = self.ledger()
        if known is None or known.budget is None:
            return
        plan, privacy = experiment.plan, experiment.privacy
        K = plan.population or max(len(self.members), math.ceil(plan.cohort))
        delta = privacy.delta or default_delta(K)
        events: list[Event] = []
        # What depends on the model, on later phases or on a search is left to the first charge.
        if not (experiment.phases or plan.layer_clip_norms or privacy.target_epsilon):
            filled = experiment.changed(plan={"population": K}, privacy={"delta": delta})
            events = [plans.round_plans(filled, (1,))[0].event()]
        is_noisy = plan.noise_multiplier or plan.noise_stddev or privacy.target_epsilon
        replaced = plan.sampling in ("fixed", "with-replacement")
        noisy = Adjacency.REPLACE if replaced else Adjacency.ADD_REMOVE
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

    @property
    def users(self) -> UserSource:
        """The same people without their held-out texts."""
        return kept(self.members)

    def planting(self, experiment: Experiment, tokenizer: Tokenizer) -> Planting | None:
        """The canaries that the experiment plants; None if it plants none."""
        given = experiment.audit.canaries
        if given is None:
            return None
        grid = Grid(
            given.sharers,
            given.example_probs,
            given.per_cell,
            given.words,
            given.max_share,
            tuple((Cell(a.sharers, a.example_prob), a.canaries) for a in given.also),
        )
        frequencies = None
        if given.draw == "unigram":
            frequencies = public_frequencies(tokenizer, experiment.tokenizer.source)
        # A public constant, so that nobody's coming or going changes what others share.
        population = experiment.plan.population or len(self.members)
        found = draw_canaries(grid, population, tokenizer, given.seed, frequencies)
        return Planting(tuple(found), population, given.seed)

    def view(self, experiment: Experiment, tokenizer: Tokenizer) -> UserSource:
        """What is trained on."""
        planting = self.planting(experiment, tokenizer)
        users = self.users if planting is None else planting.view(self.users)
        return IID(users) if experiment.corpus.view == "iid" else users


def public_frequencies(tokenizer: Tokenizer, source: str) -> Frequencies:
    """How often each token is in a public text, plus one."""
    counts = np.ones(tokenizer.vocab_size)
    batch: list[str] = []

    def count() -> None:
        for tokens in tokenizer.encode_batch(batch):
            np.add.at(counts, tokens[1:], 1)
        batch.clear()

    for text in PublicSource(source).texts():
        batch.append(text)
        if len(batch) == 5000:
            count()
    count()
    return counts


def record_planted(directory: RunDirectory, planting: Planting, cache: TokenCache) -> None:
    """Write canaries.json, once: what is planted in the tokens that are trained on."""
    if directory.canaries_file.exists():
        return
    found = count_planted(planting.canaries, (cache.tokens(user) for user in range(len(cache))))
    rows = [planted.as_row() for planted in found]
    data = {"population": planting.population, "seed": planting.seed, "canaries": rows}
    durable.write_whole(directory.canaries_file, (json.dumps(data, indent=1) + "\n").encode())


def bind_planted(directory: RunDirectory, ledger: Ledger) -> None:
    """Put the digest of canaries.json into the ledger, so that nobody can exchange a canary."""
    if _planted_digest(ledger) is None:
        ledger.charge(
            [
                Charge(
                    kind="canaries",
                    round=ledger.header.first_round,
                    attempt=0,
                    event=PostProcessing("what was planted, which the claim names as excluded"),
                    plan_hash=_digest_of(directory.canaries_file),
                )
            ]
        )


def _planted_digest(ledger: Ledger) -> str | None:
    own = [entry for entry in ledger.entries if entry.branch == ledger.header.branch]
    return next((entry.plan_hash for entry in own if entry.kind == "canaries"), None)


def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def refuse_other_canaries(directory: RunDirectory, ledger: Ledger) -> None:
    """The canaries' file must be the one that is in the ledger."""
    stated = _planted_digest(ledger)
    there = directory.canaries_file.exists()
    if stated is not None and there and _digest_of(directory.canaries_file) != stated:
        raise LedgerError(
            f"{directory.canaries_file} was changed: the ledger has another digest of it"
        )


def read_planted(directory: RunDirectory) -> list[Planted]:
    """What canaries.json says, which must be what the ledger says; without canaries: refused."""
    try:
        refuse_other_canaries(directory, Ledger.read(directory.ledger_file))
        data: dict[str, Any] = json.loads(directory.canaries_file.read_text(encoding="utf-8"))
        return [_planted(row) for row in data["canaries"]]
    except FileNotFoundError:
        if directory.experiment().audit.canaries is not None:
            raise ValueError(f"{directory.canaries_file} is missing") from None
        raise ValueError(
            f"{directory.path} was trained without canaries; train an audit run with --set"
            " audit.canaries.per_cell=..., or name phrases to look for with --phrases"
        ) from None
    except LedgerError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{directory.canaries_file} is damaged: {error}") from None


def _planted(row: dict[str, Any]) -> Planted:
    cell = Cell(row["expected_sharers"], row["example_prob"])
    tokens = tuple(row["tokens"])
    if not tokens or not all(type(token) is int and token >= 0 for token in tokens):
        raise ValueError(f"tokens must be a list of token ids, got {row['tokens']!r}")
    canary = Canary(tuple(row["text"].split(" ")), tokens, cell)
    return Planted(canary, row["sharers"], row["copies"])
