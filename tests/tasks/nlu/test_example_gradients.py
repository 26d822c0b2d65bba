"""Clipped sums of gradients: every way against a literal one, and what each utterance can do."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from tacit.tasks.nlu.experiment import NluExperiment
from tacit.tasks.nlu.ghost_clipping import AT_ONCE, Whole
from tacit.tasks.nlu.gradients import FlatModel, UtteranceGradients
from tacit_papers.dupuy2021.opacus_gradients import OpacusGradients
from tests.models.small_bert import utterance
from tests.tasks.nlu.example_models import (
    Given,
    Odd,
    bert,
    clc,
    clipping_by,
    close,
    example_gradient,
    literal,
    pair,
    said,
)


def many(kind):
    """In float32, and more utterances than go together."""
    if kind == "clc":
        return clc(hidden=24, word_size=20).float(), said([1 + (7 * n) % 12 for n in range(50)])
    shapes = [(1 + (5 * n) % 7, n % 4) for n in range(50)]
    return bert().float(), Given([utterance(*shape, seed=n) for n, shape in enumerate(shapes)])


WAYS = ["one-by-one", "opacus", "ghost"]
# Where examples are drawn, that of other authors is slow: the cases of each kind are enough of it.
OWN_WAYS = [pytest.param(way, marks=[pytest.mark.slow] * (way == "opacus")) for way in WAYS]
FALSE_ALARM = 1e-6


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# The sum.


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_every_way_is_the_literal_sum_whether_the_clip_binds_or_not(kind, way):
    model, utterances = pair(kind)
    units = np.arange(len(utterances))
    norms = [np.linalg.norm(example_gradient(model, utterances, unit)) for unit in units]
    gradients = clipping_by(way, FlatModel(model), utterances)
    for clip_norm in (0.1 * min(norms), float(np.median(norms)), 10 * max(norms)):
        expected = literal(model, utterances, units, clip_norm)
        found = gradients.clipped_sum(units, clip_norm)
        assert found.dtype == np.float64
        close(found, expected)
    assert not np.allclose(expected, literal(model, utterances, units, np.median(norms)), rtol=1e-3)


@pytest.mark.parametrize("way", OWN_WAYS)
@settings(max_examples=12)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    seed=st.integers(0, 999),
    hidden=st.integers(1, 7),
    layers=st.integers(1, 3),
    width=st.sampled_from([1, 3, 5]),
    frozen=st.booleans(),
    clip_norm=st.sampled_from([0.01, 1.0, 3.0, 1e6]),
)
def test_clc_of_any_shape_gives_the_literal_sum(
    way, lengths, seed, hidden, layers, width, frozen, clip_norm
):
    model = clc(seed, hidden=hidden, layers=layers, width=width, freeze_words=frozen)
    utterances, units = said(lengths, seed), np.arange(len(lengths))[::-1]
    gradients = clipping_by(way, FlatModel(model), utterances)
    close(gradients.clipped_sum(units, clip_norm), literal(model, utterances, units, clip_norm))


@pytest.mark.parametrize("way", OWN_WAYS)
@settings(max_examples=8)
@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 6), st.integers(0, 5), st.integers(0, 99)), min_size=1, max_size=4
    ),
    sizes=st.sampled_from([{}, {"layers": 1, "heads": 1, "width": 8}, {"intermediate": 5}]),
    clip_norm=st.sampled_from([0.01, 1.0, 30.0, 1e6]),
)
def test_bert_of_any_shape_gives_the_literal_sum(way, shapes, sizes, clip_norm):
    model, utterances = bert(**sizes), Given([utterance(*shape) for shape in shapes])
    units = np.arange(len(shapes))
    gradients = clipping_by(way, FlatModel(model), utterances)
    close(gradients.clipped_sum(units, clip_norm), literal(model, utterances, units, clip_norm))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_models_in_float32_agree_as_far_as_float32_goes(kind, way):
    model, utterances = pair(kind)
    units = np.arange(len(utterances))
    expected = literal(model, utterances, units, 0.5)
    gradients = clipping_by(way, FlatModel(model.float()), utterances)
    close(gradients.clipped_sum(units, 0.5), expected, rtol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_a_draw_of_nobody_gives_zeros(way):
    model, utterances = pair("clc")
    gradients = clipping_by(way, FlatModel(model), utterances)
    found = gradients.clipped_sum(np.empty(0, np.int64), 1.0)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, np.zeros(len(gradients.flat)))


@pytest.mark.parametrize("way", WAYS)
def test_frozen_word_vectors_are_in_neither_norm_nor_sum(way):
    model, utterances = clc(freeze_words=True), said([2, 5, 3])
    flat, units = FlatModel(model), np.arange(3)
    found = clipping_by(way, flat, utterances).clipped_sum(units, 0.3)
    assert "words.weight" not in flat.names
    close(found, literal(model, utterances, units, 0.3))
    model.words.weight.requires_grad_(True)
    counted = literal(model, utterances, units, 0.3)[model.words.weight.numel() :]
    assert not np.allclose(found, counted, rtol=1e-3)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_updates_made_through_the_flat_vector_are_seen(kind, way):
    model, utterances = pair(kind)
    flat, units = FlatModel(model), np.arange(len(utterances))
    gradients = clipping_by(way, flat, utterances)
    optimizer = torch.optim.Adam([flat.weights], lr=0.05)
    before = gradients.clipped_sum(units, 1.0)
    for _ in range(2):
        flat.gradient.copy_(torch.from_numpy(gradients.clipped_sum(units, 1.0)))
        optimizer.step()
    found = gradients.clipped_sum(units, 1.0)
    close(found, literal(model, utterances, units, 1.0))
    assert not np.allclose(found, before, rtol=1e-2)


@pytest.mark.parametrize("way", ["opacus", "ghost"])
def test_more_utterances_than_go_together_are_added_up_in_pieces(way):
    model = clc()
    utterances = said([1 + place % 5 for place in range(2 * AT_ONCE + 3)])
    units = np.arange(len(utterances))
    found = clipping_by(way, FlatModel(model), utterances).clipped_sum(units, 0.5)
    close(found, literal(model, utterances, units, 0.5))


def test_a_bound_on_memory_changes_the_pieces_and_not_the_sum():
    model, utterances = pair("clc")
    flat, units = FlatModel(model), np.arange(len(utterances))
    of_one = 4 * len(flat)
    sizes = []
    for max_bytes in (1, 3 * 2 * of_one, 1 << 30):
        clipping = OpacusGradients(flat, max_bytes)
        gradients = UtteranceGradients(flat, utterances, clipping=clipping)
        sizes.append(clipping.at_once)
        close(gradients.clipped_sum(units, 0.5), literal(model, utterances, units, 0.5), rtol=1e-12)
    assert sizes == [1, 3, AT_ONCE]


def test_a_unit_may_be_drawn_again_and_in_any_order():
    model, utterances = pair("clc")
    gradients = clipping_by("ghost", FlatModel(model), utterances)
    close(
        gradients.clipped_sum(np.array([4, 0, 4]), 0.5),
        literal(model, utterances, [0, 4, 4], 0.5),
    )


# What one utterance can do (design rule 8).


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_an_utterance_moves_the_sum_by_no_more_than_the_clip_norm_and_can_move_it_so_far(kind, way):
    model, utterances = pair(kind)
    norms = [np.linalg.norm(example_gradient(model, utterances, unit)) for unit in range(4)]
    clip_norm = 0.9 * max(norms)
    gradients = clipping_by(way, FlatModel(model), utterances)
    everybody = gradients.clipped_sum(np.arange(4), clip_norm)
    moves = [
        np.linalg.norm(everybody - gradients.clipped_sum(np.delete(np.arange(4), gone), clip_norm))
        for gone in range(4)
    ]
    assert max(moves) == pytest.approx(clip_norm, rel=1e-9)
    np.testing.assert_allclose(moves, np.minimum(norms, clip_norm), rtol=1e-9)


@pytest.mark.parametrize(
    "way", [way if way == "ghost" else pytest.param(way, marks=pytest.mark.slow) for way in WAYS]
)
@pytest.mark.parametrize("kind", ["clc", "bert"])
@pytest.mark.parametrize("scale", [pytest.param(1.0, marks=pytest.mark.slow), 8.0])
def test_one_that_leaves_does_not_touch_the_gradients_of_the_others(kind, way, scale):
    """In float32, whatever is left over of full batches; large weights make small errors grow.

    The move of the others' sum is what the order of a float64 sum explains.  Before, a last batch
    of one to three was summed up in another order, which moved it by 1e-7 C and more.
    """
    model, utterances = many(kind)
    with torch.no_grad():
        for values in model.parameters():
            values.mul_(scale)
    gradients = clipping_by(way, FlatModel(model), utterances)
    rng = np.random.default_rng(1)
    for size in (2, 3, 4, AT_ONCE, AT_ONCE + 1, AT_ONCE + 2, 2 * AT_ONCE + 1):
        units = rng.permutation(len(utterances))[:size]
        everybody = gradients.clipped_sum(units, 0.5)
        for gone in rng.permutation(size)[:2]:
            others = gradients.clipped_sum(np.delete(units, gone), 0.5)
            alone = gradients.clipped_sum(units[[gone]], 0.5)
            assert np.linalg.norm(everybody - others - alone) < 1e-12 * 0.5, (size, gone)


def test_a_machine_whose_sums_depend_on_the_batch_computes_one_by_one(monkeypatch):
    """As if rows behind the third were summed up in another order."""
    model, utterances = many("clc")
    gradients = clipping_by("ghost", FlatModel(model), utterances)
    assert gradients.is_each_alone()
    original = Whole.add_

    def odd(self, total, factors):
        original(self, total, factors)
        if gradients._clipping.shape_at_hand > 1:
            total += 1e-7 * gradients._clipping.longest_at_hand

    monkeypatch.setattr(Whole, "add_", odd)
    add_ = gradients._clipping.add_

    def noted(total, batch, clip_norm, counted=None):
        gradients._clipping.shape_at_hand = len(batch)
        gradients._clipping.longest_at_hand = batch.mask.shape[1]
        add_(total, batch, clip_norm, counted)

    monkeypatch.setattr(gradients._clipping, "add_", noted)
    assert not gradients.is_each_alone()
    gradients.clipped_sum(np.arange(5), 0.5)
    assert gradients._at_once == 1
    assert gradients._clipping.shape_at_hand == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_a_gradient_that_is_not_finite_counts_as_zero_and_spoils_no_other(kind, way, bad):
    model, utterances = pair(kind)
    units, victim = np.arange(len(utterances)), 2
    expected = literal(model, utterances, np.delete(units, victim), 0.5)
    place = "words" if kind == "clc" else "pieces"
    table = model.words if kind == "clc" else model.bert.embeddings.word_embeddings
    inputs = [set(utterances.batch([unit]).inputs[place].flatten().tolist()) for unit in units]
    [only, *_] = inputs[victim] - set.union(*np.delete(inputs, victim))  # what nobody else said
    with torch.no_grad():
        table.weight[only] = bad
    gradients = clipping_by(way, FlatModel(model), utterances)
    assert not np.isfinite(example_gradient(model, utterances, victim)).all()
    close(gradients.clipped_sum(units, 0.5), expected)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("way", WAYS)
def test_a_clip_norm_that_bounds_nothing_is_refused(way, bad):
    model, utterances = pair("clc")
    with pytest.raises(ValueError, match="clip_norm must be between"):
        clipping_by(way, FlatModel(model), utterances).clipped_sum(np.arange(2), bad)


# Dropout.


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_dropout_follows_the_model(kind, way):
    _, utterances = pair(kind)
    model = clc(dropout=0.4, word_dropout=0.3) if kind == "clc" else bert(dropout=0.3)
    units = np.arange(len(utterances))
    gradients = clipping_by(way, FlatModel(model), utterances)
    model.eval()
    close(gradients.clipped_sum(units, 0.5), literal(model, utterances, units, 0.5))
    model.train()
    one, two = (gradients.clipped_sum(units, 0.5) for _ in range(2))
    assert not np.allclose(one, two, rtol=1e-2)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_seed_gives_the_same_bits(way):
    model, utterances = clc(dropout=0.4, word_dropout=0.2).float(), said([3, 5, 1, 4])
    gradients = clipping_by(way, FlatModel(model), utterances)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(gradients.clipped_sum(np.arange(4), 0.5))
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0] != found[2]).any()


@pytest.mark.slow
def test_dropout_has_the_same_law_in_every_way():
    """Two utterances, one of them twice, along a fixed direction; false alarms: 1e-6 a test."""
    utterances, units, clip_norm = said([3, 2]), np.array([0, 0, 1]), 0.7
    sizes = {"hidden": 3, "layers": 1, "dropout": 0.4, "word_dropout": 0.2}
    direction = literal(clc(**sizes).eval(), utterances, units, clip_norm)

    def projected(way, **changes):
        torch.manual_seed(7)
        gradients = clipping_by(way, FlatModel(clc(**{**sizes, **changes})), utterances)
        return [gradients.clipped_sum(units, clip_norm) @ direction for _ in range(50)]

    expected = projected("one-by-one")
    for way in ("opacus", "ghost"):
        found = projected(way)
        assert stats.ttest_ind(found, expected, equal_var=False).pvalue > FALSE_ALARM
        assert stats.ks_2samp(found, expected).pvalue > FALSE_ALARM
    assert stats.ks_2samp(projected("ghost", dropout=0.1), expected).pvalue < FALSE_ALARM


@pytest.mark.parametrize("way", ["opacus", "ghost"])
def test_each_of_several_equal_utterances_has_its_own_dropout(way):
    """Vectors of norm C add up to their number times C only if all of them are the same."""
    utterances, units, clip_norm = said([4]), np.zeros(8, np.int64), 1e-3
    norms = []
    for dropout in (0.0, 0.4):
        model = clc(dropout=dropout)
        gradients = clipping_by(way, FlatModel(model), utterances)
        norms.append(np.linalg.norm(gradients.clipped_sum(units, clip_norm)))
    assert norms[0] == pytest.approx(8 * clip_norm, rel=1e-9)
    assert norms[1] < 0.98 * 8 * clip_norm


# The model stays what it is.


@pytest.mark.parametrize("way", ["opacus", "ghost"])
def test_nothing_is_left_in_the_model(way):
    model, utterances = pair("clc")
    flat = FlatModel(model)
    names = list(model.state_dict())
    gradients = clipping_by(way, flat, utterances)
    mean = gradients.mean(np.arange(3)).copy()
    gradients.clipped_sum(np.arange(3), 0.5)
    np.testing.assert_array_equal(flat.gradient.numpy(), mean)
    assert list(model.state_dict()) == names
    assert type(model.layers[0].from_start) is nn.LSTM
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._backward_hooks
    for values in model.parameters():
        assert values.requires_grad
        assert not hasattr(values, "grad_sample")


# Refusals.


def test_an_unknown_way_is_refused():
    with pytest.raises(ValueError, match=r"training\.examples"):
        NluExperiment.from_data({"training": {"examples": "all"}}, "here")


def test_gradients_of_batches_do_not_claim_to_know_single_utterances():
    model, utterances = pair("clc")
    with pytest.raises(TypeError, match="single utterances' gradients"):
        UtteranceGradients(FlatModel(model), utterances).clipped_sum(np.arange(2), 1.0)


@pytest.mark.parametrize("way", ["opacus", "ghost"])
def test_layers_of_unknown_kinds_are_refused(way):
    flat = FlatModel(Odd(nn.GRU(4, 4, batch_first=True)))
    with pytest.raises(ValueError, match=r"(ghost clipping|Opacus) does not know .* by a GRU"):
        clipping_by(way, flat, said([2]))


def test_ghost_takes_layers_that_it_does_not_know_where_they_are_frozen():
    model = Odd(nn.GRU(4, 4, batch_first=True)).double()
    model.between.requires_grad_(False)
    utterances, units = said([2, 4, 1]), np.arange(3)
    found = clipping_by("ghost", FlatModel(model), utterances).clipped_sum(units, 0.5)
    close(found, literal(model, utterances, units, 0.5))


def test_ghost_refuses_parameters_that_are_shared():
    one, two = nn.Linear(4, 4), nn.Linear(4, 4)
    two.weight = one.weight
    with pytest.raises(ValueError, match=r"several modules share, such as between\.0\.w"):
        clipping_by("ghost", FlatModel(Odd(one, two)), said([2]))


def test_ghost_refuses_a_layer_that_is_used_twice():
    layer = nn.Linear(4, 4)
    gradients = clipping_by("ghost", FlatModel(Odd(layer, layer)), said([2]))
    with pytest.raises(ValueError, match="called twice, such as a Linear"):
        gradients.clipped_sum(np.array([0]), 1.0)


@pytest.mark.parametrize("way", ["opacus", "ghost"])
def test_a_layer_that_is_given_only_some_of_the_utterances_is_refused(way):
    gradients = clipping_by(way, FlatModel(Odd(first=True)), said([2, 2]))
    with pytest.raises(ValueError, match=r"all utterances of a batch side by side, got 1 for 16"):
        gradients.clipped_sum(np.arange(2), 1.0)


def test_ghost_refuses_a_convolution_with_strides():
    class Strided(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv1d(4, 4, 3, padding=1, groups=2)

        def forward(self, states):
            return self.convolution(states.transpose(1, 2)).transpose(1, 2)

    gradients = clipping_by("ghost", FlatModel(Odd(Strided())), said([2]))
    with pytest.raises(ValueError, match="does not know a convolution with strides, gaps or"):
        gradients.clipped_sum(np.array([0]), 1.0)


def test_a_row_for_padding_is_never_trained():
    model, padding = Odd().double(), 5
    model.words.padding_idx = padding
    utterances, units = said([4, 3, 6]), np.arange(3)
    assert (utterances.batch(units).inputs["words"] == padding).any()
    found = clipping_by("ghost", FlatModel(model), utterances).clipped_sum(units, 0.5)
    close(found, literal(model, utterances, units, 0.5))
    rows = found[: 13 * 4].reshape(13, 4)
    assert not rows[padding].any()
    assert rows[0].any()
