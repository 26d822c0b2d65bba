"""Files by their digests: models, tokenizers, canaries, a tokenizer's history, and the key.

A claim is about one model, in one vocabulary.  The ledger is bound to both by digests: those of the
files of a bundle in its last line, that of a tokenizer in an entry of its own, that of a model in
the checkpoint whose head is the ledger's.  What a tokenizer from people's text has cost is in the
header, and again in the ledger that came with the tokenizer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from tacit.config.experiment import Experiment
from tacit.models import weights
from tacit.privacy.claims import excluded_by
from tacit.privacy.ledger_lines import PriorCost
from tacit.runs.use_script import USE_FILE, use_script
from tacit.tasks.language import canary_clients as coins
from tacit.tasks.language.run_tokenizers import RunTokenizers
from tacit.tasks.language.tokenizer_cost import COUNTED, are_disjoint
from tacit.tasks.nlu import scaling
from tacit.tasks.nlu.experiment import NluExperiment
from tacit.tokenizers.history import LEDGER, OF_A_RUN, History, LearntTokenizer
from tacit.tokenizers.tokenizer import Tokenizer
from tacit.verification.evidence import Check, Evidence


def _files(evidence: Evidence) -> Iterator[str]:
    """A bundle's files are those in the last line of its ledger: none changed, missing or added."""
    if evidence.is_bundle:
        yield from evidence.bundle.faults()


def _script(evidence: Evidence) -> Iterator[str]:
    """The script that comes with a bundle is the one that tacit writes for its model."""
    file = evidence.path / USE_FILE
    if not evidence.is_bundle or not file.is_file() or not evidence.model_file.is_file():
        return  # what is missing is reported with the bundle's files
    try:
        expected = use_script(evidence.model_file)
    except ValueError as problem:
        yield str(problem)
        return
    if file.read_bytes() != expected.encode():
        yield f"{file} is not the script that tacit writes for this model: do not run it"


def _models(evidence: Evidence) -> Iterator[str]:
    """Each checkpoint can be read, and its model is the one that was written with it.

    Reading one compares the digest of its model; what was wrong then is reported here.
    """
    if evidence.is_bundle:
        return
    yield from evidence.damaged_checkpoints
    if not evidence.directory.checkpoints.legs():
        yield f"{evidence.directory.checkpoints.folder} has no checkpoint"


def _trained_on(evidence: Evidence) -> Iterator[str]:
    """The header names everybody whose text is in the weights: the run's people, or the start's."""
    experiment, header = evidence.experiment, evidence.header
    if not isinstance(experiment, Experiment):
        return
    known = {experiment.corpus.identity, header.people}
    known |= {cost.people for cost in header.prior_costs if cost.what == "starting weights"}
    for people in weights.trained_on(evidence.model_file):
        if people not in known:
            yield (
                f"{evidence.model_file} was trained on text of people {people}, whom the ledger's"
                " header does not name"
            )


def _tokenizers(evidence: Evidence) -> Iterator[str]:
    """Each tokenizer is in the ledger, and each checkpoint names one that is.

    A run that switches its tokenizer has several, each recorded with the round from which on it is
    used.  One may be on the disk that is not recorded yet, if the run was killed in between.
    """
    if isinstance(evidence.experiment, NluExperiment):
        for one in evidence.checkpoints:
            if one.facts.get("experiment") != evidence.experiment.fingerprint:
                file = evidence.directory.checkpoints.state_file(one.leg)
                yield f"{file} is the checkpoint of another experiment"
        return
    recorded = {entry.plan_hash for entry in evidence.tokenizer_entries}
    for file, words in evidence.tokenizers.items():
        is_first = file == evidence.directory.tokenizer_file
        if words.fingerprint not in recorded and (is_first or not _is_to_come(evidence, file)):
            yield f"{file} is not a tokenizer that the ledger has"
    present = {words.fingerprint for words in evidence.tokenizers.values()}
    for one in evidence.checkpoints:
        state = evidence.directory.checkpoints.state_file(one.leg)
        # At a switch the checkpoint is still in the tokenizer before it.
        possible = {evidence.tokenizer_at(one.leg), evidence.tokenizer_at(max(one.leg - 1, 0))}
        words = one.facts["tokenizer"]
        if words not in possible:
            yield f"{state} names a tokenizer that the ledger does not have at round {one.leg}"
        if words not in present:
            yield f"{state} names a tokenizer that is not in the run: {words[:12]}"


