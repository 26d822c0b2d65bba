"""How a tokenizer is learnt, and what is written down about it: one function for each source.

    public               from public text: costs no privacy
    oracle               from the users' own text: voids every guarantee, for comparison only
    from_samples         from what a private model says: post-processing, which costs nothing more
    heavy_hitters        from words that users report under local differential privacy
    partition_selection  from noisy counts of users' words, those above a threshold

The last two release something about people: the release is charged in a ledger of its own, which
the people's ledger witnesses, before any noise is drawn.

Samples (Bagdasaryan et al. 2022, Algorithm 1 and section 4.2) cost no privacy: the texts are
computed from the released model, its old tokenizer and randomness that knows no user, so all that
is learnt from them is post-processing of a release.  That is as good as the release: the words of
an old tokenizer that voids the guarantee come back in the model's texts, so the new tokenizer is
marked as the old one was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from tacit.corpus.builtin import load_corpus
from tacit.corpus.people_ledger import PeopleLedger
from tacit.corpus.public_inputs import refuse_known
from tacit.corpus.source import UserCorpus, UserSource
from tacit.privacy.claims import ALWAYS_EXCLUDED
from tacit.privacy.events import Composition, Event
from tacit.privacy.guarantee import default_delta
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Charge, Head, Header, PublicInput
from tacit.privacy.randomness import RunKey
from tacit.privacy.records import canonical_json
from tacit.tokenizers import build, provenance
from tacit.tokenizers.heavy_hitters import HeavyHitters
from tacit.tokenizers.history import History, LearntTokenizer
from tacit.tokenizers.normalisation import (
    Normalisation,
    count_words,
    name_of,
    split_words,
    strings,
)
from tacit.tokenizers.partition_selection import PartitionSelection
from tacit.tokenizers.public import PublicSource, declare
from tacit.tokenizers.remapping import Remapping
from tacit.tokenizers.tokenizer import Kind, Tokenizer
from tacit.tokenizers.word_counts import KEY_SIZE, WordCounts, check_users


@dataclass(frozen=True)
class Users:
    """The training users of a corpus, or of a part of it, without their held-out texts."""

    corpus: UserCorpus
    part: str
    source: UserSource

    @classmethod
    def of(cls, corpus: str, part: str = "") -> Users:
        """The users of a corpus by its name or path; `part` is such as "1/2", or "" for all."""
        opened = load_corpus(corpus)
        members: UserSource = opened.train
        if part:
            number, _, of = part.partition("/")
            if not (number.isdecimal() and of.isdecimal()):
                raise ValueError(f"part must be such as 1/2, got {part!r}")
            members = members.part(int(number), int(of))
        return cls(opened, part, members.kept())


@dataclass(frozen=True)
class Terms:
    """On which terms something is released about users, and the folder to keep its ledger in.

    The population is declared; None takes the number of users, which is published by that.  A seed
    makes the release a simulation, not for release.
    """

    folder: Path
    population: int | None = None
    delta: float | None = None
    seed: int | None = None

    def population_of(self, users: Users) -> int:
        """The declared population, or the number of users."""
        return self.population or len(users.source)

    def delta_of(self, users: Users) -> float:
        """The delta asked for, or the default for the population."""
        return self.delta or default_delta(self.population_of(users))


def public(source: str, kind: Kind = "bpe", size: int = 10_000) -> LearntTokenizer:
    """A tokenizer from public text, by name or from a file that is not known to be people's."""
    text = PublicSource(source)
    if not text.parts and (path := Path(text.name)).is_file():
        refuse_known(source, path, text.lines)
    return LearntTokenizer(text.tokenizer(kind, size), text.word_weights())


def oracle(users: Users, kind: Kind = "bpe", size: int = 10_000) -> LearntTokenizer:
    """A tokenizer from the users' own text: for comparison, and never for a release."""
    texts = (text for user in range(len(users.source)) for text in users.source.texts(user))
    return LearntTokenizer(build.oracle(users.source, kind, size), count_words(texts))


def from_samples(
    texts: Iterable[str], old: Tokenizer, *, kind: Kind, size: int, of: str
) -> LearntTokenizer:
    """A tokenizer learnt from texts that a model with the tokenizer `old` said.

    Words are what they were: the normalisation is that of `old`.  `of` names the private release
    that the model is, for the provenance.
    """
    marked = provenance.check(f"post-processing: {of}")
    normalisation = _normalisation_of(old)
    texts = list(strings(texts))
    if not any(split_words(texts, normalisation)):
        raise ValueError(
            f"texts must have words to learn a tokenizer from, and these {len(texts):,} have none"
        )
    tokenizer = build.learn(
        kind,
        texts,
        size,
        normalisation=normalisation,
        provenance=marked if old.why_void is None else old.provenance,
    )
    return LearntTokenizer(tokenizer, count_words(texts))


