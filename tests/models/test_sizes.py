"""The sizes that the papers give."""

import pytest

from tacit.models.base import LanguageModel, layer_sizes, parameter_count
from tacit.models.registry import NAMES, build


def shapes(model: LanguageModel) -> list[tuple[str, list[int]]]:
    return [(name, list(values.shape)) for name, values in model.parameter_vectors()]


def test_lstm_has_the_eleven_parameter_vectors_of_mcmahan_2018():
    model = build("lstm", 10_000)
    assert shapes(model) == [
        ("embedding.weight", [10_000, 96]),
        ("layers.0.input_kernel", [256, 96 + 256]),
        ("layers.0.forget_kernel", [256, 96 + 256]),
        ("layers.0.output_kernel", [256, 96 + 256]),
        ("layers.0.cell_kernel", [256, 96 + 256]),
        ("layers.0.input_bias", [256]),
        ("layers.0.forget_bias", [256]),
        ("layers.0.output_bias", [256]),
        ("layers.0.cell_bias", [256]),
        ("projection.weight", [96, 256]),
        ("projection.bias", [96]),
    ]
    assert parameter_count(model) == 1_346_144
    assert round(parameter_count(model) / 1e6, 2) == 1.35


def test_the_projected_cifg_has_the_sizes_of_hard_2018():
    model = build("cifg-projected", 10_000)
    gates = 3 * (670 * (96 + 96) + 670)
    assert parameter_count(model) == 10_000 * 96 + gates + 96 * 670 == 1_412_250
    assert round(parameter_count(model) / 1e6, 1) == 1.4
    assert 960_000 / parameter_count(model) > 2 / 3  # "more than two thirds" are the embedding's
    assert shapes(model)[-1] == ("layers.0.projection", [96, 670])


def test_cifg_has_no_input_gate():
    model = build("cifg", 10_000)
    assert parameter_count(model) == 10_000 * 96 + 3 * ((96 + 256) * 256 + 256) + 256 * 96 + 96
    assert len(shapes(model)) == 9
    assert not any("input" in name for name, _ in shapes(model))


def test_gru_has_nine_vectors():
    assert len(layer_sizes(build("gru", 10_000))) == 9
    assert parameter_count(build("gru", 10_000)) == 1_255_776


@pytest.mark.parametrize(
    ("name", "count", "depth"),
    [("lstm-14m", 14_061_888, ("layers", 3)), ("transformer-14m", 14_044_608, ("blocks", 6))],
)
def test_models_of_bagdasaryan_2022_have_14_million(name, count, depth):
    model = build(name, 10_000)
    assert parameter_count(model) == count
    assert round(count / 1e6) == 14
    assert len(getattr(model, depth[0])) == depth[1]


def test_sizes_of_the_demo():
    model = build("lstm", 2000, embedding_size=32, cells=64, output_bias=True)
    assert parameter_count(model) == 92_912
    assert len(layer_sizes(model)) == 12


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_in_exactly_one_vector(name):
    model = build(name, 50, output_bias=True, context_size=3)
    vectors = [values for _, values in model.parameter_vectors()]
    assert {id(values) for values in vectors} == {id(values) for values in model.parameters()}
    assert len({id(values) for values in vectors}) == len(vectors)
    assert layer_sizes(model) == tuple(values.numel() for values in vectors)
