"""A model with another vocabulary: what counts tokens is mapped, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tacit.models.base import (
    LanguageModel,
    from_vector_,
    lasting_tensors,
    parameter_count,
    to_vector,
)
from tacit.models.registry import build
from tacit.models.vocabulary import _vocabulary_axes, remapped_vector, with_vocabulary
from tacit.tokenizers.remapping import Remapping
from tests.models.small import NAMES, VOCABULARY, random_tokens, small

each_name = pytest.mark.parametrize("name", NAMES)
IDENTITY = Remapping(VOCABULARY, tuple((id,) for id in range(VOCABULARY)))
# Two averaged rows, one of them with a token twice, and eleven copied ones.
LARGER = Remapping(VOCABULARY, (*IDENTITY.sources[::-1], (3, 4), (5, 5, 2)))


# Modules as users might bring them


class Untied(nn.Module):
    """A row per token in four places, along either axis, and a lasting buffer; width 7."""

    def __init__(self, vocab_size: int, dtype: str = "float32") -> None:
        super().__init__()
        self.inputs = nn.Embedding(vocab_size, 7)
        self.middle = nn.Linear(7, 7)
        self.output = nn.Linear(7, vocab_size)
        self.second = nn.Parameter(torch.randn(7, vocab_size))
        self.register_buffer("counts", torch.arange(vocab_size))
        self.register_buffer("passing", torch.zeros(vocab_size), persistent=False)
        self.to(getattr(torch, dtype))

    def forward(self, tokens):
        hidden = torch.tanh(self.middle(self.inputs(tokens)))
        return self.output(hidden) + hidden @ self.second + self.passing


class Tied(nn.Module):
    """One parameter by two names, frozen in part, and with rows between 0 and 1."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.inputs = nn.Embedding(vocab_size, 7)
        self.output = nn.Linear(7, vocab_size)
        self.output.weight = self.inputs.weight
        self.fixed = nn.Parameter(torch.ones(7), requires_grad=False)

    def forward(self, tokens):
        return self.output(self.inputs(tokens) * self.fixed)

    def normalise_(self):
        with torch.no_grad():
            self.inputs.weight.clamp_(0, 1)
            self.fixed.clamp_(0, 1)


class Padded(Untied):
    """Its table is rounded up to 16 rows, so that one more token need not change it."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self.inputs = nn.Embedding(-(-vocab_size // 16) * 16, 7)


class OneMore(Untied):
    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self.inputs = nn.Embedding(vocab_size + 1, 7)


class AtLeastTen(Untied):
    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self.inputs = nn.Embedding(max(vocab_size, 10), 7)


class Pairs(nn.Module):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocab_size, vocab_size))

    def forward(self, tokens):
        return self.table[tokens]


class OneParameterPerToken(nn.Module):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.scores = nn.ParameterList(torch.zeros(1) for _ in range(vocab_size))

    def forward(self, tokens):
        return torch.cat(list(self.scores)).expand(*tokens.shape, -1)


class Constant(nn.Module):
    """Knows its vocabulary and has no parameter for it."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, tokens):
        one_hot = nn.functional.one_hot(tokens, self.vocab_size)
        return one_hot * self.scale.sum()


def own(factory: type[nn.Module], **options) -> LanguageModel:
    return build(f"{__name__}:{factory.__name__}", VOCABULARY, seed=3, **options)


def every_model() -> dict[str, LanguageModel]:
    built_in = {name: small(name, seed=1, output_bias=True) for name in NAMES}
    return built_in | {"untied": own(Untied), "tied": own(Tied)}


each_model = pytest.mark.parametrize("which", [*NAMES, "untied", "tied"])


def moved(model: LanguageModel, seed: int = 0) -> LanguageModel:
    """With all weights a little elsewhere, so that norms are not quite 1 and biases not 0."""
    noise = np.random.default_rng(seed).standard_normal(parameter_count(model))
    from_vector_(model, to_vector(model) + 0.01 * noise)
    return model


def assert_same_bits(some: LanguageModel, others: LanguageModel) -> None:
    ones, twos = some.state_dict(), others.state_dict()
    assert ones.keys() == twos.keys()
    for name, tensor in ones.items():
        assert tensor.dtype == twos[name].dtype
        assert torch.equal(tensor, twos[name]), name


# Which axes count tokens


@each_name
@pytest.mark.parametrize("bias", [False, True])
def test_built_in_models_have_one_table_and_perhaps_a_bias(name, bias):
    expected = {"embedding.weight": 0} | ({"embedding.output_bias": 0} if bias else {})
    assert _vocabulary_axes(small(name, output_bias=bias)) == expected


def test_a_width_that_happens_to_be_the_vocabulary_is_no_axis():
    for name in ("lstm", "cifg", "gru"):
        model = small(name, embedding_size=VOCABULARY, cells=VOCABULARY)
        assert _vocabulary_axes(model) == {"embedding.weight": 0}