def from_run(
    sample: Callable[[], Iterable[str]],
    old: Tokenizer,
    ledger: Ledger,
    head: Head,
    round: int,
    *,
    kind: Kind,
    size: int,
    tokens: int,
) -> LearntTokenizer:
    """A tokenizer from `tokens` tokens that a run's model says after a round, with its history.

    `ledger` is the run's and `head` where it was after the round: the people of the run have paid
    for the model.  A run whose own tokenizer was learnt from others of the corpus is refused before
    anything is sampled, since there would be two histories to pass on.
    """
    for cost in ledger.header.prior_costs:
        if cost.whom == "beside":
            raise ValueError(
                f"the tokenizer of {ledger.path.parent} was learnt from part {cost.part} of the"
                " users, and what is sampled from its model would tell about both parts; sample"
                " from a run with a public tokenizer"
            )
    run_id = ledger.header.run_id
    how = f"{tokens} tokens sampled from the model of the run {run_id} after round {round}"
    learnt = from_samples(sample(), old, kind=kind, size=size, of=how)
    return replace(learnt, history=History.of(ledger, head, learnt.tokenizer, how, round))


def check_successor(old: Tokenizer, kind: Kind, size: int) -> None:
    """Refuse a kind or a size that could not follow `old`, before anything is sampled for it."""
    trial = build.learn(kind, ["a"], size, normalisation=_normalisation_of(old))
    Remapping.between(old, trial)


def heavy_hitters(
    users: Users,
    candidates: str,
    method: HeavyHitters,
    terms: Terms,
    kind: Kind = "bpe",
    size: int = 10_000,
) -> LearntTokenizer:
    """A tokenizer from a few words of each user, out of those of a public text or list."""
    words = build.most_frequent(PublicSource(candidates).word_weights(method.normalisation))
    learn = partial(method.learn, users.source, words)
    facts = {"candidates": candidates, **asdict(method)}
    inputs = (declare("candidates", candidates, users.corpus),)
    return _release(users, (method.event,), facts, learn, terms, kind, size, inputs)


def partition_selection(
    users: Users,
    method: PartitionSelection,
    terms: Terms,
    kind: Kind = "bpe",
    size: int = 10_000,
) -> LearntTokenizer:
    """A tokenizer from noisy counts of the words that users have, whichever these are."""
    learn = partial(method.learn, users.source)
    return _release(users, method.events, asdict(method), learn, terms, kind, size)


def _release(
    users: Users,
    events: Sequence[Event],
    facts: Mapping[str, Any],
    learn: Callable[[int, bytes], WordCounts],
    terms: Terms,
    kind: Kind,
    size: int,
    public_inputs: tuple[PublicInput, ...] = (),
) -> LearntTokenizer:
    """Charge, learn, and write the history; both ledgers come before the noise."""
    population = terms.population_of(users)
    key = RunKey.generate() if terms.seed is None else RunKey.from_seed(terms.seed)
    # What would be refused after the noise is refused here, where it costs nothing yet.
    check_users(users.source, population, bytes(KEY_SIZE))
    if kind == "word":
        build.dictionary({"a": 1.0}, size)
    else:
        build.learn(kind, ["a"], size)
    public = canonical_json([facts, users.corpus.identity, users.part, population])
    plan_hash = sha256(public.encode()).hexdigest()
    header = Header(
        run_id=key.hmac(b"words of users", public.encode()).hex()[:16],
        unit="user",
        population=population,
        delta=terms.delta_of(users),
        adjacency=Composition.of(events).adjacency,
        view="people" if users.corpus.about_people else "synthetic",
        simulation=terms.seed is not None,
        population_is_counted=terms.population is None,
        counted="releases",
        people=users.corpus.identity if users.corpus.about_people else "",
        part=users.part,
        split=users.corpus.split_identity,
        data=users.corpus.commitment,
        excluded=ALWAYS_EXCLUDED,
        public_inputs=public_inputs,
    )
    with Ledger.create(terms.folder / "ledger.jsonl", header) as ledger:
        if header.people:
            PeopleLedger.open(header.people).witness(ledger)
        ledger.charge([Charge("words", 0, 0, event, plan_hash) for event in events])
    words = learn(population, key.hmac(b"noise on words of users", header.run_id.encode()))
    tokenizer = words.tokenizer(kind, size)
    history = History.of(ledger, ledger.head, tokenizer, words.how)
    return LearntTokenizer(tokenizer, words.counts, history)


def _normalisation_of(tokenizer: Tokenizer) -> Normalisation:
    """The normalisation that a tokenizer was built with; `ValueError` for another library's."""
    name = name_of(json.loads(tokenizer.to_json()))
    if name is None:
        raise ValueError(
            "the normaliser of the old tokenizer is neither of tacit's normalisations, so the words"
            " of a new one would be other words"
        )
    return name
