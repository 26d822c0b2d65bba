"""The switch of a run to another tokenizer in the middle of its training.

The switch is that of Bagdasaryan et al. 2022 (Algorithm 1, UPDATE):

    corpus     <- texts sampled from the model after a round, decoded with its tokenizer
    tokenizer  <- learnt from them
    embeddings <- of each new token the mean over the old tokens that spell it

All of it is computed from a model that was released under differential privacy, and from nothing
else: post-processing, which costs nothing (Dwork 2011).  The ledger says so in an entry of its own.
The switch is a function of the last checkpoint and the run's key.  It happens when a trainer is
opened at a round that has one, so a run killed at any point of it simply begins it again; what was
learnt is kept among the run's tokenizers and not learnt twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tacit.config.experiment import Experiment, TokenizerSwitch
from tacit.evaluation.sampling import Sampling, sample_texts
from tacit.federated.averaging import without_mean
from tacit.models.base import LanguageModel, parameter_count
from tacit.models.vocabulary import remapped_vector, with_vocabulary
from tacit.privacy.events import Event, PostProcessing
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Charge
from tacit.tasks.language.assembly import load_tokenizer, server_optimizer
from tacit.tasks.language.run_tokenizers import RunTokenizers
from tacit.tasks.language.tokenizer_cost import cost_of
from tacit.tasks.task import Opened
from tacit.tokenizers import learn
from tacit.tokenizers.history import LearntTokenizer
from tacit.tokenizers.remapping import Remapping
from tacit.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class _Switch:
    """A training's state in its new tokens, and what the ledger says about it.

    Nothing is changed until `record`, which comes after all that may fail.
    """

    round: int
    tokenizer: Tokenizer
    model: LanguageModel
    optimizer: dict[str, NDArray[Any]]
    event: Event

    def record(self, ledger: Ledger, folder: Path) -> None:
        """Put the switch into the ledger, once, and let tokenizer.json be the new one."""
        own = (entry for entry in ledger.entries if entry.branch == ledger.header.branch)
        if not any(entry.kind == "tokenizer" and entry.round == self.round for entry in own):
            fingerprint = self.tokenizer.fingerprint
            ledger.charge([Charge("tokenizer", self.round, 0, self.event, fingerprint)])
        RunTokenizers(folder).use(self.tokenizer)


def switch_tokenizer(opened: Opened, tokenizer: Tokenizer, model: LanguageModel) -> _Switch | None:
    """The switch before the next round; None if the experiment has none there.

    The server optimizer's moments begin anew, or are means like the parameters that they belong to,
    as the experiment says.  A mean of squares is not negative, so Adam's stay valid; a count of
    steps stays what it is.  Training goes on from the model as it was released; where that is a
    mean over rounds, the mean begins anew.
    """
    experiment: Experiment = opened.experiment
    round = opened.last.leg
    settings = experiment.switch_at(round)
    if settings is None:
        return None
    learnt, event = _learn(opened, settings, tokenizer, model)
    remapping = Remapping.between(tokenizer, learnt)
    remapped = with_vocabulary(model, remapping)
    if settings.moments == "reset":
        moments = dict(server_optimizer(experiment).initial(parameter_count(remapped)))
    else:
        size = parameter_count(model)
        moments = {
            name: remapped_vector(model, values, remapping) if values.shape == (size,) else values
            for name, values in without_mean(opened.last.arrays).items()
        }
    return _Switch(round, learnt, remapped, moments, event)


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
    return experiment.without_target().changed(rounds=total, phases=[*before, *after])


def _learn(
    opened: Opened, settings: TokenizerSwitch, old: Tokenizer, model: LanguageModel
) -> tuple[Tokenizer, Event]:
    """The new tokenizer, from the run's folder if it was learnt before, and its ledger entry."""
    round, accept_oracle = opened.last.leg, opened.experiment.tokenizer.accept_oracle
    tokenizers = RunTokenizers(opened.folder)
    kept = tokenizers.learnt_for(round)
    if settings.source == "sampled":
        of = f"{settings.sampled_tokens} tokens sampled from the model after round {round}"
        event: Event = PostProcessing(f"a tokenizer learnt from {of}, which was released before")
        learnt = kept or _sample(opened, settings, of, old, model)
    else:
        learnt = kept or load_tokenizer(settings.source, accept_oracle)
        event = _event_of_public(opened, settings, learnt)
    if kept is None:
        tokenizers.keep(learnt, round)
    return learnt.tokenizer, event


def _sample(
    opened: Opened, settings: TokenizerSwitch, of: str, old: Tokenizer, model: LanguageModel
) -> LearntTokenizer:
    """A tokenizer learnt from what the model says; the run's key decides what that is."""
    announce = opened.announce
    texts = sample_texts(
        model,
        old,
        opened.key.hmac(b"tokenizer samples", opened.last.leg.to_bytes(8, "big")),
        tokens=settings.sampled_tokens,
        sampling=Sampling(settings.temperature, settings.top_k, settings.max_length),
        progress=partial(announce, "sampling text for the new tokenizer") if announce else None,
    )
    kind, size = settings.kind or old.kind, settings.size or old.vocab_size
    return learn.from_samples(texts, old, kind=kind, size=size, of=of)


def _event_of_public(opened: Opened, settings: TokenizerSwitch, learnt: LearntTokenizer) -> Event:
    """The ledger entry of a tokenizer from a file, which must be public."""
    if learnt.needs_history and not learnt.why_void:
        raise ValueError(
            f"the tokenizer {settings.source} was learnt from people's text; begin a run with it"
            " (tokenizer.source), so that what it cost them is counted from the start"
        )
    cost = cost_of(opened.experiment, opened.data.corpus, learnt)
    return cost.event or PostProcessing(f"another tokenizer ({learnt.tokenizer.provenance})")
