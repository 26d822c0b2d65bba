"""From a run directory to the session that goes on at its last checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tacit.config.experiment import Experiment
from tacit.corpus.source import UserCorpus
from tacit.engines.engine import Engine
from tacit.engines.serial import SerialEngine
from tacit.evaluation.held_out import held_out_texts
from tacit.federated.cohort import CachedUsers, Task, Users
from tacit.kernels.local_sgd import local_sgd_for
from tacit.mechanisms.clipping import ClipState
from tacit.mechanisms.estimators import UserWeighting
from tacit.models import weights
from tacit.models.base import LanguageModel, to_vector
from tacit.privacy.events import PostProcessing
from tacit.privacy.ledger import Charge, Ledger
from tacit.runs import run_tokenizers, switching
from tacit.runs.checkpoints import Checkpoint
from tacit.runs.directory import RunDirectory
from tacit.runs.session import HeldOut, Session
from tacit.runs.switching import switched
from tacit.tasks.language import assembly, plans
from tacit.tasks.language.assembly import Tell
from tacit.tasks.language.canary_clients import WithCanaryClients
from tacit.tasks.language.coins import COMMITTED, coins_key, commitment
from tacit.tasks.language.people import People, bind_planted, record_planted
from tacit.tokenizers.cache import TokenCache

# An engine, or what makes one for the model that the run turns out to have.
EngineChoice = Engine | Callable[[LanguageModel], Engine]


def session_of(
    directory: RunDirectory,
    experiment: Experiment,
    people: People,
    engine: EngineChoice | None,
    tell: Tell | None,
) -> Session:
    """Everything that the rounds need, from the last checkpoint, in the tokenizer they are for.

    The run is locked, and its charges compared with what its people's ledger knows of it, before
    anything is written.
    """
    if any(phase.tokenizer for phase in experiment.phases) and not _makes_engines(engine):
        raise ValueError(
            "an engine is made for a model of one vocabulary, and the experiment switches it: give"
            " a function that makes an engine for a model"
        )
    last = directory.checkpoints.read()
    ledger = Ledger.open(directory.ledger_file, last.head, repair_torn_tail=True)
    try:
        ledger.lock()
        people.witness(ledger)
        return _opened(directory, experiment, people, ledger, last, engine, tell)
    except BaseException:
        ledger.close()
        raise


def _opened(
    directory: RunDirectory,
    experiment: Experiment,
    people: People,
    ledger: Ledger,
    last: Checkpoint,
    engine: EngineChoice | None,
    tell: Tell | None,
) -> Session:
    directory.forget_after(last.round)
    tokenizer = run_tokenizers.by_fingerprint(directory, last.tokenizer)
    model = weights.load(
        last.model_file, vocab_size=tokenizer.vocab_size, own_factory=own_factory(experiment)
    )
    optimizer = last.optimizer
    switch = switched(
        directory, experiment, people.corpus, last.round, tokenizer, model, optimizer, tell
    )
    if switch is not None:
        tokenizer, model, optimizer = switch.tokenizer, switch.model, switch.optimizer
    trained_on = people.view(experiment, tokenizer)
    cache = TokenCache.open_or_build(
        trained_on,
        tokenizer,
        _cache_folder(people.corpus, directory),
        max_tokens_per_user=experiment.corpus.max_tokens_per_user,
        progress=(lambda done, of: tell("tokenizing", done, of)) if tell else None,
    )
    if planting := people.planting(experiment, tokenizer):
        record_planted(directory, planting, cache)
        bind_planted(directory, ledger)
    users: Users = CachedUsers(cache, trained_on)
    key = directory.key()
    if experiment.audit.canary_clients is not None:
        coins = coins_key(directory, key)
        _commit_to(coins, ledger)
        clients = assembly.canary_clients(experiment, model, coins)
        assert clients is not None
        users = WithCanaryClients(users, clients, UserWeighting(experiment.plan.user_weight_cap))
    update = assembly.user_update(experiment)
    each = plans.round_plans(experiment, plans.layers_of(model))
    if switch is not None:
        switching.record(ledger, last.round, switch)
        run_tokenizers.use(directory, tokenizer)
    texts = held_out_texts(people.corpus.test, tokenizer, experiment.evaluation.max_tokens)
    return Session(
        directory=directory,
        experiment=experiment,
        people=people,
        tasks=tuple(Task(plan, update, tokenizer.bos, users) for plan in each),
        server=assembly.server_optimizer(experiment),
        model=model,
        held_out=HeldOut(texts, tokenizer.bos, tokenizer.unk),
        engine=_engine(engine, model),
        ledger=ledger,
        key=key,
        trained_on=weights.trained_on(last.model_file),
        tokenizer=tokenizer.fingerprint,
        weights=to_vector(model),
        optimizer=optimizer,
        clip_state=ClipState(last.clip_norms, last.clip_round),
        round=last.round,
        end=experiment.next_switch(last.round),
        just_switched=switch is not None,
    )


def _commit_to(coins: bytes, ledger: Ledger) -> None:
    """The audit's coins in the ledger before training, so that they cannot be tossed again."""
    branch = ledger.header.branch
    if any(entry.kind == COMMITTED and entry.branch == branch for entry in ledger.entries):
        return
    ledger.charge(
        [
            Charge(
                kind=COMMITTED,
                round=ledger.header.first_round,
                attempt=0,
                event=PostProcessing("a commitment to which canary clients take part"),
                plan_hash=commitment(coins),
            )
        ]
    )


def _makes_engines(chosen: EngineChoice | None) -> bool:
    return chosen is None or callable(chosen)


def _engine(chosen: EngineChoice | None, model: LanguageModel) -> Engine:
    if chosen is None:
        return SerialEngine(local_sgd_for(model))
    return chosen(model) if callable(chosen) else chosen


def _cache_folder(corpus: UserCorpus, directory: RunDirectory) -> Path:
    """Beside the corpus, or in the run's private folder where that cannot be written to."""
    folder = assembly.corpus_folder(corpus)
    return folder if folder is not None and os.access(folder, os.W_OK) else directory.private


def own_factory(experiment: Experiment) -> str | None:
    name = experiment.model.name
    return name if ":" in name else None
