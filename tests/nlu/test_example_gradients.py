"""Clipped sums of gradients: every way against a literal one, and what each utterance can do."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from tacit.models.clc import Clc, ClcConfig
from tacit.models.crf import LinearChainCrf
from tacit.models.crf_grad_sample import crf_grad_sample
from tacit.models.understanding import UnderstandingModel, UtteranceScores
from tacit.nlu.clipped_sums import FEW, clip_factors
from tacit.nlu.data import Utterance
from tacit.nlu.encoding import Labels, encode
from tacit.nlu.example_gradients import ExampleGradients
from tacit.nlu.example_parts import Products, Rows, Whole
from tacit.nlu.experiment import NluExperiment
from tacit.nlu.gradients import FlatModel, UtteranceGradients
from tacit.nlu.twin import TwinLstm, twin_of
from tacit.nlu.word_encoder import WordEncoder
from tests.models.small_bert import small_tagger, together, utterance

WAYS = ["one-by-one", "vectorised", "ghost"]
WORDS = tuple("play a song by nobody in the kitchen x extraordinarily loud at ten or so".split())
LABELS = Labels(("music", "light", "call"), ("O", "B-song", "B-time", "B-room"))
FALSE_ALARM = 1e-6


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Given:
    """Utterances for BERT, as `EncodedUtterances` would give them."""

    def __init__(self, parts):
        self.parts = parts
        self.lengths = np.array([part.mask.shape[1] for part in parts])

    def __len__(self):
        return len(self.parts)

    def batch(self, indices):
        return together([self.parts[index] for index in indices])


def said(lengths, seed=0):
    """Encoded utterances of these lengths for CLC."""
    rng = np.random.default_rng(seed)
    made = [
        Utterance(
            tuple(rng.choice(WORDS, length)),
            tuple(rng.choice(LABELS.tags, length)),
            str(rng.choice(LABELS.intents)),
        )
        for length in lengths
    ]
    return encode(WordEncoder(WORDS[:12], "public: a list", 8), LABELS, made)


def clc(seed=0, **changes):
    """In float64, with a CRF that has learnt something, so that equal means equal."""
    encoder = WordEncoder((), "public: a list", 8)
    sizes = {"word_size": 5, "character_size": 3, "filters": 4, "hidden": 6}
    sizes |= {"dropout": 0.0, "word_dropout": 0.0, **changes}
    config = ClcConfig(13, encoder.character_count, len(LABELS.intents), len(LABELS.tags), **sizes)
    model = Clc(config, seed).double()
    with torch.no_grad():
        for values in model.crf.parameters():
            values.normal_(generator=torch.Generator().manual_seed(seed))
    return model


def bert(seed=0, **changes):
    return small_tagger(seed, **{"dropout": 0.0, **changes}).double()


def pair(kind, seed=0):
    """A model, and utterances of different lengths for it."""
    if kind == "clc":
        return clc(seed), said([3, 1, 7, 4, 2, 5], seed)
    shapes = [(3, 0), (1, 2), (6, 4), (2, 2), (5, 0), (1, 0)]
    return bert(seed), Given([utterance(*shape, seed=place) for place, shape in enumerate(shapes)])


def example_gradient(model, utterances, unit):
    """Of one utterance alone, in numbers."""
    trained = [values for values in model.parameters() if values.requires_grad]
    loss = model(utterances.batch([unit])).sum()
    found = torch.autograd.grad(loss, trained)
    return torch.cat([values.reshape(-1) for values in found]).double().numpy()


def literal(model, utterances, units, clip_norm):
    """The sum of min(1, C / |g|) g, as it is written."""
    total = 0.0
    for unit in units:
        g = example_gradient(model, utterances, unit)
        norm = math.sqrt(math.fsum(g * g))
        total = total + g * min(1.0, clip_norm / norm)
    return total


def close(found, expected, rtol=1e-9):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * np.abs(expected).max())


# The sum.


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_every_way_is_the_literal_sum_whether_the_clip_binds_or_not(kind, way):
    model, utterances = pair(kind)
    units = np.arange(len(utterances))
    norms = [np.linalg.norm(example_gradient(model, utterances, unit)) for unit in units]
    gradients = ExampleGradients(FlatModel(model), utterances, way)
    for clip_norm in (0.1 * min(norms), float(np.median(norms)), 10 * max(norms)):
        expected = literal(model, utterances, units, clip_norm)
        found = gradients.clipped_sum(units, clip_norm)
        assert found.dtype == np.float64
        close(found, expected)
    assert not np.allclose(expected, literal(model, utterances, units, np.median(norms)), rtol=1e-3)


@pytest.mark.parametrize("way", WAYS)
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
    gradients = ExampleGradients(FlatModel(model), utterances, way)
    close(gradients.clipped_sum(units, clip_norm), literal(model, utterances, units, clip_norm))


@pytest.mark.parametrize("way", WAYS)
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
    gradients = ExampleGradients(FlatModel(model), utterances, way)
    close(gradients.clipped_sum(units, clip_norm), literal(model, utterances, units, clip_norm))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_models_in_float32_agree_as_far_as_float32_goes(kind, way):
    model, utterances = pair(kind)
    units = np.arange(len(utterances))
    expected = literal(model, utterances, units, 0.5)
    gradients = ExampleGradients(FlatModel(model.float()), utterances, way)
    close(gradients.clipped_sum(units, 0.5), expected, rtol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_a_draw_of_nobody_gives_zeros(way):
    model, utterances = pair("clc")
    gradients = ExampleGradients(FlatModel(model), utterances, way)
    found = gradients.clipped_sum(np.empty(0, np.int64), 1.0)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, np.zeros(len(gradients.flat)))


@pytest.mark.parametrize("way", WAYS)
def test_frozen_word_vectors_are_in_neither_norm_nor_sum(way):
    model, utterances = clc(freeze_words=True), said([2, 5, 3])
    flat, units = FlatModel(model), np.arange(3)
    found = ExampleGradients(flat, utterances, way).clipped_sum(units, 0.3)
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
    gradients = ExampleGradients(flat, utterances, way)
    optimizer = torch.optim.Adam([flat.weights], lr=0.05)
    before = gradients.clipped_sum(units, 1.0)
    for _ in range(2):
        flat.gradient.copy_(torch.from_numpy(gradients.clipped_sum(units, 1.0)))
        optimizer.step()
    found = gradients.clipped_sum(units, 1.0)
    close(found, literal(model, utterances, units, 1.0))
    assert not np.allclose(found, before, rtol=1e-2)


@pytest.mark.parametrize("way", ["vectorised", "ghost"])
def test_more_utterances_than_go_together_are_added_up_in_pieces(way):
    model = clc()
    utterances = said([1 + place % 5 for place in range(2 * FEW + 3)])
    units = np.arange(len(utterances))
    found = ExampleGradients(FlatModel(model), utterances, way).clipped_sum(units, 0.5)
    close(found, literal(model, utterances, units, 0.5))


def test_a_bound_on_memory_changes_the_pieces_and_not_the_sum():
    model, utterances = pair("clc")
    flat, units = FlatModel(model), np.arange(len(utterances))
    of_one = 4 * len(flat)
    sizes = []
    for max_bytes in (1, 3 * 2 * of_one, 1 << 30):
        gradients = ExampleGradients(flat, utterances, "vectorised", max_bytes)
        sizes.append(gradients._sums.at_once)
        close(gradients.clipped_sum(units, 0.5), literal(model, utterances, units, 0.5), rtol=1e-12)
    assert sizes == [1, 3, FEW]


def test_a_unit_may_be_drawn_again_and_in_any_order():
    model, utterances = pair("clc")
    gradients = ExampleGradients(FlatModel(model), utterances, "ghost")
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
    gradients = ExampleGradients(FlatModel(model), utterances, way)
    everybody = gradients.clipped_sum(np.arange(4), clip_norm)
    moves = [
        np.linalg.norm(everybody - gradients.clipped_sum(np.delete(np.arange(4), gone), clip_norm))
        for gone in range(4)
    ]
    assert max(moves) == pytest.approx(clip_norm, rel=1e-9)
    np.testing.assert_allclose(moves, np.minimum(norms, clip_norm), rtol=1e-9)


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
    gradients = ExampleGradients(FlatModel(model), utterances, way)
    assert not np.isfinite(example_gradient(model, utterances, victim)).all()
    close(gradients.clipped_sum(units, 0.5), expected)


@given(
    squares=st.lists(
        st.floats(1e-60, 1e60) | st.sampled_from([0.0, math.nan, math.inf]), min_size=1, max_size=6
    ),
    clip_norm=st.floats(1e-6, 1e6),
)
def test_factors_bring_norms_to_the_clip_norm_and_never_above(squares, clip_norm):
    finite, factors = clip_factors(torch.tensor(squares, dtype=torch.float64), 1000, clip_norm)
    kept = [square for square in squares if math.isfinite(square)]
    assert finite.tolist() == [math.isfinite(square) for square in squares]
    for square, factor in zip(kept, factors.tolist(), strict=True):
        assert 0 < factor <= 1
        assert Fraction(factor) ** 2 * Fraction(square) <= Fraction(clip_norm) ** 2
        assert factor == pytest.approx(min(1.0, clip_norm / math.sqrt(square or 1e-99)), rel=1e-12)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("way", WAYS)
def test_a_clip_norm_that_bounds_nothing_is_refused(way, bad):
    model, utterances = pair("clc")
    with pytest.raises(ValueError, match="clip_norm must be between"):
        ExampleGradients(FlatModel(model), utterances, way).clipped_sum(np.arange(2), bad)


# Dropout.


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_dropout_follows_the_model(kind, way):
    _, utterances = pair(kind)
    model = clc(dropout=0.4, word_dropout=0.3) if kind == "clc" else bert(dropout=0.3)
    units = np.arange(len(utterances))
    gradients = ExampleGradients(FlatModel(model), utterances, way)
    model.eval()
    close(gradients.clipped_sum(units, 0.5), literal(model, utterances, units, 0.5))
    model.train()
    one, two = (gradients.clipped_sum(units, 0.5) for _ in range(2))
    assert not np.allclose(one, two, rtol=1e-2)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_seed_gives_the_same_bits(way):
    model, utterances = clc(dropout=0.4, word_dropout=0.2).float(), said([3, 5, 1, 4])
    gradients = ExampleGradients(FlatModel(model), utterances, way)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(gradients.clipped_sum(np.arange(4), 0.5))
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0] != found[2]).any()


def test_dropout_has_the_same_law_in_every_way():
    """Two utterances, one of them twice, along a fixed direction; false alarms: 1e-6 a test."""
    utterances, units, clip_norm = said([3, 2]), np.array([0, 0, 1]), 0.7
    sizes = {"hidden": 3, "layers": 1, "dropout": 0.4, "word_dropout": 0.2}
    direction = literal(clc(**sizes).eval(), utterances, units, clip_norm)

    def projected(way, **changes):
        torch.manual_seed(7)
        gradients = ExampleGradients(FlatModel(clc(**{**sizes, **changes})), utterances, way)
        return [gradients.clipped_sum(units, clip_norm) @ direction for _ in range(50)]

    expected = projected("one-by-one")
    for way in ("vectorised", "ghost"):
        found = projected(way)
        assert stats.ttest_ind(found, expected, equal_var=False).pvalue > FALSE_ALARM
        assert stats.ks_2samp(found, expected).pvalue > FALSE_ALARM
    assert stats.ks_2samp(projected("ghost", dropout=0.1), expected).pvalue < FALSE_ALARM


@pytest.mark.parametrize("way", ["vectorised", "ghost"])
def test_each_of_several_equal_utterances_has_its_own_dropout(way):
    """Vectors of norm C add up to their number times C only if all of them are the same."""
    utterances, units, clip_norm = said([4]), np.zeros(8, np.int64), 1e-3
    norms = []
    for dropout in (0.0, 0.4):
        model = clc(dropout=dropout)
        gradients = ExampleGradients(FlatModel(model), utterances, way)
        norms.append(np.linalg.norm(gradients.clipped_sum(units, clip_norm)))
    assert norms[0] == pytest.approx(8 * clip_norm, rel=1e-9)
    assert norms[1] < 0.98 * 8 * clip_norm


# The model stays what it is.


@pytest.mark.parametrize("way", ["vectorised", "ghost"])
def test_nothing_is_left_in_the_model(way):
    model, utterances = pair("clc")
    flat = FlatModel(model)
    names = list(model.state_dict())
    gradients = ExampleGradients(flat, utterances, way)
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


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 5)),
    hidden=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_a_twin_of_an_lstm_computes_the_same_on_the_same_memory(shape, hidden, seed):
    torch.manual_seed(seed)
    lstm = nn.LSTM(shape[2], hidden, batch_first=True).double()
    values = torch.randn(shape, dtype=torch.float64)
    twin = twin_of(nn.ModuleList([lstm])).module[0]
    torch.testing.assert_close(twin(values)[0], lstm(values)[0], rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        lstm.weight_hh_l0 *= 0.5
        lstm.bias_ih_l0 += 1.0
    torch.testing.assert_close(twin(values)[0], lstm(values)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [{"num_layers": 2}, {"bidirectional": True}, {"proj_size": 2}, {"batch_first": False}],
)
def test_a_twin_of_another_kind_of_lstm_is_refused(options):
    with pytest.raises(ValueError, match="an LSTM must have one layer, one direction"):
        TwinLstm(nn.LSTM(3, 4, **{"batch_first": True, **options}))


# The pieces that norms are made of.


@settings(max_examples=30)
@given(
    B=st.integers(1, 4),
    T=st.integers(1, 7),
    K=st.integers(1, 5),
    spread=st.sampled_from([1.0, 200.0]),
    seed=st.integers(0, 99),
)
def test_the_crf_gives_the_gradient_of_each_sequence(B, T, K, spread, seed):
    generator = torch.Generator().manual_seed(seed)
    crf = LinearChainCrf(K).double()
    with torch.no_grad():
        for values in crf.parameters():
            values.normal_(std=spread, generator=generator)
    emissions = torch.randn(B, T, K, generator=generator, dtype=torch.float64)
    tags = torch.randint(K, (B, T), generator=generator)
    lengths = torch.randint(1, T + 1, (B, 1), generator=generator)
    mask = torch.arange(T) < lengths
    weights = torch.randn(B, generator=generator, dtype=torch.float64)
    found = crf_grad_sample(crf, emissions, tags, mask, weights)
    for row in range(B):
        cut = (slice(row, row + 1), slice(int(lengths[row])))
        loss = weights[row] * crf(emissions[cut], tags[cut], mask[cut]).sum()
        alone = torch.autograd.grad(loss, list(crf.parameters()))
        for (name, _), expected in zip(crf.named_parameters(), alone, strict=True):
            torch.testing.assert_close(found[name][row], expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=40)
@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 6), st.integers(1, 6)),
    seed=st.integers(0, 99),
)
@example(sizes=(2, 2, 40, 50), seed=0)  # few tokens, so that no matrix is written out
@example(sizes=(2, 60, 3, 4), seed=0)
def test_parts_have_the_norms_and_sums_of_what_they_stand_for(sizes, seed):
    B, T, O, I = sizes  # noqa: E741
    generator = torch.Generator().manual_seed(seed)
    left, right = torch.randn(B, T, O, generator=generator), torch.randn(B, T, I)
    ids = torch.randint(I, (B, T), generator=generator)
    factors = torch.rand(B, generator=generator, dtype=torch.float64)
    written = torch.einsum("bto,bti->boi", left.double(), right.double())
    rows = torch.zeros(B, I, O, dtype=torch.float64)
    for b in range(B):
        for t in range(T):
            rows[b, ids[b, t]] += left[b, t].double()
    for part, expected in [
        (Products(left, right), written),
        (Rows(ids, left), rows),
        (Whole(written), written),
    ]:
        squares = expected.square().flatten(1).sum(dim=1)
        torch.testing.assert_close(part.squares(), squares, rtol=1e-10, atol=1e-12)
        total = torch.ones(expected.shape[1:], dtype=torch.float64)
        part.add_(total, factors)
        summed = 1 + torch.einsum("b...,b->...", expected, factors)
        torch.testing.assert_close(total, summed, rtol=1e-12, atol=1e-12)
        chosen = torch.arange(B) % 2 == 0
        torch.testing.assert_close(part.only(chosen).squares(), part.squares()[chosen])


@given(
    T=st.integers(2, 6),
    sides=st.sampled_from([(30, 40), (3, 4)]),
    tiny=st.sampled_from([1e-2, 1e-5, 1e-7, 0.0]),
    seed=st.integers(0, 999),
)
def test_norms_of_tokens_that_cancel_are_not_underestimated(T, sides, tiny, seed):
    rng = np.random.default_rng(seed)
    left, right = (np.repeat(rng.normal(size=(1, side)), T, axis=0) for side in sides)
    right[0] *= 1 - T  # all add up to nothing
    right += tiny * rng.normal(size=right.shape)
    d, x = left.astype(np.float32), right.astype(np.float32)
    written = (d[:, :, None].astype(np.longdouble) * x[:, None, :]).sum(axis=0)
    truth = (written**2).sum()
    found = Products(torch.from_numpy(d)[None], torch.from_numpy(x)[None]).squares().item()
    assert found >= truth * (1 - np.longdouble(2) ** -52)
    if tiny >= 1e-5:
        assert found == pytest.approx(float(truth), rel=0.01)


def test_norms_in_float32_would_be_underestimated():
    """What the test above has to be able to see."""
    rng = np.random.default_rng(0)
    low = 0
    for _ in range(50):
        d = torch.from_numpy(rng.normal(size=30)).float().repeat(2, 1)
        x = torch.from_numpy(rng.normal(size=40)).float()
        x = torch.stack([x, -x + 1e-4 * torch.from_numpy(rng.normal(size=40)).float()])
        in_float32 = ((d @ d.t()) * (x @ x.t())).sum().clamp(min=0).item()
        low += in_float32 < 0.9 * Products(d[None], x[None]).squares().item()
    assert low > 5


# Refusals.


def test_an_unknown_way_is_refused():
    model, utterances = pair("clc")
    with pytest.raises(ValueError, match=r"examples must be one of .*ghost.* got 'all'"):
        ExampleGradients(FlatModel(model), utterances, "all")
    with pytest.raises(ValueError, match=r"training\.examples"):
        NluExperiment.from_data({"training": {"examples": "all"}}, "here")


def test_gradients_of_batches_do_not_claim_to_know_single_utterances():
    model, utterances = pair("clc")
    with pytest.raises(TypeError, match="single utterances' gradients"):
        UtteranceGradients(FlatModel(model), utterances).clipped_sum(np.arange(2), 1.0)


class Odd(UnderstandingModel):
    """A model of layers that a test chooses; it reads words alone."""

    def __init__(self, *layers, first=False):
        super().__init__()
        self.words = nn.Embedding(13, 4)
        self.between = nn.ModuleList(layers)
        self.intent = nn.Linear(4, len(LABELS.intents))
        self.emission = nn.Linear(4, len(LABELS.tags))
        self.crf = LinearChainCrf(len(LABELS.tags))
        self.first = first

    def scores(self, inputs, mask):
        states = self.words(inputs["words"][:1] if self.first else inputs["words"])
        for layer in self.between:
            found = layer(states)
            states = found[0] if isinstance(found, tuple) else found
        states = states.expand(len(mask), -1, -1)
        return UtteranceScores(self.intent(states[:, 0]), self.emission(states))


@pytest.mark.parametrize("way", ["vectorised", "ghost"])
def test_layers_of_unknown_kinds_are_refused(way):
    flat = FlatModel(Odd(nn.GRU(4, 4, batch_first=True)))
    with pytest.raises(ValueError, match=f"examples = '{way}' does not know .* by a GRU; use"):
        ExampleGradients(flat, said([2]), way)


def test_ghost_takes_layers_that_it_does_not_know_where_they_are_frozen():
    model = Odd(nn.GRU(4, 4, batch_first=True)).double()
    model.between.requires_grad_(False)
    utterances, units = said([2, 4, 1]), np.arange(3)
    found = ExampleGradients(FlatModel(model), utterances, "ghost").clipped_sum(units, 0.5)
    close(found, literal(model, utterances, units, 0.5))


def test_ghost_refuses_parameters_that_are_shared():
    one, two = nn.Linear(4, 4), nn.Linear(4, 4)
    two.weight = one.weight
    with pytest.raises(ValueError, match=r"several modules share, such as between\.0\.w"):
        ExampleGradients(FlatModel(Odd(one, two)), said([2]), "ghost")


def test_ghost_refuses_a_layer_that_is_used_twice():
    layer = nn.Linear(4, 4)
    gradients = ExampleGradients(FlatModel(Odd(layer, layer)), said([2]), "ghost")
    with pytest.raises(ValueError, match="called twice, such as a Linear; use 'one-"):
        gradients.clipped_sum(np.array([0]), 1.0)


@pytest.mark.parametrize("way", ["vectorised", "ghost"])
def test_a_layer_that_is_given_only_some_of_the_utterances_is_refused(way):
    gradients = ExampleGradients(FlatModel(Odd(first=True)), said([2, 2]), way)
    with pytest.raises(ValueError, match=r"all utterances of a batch side by side, got 1 for 2"):
        gradients.clipped_sum(np.arange(2), 1.0)


def test_ghost_refuses_a_convolution_with_strides():
    class Strided(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv1d(4, 4, 3, padding=1, groups=2)

        def forward(self, states):
            return self.convolution(states.transpose(1, 2)).transpose(1, 2)

    gradients = ExampleGradients(FlatModel(Odd(Strided())), said([2]), "ghost")
    with pytest.raises(ValueError, match="a convolution must have no strides, gaps or groups"):
        gradients.clipped_sum(np.array([0]), 1.0)


def test_a_row_for_padding_is_never_trained():
    model, padding = Odd().double(), 5
    model.words.padding_idx = padding
    utterances, units = said([4, 3, 6]), np.arange(3)
    assert (utterances.batch(units).inputs["words"] == padding).any()
    found = ExampleGradients(FlatModel(model), utterances, "ghost").clipped_sum(units, 0.5)
    close(found, literal(model, utterances, units, 0.5))
    rows = found[: 13 * 4].reshape(13, 4)
    assert not rows[padding].any()
    assert rows[0].any()