def _scaling(evidence: Evidence) -> Iterator[str]:
    """The factors of a model's layers can be read, and are those that it was trained with."""
    if not isinstance(evidence.experiment, NluExperiment) or evidence.is_bundle:
        return
    try:
        factors = scaling.read(evidence.path)
    except ValueError as problem:
        is_private = evidence.experiment.noise.scaling == "first-gradient"  # kept in private/
        if not is_private or evidence.directory.private.exists():
            yield str(problem)
        return
    own = scaling.digest(factors)
    for one in evidence.checkpoints:
        if one.facts.get(scaling.FACT, own) != own:
            file = evidence.directory.checkpoints.state_file(one.leg)
            yield f"{evidence.path / scaling.FILE_NAME} was changed: {file} has other factors"


def _is_to_come(evidence: Evidence, file: Path) -> bool:
    """Whether a run was cut short between learning a tokenizer and recording it."""
    rounds = [entry.round for entry in evidence.own if entry.kind == "tokenizer"]
    start = int(file.parent.name.removeprefix("round-")) if "-" in file.parent.name else 0
    return start > max(rounds, default=evidence.header.first_round) and not any(
        entry.round >= start for entry in evidence.charged
    )


def _tokenizer_cost(evidence: Evidence) -> Iterator[str]:
    """What a tokenizer from people's text cost is what the header says that it did.

    The tokenizer comes with a ledger of its own, its history.  If it is missing, nothing says what
    the people paid, so a tokenizer that needs one and has none is a difference.
    """
    if isinstance(evidence.experiment, NluExperiment):
        return
    costs = [one for one in evidence.header.prior_costs if one.what == "tokenizer"]
    history = RunTokenizers(evidence.path).history
    file = evidence.path / f"{OF_A_RUN}{LEDGER}"
    if history is None:
        if costs:
            yield f"{file} is missing, which says what the tokenizer has cost"
        for words in evidence.tokenizers.values():
            if LearntTokenizer(words).needs_history and not _is_sampled(evidence, words):
                yield f"{file} is missing: the tokenizer comes from people's text"
        return
    if len(costs) != 1:
        yield f"{evidence.ledger.path}: its header does not say what the tokenizer of {file} cost"
        return
    yield from _history(evidence, history, costs[0], file)


def _is_sampled(evidence: Evidence, words: Tokenizer) -> bool:
    """Whether it was learnt from the run's own models, so that it costs nothing more."""
    own = evidence.ledger.entries
    return any(one.plan_hash == words.fingerprint and one.round > 0 for one in own) or any(
        words.fingerprint == one.fingerprint
        for file, one in evidence.tokenizers.items()
        if file.parent.name.startswith("round-")
    )


def _history(evidence: Evidence, history: History, cost: PriorCost, ledger: Path) -> Iterator[str]:
    """The tokenizer's own ledger against what the run's header says of it."""
    if (history.header.part, history.header.people) != (cost.part, cost.people):
        yield f"{ledger} is about other people than the ledger's header says of the tokenizer"
    yield from _whom(evidence, history, cost)
    counted = (COUNTED,) if history.header.population_is_counted else ()
    if cost.excluded != (*excluded_by(history.header.prior_costs), *counted):
        yield f"{evidence.ledger.path}: its header excludes others than {ledger} does"
    if history.released != cost.head:
        yield f"{ledger} does not end where the ledger's header says"
    if history.ledger.composition() != cost.releases:
        yield f"{ledger} has other releases than the ledger's header says"
    entries = [one for one in evidence.ledger.entries if one.plan_hash == history.tokenizer]
    if not any(one.kind == "tokenizer" for one in entries):
        yield f"{ledger} is about a tokenizer that the ledger does not have"
    elif not any(str(getattr(one.event, "reason", "")).endswith(history.how) for one in entries):
        yield f"{ledger}: how the tokenizer was learnt is not what the ledger says"
    parent = evidence.header.parent
    is_parent = parent is not None and parent.run_id == history.ledger.header.run_id
    paid = history.ledger.entries[: len(evidence.inherited)]
    if cost.whom == "same" and is_parent and evidence.inherited != paid:
        yield f"{evidence.ledger.path} inherits other charges than {ledger} has"


