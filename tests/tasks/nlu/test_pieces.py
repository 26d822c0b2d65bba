"""Tokens cut into pieces: where each token begins, what is refused, and what a model file keeps."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertTokenizer

from tacit.models.bert import BertSizes, load_pretrained
from tacit.tasks.nlu.data import Utterance
from tacit.tasks.nlu.encoding import Labels, PieceEncoder, encode
from tacit.tasks.nlu.models import NluModel, build
from tacit.tasks.nlu.readers import load_nlu
from tacit.tokenizers.wordpiece import SPECIAL, PieceVocabulary
from tacit_papers.dupuy2021.masked import MaskedModel
from tests.models.small_bert import pretrained_options

TEXTS = ["play the blue moon by the sisters", "wake me at 7:30 tomorrow", "what's on in boston"] * 3
VOCABULARY = PieceVocabulary.learn(TEXTS, 90, provenance="public: made up")
ENCODER = PieceEncoder(VOCABULARY, longest=40)
SIZES = {"width": 24, "layers": 1, "heads": 2, "intermediate": 32, "dropout": 0.0}

TOKENS = st.text(st.sampled_from("playwke7:3'sbotnZé\x07中"), min_size=1, max_size=6)
UTTERANCES = st.lists(st.lists(TOKENS, min_size=1, max_size=5), min_size=1, max_size=6)


def everything(prepared, count: int):
    return prepared.batch(np.arange(count))


@given(UTTERANCES)
def test_pieces_and_first_places_are_those_of_huggingfaces_tokenizer(utterances):
    theirs = BertTokenizer(vocab={piece: id for id, piece in enumerate(VOCABULARY.pieces)})
    for tokens in utterances:
        inputs, mask = everything(ENCODER.prepare([tokens]), 1)
        expected = theirs(tokens, is_split_into_words=True)
        owners = expected.word_ids()
        if set(range(len(tokens))) <= set(owners):  # theirs drops a token that is no text
            assert inputs["pieces"][0].tolist() == expected["input_ids"]
            assert inputs["first"][0].tolist() == [owners.index(i) for i in range(len(tokens))]
        assert mask.shape == (1, len(tokens))


def test_every_token_has_a_piece_even_if_nothing_is_left_of_it():
    inputs, mask = everything(ENCODER.prepare([["play", "\x07", "\u200b", "moon"]]), 1)
    unknown = VOCABULARY.id("[UNK]")
    places = inputs["first"][0]
    assert inputs["pieces"][0, places[1:3]].tolist() == [unknown, unknown]
    assert sorted(set(places.tolist())) == places.tolist()
    assert mask.all()


def test_special_names_that_somebody_says_are_only_words():
    inputs, _ = everything(ENCODER.prepare([["[SEP]", "[CLS]", "[PAD]", "[MASK]"]]), 1)
    inner = set(inputs["pieces"][0, 1:-1].tolist())
    assert not inner & {VOCABULARY.id(name) for name in SPECIAL if name != "[UNK]"}


@settings(deadline=None)
@given(UTTERANCES, st.data())
def test_a_batch_by_indices_is_what_these_utterances_alone_would_be(utterances, data):
    indices = st.lists(st.integers(0, len(utterances) - 1), min_size=1, max_size=4)
    chosen = data.draw(indices)
    found, mask = ENCODER.prepare(utterances).batch(np.array(chosen))
    alone, alone_mask = everything(
        ENCODER.prepare([utterances[index] for index in chosen]), len(chosen)
    )
    assert torch.equal(mask, alone_mask)
    assert all(torch.equal(found[name], alone[name]) for name in ("pieces", "piece_mask", "first"))
    assert found["piece_mask"].any(dim=0).all()  # no wider than the longest
    assert (found["pieces"] == VOCABULARY.id("[PAD]")).equal(~found["piece_mask"])
    for row, index in enumerate(chosen):
        assert int(mask[row].sum()) == len(utterances[index])
        assert (found["first"][row, mask[row]] >= 1).all()
        assert (found["first"][row, ~mask[row]] == 0).all()


def test_a_token_of_many_pieces_is_cut_and_an_utterance_of_too_many_refused():
    short = PieceEncoder(VOCABULARY, longest=10, longest_token=3)
    inputs, _ = everything(short.prepare([["play", "7:30:7:30:7:30", "the"]]), 1)
    assert inputs["first"].tolist() == [[1, 2, 5]]
    assert inputs["pieces"].shape == (1, 7)
    everything(short.prepare([["play"] * 8]), 1)
    with pytest.raises(ValueError, match="utterance 2 has 9 tokens in 11 pieces") as problem:
        short.prepare([["play"], ["play"] * 9])
    assert "places for 10: split it, or leave it out" in str(problem.value)
    assert "play" not in str(problem.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"longest": 2}, "longest must be at least 3, got 2"),
        ({"longest": 8.0}, "longest must be a whole number, got 8.0"),
        ({"longest_token": 0}, "longest_token must be at least 1, got 0"),
    ],
)
def test_bounds_that_leave_nothing_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        PieceEncoder(VOCABULARY, **fields)


def test_an_encoder_survives_json():
    encoder = PieceEncoder(VOCABULARY, longest=31, longest_token=5)
    assert PieceEncoder.from_json(encoder.to_json()) == encoder
    assert encoder.provenance == "public: made up"


def test_a_model_survives_a_file_with_its_pieces(tmp_path):
    labels = Labels(("ask", "tell"), ("O", "B-city", "I-city"))
    model = build("bert", labels, ENCODER, SIZES, seed=3)
    path = tmp_path / "model.safetensors"
    path.write_bytes(NluModel(model, ENCODER, labels).to_bytes())
    again = NluModel.load(path)
    assert again.encoder == ENCODER
    assert again.model.config == model.config
    inputs, mask = everything(ENCODER.prepare([["play", "boston"], ["what's"]]), 2)
    ours, theirs = model.eval().scores(inputs, mask), again.model.scores(inputs, mask)
    assert torch.equal(ours.intents, theirs.intents)
    assert torch.equal(ours.emissions, theirs.emissions)
    assert again.to_bytes() == path.read_bytes()


def test_vocabulary_and_places_decide_sizes_and_are_no_options():
    labels = Labels(("ask",), ("O",))
    model = build("bert", labels, ENCODER, SIZES)
    assert (model.config.pieces, model.config.positions) == (len(VOCABULARY), 40)
    with pytest.raises(ValueError, match="positions is not an option"):
        build("bert", labels, ENCODER, {"positions": 12})
    with pytest.raises(ValueError, match="has no option 'layer'; did you mean 'layers'"):
        build("bert", labels, ENCODER, {"layer": 1})


@pytest.fixture
def folder(tmp_path):
    """A pre-trained model that has seen nothing yet."""
    sizes = {name: value for name, value in SIZES.items() if name != "dropout"}
    counts = np.ones(len(VOCABULARY), dtype=np.int64)
    bert = BertSizes(len(VOCABULARY), positions=40, **sizes)
    MaskedModel.new(bert, VOCABULARY, counts, seed=1).save(tmp_path)
    return tmp_path


def test_a_model_can_begin_from_a_folder(folder):
    encoder = PieceEncoder.from_folder(folder)
    assert encoder == ENCODER
    model = build("bert", Labels(("ask",), ("O",)), encoder, pretrained_options(folder))
    load_pretrained(model, folder)


def test_a_folder_that_does_not_say_where_it_is_from_voids_a_guarantee_unless_declared(folder):
    with pytest.raises(ValueError, match="says that it is 'public: made up', and cannot be"):
        PieceEncoder.from_folder(folder, provenance="public: better")
    (folder / "origin.json").unlink()
    unknown = PieceEncoder.from_folder(folder)
    assert unknown.provenance == "unknown"
    assert unknown.vocabulary.why_void is not None
    assert PieceEncoder.from_folder(folder, provenance="public: x").vocabulary.why_void is None


def test_a_small_model_learns_generated_utterances():
    data = load_nlu("generated:utterances=400")
    chosen = [utterance for utterance in data.train if len(utterance.tokens) <= 12][:60]
    labels = Labels(data.intents, data.tags)
    words = [" ".join(utterance.tokens) for utterance in chosen]
    encoder = PieceEncoder(PieceVocabulary.learn(words, 300), longest=64)
    model = build("bert", labels, encoder, SIZES | {"width": 48, "heads": 4}, seed=0)
    examples = encode(encoder, labels, chosen)
    batch = examples.batch(range(len(examples)))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    torch.manual_seed(0)
    for _ in range(60):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    intents, tags = model.eval().decode(batch.inputs, batch.mask)
    assert (intents == batch.intents).float().mean() > 0.9
    right = [found == examples.batch([place]).tags[0].tolist() for place, found in enumerate(tags)]
    assert np.mean(right) > 0.6


def test_an_unknown_label_is_named_with_its_utterance():
    with pytest.raises(ValueError, match="utterance 1: the intent 'sing' is none of the model's"):
        encode(ENCODER, Labels(("ask",), ("O",)), [Utterance(("la",), ("O",), "sing")])
