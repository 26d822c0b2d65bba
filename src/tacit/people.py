"""Whose text a run trains on: the corpus's users as the experiment looks at them.

The training users of the corpus, without their held-out texts, or the first so many of them; with
canaries in some of their texts if the run is an audit; reshuffled if the experiment asks for the
IID view.  Canaries are planted before the reshuffling, as in Thakkar et al. 2020.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.audit.canaries import Canary, Cell, Frequencies, Grid, draw_canaries
from tacit.audit.planting import Planted, Planting, count_planted
from tacit.corpus.builtin import load_corpus
from tacit.corpus.source import Source, UserCorpus
from tacit.corpus.views import IID, Subset, kept, part
from tacit.runs import files
from tacit.runs.directory import RunDirectory
from tacit.runs.experiment import Experiment
from tacit.tokenizers.cache import TokenCache
from tacit.tokenizers.public import texts_of
from tacit.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class People:
    """The corpus, and of its training users those that take part, with the texts they train on."""

    corpus: UserCorpus
    members: Source  # those who take part, with all of their texts

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

    @property
    def users(self) -> Source:
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

    def view(self, experiment: Experiment, tokenizer: Tokenizer) -> Source:
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

    for text in texts_of(source):
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
    files.replace(directory.canaries_file, (json.dumps(data, indent=1) + "\n").encode())


def read_planted(directory: RunDirectory) -> list[Planted]:
    """What canaries.json says; a run without canaries is refused."""
    try:
        data: dict[str, Any] = json.loads(directory.canaries_file.read_text(encoding="utf-8"))
        return [_planted(row) for row in data["canaries"]]
    except FileNotFoundError:
        if directory.experiment().audit.canaries is not None:
            raise ValueError(f"{directory.canaries_file} is missing") from None
        raise ValueError(
            f"{directory.path} was trained without canaries; train an audit run with --set"
            " audit.canaries.per_cell=..., or name phrases to look for with --phrases"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{directory.canaries_file} is damaged: {error}") from None


def _planted(row: dict[str, Any]) -> Planted:
    cell = Cell(row["expected_sharers"], row["example_prob"])
    tokens = tuple(row["tokens"])
    if not tokens or not all(type(token) is int and token >= 0 for token in tokens):
        raise ValueError(f"tokens must be a list of token ids, got {row['tokens']!r}")
    canary = Canary(tuple(row["text"].split(" ")), tokens, cell)
    return Planted(canary, row["sharers"], row["copies"])
