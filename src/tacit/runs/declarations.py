"""What a run declares in its ledger's header, so that its claim needs no other file.

Whatever a run is given that is not the people's text was declared public by whoever named it: it
is listed with its digest, and refused if it is the people's text after all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from tacit.config.experiment import Experiment
from tacit.corpus.files import sha256_of
from tacit.corpus.public_inputs import refuse_private, refuse_private_origin
from tacit.corpus.source import UserCorpus
from tacit.privacy.budget import Budget
from tacit.privacy.claims import ALWAYS_EXCLUDED
from tacit.privacy.events import Adjacency
from tacit.privacy.ledger_lines import Header, PriorCost, PublicInput
from tacit.privacy.randomness import RunKey
from tacit.public.text import read_public_text
from tacit.tokenizers.history import LearntTokenizer
from tacit.tokenizers.public import PublicSource
from tacit.tokenizers.tokenizer import FILE_NAME

CLIENTS = "the number of the audit's canary clients, which is part of the population's"
USED_OF_A_FOLDER = {"dictionary": FILE_NAME, "starting weights": "model.safetensors"}
CANARIES = "how often each canary was planted, which is published"


def header_of(
    experiment: Experiment,
    corpus: UserCorpus,
    key: RunKey,
    *,
    adjacency: Adjacency | None,
    asked_accountant: str | None,
    prior_costs: tuple[PriorCost, ...] = (),
    public_inputs: tuple[PublicInput, ...] = (),
    origin: str = "",
) -> Header:
    """The header of a run's ledger, from its resolved experiment.

    `origin` tells branches of one experiment apart.
    """
    plan, privacy = experiment.plan, experiment.privacy
    assert plan.population is not None
    assert privacy.delta is not None
    budget = None
    if privacy.budget_epsilon is not None:
        assert privacy.accountant is not None
        budget = Budget(privacy.budget_epsilon, privacy.delta, privacy.accountant)
    toml = experiment.to_toml().encode()
    view = "people" if corpus.about_people else "synthetic"
    return Header(
        run_id=key.hmac(b"run id", toml, origin.encode()).hex()[:16],
        unit="user",
        population=plan.population,
        delta=privacy.delta,
        budget=budget,
        adjacency=adjacency,
        view="iid" if experiment.corpus.view == "iid" and corpus.about_people else view,
        simulation=experiment.seed is not None,
        audit=experiment.audit.is_on,
        population_is_counted=plan.population_is_counted,
        accountant=asked_accountant,
        people=corpus.identity if corpus.about_people else "",
        part=experiment.corpus.part,
        split=corpus.split_identity,
        data=corpus.commitment,
        experiment=hashlib.sha256(toml).hexdigest(),
        excluded=tuple(_excluded(experiment, corpus)),
        public_inputs=public_inputs,
        prior_costs=prior_costs,
    )


def _excluded(experiment: Experiment, corpus: UserCorpus) -> Iterable[str]:
    yield from ALWAYS_EXCLUDED
    if experiment.plan.population_is_counted and experiment.audit.canary_clients:
        yield CLIENTS
    if experiment.corpus.users is not None:
        yield f"which users are the first {experiment.corpus.users:,} of the corpus"
    if experiment.audit.canaries is not None:
        yield CANARIES
    yield from corpus.declarations


def declared_public(
    experiment: Experiment,
    learnt: LearntTokenizer,
    corpus: UserCorpus,
    *,
    before: Experiment | None = None,
) -> tuple[PublicInput, ...]:
    """Everything that is declared public by naming it; what is not public is refused.

    `before` is the experiment of a parent, whose ledger has its inputs already.
    """
    known = set(_named(before, learnt)) if before is not None else set()
    named = [one for one in _named(experiment, learnt) if one not in known]
    return tuple(dict.fromkeys(declared(what, source, corpus) for what, source in named))


def _named(experiment: Experiment, learnt: LearntTokenizer) -> list[tuple[str, str]]:
    """What each public input is used for, and its name."""
    model = experiment.model
    named: list[tuple[str, str]] = []
    if not (learnt.needs_history or learnt.why_void):
        named.append(("dictionary", experiment.tokenizer.source))
    if model.pretrain is not None:
        named.append(("pre-training text", model.pretrain.source))
    if isinstance(model.public_output_bias, str):
        named.append(("word frequencies", model.public_output_bias))
    if model.start:
        named.append(("starting weights", model.start))
    named += [("text behind the clip norm", name) for name in experiment.plan.clip_norm_from]
    return named + [
        ("dictionary", phase.tokenizer.source)
        for phase in experiment.phases
        if phase.tokenizer and phase.tokenizer.source != "sampled"
    ]


def declared(what: str, source: str, corpus: UserCorpus | None) -> PublicInput:
    """One input by its name and digest; refused if it is the corpus's own text."""
    name = source.removeprefix("public:").strip()
    named = PublicSource(source)
    if named.parts:
        return PublicInput(what, name, named.digest)
    path = Path(name)
    if not path.exists():
        raise ValueError(f"there is no {what} at {name}: name a public text or a file")
    called = path.resolve().name
    if path.is_dir() and (used := USED_OF_A_FOLDER.get(what)):
        path = path / used  # a run or a bundle holds more, and some of that is private
    if corpus is not None and path.is_file():
        refuse_private(f"the {what} {name}", path, _lines(what, path), corpus)
        if path.name == FILE_NAME:
            origin = LearntTokenizer.load(path).tokenizer.provenance
            refuse_private_origin(f"the {what} {name}", origin, corpus)
    return PublicInput(what, called, digest_of(path))


def digest_of(path: Path) -> str:
    """SHA-256 of a file; of a folder that of its files' names and digests."""
    if path.is_file():
        return sha256_of(path)
    digest = hashlib.sha256()
    for file in sorted(one for one in path.rglob("*") if one.is_file()):
        digest.update(f"{file.relative_to(path).as_posix()}\0{sha256_of(file)}\n".encode())
    return digest.hexdigest()


def public_lines(source: str) -> Iterable[str]:
    """The lines of a public text by its name or file."""
    return PublicSource(source).lines


def _lines(what: str, path: Path) -> Iterable[str]:
    """The lines of text in a file; weights and tokenizers have none."""
    if what == "starting weights" or path.name == FILE_NAME:
        return ()
    if path.suffix.lower() in (".jsonl", ".ndjson", ".json"):
        text = read_public_text([str(path)])
        return (*text.train, *text.held_out)
    return PublicSource(path).lines
