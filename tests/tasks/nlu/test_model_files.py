"""Intent and slot models as files: what is written is what is read; a bad file is one sentence."""

import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tacit.models import weights
from tacit.tasks.nlu.encoding import Labels, WordEncoder
from tacit.tasks.nlu.models import NluModel, build

LABELS = Labels(("ask", "tell"), ("O", "B-city", "I-city"))
ENCODER = WordEncoder(("to", "paris", "café"), "public: a list", longest_word=9)
SIZES = {"word_size": 4, "character_size": 3, "filters": 2, "hidden": 5}


def stored(seed: int = 0, **fields) -> NluModel:
    return NluModel(build("clc", LABELS, ENCODER, SIZES, seed), ENCODER, LABELS, **fields)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def rewritten(path, tensors=None, **changes):
    """The file of a small model with some of it replaced; a field that is None is left out."""
    path.write_bytes(stored().to_bytes())
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        content = json.loads(json.loads(file.read(size))["__metadata__"]["tacit-nlu"])
    for name, value in changes.items():
        merged = content[name] | value if isinstance(value, dict) else value
        content[name] = merged
    content = {name: value for name, value in content.items() if value is not None}
    every = load_file(path) | (tensors or {})
    kept = {name: value for name, value in every.items() if value is not None}
    save_file(kept, path, {"tacit-nlu": json.dumps(content)})
    return path


def test_a_model_survives_a_file_bit_for_bit_with_labels_and_encoder(path):
    before = stored(seed=5, trained_on=("b", "a", "b"))
    path.write_bytes(before.to_bytes())
    after = NluModel.load(path)
    assert (after.labels, after.encoder, after.trained_on) == (LABELS, ENCODER, ("a", "b"))
    assert after.model.config == before.model.config
    assert not after.model.training
    inputs, mask = ENCODER.prepare([["to", "Paris"], ["hello"]]).batch(torch.arange(2).numpy())
    ours, theirs = (each.model.eval().scores(inputs, mask) for each in (before, after))
    assert torch.equal(ours.intents, theirs.intents)
    assert torch.equal(ours.emissions, theirs.emissions)
    assert after.to_bytes() == path.read_bytes()


def test_frozen_words_stay_frozen_and_a_loaded_model_trains_on(path):
    model = build("clc", LABELS, ENCODER, SIZES | {"freeze_words": True})
    path.write_bytes(NluModel(model, ENCODER, LABELS).to_bytes())
    again = NluModel.load(path).model
    trainable = [name for name, values in again.named_parameters() if values.requires_grad]
    assert "words.weight" not in trainable
    assert len(trainable) == len(list(again.parameters())) - 1


def test_an_oracles_vocabulary_stays_one(path):
    encoder = WordEncoder(("to",), "oracle")
    path.write_bytes(NluModel(build("clc", LABELS, encoder, SIZES), encoder, LABELS).to_bytes())
    assert NluModel.load(path).encoder.provenance == "oracle"


def test_the_same_model_makes_the_same_bytes():
    assert stored(seed=1).to_bytes() == stored(seed=1).to_bytes()
    assert stored(seed=1).to_bytes() != stored(seed=2).to_bytes()


def test_weights_that_are_not_numbers_are_neither_written_nor_read(path):
    broken = stored()
    with torch.no_grad():
        broken.model.crf.start[1] = torch.nan
    with pytest.raises(ValueError, match=r"crf\.start has 1 of 3 values that are"):
        broken.to_bytes()
    tensors = {"crf.start": torch.full((3,), torch.inf)}
    with pytest.raises(ValueError, match=r"crf\.start has 3 of 3 values that are NaN or infinite"):
        NluModel.load(rewritten(path, tensors))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "lstm"}, "not valid: there is no intent and slot model 'lstm': known are clc"),
        ({"model": None}, "missing or malformed: KeyError"),
        ({"labels": None}, "missing or malformed: KeyError"),
        ({"encoder": None}, "missing or malformed: KeyError"),
        ({"encoder": [1]}, "missing or malformed: TypeError"),
        ({"config": {"hidden": 0}}, "not valid: hidden must be between 1"),
        ({"config": {"colour": 3}}, "missing or malformed: TypeError"),
        ({"config": {"hidden": 6}}, "must have the shape"),
        # Two layers of this size would need a terabyte.
        ({"config": {"hidden": 100_000}}, "must have the shape"),
        ({"config": {"words": 5}}, "a model for 5 words, and lists 4"),
        ({"labels": {"intents": ["ask"]}}, "a model for 2 intents, and lists 1"),
        ({"labels": {"tags": ["O", "O", "x"]}}, "not valid: tags must differ from each other"),
        ({"encoder": {"provenance": "a friend"}}, "not valid: provenance must be one of"),
        ({"tensors": {"crf.end": None}}, r"another model than it says: missing crf\.end, un"),
        (
            {"tensors": {"more": torch.zeros(1)}},
            "than it says: missing nothing, unexpected more",
        ),
        ({"tensors": {"crf.end": torch.zeros(4)}}, r"must have the shape \[3\], got \[4\]"),
        (
            {"tensors": {"crf.end": torch.zeros(3, dtype=torch.float64)}},
            r"crf\.end must be torch\.float32, got torch\.float64",
        ),
    ],
)
def test_a_file_that_contradicts_itself_is_refused_in_one_sentence(path, changes, message):
    with pytest.raises(ValueError, match=message) as refusal:
        NluModel.load(rewritten(path, **changes))
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@given(place=st.integers(0, 10**6), byte=st.integers(0, 255))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_damaged_file_is_refused_or_is_still_a_model(path, place, byte):
    data = bytearray(stored().to_bytes())
    data[place % len(data)] = byte
    path.write_bytes(data)
    try:
        problem = str(path) if NluModel.load(path).to_bytes() else ""
    except ValueError as refusal:
        problem = str(refusal)
    assert str(path) in problem


@given(share=st.floats(0, 0.999))
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_file_that_is_cut_off_is_refused(path, share):
    data = stored().to_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(ValueError, match="truncated, or no safetensors file"):
        NluModel.load(path)


def test_other_files_are_refused_for_what_they_are(path, tmp_path):
    with pytest.raises(ValueError, match=r"nothing\.safetensors is not a file"):
        NluModel.load(tmp_path / "nothing.safetensors")
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="is a safetensors file, but not of an intent and slot"):
        NluModel.load(path)
    save_file({"x": torch.zeros(1)}, path, {"tacit-nlu": "[1"})
    with pytest.raises(ValueError, match="has metadata that is not valid"):
        NluModel.load(path)
    path.write_bytes(stored().to_bytes())
    with pytest.raises(ValueError, match="not of a tacit model"):
        weights.load(path)


def test_kinds_are_built_by_name_with_options():
    model = build("clc", LABELS, ENCODER, {"hidden": 7})
    assert (model.config.hidden, model.config.words, model.config.tags) == (7, 4, 3)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("crf", {}, "there is no intent and slot model 'crf': known are clc"),
        ("clc", {"hiden": 3}, "has no option 'hiden'; did you mean 'hidden'"),
        ("clc", {"tags": 3}, "tags is not an option: labels and encoder decide it"),
        ("clc", {"hidden": -1}, "hidden must be between 1"),
    ],
)
def test_a_kind_or_option_that_is_not_there_is_named(kind, options, message):
    with pytest.raises(ValueError, match=message):
        build(kind, LABELS, ENCODER, options)


def test_a_model_is_not_built_for_another_kinds_encoder():
    with pytest.raises(ValueError, match="'clc' reads with a WordEncoder, got a str"):
        build("clc", LABELS, "words")
