"""Where the factors alpha_k of eDP-SGD come from, when they come from a gradient.

- "public": the gradient of sentences made from templates, with labels drawn from the schema.
  Nobody said them.  At the beginning of a training the sizes of a layer's gradients are a matter of
  the architecture and of the initial weights more than of what the sentences say.
- "private": people's records under noise of their own.  Every unit picks one of 256 groups.  The
  layers' norms of a group's gradient, a vector in the positive orthant, are scaled to norm 1.  One
  unit moves one of these vectors, from norm 1 (or 0) to norm 1, and so the sum by at most sqrt(2).
  Noise of m sqrt(2) is added to the sum: a Gaussian release of multiplier m, charged to the ledger.
- "first-gradient": the first batch's, without noise, as printed in the paper.  That voids a
  guarantee.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tacit.mechanisms.layer_scaling import LayerScaling, layer_norms
from tacit.mechanisms.method import Indices, Streams, Vector
from tacit.privacy import durable
from tacit.privacy.documents import read_json
from tacit.privacy.randomness import RunKey
from tacit.privacy.records import canonical_json
from tacit.tasks.nlu import plan
from tacit.tasks.nlu.data import OUTSIDE, Utterance
from tacit.tasks.nlu.encoding import Encoder, Labels, encode
from tacit.tasks.nlu.experiment import NluExperiment
from tacit.tasks.nlu.generated import generate
from tacit.tasks.nlu.gradients import FlatModel, UtteranceGradients
from tacit.tasks.nlu.models import NluModel
from tacit.tasks.nlu.steps import AttemptStreams
from tacit.tasks.nlu.utterances import Utterances
from tacit.tasks.task import LastState

FILE_NAME = "scaling.json"
FACT = "scaling"  # the name of their digest in a checkpoint
GROUPS = 256
_PUBLIC_SENTENCES = 256


def write(folder: Path, factors: LayerScaling) -> None:
    """Keep a run's factors: in its folder, or in `private/` if people's gradients gave them."""
    kept_in = folder if factors.is_public else folder / "private"
    data = json.dumps(factors.to_json()) + "\n"
    durable.write_whole(kept_in / FILE_NAME, data.encode())


def read(folder: Path) -> LayerScaling:
    """The factors that a run began with; a damaged file is refused."""
    private = folder / "private" / FILE_NAME
    file = private if private.exists() else folder / FILE_NAME
    try:
        return LayerScaling.from_json(read_json(file, dict[str, Any]))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{file} is missing or damaged: {error}") from error


def digest(factors: LayerScaling) -> str:
    """What a checkpoint has of the factors that its model was trained with."""
    return hashlib.sha256(canonical_json(factors.to_json()).encode()).hexdigest()


def refuse_others(factors: LayerScaling, last: LastState) -> None:
    """Refuse factors other than those that the last checkpoint was made with."""
    if last.facts.get(FACT, own := digest(factors)) != own:
        raise ValueError(f"{FILE_NAME} was changed: the run was trained with other factors so far")


def first_scaling(
    experiment: NluExperiment, utterances: Utterances, model: NluModel, key: RunKey
) -> LayerScaling:
    """The factors alpha_k of a new run; what they release has to be charged before."""
    noise, training = experiment.noise, experiment.training
    flat = FlatModel(model.model)
    if training.method not in ("edp-sgd", "edp-sgd-paper") or noise.scaling == "none":
        return LayerScaling.none(flat.sizes)
    if noise.scaling == "architecture":
        return LayerScaling.by_size(flat.sizes)
    if noise.scaling == "public":
        return _public_scaling(flat, model.encoder, model.labels)
    encoded = encode(model.encoder, model.labels, utterances.data.train)
    gradients = UtteranceGradients(flat, encoded, utterances.units(experiment))
    streams = AttemptStreams(key, "main", 0)
    if noise.scaling == "private":
        return _private_scaling(gradients, noise.scaling_noise_multiplier, streams)
    method = plan.method_of(experiment, LayerScaling.none(flat.sizes), len(gradients))
    [batches] = method.draws(range(1), len(gradients), streams)
    return _first_gradient_scaling(gradients, np.concatenate(batches))


def _public_scaling(flat: FlatModel, encoder: Encoder, labels: Labels) -> LayerScaling:
    """Factors from the mean gradient of made-up sentences with labels of the schema.

    No unit's data is read, so nothing is released.
    """
    sentences = encode(encoder, labels, _made_up(labels))
    gradient = _mean(UtteranceGradients(flat, sentences), np.arange(len(sentences)))
    return LayerScaling.from_gradient(gradient, flat.sizes, source="public batch")


def _first_gradient_scaling(gradients: UtteranceGradients, batch: Indices) -> LayerScaling:
    """Factors from the mean gradient of the first batch, as printed in the paper.

    They are a function of people's records without any noise, which voids a guarantee.
    """
    sizes = gradients.flat.sizes
    return LayerScaling.from_gradient(_mean(gradients, batch), sizes, source="private gradients")


def _private_scaling(
    gradients: UtteranceGradients, multiplier: float, streams: Streams
) -> LayerScaling:
    """Factors from people's records under noise of `multiplier` times sqrt(2); see the module.

    Guarantee: a Gaussian release of that multiplier under add/remove-one, which has to be charged
    (`plan.scaling_release`) before this is called.
    """
    sizes = gradients.flat.sizes
    total = _summed_directions(gradients, streams)
    total += multiplier * math.sqrt(2) * streams("scaling noise", 0).normal(len(sizes))
    # On a public grid, since the low-order bits of a float sum could betray a summand.
    total = np.rint(total * 2**20) / 2**20
    return LayerScaling.from_norms(np.maximum(total, 0.0), sizes, source="noisy norms")


def _summed_directions(gradients: UtteranceGradients, streams: Streams) -> Vector:
    """The sum over groups of the layers' norms of the group's mean gradient, scaled to norm 1.

    Guarantee: the group of a unit is drawn independently of all data, so adding or removing a unit
    changes one summand, a vector of norm 1 (or 0) in the positive orthant, and the sum by at most
    sqrt(2).  A direction that is not finite counts as zero.
    """
    sizes = gradients.flat.sizes
    group_of = streams("scaling groups", 0).integers(GROUPS, len(gradients))
    total = np.zeros(len(sizes))
    for group in range(GROUPS):
        units = np.flatnonzero(group_of == group)
        if len(units):
            total += _direction(layer_norms(_mean(gradients, units).astype(np.float64), sizes))
    return total


def _direction(norms: Vector) -> Vector:
    length = float(np.linalg.norm(norms))
    return norms / length if length > 0 and math.isfinite(length) else np.zeros_like(norms)


def _mean(gradients: UtteranceGradients, units: Indices) -> Vector:
    """The mean gradient without dropout."""
    gradients.flat.model.eval()
    return gradients.mean(units)


def _made_up(labels: Labels, count: int = _PUBLIC_SENTENCES) -> Sequence[Utterance]:
    """Sentences from templates, with intents and tags drawn from the schema."""
    draws = np.random.default_rng(0)
    # Only tags that may begin a slot, or none: nothing else would be well formed by itself.
    starts = [tag for tag in labels.tags if tag == OUTSIDE or tag.startswith("B-")]
    return [
        Utterance(
            sentence.tokens,
            tuple(starts[draw] for draw in draws.integers(len(starts), size=len(sentence.tokens))),
            labels.intents[int(draws.integers(len(labels.intents)))],
        )
        for sentence in generate(count)
    ]