def _whom(evidence: Evidence, history: History, cost: PriorCost) -> Iterator[str]:
    """Whom the tokenizer has cost something, by people and parts.

    Groups of people may turn out to be one later, so that other ids alone say nothing.
    """
    own, other, file = evidence.header, history.header, evidence.ledger.path
    is_one = own.split == other.split and own.people == other.people
    if cost.whom == "beside" and not (is_one and are_disjoint(own.part, other.part)):
        yield f"{file}: its header says that others paid for the tokenizer, who may be the same"
    if cost.whom == "elsewhere" and is_one:
        yield f"{file}: its header says that the tokenizer is of another corpus, and it is of this"
    if cost.whom == "same" and own.parent is None:
        yield f"{file}: it does not inherit what the tokenizer has cost the same people"


def _canaries(evidence: Evidence) -> Iterator[str]:
    """What was planted is what the ledger is bound to, before the first round.

    Canaries that were exchanged afterwards would make an audit look better than it was.
    """
    experiment = evidence.experiment
    if evidence.is_bundle or not isinstance(experiment, Experiment):
        return
    file, book = evidence.directory.canaries_file, evidence.ledger.path
    bound = [entry.plan_hash for entry in evidence.own if entry.kind == "canaries"]
    began = bool(evidence.charged)
    if len(bound) > 1:
        yield f"{book} is bound to {len(bound)} files of canaries"
    if bound and not file.is_file():
        yield f"{file} is missing, to which the ledger is bound"
    elif bound and hashlib.sha256(file.read_bytes()).hexdigest() != bound[0]:
        yield f"{file} was changed: the ledger has another digest of it"
    elif file.is_file() and not bound and began:
        yield f"{file} is not in the ledger"
    if began and experiment.audit.canaries is not None and not bound:
        yield f"{book} does not say which canaries were planted"
    yield from _coins(evidence, experiment)


def _coins(evidence: Evidence, experiment: Experiment) -> Iterator[str]:
    """Which canary clients took part was settled before the first round.

    The ledger holds a commitment to the coins, which are secret until an audit guesses them.
    """
    promised = [entry.plan_hash for entry in evidence.own if entry.kind == coins.COMMITTED]
    if evidence.charged and experiment.audit.canary_clients is not None and not promised:
        yield f"{evidence.ledger.path} does not say which canary clients were drawn"
    secret = coins.read_coins(evidence.path) if promised else None
    if secret is not None and promised != [coins.commitment(secret)]:
        file = evidence.directory.private / coins.COINS_FILE
        yield f"{file} does not hold the coins that the ledger committed to"


def _key(evidence: Evidence) -> Iterator[str]:
    """A run that ended without keeping its key has none left, so its noise cannot be repeated."""
    if evidence.result is None:
        return
    if evidence.result.get("key_kept") is not True and not evidence.directory.key_is_gone:
        file = evidence.directory.key_file
        yield f"{file} is still there, and the run has ended without keeping it: destroy it"


DIGESTS = Check(
    "digests",
    "models, tokenizers and their history, scaling factors, canaries, all files of a bundle",
    (_files, _script, _models, _trained_on, _tokenizers, _tokenizer_cost, _scaling, _canaries),
)
KEY = Check("key", "that it is gone where the run says so", (_key,))
