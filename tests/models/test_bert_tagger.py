"""BERT with an intent layer and a CRF: what it computes, and of whom that depends."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus import GradSampleModule

from tacit.models.bert import BertSizes, BertTagger, BertTaggerConfig
from tests.models.small_bert import INTENTS, TAGS, small_config, small_tagger, together, utterance

SHAPES = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 5), st.integers(0, 99)), min_size=1, max_size=4
)


def test_the_defaults_are_the_papers_shape():
    config = BertTaggerConfig(30_522, intents=1, tags=1, positions=512)
    assert (config.layers, config.heads, config.width) == (4, 12, 312)
    with torch.device("meta"):
        model = BertTagger(config)
    attention, ends = 4 * 312 * 312 + 4 * 312, 2 * 312 * 1200 + 1200 + 312
    layer = attention + ends + 4 * 312
    assert sum(values.numel() for values in model.bert.parameters()) == (
        (30_522 + 512 + 2 + 2) * 312 + 4 * layer
    )


def test_scores_are_those_of_the_frame_and_of_first_pieces():
    model = small_tagger().eval()
    one = utterance(4, 3, seed=1)
    found = model.scores(one.inputs, one.mask)
    # HuggingFace's own way of calling it: no mask, and positions left to the network.
    model.bert.embeddings.register_buffer("position_ids", torch.arange(16)[None])
    state = model.bert(one.inputs["pieces"], token_type_ids=torch.zeros(1, 9, dtype=torch.long))[0]
    assert torch.allclose(found.intents[0], model.intent(state[0, 0]), atol=1e-6)
    for place, begins in enumerate(one.inputs["first"][0]):
        emitted = model.emission(state[0, begins])
        assert torch.allclose(found.emissions[0, place], emitted, atol=1e-6)
    assert found.intents.shape == (1, INTENTS)
    assert found.emissions.shape == (1, 4, TAGS)


@settings(deadline=None, max_examples=25)
@given(SHAPES, st.integers(0, 3))
def test_the_loss_of_an_utterance_does_not_depend_on_the_others_nor_on_padding(shapes, more):
    model = small_tagger().eval()
    parts = [utterance(*shape) for shape in shapes]
    alone = torch.cat([model(part) for part in parts])
    assert torch.allclose(model(together(parts, more=more)), alone, rtol=1e-4, atol=1e-5)


def test_what_is_in_the_padding_is_not_felt():
    model = small_tagger().eval()
    batch = together([utterance(2, 0, seed=1), utterance(6, 4, seed=2)])
    before = model(batch)
    is_piece = batch.inputs["piece_mask"]
    batch.inputs["pieces"][~is_piece] = 17
    batch.inputs["first"][~batch.mask] = 3
    batch.tags[~batch.mask] = TAGS - 1
    assert torch.equal(model(batch), before)
    batch.inputs["pieces"][0, 1] = (batch.inputs["pieces"][0, 1] + 1) % 40  # and a piece that is
    assert not torch.allclose(model(batch), before)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_opacus_finds_the_gradient_of_each_utterance():
    model = small_tagger(dropout=0.0).train()
    model.crf.requires_grad_(False)  # it is no kind of layer that Opacus knows
    parts = [utterance(2, 0, seed=1), utterance(6, 4, seed=2), utterance(3, 1, seed=3)]
    expected: dict[str, list[torch.Tensor]] = {}
    for part in parts:
        model.zero_grad()
        model(part).sum().backward()
        for name, values in model.named_parameters():
            if values.requires_grad:
                expected.setdefault(name, []).append(values.grad.clone())
    model.zero_grad()
    wrapped = GradSampleModule(model, loss_reduction="sum")
    wrapped(together(parts)).sum().backward()
    for name, gradients in expected.items():
        found = model.get_parameter(name).grad_sample
        assert torch.allclose(found, torch.stack(gradients), rtol=1e-3, atol=1e-5), name
        if not name.endswith("key.bias"):  # which the softmax cancels
            assert not torch.allclose(gradients[0], gradients[1], rtol=1e-3, atol=1e-5), name


def test_initial_weights_come_from_the_seed_alone_and_leave_torchs_generator_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    one = BertTagger(small_config(), seed=4)
    assert torch.equal(torch.rand(3), expected)
    two = BertTagger(small_config(), seed=4)
    other = BertTagger(small_config(), seed=5)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.intent.weight, other.intent.weight)
    words = "bert.embeddings.word_embeddings.weight"
    assert not torch.equal(one.get_parameter(words), other.get_parameter(words))


def test_dropout_is_drawn_from_torchs_generator():
    model, batch = small_tagger(dropout=0.4).train(), utterance(5, 2, seed=0)
    losses = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        losses.append(model(batch).item())
    assert losses[0] == losses[1] != losses[2]


def test_a_model_made_without_memory_is_whole_once_it_has_weights():
    model = small_tagger().eval()
    with torch.device("meta"):
        empty = BertTagger(small_config())
    empty.load_state_dict(model.state_dict(), assign=True)
    assert not any(tensor.is_meta for tensor in [*empty.parameters(), *empty.buffers()])
    batch = utterance(3, 2, seed=5)
    assert torch.equal(empty.eval()(batch), model(batch))


def test_more_pieces_than_positions_are_refused():
    with pytest.raises(ValueError, match="has positions for 16 pieces, got 17"):
        small_tagger()(utterance(10, 5, seed=0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pieces": 0}, "pieces must be between 1 and"),
        ({"layers": 2.0}, "layers must be a whole number, got 2.0"),
        ({"heads": True}, "heads must be a whole number, got True"),
        ({"width": 13}, "width must be a multiple of heads, 3, got 13"),
        ({"positions": 10**9}, "positions must be between 1 and 100000"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"dropout": float("nan")}, "dropout must be at least 0 and below 1, got nan"),
        ({"intents": 0}, "intents must be between 1 and"),
        ({"tags": -1}, "tags must be between 1 and"),
    ],
)
def test_a_size_that_cannot_be_is_one_sentence(changes, message):
    with pytest.raises(ValueError, match=message):
        small_config(**changes)


def test_sizes_have_huggingfaces_names():
    config = BertSizes(50, width=24, layers=3, heads=2, intermediate=7, positions=9).hugging_face()
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (50, 24, 3)
    assert (config.num_attention_heads, config.intermediate_size) == (2, 7)
    assert config.max_position_embeddings == 9
