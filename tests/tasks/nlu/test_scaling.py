"""alpha_k: what it may depend on, and how far one record moves it before noise."""

import math

import numpy as np
import pytest

from tacit.mechanisms.layer_scaling import LayerScaling
from tacit.privacy.events import Adjacency, Gaussian
from tacit.privacy.randomness import RunKey
from tacit.tasks.nlu import plan, scaling
from tacit.tasks.nlu.data import Utterance
from tacit.tasks.nlu.encoding import Labels, WordEncoder, encode
from tacit.tasks.nlu.experiment import Noise
from tacit.tasks.nlu.gradients import FlatModel, UtteranceGradients
from tacit.tasks.nlu.models import build
from tacit.tasks.nlu.steps import AttemptStreams

LABELS = Labels(("play", "stop"), ("O", "B-what", "I-what"))
ENCODER = WordEncoder(("play", "stop", "jazz"), "public: the test")
OPTIONS = {"word_size": 3, "character_size": 2, "filters": 2, "hidden": 3, "layers": 1}
STREAMS = AttemptStreams(RunKey.from_seed(3), "main", 0)


def said(count):
    return [
        Utterance(("play", f"song{place}"), ("O", "B-what"), "play" if place % 3 else "stop")
        for place in range(count)
    ]


def gradients(utterances):
    model = build("clc", LABELS, ENCODER, OPTIONS, seed=1)
    return UtteranceGradients(FlatModel(model), encode(ENCODER, LABELS, utterances))


def test_public_factors_do_not_depend_on_anybodys_records():
    flat = FlatModel(build("clc", LABELS, ENCODER, OPTIONS, seed=1))
    one = scaling._public_scaling(flat, ENCODER, LABELS)
    assert one == scaling._public_scaling(flat, ENCODER, LABELS)
    assert one.source == "public batch"
    assert one.is_public
    assert math.isclose(np.mean(np.square(one.factors)), 1, rel_tol=0.05)


def test_one_record_more_moves_the_sum_by_at_most_the_root_of_two():
    """Everybody else stays in their group, so the move is of one group's vector."""
    before = scaling._summed_directions(gradients(said(12)), STREAMS)
    moves = []
    for place in range(12, 20):
        after = scaling._summed_directions(gradients(said(place + 1)), STREAMS)
        moves.append(float(np.linalg.norm(after - before)))
        before = after
    assert max(moves) <= math.sqrt(2) + 1e-6
    assert max(moves) > 0.9  # an empty group's vector goes from 0 to 1: the bound is not idle


def test_private_factors_are_those_of_the_sum_under_noise():
    exact = scaling._private_scaling(gradients(said(40)), 1e-9, STREAMS)
    noisy = scaling._private_scaling(gradients(said(40)), 4.0, STREAMS)
    total = scaling._summed_directions(gradients(said(40)), STREAMS)
    wanted = LayerScaling.from_norms(total, exact.sizes, source="noisy norms")
    np.testing.assert_allclose(exact.factors, wanted.factors, rtol=1e-3, atol=1e-3)
    assert noisy.factors != exact.factors
    assert noisy.is_public
    assert plan.scaling_release(Noise(noise_multiplier=1.0, scaling="private")) == Gaussian(
        4.0, Adjacency.ADD_REMOVE
    )


def test_the_printed_factors_are_marked_as_private():
    found = scaling._first_gradient_scaling(gradients(said(8)), np.arange(8))
    assert not found.is_public


def test_factors_by_size_have_a_mean_square_of_one():
    found = LayerScaling.by_size((100, 25, 400))
    assert math.isclose(np.mean(np.square(found.factors)), 1)
    assert found.factors[0] == pytest.approx(2 * found.factors[1])
    assert found.is_public