def test_axes_of_ones_own_module_are_found():
    assert _vocabulary_axes(own(Untied)) == {
        "module.inputs.weight": 0,
        "module.output.weight": 0,
        "module.output.bias": 0,
        "module.second": 1,
        "module.counts": 0,
    }
    assert _vocabulary_axes(own(Tied)) == {"module.inputs.weight": 0, "module.output.bias": 0}


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (Pairs, r"table has the shape \[11, 11\] for 11 tokens and \[12, 12\] for one more"),
        (Padded, r"inputs.weight has the shape \[16, 7\] for 11 tokens"),
        (OneMore, r"inputs.weight has the shape \[12, 7\] for 11 tokens and \[13, 7\] for one"),
        (OneParameterPerToken, "'own' has other parameters with another vocabulary"),
        (Constant, "'own' has no parameter that counts its 11 tokens"),
    ],
)
def test_a_module_whose_rows_are_not_tokens_is_refused(factory, message):
    model = own(factory)
    for attempt in (
        lambda: _vocabulary_axes(model),
        lambda: with_vocabulary(model, IDENTITY),
        lambda: remapped_vector(model, to_vector(model), IDENTITY),
    ):
        with pytest.raises(ValueError, match=message):
            attempt()


def test_a_table_that_does_not_shrink_is_refused():
    with pytest.raises(ValueError, match=r"inputs.weight has the shape \[10, 7\] for 4 tokens"):
        with_vocabulary(own(AtLeastTen), Remapping(VOCABULARY, IDENTITY.sources[:4]))


# The model


@each_model
def test_onto_itself_every_bit_stays(which):
    model = moved(every_model()[which])
    new = with_vocabulary(model, IDENTITY)
    assert new is not model
    assert type(new) is type(model)
    assert new.config == model.config
    assert_same_bits(new, model)
    for dtype in (np.float32, np.float64):
        moment = np.random.default_rng(2).standard_normal(parameter_count(model)).astype(dtype)
        again = remapped_vector(model, moment, IDENTITY)
        assert again.dtype == dtype
        assert again.tobytes() == moment.tobytes()
        assert not np.shares_memory(again, moment)


@each_model
def test_permuted_tokens_have_permuted_scores(which):
    model = moved(every_model()[which]).eval()
    order = np.random.default_rng(4).permutation(VOCABULARY)  # new id of each old token
    sources = tuple((int(old),) for old in np.argsort(order))
    new = with_vocabulary(model, Remapping(VOCABULARY, sources))
    tokens = random_tokens(3, 6)
    with torch.no_grad():
        before, _ = model(tokens)
        after, _ = new(torch.from_numpy(order)[tokens])
    assert torch.allclose(after[..., order], before, atol=1e-6)
    assert not torch.allclose(after, before, atol=1e-3)


@each_model
def test_what_counts_tokens_is_mapped_and_the_rest_copied(which):
    model = moved(every_model()[which])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    new = with_vocabulary(model, LARGER)
    assert new.config.vocab_size == LARGER.new_size == VOCABULARY + 2
    axes, after = _vocabulary_axes(model), lasting_tensors(new)
    for name, tensor in lasting_tensors(model).items():
        assert torch.equal(tensor, before[name])  # the given model stays as it is
        if name not in axes:
            assert torch.equal(after[name], tensor), name
            continue
        rows, mapped = tensor.movedim(axes[name], 0), after[name].movedim(axes[name], 0)
        assert torch.equal(mapped[:VOCABULARY], rows.flip(0)), name
        mean = (rows[3].double() + rows[4].double()) / 2
        if name == "embedding.weight" and model.config.unit_norm:
            mean = mean / mean.norm()
        elif which == "tied" and name.endswith("weight"):
            mean = mean.clamp(0, 1)
        elif name.endswith("counts"):
            mean = mean.round()
        assert torch.allclose(mapped[VOCABULARY].double(), mean, atol=1e-6), name
    logits, _ = new(torch.tensor([[0, VOCABULARY + 1, 3]]))
    assert logits.shape == (1, 3, LARGER.new_size)
    assert torch.isfinite(logits).all()


def test_tied_names_stay_tied_and_frozen_parameters_frozen():
    new = with_vocabulary(own(Tied), LARGER)
    assert new.module.inputs.weight is new.module.output.weight
    assert [name for name, _ in new.parameter_vectors()] == [
        "module.inputs.weight",
        "module.output.bias",
    ]
    model = small("lstm")
    model.projection.bias.requires_grad_(False)
    new = with_vocabulary(model.eval(), LARGER)
    assert not new.projection.bias.requires_grad
    assert len(new.parameter_vectors()) == len(model.parameter_vectors()) == 10
    assert not new.training
    assert with_vocabulary(model.train(), LARGER).training


