"""From an experiment to the parts that a training runs with.

An experiment says what; here it becomes objects.  Whatever in it contradicts the corpus, or would
void the guarantee that it asks for, is refused here, before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from tacit.central import pretrain as pretraining
from tacit.central.public_text import read_public_text
from tacit.corpus.source import Source, UserCorpus, UserSource
from tacit.corpus.store import Corpus
from tacit.corpus.views import IID, Subset, kept
from tacit.federated import server as servers
from tacit.federated.sampled_softmax import SampledSoftmax
from tacit.federated.user_update import FedAvg, FedSGD
from tacit.mechanisms import clippers, estimators, samplers, schedules
from tacit.mechanisms.adaptive import QuantileClip
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.weighting import UserWeighting
from tacit.models import registry, weights
from tacit.models.base import LanguageModel
from tacit.models.vectors import layer_sizes
from tacit.privacy import calibration
from tacit.privacy.accountant import Accountant
from tacit.privacy.accountants import accountant_named, default_accountant
from tacit.privacy.events import Adjacency, Composition, Event
from tacit.runs.experiment import Experiment, Plan, Pretraining
from tacit.tokenizers import build, provenance
from tacit.tokenizers.public import from_public, public_texts
from tacit.tokenizers.tokenizer import Tokenizer

UserUpdate = FedAvg | FedSGD
Tell = Callable[[str, int, int], None]  # what is being prepared, how much is done, of how much
ServerOptimizer = servers.ServerSGD | servers.ServerMomentum | servers.ServerAdam


def training_users(experiment: Experiment, corpus: UserCorpus) -> Source:
    """The users to train on, without their held-out texts, as the experiment looks at them."""
    users = kept(corpus.train)
    wanted = experiment.corpus.users
    if wanted is not None:
        if wanted > len(users):
            raise ValueError(f"corpus.users must be at most the {len(users)} there are: {wanted}")
        users = Subset(users, range(wanted))
    return IID(users) if experiment.corpus.view == "iid" else users


@dataclass(frozen=True)
class Inherited:
    """What a branch has from its parent: rounds that are done, and all that they released."""

    rounds: int = 0
    spent: Composition = field(default_factory=Composition)


def resolved(
    experiment: Experiment,
    users: UserSource,
    layers: tuple[int, ...],
    inherited: Inherited = Inherited(),  # noqa: B008  (frozen)
) -> Experiment:
    """The experiment with every value filled in that the guarantee depends on.

    A population that nobody declared is the number of training users: who trains without naming
    one declares that number public, and the claim says so.  A target epsilon becomes the noise
    that meets it, together with what was inherited.
    """
    K = experiment.plan.population or len(users)
    if len(users) == 0:
        raise ValueError("the corpus has no training users")
    if len(users) > K:
        raise ValueError(
            f"plan.population of {K:,} is less than the {len(users):,} training users; declare a"
            " number that they cannot exceed"
        )
    if experiment.plan.cohort > min(len(users), K):
        raise ValueError(
            f"plan.cohort of {experiment.plan.cohort:g} users a round is more than the"
            f" {min(len(users), K):,} training users; lower it with --set plan.cohort=..."
        )
    delta = experiment.privacy.delta or float(K) ** -1.1
    if not 0 < delta < 1 / K:
        raise ValueError(
            f"privacy.delta must be below 1/population = {1 / K:.3g}, or one user in the population"
            f" may be given away whole; got {delta:g}"
        )
    is_counted = experiment.plan.population is None or experiment.plan.population_is_counted
    experiment = experiment.changed(
        plan={"population": K, "population_is_counted": is_counted}, privacy={"delta": delta}
    )
    if experiment.privacy.target_epsilon is not None:
        experiment = _calibrated(experiment, layers, inherited)
    event = round_plans(experiment, layers)[0].event()
    name = experiment.privacy.accountant or default_accountant(Composition.of([event])).name
    return experiment.changed(privacy={"accountant": name})


def _calibrated(
    experiment: Experiment, layers: tuple[int, ...], inherited: Inherited
) -> Experiment:
    """With the noise multiplier that meets the target over all rounds that are left."""
    target, delta = experiment.privacy.target_epsilon, experiment.privacy.delta
    assert target is not None
    assert delta is not None
    if any({"noise_stddev", "noise_multiplier", "cohort"} & set(p.plan) for p in experiment.phases):
        raise ValueError(
            "privacy.target_epsilon solves for one noise multiplier, and the phases set their own"
            " noise or cohort; leave one of them out"
        )

    def with_noise(z: float) -> Experiment:
        return experiment.changed(plan={"noise_stddev": None, "noise_multiplier": z})

    def event_at(z: float) -> Event:
        return round_plans(with_noise(z), layers)[0].event()

    by = accountant_of(experiment, event_at(1.0))
    spent = inherited.spent
    if not spent.is_private or (spent.costly() and by.epsilon(spent, delta) >= target):
        raise ValueError(
            f"privacy.target_epsilon of {target:g} cannot be met by a branch: the"
            f" {inherited.rounds} rounds before it have spent as much or more already"
        )
    found = calibration.noise_for_epsilon(
        event_at,
        rounds=experiment.rounds - inherited.rounds,
        delta=delta,
        target_epsilon=target,
        accountant=by,
        spent=spent,
    )
    return with_noise(found)


def accountant_of(experiment: Experiment, event: Event) -> Accountant:
    """The accountant that the experiment names, or the tightest sound one."""
    name = experiment.privacy.accountant
    return accountant_named(name) if name else default_accountant(Composition.of([event]))


def round_plans(experiment: Experiment, layers: tuple[int, ...]) -> tuple[RoundPlan, ...]:
    """One plan per phase."""
    count = max(len(experiment.phases), 1)
    return tuple(_round_plan(experiment, number, layers) for number in range(count))


def _round_plan(experiment: Experiment, number: int, layers: tuple[int, ...]) -> RoundPlan:
    plan, K = experiment.phase_plan(number), experiment.plan.population
    assert K is not None, "the experiment is not resolved"
    sampler = _sampler(plan, K, experiment)
    clipper = _clipper(plan, len(layers))
    estimator = _estimator(plan, K)
    return RoundPlan(
        population=K,
        sampler=sampler,
        clipper=clipper,
        estimator=estimator,
        noise_multiplier=_noise_multiplier(plan, sampler, clipper, estimator),
        weighting=UserWeighting(plan.user_weight_cap),
        schedule=_schedule(plan),
        adaptive=QuantileClip(**plan.adaptive.model_dump()) if plan.adaptive else None,
        layers=layers,
        weight_aware=plan.weight_aware,
    )


def _sampler(plan: Plan, K: int, experiment: Experiment) -> samplers.Sampler:
    prob = plan.cohort / K
    match plan.sampling:
        case "poisson":
            return samplers.PoissonSampler(prob)
        case "truncated":
            if plan.max_cohort is not None:
                return samplers.TruncatedPoissonSampler(K, prob, plan.max_cohort)
            delta = experiment.privacy.delta
            assert delta is not None
            return samplers.TruncatedPoissonSampler.with_default_cap(
                K, prob, delta=delta, rounds=experiment.rounds
            )
        case "fixed":
            return samplers.FixedSizeSampler(K, _whole_cohort(plan))
        case "with-replacement":
            return samplers.WithReplacementSampler(K, _whole_cohort(plan))


def _whole_cohort(plan: Plan) -> int:
    if not plan.cohort.is_integer():
        raise ValueError(f"plan.cohort must be whole for {plan.sampling} sampling: {plan.cohort}")
    return int(plan.cohort)


def _clipper(plan: Plan, layers: int) -> clippers.Clipper:
    if plan.clipping == "none":
        return clippers.NoClip()
    if plan.layer_clip_norms is not None:
        return clippers.PerLayerClip(plan.layer_clip_norms)
    assert plan.clip_norm is not None
    if plan.clipping == "per-layer":
        return clippers.PerLayerClip.even(plan.clip_norm, layers)
    return clippers.FlatClip(plan.clip_norm)


def _estimator(plan: Plan, K: int) -> estimators.Estimator:
    match plan.estimator:
        case "fixed":
            return estimators.FixedDenominator(plan.total_weight or float(K))
        case "clipped":
            return estimators.ClippedDenominator(plan.min_weight or float(K))
        case "true-average":
            return estimators.TrueAverage()


def _noise_multiplier(
    plan: Plan,
    sampler: samplers.Sampler,
    clipper: clippers.Clipper,
    estimator: estimators.Estimator,
) -> float | None:
    """z as given, or what sigma on the average means: the inverse of sigma = zS/(qW)."""
    if plan.noise_stddev is None:
        return plan.noise_multiplier or None
    if isinstance(estimator, estimators.TrueAverage) or isinstance(clipper, clippers.NoClip):
        raise ValueError(
            "plan.noise_stddev needs a clip norm and an estimator of bounded sensitivity"
        )
    without_noise = estimator.relative_sensitivity(Adjacency.ADD_REMOVE)
    unit = without_noise * clipper.total_norm / estimator.denominator(sampler.sampling_prob)
    return plan.noise_stddev / unit


def _schedule(plan: Plan) -> schedules.ClipSchedule:
    given = plan.schedule
    if given is None:
        return schedules.ConstantClip()
    if given.kind == "geometric":
        if given.factor is None:
            raise ValueError("plan.schedule of kind geometric needs a factor")
        return schedules.GeometricClip(given.factor, given.final_norm)
    if given.final_round is None:
        raise ValueError("plan.schedule of kind linear needs a final_round")
    return schedules.LinearClip(given.final_round, given.final_norm)


def user_update(experiment: Experiment) -> UserUpdate:
    """What users compute."""
    given = experiment.update
    negatives = given.sampled_negatives
    sampled = None if negatives is None else SampledSoftmax(negatives)
    if given.algorithm == "fedsgd":
        return FedSGD(
            batch_size=given.batch_size,
            unroll=given.unroll,
            learning_rate=given.learning_rate,
            rows=given.rows,
            sampled_softmax=sampled,
        )
    return FedAvg(
        local_epochs=given.local_epochs,
        batch_size=given.batch_size,
        unroll=given.unroll,
        learning_rate=given.learning_rate,
        clip_each_step=given.clip == "greedy" and experiment.plan.clipping != "none",
        update_penalty=given.update_penalty,
        rows=given.rows,
        shuffle=given.shuffle,
        sampled_softmax=sampled,
    )


def server_optimizer(experiment: Experiment) -> ServerOptimizer:
    """What the server does with an average."""
    given = experiment.server
    match given.optimizer:
        case "sgd":
            return servers.ServerSGD(given.learning_rate)
        case "momentum":
            return servers.ServerMomentum(given.learning_rate, given.momentum)
        case "adam":
            return servers.ServerAdam(
                given.learning_rate, given.beta1, given.beta2, given.stabiliser
            )


def tokenizer_of(experiment: Experiment, users: UserSource) -> Tokenizer:
    """The vocabulary, which is part of the release (design rule 9)."""
    given = experiment.tokenizer
    if given.source == "oracle":
        texts = (text for user in range(len(users)) for text in users.texts(user))
        found = build.learn(given.kind, texts, given.size, provenance=provenance.ORACLE)
    elif given.source.endswith("tokenizer.json") or Path(given.source, "tokenizer.json").is_file():
        found = Tokenizer.load(given.source)
    else:
        found = from_public(given.source, given.kind, given.size)
    if found.why_void and not given.accept_oracle:
        raise ValueError(
            f"the tokenizer {given.source} voids every guarantee: {found.why_void}; take a public"
            " one, or say tokenizer.accept_oracle = true for a run that claims nothing"
        )
    return found


@dataclass(frozen=True)
class Start:
    """A model before its first round, and whose text is in it already."""

    model: LanguageModel
    trained_on: tuple[str, ...] = ()


def starting_model(
    experiment: Experiment, tokenizer: Tokenizer, corpus: UserCorpus, tell: Tell | None = None
) -> Start:
    """Random, or from public text: never from the people's text that is to be protected."""
    given = experiment.model
    fresh = registry.build(given.name, tokenizer.vocab_size, seed=given.seed, **given.options)
    if given.start and (given.pretrain or given.public_output_bias):
        raise ValueError(
            "model.start has weights already: leave out pretrain and public_output_bias"
        )
    if not given.start:
        if given.public_output_bias:
            set_public_output_bias(fresh, tokenizer, experiment.tokenizer.source)
        if given.pretrain is not None:
            _pretrain(fresh, tokenizer, given.pretrain, tell)
        return Start(fresh)
    path = Path(given.start)
    path = path / "model.safetensors" if path.is_dir() else path
    own = given.name if ":" in given.name else None
    model = weights.load(path, vocab_size=tokenizer.vocab_size, own_factory=own)
    if model.config != fresh.config:
        raise ValueError(
            f"model.start: {path} holds {model.config}, and the experiment asks for {fresh.config}"
        )
    origins = weights.trained_on(path)
    if corpus.identity in origins:
        raise ValueError(
            f"model.start: the weights {path} were trained on this very corpus, outside of this"
            " run's ledger; go on from a run with --from RUN@ROUND, or start from public weights"
        )
    return Start(model, origins)


