"""How a tokenizer is learnt, and what is written down about it: one function for each source.

    public        from public text: costs no privacy
    oracle        from the users' own text: voids every guarantee, for comparison only
    from_samples  from what a private model says: post-processing, which costs nothing more
    release       from users' words that are learnt under differential privacy

The last releases something about people: it is charged in a ledger of its own, which the people's
ledger witnesses, before any noise is drawn.  How the words are learnt is for a method such as
`tacit.tokenizers.partition_selection` to say.

Samples (Bagdasaryan et al. 2022, Algorithm 1 and section 4.2) cost no privacy: the texts are
computed from the released model, its old tokenizer and randomness that knows no user, so all that
is learnt from them is post-processing of a release.  That is as good as the release: the words of
an old tokenizer that voids the guarantee come back in the model's texts, so the new tokenizer is
marked as the old one was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tacit.corpus.builtin import load_corpus
from tacit.corpus.people_ledger import PeopleLedger
from tacit.corpus.public_inputs import refuse_known
from tacit.corpus.source import UserCorpus, UserSource
from tacit.privacy import checks, scratch
from tacit.privacy.claims import ALWAYS_EXCLUDED
from tacit.privacy.events import Composition, Event
from tacit.privacy.guarantee import default_delta
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Charge, Header, PublicInput
from tacit.privacy.randomness import RunKey
from tacit.privacy.records import canonical_json
from tacit.tokenizers import build, provenance
from tacit.tokenizers.history import LEDGER, History, LearntTokenizer
from tacit.tokenizers.normalisation import (
    Normalisation,
    count_words,
    name_of,
    split_words,
    strings,
)
from tacit.tokenizers.public import PublicSource
from tacit.tokenizers.remapping import Remapping
from tacit.tokenizers.tokenizer import Kind, Tokenizer
from tacit.tokenizers.word_counts import KEY_SIZE, WordCounts, check_users


@dataclass(frozen=True)
class Users:
    """The training users of a corpus, or of a part of it, without their held-out texts.

    `population` and `delta` are the terms on which something may be released about them.
    """

    corpus: UserCorpus
    part: str
    source: UserSource
    population: int
    population_is_counted: bool
    delta: float

    @classmethod
    def of(
        cls, corpus: str, part: str = "", population: int | None = None, delta: float | None = None
    ) -> Users:
        """The users of a corpus by its name or path; `part` is such as "1/2", or "" for all.

        The population is declared; None takes the number of users, which is published by that.
        Without a delta it is the default for the population.
        """
        if population is not None:
            checks.whole("population", population, at_least=1)
        if delta is not None:
            checks.open_unit("delta", delta)
        opened = load_corpus(corpus)
        members: UserSource = opened.train
        if part:
            number, _, of = part.partition("/")
            if not (number.isdecimal() and of.isdecimal()):
                raise ValueError(f"part must be such as 1/2, got {part!r}")
            members = members.part(int(number), int(of))
        source = members.kept()
        declared = population or len(source)
        delta = delta or default_delta(declared)
        return cls(opened, part, source, declared, population is None, delta)


def public(
    source: str,
    kind: Kind = "bpe",
    size: int = 10_000,
    normalisation: Normalisation = "papers",
) -> LearntTokenizer:
    """A tokenizer from public text, by name or from a file that is not known to be people's."""
    text = PublicSource(source)
    if not text.parts and (path := Path(text.name)).is_file():
        refuse_known(source, path, text.lines)
    words = text.word_weights(normalisation)
    return LearntTokenizer(text.tokenizer(kind, size, normalisation), words)


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


def check_successor(old: Tokenizer, kind: Kind, size: int) -> None:
    """Refuse a kind or a size that could not follow `old`, before anything is sampled for it."""
    trial = build.learn(kind, ["a"], size, normalisation=_normalisation_of(old))
    Remapping.between(old, trial)


def release(
    users: Users,
    events: Sequence[Event],
    learn: Callable[[UserSource, int, bytes], WordCounts],
    facts: Mapping[str, Any],
    kind: Kind = "bpe",
    size: int = 10_000,
    *,
    seed: int | None = None,
    public_inputs: tuple[PublicInput, ...] = (),
) -> LearntTokenizer:
    """A tokenizer from words that users release; both ledgers are charged before the noise.

    Args:
        events: what the release costs its users.
        learn: from users, population and a secret key to the words with their noisy counts.
        facts: the public parameters of that, whose digest identifies the release in its ledger.
        seed: makes it a simulation, which is not for release.
        public_inputs: what was declared public for it.
    """
    key = RunKey.generate() if seed is None else RunKey.from_seed(seed)
    # What would be refused after the noise is refused here, where it costs nothing yet.
    check_users(users.source, users.population, bytes(KEY_SIZE))
    if kind == "word":
        build.dictionary({"a": 1.0}, size)
    else:
        build.learn(kind, ["a"], size)
    facts = {**facts, "normalisation": "papers"}  # of `words_by_user`
    public = canonical_json([facts, users.corpus.identity, users.part, users.population]).encode()
    header = Header(
        run_id=key.hmac(b"words of users", public).hex()[:16],
        unit="user",
        population=users.population,
        delta=users.delta,
        adjacency=Composition.of(events).adjacency,
        view="people" if users.corpus.about_people else "synthetic",
        simulation=seed is not None,
        population_is_counted=users.population_is_counted,
        counted="releases",
        people=users.corpus.identity if users.corpus.about_people else "",
        part=users.part,
        split=users.corpus.split_identity,
        data=users.corpus.commitment,
        excluded=ALWAYS_EXCLUDED,
        public_inputs=public_inputs,
    )
    plan_hash = sha256(public).hexdigest()
    with scratch.folder() as folder, Ledger.create(folder / LEDGER, header) as ledger:
        if header.people:
            PeopleLedger.open(header.people).witness(ledger)
        ledger.charge([Charge("words", 0, 0, event, plan_hash) for event in events])
        noise_key = key.hmac(b"noise on words of users", header.run_id.encode())
        words = learn(users.source, users.population, noise_key)
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
