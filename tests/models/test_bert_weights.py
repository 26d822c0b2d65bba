"""Pre-trained weights from a local folder: HuggingFace's own files, and damaged ones."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertForMaskedLM, BertModel

from tacit.models.bert import (
    BertSizes,
    load_pretrained,
    pretrained_sizes,
    states,
)
from tests.models.small_bert import PIECES, SIZES, pretrained_options, small_config, small_tagger

SMALL = BertSizes(PIECES, **SIZES)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder that HuggingFace wrote."""
    folder = tmp_path_factory.mktemp("made") / "bert"
    torch.manual_seed(3)
    BertForMaskedLM(SMALL.hugging_face()).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    """A copy of it that may be spoilt."""
    return shutil.copytree(made, tmp_path / "bert")


def states_of(bert) -> torch.Tensor:
    pieces = torch.tensor([[2, 7, 9, 30, 3]])
    return states(bert.eval(), pieces, torch.ones(1, 5, dtype=torch.bool))


def unchanged(model, before: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def refused(folder, message: str, **changes) -> None:
    model = small_tagger(**changes)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=message) as problem:
        load_pretrained(model, folder)
    assert "\n" not in str(problem.value)
    assert unchanged(model, before)


def test_a_tagger_computes_what_the_pretrained_model_computes(made):
    model = small_tagger()
    heads = {name: value.clone() for name, value in model.state_dict().items()}
    load_pretrained(model, made)
    theirs = BertModel.from_pretrained(made, add_pooling_layer=False)
    assert torch.allclose(states_of(model.bert), states_of(theirs), atol=1e-6)
    kept = [name for name in heads if not name.startswith("bert.")]
    assert len(kept) == 7
    assert all(torch.equal(model.state_dict()[name], heads[name]) for name in kept)


def test_a_bare_model_with_a_pooler_and_names_of_old_is_read_too(tmp_path):
    torch.manual_seed(4)
    theirs = BertModel(SMALL.hugging_face())
    theirs.save_pretrained(tmp_path)
    old = {
        "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma"): value
        for name, value in load_file(tmp_path / "model.safetensors").items()
    }
    assert any(name.endswith("gamma") for name in old)
    save_file(old, tmp_path / "model.safetensors", {"format": "pt"})
    model = small_tagger()
    load_pretrained(model, tmp_path)
    assert torch.allclose(states_of(model.bert), states_of(theirs), atol=1e-6)


def test_the_sizes_of_a_folder_are_known_before_a_model_is_made(made):
    assert pretrained_sizes(made) == SMALL
    options = pretrained_options(made)
    assert options == {"width": 12, "layers": 2, "heads": 3, "intermediate": 16}
    load_pretrained(small_tagger(**options), made)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pieces": 41}, "has vocab_size 40, and the model wants 41: set its pieces to 40"),
        ({"width": 24}, "has hidden_size 12, and the model wants 24: set its width to 12"),
        ({"layers": 1}, "has num_hidden_layers 2, and the model wants 1: set its layers to 2"),
        ({"heads": 4}, "has num_attention_heads 3, and the model wants 4"),
        ({"intermediate": 8}, "has intermediate_size 16, and the model wants 8"),
        ({"positions": 128}, "has max_position_embeddings 16, and the model wants 128"),
    ],
)
def test_a_folder_of_another_shape_is_refused_with_field_and_both_values(made, changes, message):
    small_config(**changes)  # which is a model that there can be
    refused(made, message, **changes)


def test_a_pickle_is_not_opened(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, "has pytorch_model.bin, a pickle, .* convert it to model.safetensors")


def test_files_that_are_missing_or_damaged_are_named(folder, tmp_path):
    refused(tmp_path / "nowhere", "nowhere is no folder; expected one with config.json")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-10])
    refused(folder, "model.safetensors is truncated, or no safetensors file")
    (folder / "model.safetensors").unlink()
    refused(folder, "has no model.safetensors; expected a BERT in HuggingFace's layout")
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text('{"vocab_size": 40')
    refused(folder, "config.json is cut off or not valid JSON")
    (folder / "config.json").write_text("[]")
    refused(folder, "config.json is no table of settings")
    (folder / "config.json").unlink()
    refused(folder, "has no config.json")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("hidden_act", "relu", "config.json has hidden_act 'relu'; only 'gelu' can be used"),
        ("model_type", "roberta", "config.json has model_type 'roberta'; only 'bert'"),
        ("layer_norm_eps", 1e-5, "config.json has layer_norm_eps 1e-05"),
        ("hidden_size", "12", "config.json is not valid: width must be a whole number, got '12'"),
        ("num_hidden_layers", None, "config.json has no 'num_hidden_layers'"),
    ],
)
def test_a_config_that_would_compute_something_else_is_refused(folder, name, value, message):
    path = folder / "config.json"
    content = json.loads(path.read_text()) | {name: value}
    if value is None:
        del content[name]
    path.write_text(json.dumps(content))
    refused(folder, message)


def test_tensors_that_do_not_fit_or_are_no_numbers_are_named(folder):
    path = folder / "model.safetensors"
    whole = load_file(path)
    name = "bert.encoder.layer.1.attention.self.key.bias"
    save_file({key: value for key, value in whole.items() if key != name}, path)
    refused(folder, "has no encoder.layer.1.attention.self.key.bias, which config.json promises")
    save_file(whole | {name: torch.zeros(13)}, path)
    refused(folder, r"self.key.bias must have the shape \[12\], got \[13\]")
    save_file(whole | {name: torch.full((12,), torch.nan)}, path)
    refused(folder, "self.key.bias has 12 of 12 values that are NaN or infinite")
