"""How a tokenizer is learnt, and what is written down about it: one function for each source.

public               from public text: owes nobody anything
oracle               from the users' own text: voids every guarantee, for comparison only
sampled              from what a run's model says: post-processing, which costs nothing more
heavy hitters        from words that users report under local differential privacy
partition selection  from noisy counts of users' words, those above a threshold

The last two release something about people: it is in a ledger, and in that of the people,
before any noise is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tacit.corpus.builtin import load_corpus
from tacit.corpus.people_ledger import PeopleLedger
from tacit.corpus.public_inputs import refuse_known
from tacit.corpus.source import Source, UserCorpus
from tacit.corpus.views import kept
from tacit.corpus.views import part as part_of
from tacit.evaluation.sampling import Sampling, sample_texts
from tacit.privacy.claims import ALWAYS_EXCLUDED
from tacit.privacy.events import Composition, Event, canonical_json
from tacit.privacy.guarantee import default_delta
from tacit.privacy.inputs import PublicInput
from tacit.privacy.ledger import Header, Ledger, Release
from tacit.privacy.randomness import RunKey
from tacit.public.declared import declare
from tacit.runs.run import LanguageRun
from tacit.tokenizers import build
from tacit.tokenizers.heavy_hitters import HeavyHitters
from tacit.tokenizers.history import History, LearntTokenizer
from tacit.tokenizers.normalisation import count_words
from tacit.tokenizers.partition_selection import PartitionSelection
from tacit.tokenizers.public import from_public, lines_of, word_weights
from tacit.tokenizers.sampled import tokenizer_from_samples
from tacit.tokenizers.tokenizer import Kind
from tacit.tokenizers.word_counts import KEY_SIZE, WordCounts, check_users

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Shape:
    """What kind of tokenizer, and of how many tokens."""

    kind: Kind = "bpe"
    size: int = 10_000


@dataclass(frozen=True)
class Users:
    """The training users of a corpus, or of a part of it, without their held-out texts."""

    corpus: UserCorpus
    part: str
    source: Source

    @classmethod
    def of(cls, corpus: str, part: str = "") -> Users:
        found = load_corpus(corpus)
        members: Source = found.train
        if part:
            number, _, of = part.partition("/")
            if not (number.isdecimal() and of.isdecimal()):
                raise ValueError(f"part must be such as 1/2, got {part!r}")
            members = part_of(members, int(number), int(of))
        return cls(found, part, kept(members))


@dataclass(frozen=True)
class Terms:
    """On which terms something is released about users, and where it is written."""

    folder: Path  # to keep the ledger in while it is made
    out: Path  # where everything will be
    population: int | None = None  # declared; None: their number, which is published by that
    delta: float | None = None
    seed: int | None = None  # a simulation, not for release

    def population_of(self, users: Users) -> int:
        return self.population or len(users.source)

    def delta_of(self, users: Users) -> float:
        return self.delta or default_delta(self.population_of(users))


def public(source: str, shape: Shape) -> LearntTokenizer:
    """From public text, by name or from a file."""
    if (path := Path(source)).is_file():
        refuse_known(source, path, lines_of(path))
    tokenizer = from_public(source, shape.kind, shape.size)
    return LearntTokenizer(tokenizer, word_weights(source))


def oracle(users: Users, shape: Shape) -> LearntTokenizer:
    """From the users' own text: for comparison, and never for a release."""
    found = build.oracle(users.source, shape.kind, shape.size)
    texts = (text for user in range(len(users.source)) for text in users.source.texts(user))
    return LearntTokenizer(found, count_words(texts, "papers"))


def sampled(
    run: LanguageRun,
    round: int | None,
    shape: Shape,
    key: bytes,
    *,
    tokens: int = 1_000_000,
    sampling: Sampling = Sampling(),  # noqa: B008  (frozen)
    progress: Progress | None = None,
) -> LearntTokenizer:
    """From what the run's model says after a round; the people of the run have paid for it."""
    last = run.directory.checkpoints.read(round)
    _refuse_two_histories(run)
    old = run.tokenizer_at(last.leg)
    texts = sample_texts(
        run.model(last.leg), old, key, tokens=tokens, sampling=sampling, progress=progress
    )
    run_id = run.ledger.header.run_id
    how = f"{tokens} tokens sampled from the model of the run {run_id} after round {last.leg}"
    found = tokenizer_from_samples(texts, old, kind=shape.kind, size=shape.size, of=how)
    history = History.of(run.ledger, last.head, found, how, last.leg)
    return LearntTokenizer(found, count_words(texts, "papers"), history)


def _refuse_two_histories(run: LanguageRun) -> None:
    """With a tokenizer that was learnt from others of the corpus there would be two to pass on."""
    for cost in run.ledger.header.prior_costs:
        if cost.whom == "beside":
            raise ValueError(
                f"the tokenizer of {run.path} was learnt from part {cost.part} of the users, and"
                " what is sampled from its model would tell about both parts; sample from a run"
                " with a public tokenizer"
            )


def heavy_hitters(
    users: Users, candidates: str, shape: Shape, method: HeavyHitters, terms: Terms
) -> LearntTokenizer:
    """From a few words of each user; candidates are those of a public text or list, by name."""
    words = build.most_frequent(word_weights(candidates, method.normalisation))
    facts = {"candidates": candidates, **asdict(method)}

    def learn(key: bytes) -> WordCounts:
        return method.learn(users.source, words, terms.population_of(users), key)

    given = (declare("candidates", candidates, users.corpus),)
    return _released(users, shape, (method.event,), facts, learn, terms, given)


def partition_selection(
    users: Users, shape: Shape, method: PartitionSelection, terms: Terms
) -> LearntTokenizer:
    """From noisy counts of the words that users have, whichever these are."""

    def learn(key: bytes) -> WordCounts:
        return method.learn(users.source, terms.population_of(users), key)

    return _released(users, shape, method.events, asdict(method), learn, terms)


def _released(
    users: Users,
    shape: Shape,
    events: Sequence[Event],
    facts: Mapping[str, Any],
    learn: Callable[[bytes], WordCounts],
    terms: Terms,
    public_inputs: tuple[PublicInput, ...] = (),
) -> LearntTokenizer:
    """Charge, learn, and say what it was; both ledgers come before the noise."""
    key = RunKey.generate() if terms.seed is None else RunKey.from_seed(terms.seed)
    check_users(users.source, terms.population_of(users), bytes(KEY_SIZE))  # before any charge
    public = canonical_json([facts, users.corpus.identity, users.part, terms.population_of(users)])
    plan_hash = sha256(public.encode()).hexdigest()
    header = Header(
        run_id=key.hmac(b"words of users", public.encode()).hex()[:16],
        unit="user",
        population=terms.population_of(users),
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
        ledger.charge([Release("words", 0, 0, event, plan_hash) for event in events])
    found = learn(key.hmac(b"noise on words of users", header.run_id.encode()))
    tokenizer = found.tokenizer(shape.kind, shape.size)
    history = History.of(ledger, ledger.head, tokenizer, found.how)
    return LearntTokenizer(tokenizer, found.counts, history)