def _pretrain(
    model: LanguageModel, tokenizer: Tokenizer, given: Pretraining, tell: Tell | None
) -> None:
    """Plain training on public text, in place."""
    is_file = Path(given.source).is_file()
    texts = read_public_text([given.source]).train if is_file else list(public_texts(given.source))
    settings = pretraining.Settings(
        learning_rate=given.learning_rate,
        epochs=given.epochs,
        batch=given.batch_size,
        unroll=given.unroll,
    )

    def progress(now: pretraining.Progress) -> None:
        if tell is not None:
            tell("pre-training on public text", round(1000 * now.share), 1000)

    encoded = tokenizer.encode_batch(texts)
    pretraining.pretrain(model, encoded, settings, bos=tokenizer.bos, progress=progress)
    model.eval()


def set_public_output_bias(model: LanguageModel, tokenizer: Tokenizer, source: str) -> None:
    """Begin with the word frequencies of public text: log((count + 1) / total)."""
    bias = getattr(getattr(model, "embedding", None), "output_bias", None)
    if bias is None:
        raise ValueError("model.public_output_bias needs a model with output_bias = true")
    counts = np.ones(tokenizer.vocab_size)
    batch: list[str] = []
    for text in public_texts(source):
        batch.append(text)
        if len(batch) == 5000:
            _count(counts, tokenizer, batch)
            batch = []
    _count(counts, tokenizer, batch)
    logs = np.log(counts / counts.sum())
    with torch.no_grad():
        bias.copy_(torch.from_numpy(logs - logs.mean()))


def _count(counts: np.ndarray, tokenizer: Tokenizer, texts: list[str]) -> None:
    for tokens in tokenizer.encode_batch(texts):
        np.add.at(counts, tokens[1:], 1)


def layers_of(model: LanguageModel) -> tuple[int, ...]:
    """The sizes that per-layer clipping goes by."""
    return layer_sizes(model)


def has_synthetic_users(experiment: Experiment) -> bool:
    """Whether the users stand for nobody, so that no claim about people may be made."""
    kind = experiment.corpus.source.partition(":")[0]
    return experiment.corpus.view == "iid" or kind == "synthetic"


def corpus_folder(corpus: UserCorpus) -> Path | None:
    """Where a corpus keeps its register and caches, if it is on the disk."""
    return corpus.path if isinstance(corpus, Corpus) else None
