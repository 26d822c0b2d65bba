"""Another tokenizer in the middle of a training (Bagdasaryan et al. 2022, Algorithm 1, UPDATE).

    corpus     <- texts sampled from the model after a round, decoded with its tokenizer
    tokenizer  <- learnt from them
    embeddings <- of each new token the mean over the old tokens that spell it

All of it is computed from a model that was released under differential privacy, and from nothing
else: post-processing, which costs nothing (Dwork 2011).  The ledger says so in an entry of its own.

The switch is a function of the last checkpoint and the run's key.  It happens when a run is opened
at a round that has one, so that a run killed at any point of it simply begins it again; what was
learnt is kept in the run directory and not learnt twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from tacit.config.experiment import Experiment, TokenizerSwitch
from tacit.corpus.source import UserCorpus
from tacit.evaluation.sampling import Sampling, sample_texts
from tacit.models.base import LanguageModel, parameter_count
from tacit.models.vocabulary import remapped_vector, with_vocabulary
from tacit.privacy.events import Event, PostProcessing
from tacit.privacy.ledger import Charge, Ledger
from tacit.runs import run_tokenizers
from tacit.runs.debts import debt_of
from tacit.runs.directory import RunDirectory
from tacit.tasks.language.assembly import Tell, load_tokenizer, server_optimizer
from tacit.tokenizers import learn
from tacit.tokenizers.history import LearntTokenizer
from tacit.tokenizers.remapping import Remapping
from tacit.tokenizers.tokenizer import Tokenizer

Moments = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Switched:
    """A training's state in its new tokens, and what the ledger says about it."""

    tokenizer: Tokenizer
    model: LanguageModel
    optimizer: Moments
    event: Event


def switched(
    directory: RunDirectory,
    experiment: Experiment,
    corpus: UserCorpus,
    round: int,
    tokenizer: Tokenizer,
    model: LanguageModel,
    optimizer: Moments,
    tell: Tell | None = None,
) -> Switched | None:
    """The state after the switch before `round`; None if the experiment has none there."""
    switch = experiment.switch_at(round)
    if switch is None:
        return None
    learnt, event = _learnt(directory, experiment, corpus, switch, round, tokenizer, model, tell)
    remapping = Remapping.between(tokenizer, learnt)
    remapped = with_vocabulary(model, remapping)
    if switch.moments == "reset":
        moments = dict(server_optimizer(experiment).initial(parameter_count(remapped)))
    else:
        moments = remapped_moments(model, optimizer, remapping)
    return Switched(learnt, remapped, moments, event)


def with_switch(
    experiment: Experiment, round: int, switch: Mapping[str, Any], rounds: int | None = None
) -> Experiment:
    """The experiment with a switch after `round` rounds, and so many rounds in all.

    Its noise stays what it was: a target epsilon was solved for over its own rounds.
    """
    total = rounds or experiment.rounds
    if not 0 < round < total:
        raise ValueError(
            f"the tokenizer is swapped after round {round}, so that there must be more rounds than"
            f" that in all, got {total}; add --rounds"
            if round
            else "the tokenizer of an untrained model is swapped by beginning with another one"
        )
    phases = [phase.model_dump() for phase in experiment.phases] or [{"rounds": total}]
    before, left = [], round
    while left and phases:
        here = min(left, phases[0]["rounds"])
        before.append(phases[0] | {"rounds": here})
        phases[0] = phases[0] | {"rounds": phases[0]["rounds"] - here, "tokenizer": None}
        left -= here
        if not phases[0]["rounds"]:
            phases.pop(0)
    after = phases or [before[-1] | {"rounds": total - round}]
    after[0] = after[0] | {"tokenizer": switch}
    after[-1]["rounds"] += total - sum(phase["rounds"] for phase in [*before, *after])
    return experiment.changed(
        rounds=total, phases=[*before, *after], privacy={"target_epsilon": None}
    )


def remapped_moments(
    model: LanguageModel, optimizer: Mapping[str, NDArray[Any]], remapping: Remapping
) -> Moments:
    """The server's moments of the new parameters: means, as the parameters themselves are.

    A mean of squares is not negative, so Adam's stay valid; a count of steps stays what it is.
    """
    size = parameter_count(model)
    return {
        name: remapped_vector(model, values, remapping) if values.shape == (size,) else values
        for name, values in optimizer.items()
    }


def record(ledger: Ledger, round: int, done: Switched) -> None:
    """The switch in the ledger, once; what it inherited from another run is not its own."""
    here = (entry for entry in ledger.entries if entry.branch == ledger.header.branch)
    if not any(entry.kind == "tokenizer" and entry.round == round for entry in here):
        ledger.charge(
            [
                Charge(
                    kind="tokenizer",
                    round=round,
                    attempt=0,
                    event=done.event,
                    plan_hash=done.tokenizer.fingerprint,
                )
            ]
        )


def _learnt(
    directory: RunDirectory,
    experiment: Experiment,
    corpus: UserCorpus,
    switch: TokenizerSwitch,
    round: int,
    old: Tokenizer,
    model: LanguageModel,
    tell: Tell | None,
) -> tuple[Tokenizer, Event]:
    """The new tokenizer, from the run directory if it is there already, and its ledger entry."""
    of = f"{switch.sampled_tokens} tokens sampled from the model after round {round}"
    found = run_tokenizers.learnt_for(directory, round)
    is_new = found is None
    if switch.source == "sampled":
        event: Event = PostProcessing(f"a tokenizer learnt from {of}, which was released before")
        found = found or _sampled(directory, switch, round, of, old, model, tell)
    else:
        found = found or load_tokenizer(switch.source, experiment.tokenizer.accept_oracle)
        event = _event_of_given(experiment, corpus, switch, found)
    if is_new:
        run_tokenizers.keep(directory, found, round)
    return found.tokenizer, event


def _sampled(
    directory: RunDirectory,
    switch: TokenizerSwitch,
    round: int,
    of: str,
    old: Tokenizer,
    model: LanguageModel,
    tell: Tell | None,
) -> LearntTokenizer:
    """Learnt from what the model says; the run's key decides what that is."""
    texts = sample_texts(
        model,
        old,
        directory.key().hmac(b"tokenizer samples", round.to_bytes(8, "big")),
        tokens=switch.sampled_tokens,
        sampling=Sampling(switch.temperature, switch.top_k, switch.max_length),
        progress=_telling(tell),
    )
    kind, size = switch.kind or old.kind, switch.size or old.vocab_size
    return learn.from_samples(texts, old, kind=kind, size=size, of=of)


def _event_of_given(
    experiment: Experiment, corpus: UserCorpus, switch: TokenizerSwitch, given: LearntTokenizer
) -> Event:
    """Of a tokenizer from elsewhere, for which nobody but the public may have paid."""
    if given.needs_history and not given.why_void:
        raise ValueError(
            f"the tokenizer {switch.source} was learnt from people's text; begin a run with it"
            " (tokenizer.source), so that what it cost them is counted from the start"
        )
    debt = debt_of(experiment, corpus, given)
    return debt.event or PostProcessing(f"another tokenizer ({given.tokenizer.provenance})")


def _telling(tell: Tell | None) -> Callable[[int, int], None] | None:
    if tell is None:
        return None
    return lambda done, of: tell("sampling text for the new tokenizer", done, of)