def test_types_of_numbers_stay():
    assert to_vector(small("lstm")).dtype == np.float32
    new = with_vocabulary(small("lstm").double(), LARGER)
    assert {tensor.dtype for tensor in new.state_dict().values()} == {torch.float64}
    model = own(Untied, dtype="bfloat16")
    new = with_vocabulary(model, LARGER)
    assert new.module.inputs.weight.dtype == torch.bfloat16
    assert torch.equal(new.module.inputs.weight[:VOCABULARY], model.module.inputs.weight.flip(0))
    assert new.module.counts.dtype == torch.int64


def test_it_draws_nothing_from_the_global_random_state():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    for model in every_model().values():
        with_vocabulary(model, LARGER)
    assert torch.equal(torch.random.get_rng_state(), before)


# Unit norm


@pytest.mark.parametrize("name", ["lstm", "cifg", "gru"])
def test_averaged_rows_have_unit_norm_and_copied_rows_their_bits(name):
    model = small(name, seed=6)
    assert model.config.unit_norm
    with torch.no_grad():
        model.embedding.weight[2] *= 1.5  # a copied row is not touched, whatever its norm
    table = with_vocabulary(model, LARGER).embedding.weight
    assert torch.equal(table[:VOCABULARY], model.embedding.weight.flip(0))
    norms = table[VOCABULARY:].detach().norm(dim=1)
    assert torch.allclose(norms, torch.ones(2), atol=1e-6)
    plain = with_vocabulary(small(name, seed=6, unit_norm=False), LARGER).embedding.weight
    assert plain[VOCABULARY].norm() < 0.99


def test_the_mean_of_opposite_vectors_is_zero_and_no_nan():
    model = small("lstm")
    with torch.no_grad():
        model.embedding.weight[4] = -model.embedding.weight[3]
    new = with_vocabulary(model, LARGER)
    assert torch.equal(new.embedding.weight[VOCABULARY], torch.zeros(6))
    logits, _ = new(torch.tensor([[VOCABULARY, VOCABULARY]]))
    assert torch.isfinite(logits).all()
    new.normalise_()
    assert torch.isfinite(new.embedding.weight).all()


def test_a_mean_that_is_all_but_zero_still_has_a_direction():
    model = small("lstm")
    with torch.no_grad():
        model.embedding.weight[3] = torch.tensor([1e-45, 0, 0, 0, 0, 0])
        model.embedding.weight[4] = torch.tensor([3e-45, 0, 0, 0, 0, 0])
    assert with_vocabulary(model, LARGER).embedding.weight[VOCABULARY].tolist() == [1, *[0] * 5]


# Flat vectors


@each_model
def test_a_flat_vector_is_mapped_as_the_model_is(which):
    model = moved(every_model()[which])
    model.normalise_()
    new = with_vocabulary(model, LARGER)
    found = to_vector(new)
    vector = remapped_vector(model, to_vector(model), LARGER)
    assert vector.shape == found.shape
    if not getattr(model.config, "unit_norm", False):
        assert vector.tobytes() == found.tobytes()
    from_vector_(new, vector)
    new.normalise_()
    np.testing.assert_allclose(to_vector(new), found, atol=1e-6)


@given(seed=st.integers(0, 1000), size=st.integers(1, 20))
def test_adams_squares_stay_at_least_zero_and_are_means(seed, size):
    generator = np.random.default_rng(seed)
    model = small("lstm")
    square = (generator.standard_normal(parameter_count(model)) ** 2).astype(np.float32)
    sources = tuple(
        tuple(generator.integers(0, VOCABULARY, generator.integers(1, 4)).tolist())
        for _ in range(size)
    )
    found = remapped_vector(model, square, Remapping(VOCABULARY, sources))
    assert found.dtype == np.float32
    assert (found >= 0).all()
    table = square[: VOCABULARY * 6].reshape(VOCABULARY, 6)
    rest = square[VOCABULARY * 6 :]
    means = [np.mean(table[list(each)], axis=0, dtype=np.float64) for each in sources]
    np.testing.assert_allclose(found[: size * 6].reshape(size, 6), means, rtol=1e-6)
    assert found[size * 6 :].tobytes() == rest.tobytes()


def test_a_moment_is_not_normalised():
    model = small("lstm")
    moment = np.full(parameter_count(model), 3.0, np.float32)
    assert (remapped_vector(model, moment, LARGER) == 3.0).all()


# What does not fit


def test_a_map_from_another_vocabulary_is_refused():
    model = small("gru")
    other = Remapping(5, ((0,), (1,)))
    for attempt in (
        lambda: with_vocabulary(model, other),
        lambda: remapped_vector(model, to_vector(model), other),
    ):
        with pytest.raises(ValueError, match="the model has 11 tokens and the tokenizer 5: remap"):
            attempt()


@pytest.mark.parametrize(
    "vector",
    [np.zeros(3), np.zeros((2, 2), np.float32), np.zeros(parameter_count(small("gru")), np.int64)],
    ids=["short", "table", "whole numbers"],
)
def test_a_vector_of_another_model_is_refused(vector):
    with pytest.raises(ValueError, match=r"one flat vector of \d+ floating-point values"):
        remapped_vector(small("gru"), vector, IDENTITY)
