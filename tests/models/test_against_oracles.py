"""The models against their equations, in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.small import RECURRENT, VOCABULARY, jittered, small
from tests.oracles.language_models import recurrent_logits, transformer_logits

TEXTS = st.lists(
    st.lists(st.integers(0, VOCABULARY - 1), min_size=7, max_size=7), min_size=1, max_size=3
)


def weights_of(model):
    return {name: values.detach().numpy() for name, values in model.named_parameters()}


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("name", RECURRENT)
@given(texts=TEXTS, seed=st.integers(0, 2**32), context_size=st.sampled_from([0, 2]))
@settings(max_examples=10)
def test_recurrent_models_agree_with_their_equations(name, layers, texts, seed, context_size):
    model = small(name, layers=layers, context_size=context_size, output_bias=True, seed=seed)
    jittered(model, seed)
    contexts = np.random.default_rng(seed).normal(size=(len(texts), context_size))
    given_context = torch.from_numpy(contexts) if context_size else None
    logits, _ = model(torch.tensor(texts), context=given_context)
    for row, text, context in zip(logits.detach().numpy(), texts, contexts, strict=True):
        expected = recurrent_logits(name, weights_of(model), text, context)
        np.testing.assert_allclose(row, expected, rtol=1e-10, atol=1e-10)


@given(texts=TEXTS, seed=st.integers(0, 2**32), context_size=st.sampled_from([0, 2]))
@settings(max_examples=10)
def test_transformer_agrees_with_its_equations(texts, seed, context_size):
    model = small("transformer-14m", context_size=context_size, output_bias=True, seed=seed)
    jittered(model, seed)
    contexts = np.random.default_rng(seed).normal(size=(len(texts), context_size))
    given_context = torch.from_numpy(contexts) if context_size else None
    logits, _ = model(torch.tensor(texts), context=given_context)
    for row, text, context in zip(logits.detach().numpy(), texts, contexts, strict=True):
        expected = transformer_logits(weights_of(model), 2, text, context)
        np.testing.assert_allclose(row, expected, rtol=1e-10, atol=1e-10)


def test_lstm_agrees_with_torch():
    model = jittered(small("lstm-14m"))
    theirs = torch.nn.LSTM(6, 10, num_layers=3, batch_first=True).double()
    with torch.no_grad():
        for depth, layer in enumerate(model.layers):
            ordered = [layer.get_parameter(f"{gate}_kernel") for gate in GATES_OF_TORCH]
            kernel = torch.cat(ordered)
            theirs.get_parameter(f"weight_ih_l{depth}").copy_(kernel[:, :-10])
            theirs.get_parameter(f"weight_hh_l{depth}").copy_(kernel[:, -10:])
            biases = [layer.get_parameter(f"{gate}_bias") for gate in GATES_OF_TORCH]
            theirs.get_parameter(f"bias_ih_l{depth}").copy_(torch.cat(biases))
            theirs.get_parameter(f"bias_hh_l{depth}").zero_()
    tokens = torch.randint(VOCABULARY, (4, 9))
    hidden, _ = theirs(model.embedding(tokens))
    expected = model.embedding.score(model.projection(hidden))
    torch.testing.assert_close(model(tokens)[0], expected, rtol=1e-12, atol=1e-12)


GATES_OF_TORCH = ("input", "forget", "cell", "output")
