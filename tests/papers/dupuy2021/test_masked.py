"""Masked language models on public text: what is hidden, what is learnt, what is written."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from transformers import AutoTokenizer, BertForMaskedLM

from tacit.models.bert import BertSizes
from tacit.public.text import read_public_text
from tacit.tokenizers.wordpiece import SPECIAL, PieceVocabulary
from tacit_papers.dupuy2021.masked import MaskedModel, MaskedSettings
from tacit_papers.dupuy2021.masking import Masking, Sequences
from tacit_papers.dupuy2021.pretrain_bert import refuse_people

LETTERS = "abcdefghij"
VOCABULARY = PieceVocabulary((*SPECIAL, *LETTERS), provenance="public: letters")
PAD, CLS, SEP, MASK = (VOCABULARY.id(name) for name in ("[PAD]", "[CLS]", "[SEP]", "[MASK]"))
SIZES = BertSizes(
    len(VOCABULARY), width=16, layers=1, heads=2, intermediate=32, positions=16, dropout=0.0
)
QUICK = {"batch": 16, "unroll": 12, "warmup_steps": 10, "learning_rate": 1e-2}


def runs(count: int, seed: int = 0) -> list[list[int]]:
    """Texts of one letter: what is hidden can be told from the rest, and not from frequencies."""
    letters = np.random.default_rng(seed).integers(len(LETTERS), size=count)
    return [[len(SPECIAL) + int(letter)] * 10 for letter in letters]


def sequences(count: int = 200, seed: int = 0) -> Sequences:
    return Sequences.of(runs(count, seed), 12, VOCABULARY)


def started(seed: int = 0) -> MaskedModel:
    return MaskedModel.new(SIZES, VOCABULARY, sequences().counts(VOCABULARY), seed)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# What is hidden


def shares_of_fates(share: float) -> tuple[list[int], int]:
    """How many chosen pieces are masked, changed and kept, of how many pieces in all."""
    torch.manual_seed(1)
    pieces = torch.randint(len(SPECIAL), len(VOCABULARY), (400, 102))
    pieces[:, 0], pieces[:, -1] = CLS, SEP
    batch = Masking(VOCABULARY, share).hide(pieces)
    shown = batch.inputs[batch.chosen]
    masked, kept = int((shown == MASK).sum()), int((shown == batch.targets).sum())
    assert torch.equal(batch.targets, pieces[batch.chosen])
    assert torch.equal(batch.inputs[~batch.chosen], pieces[~batch.chosen])
    return [masked, len(shown) - masked - kept, kept], 400 * 100


@pytest.mark.parametrize("share", [0.15, 0.4])
def test_a_share_is_chosen_and_of_that_8_in_10_masked_1_changed_and_1_kept(share):
    fates, pieces = shares_of_fates(share)
    assert stats.binomtest(sum(fates), pieces, share).pvalue > 1e-4
    assert stats.binomtest(sum(fates), pieces, share * 0.9).pvalue < 1e-4
    # A random piece is the old one once in ten: so 9% are changed, and 11% are as they were.
    for count, expected in zip(fates, (0.80, 0.09, 0.11), strict=True):
        assert stats.binomtest(count, sum(fates), expected).pvalue > 1e-4
    assert stats.binomtest(fates[0], sum(fates), 0.75).pvalue < 1e-4


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 10**6))
def test_only_text_is_chosen_and_something_always_is(lengths, seed):
    texts = [[6] * length for length in lengths]
    pieces = next(Sequences.of(texts, 8, VOCABULARY).in_order(9))
    torch.manual_seed(seed)
    batch = Masking(VOCABULARY, 0.01).hide(pieces)
    assert (pieces[batch.chosen] == 6).all()
    assert len(batch.targets) >= 1
    assert torch.equal(batch.mask, pieces != PAD)
    assert not torch.isin(batch.inputs[batch.chosen], torch.tensor([PAD, CLS, SEP])).any()


@pytest.mark.parametrize("share", [0, 1, -0.1, math.nan])
def test_a_share_that_hides_nothing_or_all_is_refused(share):
    with pytest.raises(ValueError, match="masked_share must be strictly between 0 and 1"):
        Masking(VOCABULARY, share)


# Sequences


@given(st.lists(st.lists(st.integers(5, 14), max_size=20), max_size=6), st.integers(3, 9))
def test_sequences_hold_every_piece_once_in_its_order_within_its_text(texts, length):
    found = Sequences.of(texts, length, VOCABULARY)
    read = []
    for row, size in zip(found.ids, found.lengths, strict=True):
        assert (row[0], row[size - 1]) == (CLS, SEP)
        assert (row[size:] == PAD).all()
        read.append(row[1 : size - 1].tolist())
    assert list(itertools.chain(*read)) == list(itertools.chain(*texts))
    assert found.pieces == sum(map(len, texts))
    assert len(found) == sum(-(-len(text) // (length - 2)) for text in texts)
    assert found.counts(VOCABULARY).sum() == found.pieces


def test_an_epoch_reads_every_sequence_once_in_an_order_of_its_own():
    texts = [[5 + i % 10] * (1 + i % 7) for i in range(130)]
    every = Sequences.of(texts, 12, VOCABULARY)

    def read(seed: int, epoch: int) -> list[tuple[int, ...]]:
        rows = [row for batch in every.epoch(8, seed, epoch) for row in batch.tolist()]
        return [tuple(id for id in row if id != PAD) for row in rows]

    assert sorted(read(0, 0)) == sorted(tuple([CLS, *text, SEP]) for text in texts)
    assert read(0, 0) == read(0, 0)
    assert read(0, 0) != read(0, 1)
    assert read(0, 0) != read(1, 0)
    widths = [batch.shape[1] for batch in every.epoch(8, 0, 0)]
    assert min(widths) < max(widths)  # no wider than they need


def test_some_have_as_many_pieces_as_asked_for_and_no_more_sequences_than_needed():
    every = sequences(50)
    assert len(every.some(95, seed=0)) == 10
    assert every.some(10**6, seed=0).pieces == every.pieces
    assert not np.array_equal(every.some(95, 0).ids, every.some(95, 1).ids)


# Figures


def test_scores_are_those_of_a_slow_reading():
    model, batches = started(), Masking(VOCABULARY).hide_all(sequences(30, seed=9))
    counts = sequences().counts(VOCABULARY)
    loss, unigram_loss, right, total = 0.0, 0.0, 0, 0
    model.network.eval()
    for batch in batches:
        for row in range(len(batch.inputs)):
            length = int(batch.mask[row].sum())
            logits = model.network(batch.inputs[row : row + 1, :length]).logits[0].detach().double()
            targets = iter(batch.targets[batch.chosen[:row].sum() :].tolist())
            for place in torch.nonzero(batch.chosen[row]).flatten().tolist():
                target = next(targets)
                loss -= float(torch.log_softmax(logits[place], 0)[target])
                unigram_loss -= math.log((counts[target] + 1) / (counts.sum() + len(counts)))
                right += int(logits[place].argmax()) == target
                total += 1
    model.network.train()
    found = model.score(batches)
    assert model.network.training
    assert found.targets == total > 20
    assert found.perplexity == pytest.approx(math.exp(loss / total), rel=1e-5)
    assert found.accuracy == pytest.approx(right / total)
    baseline = model.score_unigram(batches)
    assert baseline.perplexity == pytest.approx(math.exp(unigram_loss / total), rel=1e-5)


def test_a_new_model_knows_frequencies_and_the_vectors_it_was_given():
    counts = np.array([0] * 5 + [1000, 1] + [10] * 8)
    vectors = torch.zeros(len(VOCABULARY), 16)
    vectors[6] = 0.25
    model = MaskedModel.new(SIZES, VOCABULARY, counts, 3, vectors).network
    words = model.bert.embeddings.word_embeddings.weight
    assert (words[6] == 0.25).all()
    assert (words[7] != 0).any()  # no vector was given, so it stays random
    shares = torch.softmax(model.cls.predictions.decoder.bias.detach(), 0)
    assert shares[5] == pytest.approx(1001 / (counts.sum() + len(counts)), rel=1e-4)
    with pytest.raises(ValueError, match="counts must be of all 15 pieces, got 3"):
        MaskedModel.new(SIZES, VOCABULARY, np.ones(3, dtype=np.int64), 0)


# Training


def test_a_model_learns_from_what_is_not_hidden():
    train, masking = sequences(400), Masking(VOCABULARY)
    hidden = masking.hide_all(sequences(60, seed=5))
    model, seen = started(), []
    outcome = model.train(
        train,
        MaskedSettings(epochs=8, **QUICK),
        progress=seen.append,
    )
    unigram = model.score_unigram(hidden)
    found = model.score(hidden)
    assert unigram.perplexity == pytest.approx(len(LETTERS), rel=0.2)
    assert found.perplexity < 2 < unigram.perplexity
    assert found.accuracy > 0.9 > unigram.accuracy
    assert outcome.tokens == 8 * train.pieces
    assert outcome.step == 8 * 25 == len(seen)
    assert [now.share for now in seen] == sorted(now.share for now in seen)
    assert seen[-1].share == 1


@pytest.mark.parametrize("precision", [{}, {"bfloat16": True}])
def test_the_same_seed_gives_the_same_model_whatever_else_is_drawn(precision):
    def trained(seed: int, elsewhere: int) -> torch.Tensor:
        torch.manual_seed(elsewhere)
        model = started(seed)
        settings = MaskedSettings(epochs=0.2, seed=seed, **QUICK, **precision)
        model.train(sequences(), settings)
        return model.network.bert.embeddings.word_embeddings.weight.detach()

    assert torch.equal(trained(1, 0), trained(1, 5))
    assert not torch.equal(trained(1, 0), trained(2, 0))


def test_time_that_is_up_ends_the_training_and_measuring_does_not_count():
    seconds = [0]

    def passes(count: int) -> None:
        seconds[0] += count

    def clock() -> int:  # so a step takes ten seconds
        passes(10)
        return seconds[0]

    outcome = started().train(
        sequences(),
        MaskedSettings(epochs=50, minutes=1, **QUICK),
        progress=lambda _: passes(1000),
        clock=clock,
    )
    assert outcome.ran_out_of_time
    assert (outcome.seconds, outcome.step) == (60, 6)


def test_a_training_that_diverges_says_what_to_do():
    model = started()
    with torch.no_grad():
        model.network.cls.predictions.decoder.bias[6] = math.nan
    with pytest.raises(ValueError, match="the loss is nan at step 1: lower the learning rate"):
        model.train(sequences(), MaskedSettings(**QUICK))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"optimizer": "sgd"}, "optimizer must be one of adam, got 'sgd'"),
        ({"unroll": 2}, "unroll must be at least 3, got 2"),
        ({"masked_share": math.nan}, "masked_share must be strictly between 0 and 1, got nan"),
        ({"learning_rate": math.nan}, "learning_rate must be a finite number above 0, got nan"),
    ],
)
def test_a_setting_that_cannot_be_is_one_sentence(fields, message):
    with pytest.raises(ValueError, match=message):
        MaskedSettings(**fields)


def test_nothing_to_read_is_refused():
    nothing = Sequences.of([], 12, VOCABULARY)
    with pytest.raises(ValueError, match="there is no text to train on"):
        started().train(nothing, MaskedSettings(**QUICK))
    with pytest.raises(ValueError, match="there is no text to measure on"):
        Masking(VOCABULARY).hide_all(nothing)
    with pytest.raises(ValueError, match="length must be at least 3"):
        Sequences.of([[5]], 2, VOCABULARY)


# Word vectors


def test_vectors_have_the_inner_products_of_a_slow_mutual_information():
    texts = np.random.default_rng(2).integers(5, 15, size=(40, 9)).tolist()
    near = np.zeros((15, 15))
    for text in texts:
        for (i, one), (j, other) in itertools.permutations(enumerate(text), 2):
            if abs(i - j) <= 3:
                near[one, other] += 1 / abs(i - j)
    context = near.sum(1) ** 0.75 / (near.sum(1) ** 0.75).sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = near / near.sum() / np.outer(near.sum(1) / near.sum(), context)
        information = np.where(near > 0, np.maximum(np.log(ratio), 0), 0)
    left, values, _ = np.linalg.svd(information)
    expected = left * np.sqrt(values)
    given_texts = Sequences.of(texts, 11, VOCABULARY)
    found = given_texts.starting_vectors(VOCABULARY, 14, window=3, stddev=0.1).double().numpy()
    scale = 0.1 * math.sqrt(14) / np.linalg.norm(expected[5:], axis=1).mean()
    products = scale**2 * expected @ expected.T
    assert np.allclose(found @ found.T, products, atol=2e-3 * products.max())
    assert not found[:5].any()


def test_pieces_used_alike_get_vectors_alike():
    generator = np.random.default_rng(0)
    texts = []
    for _ in range(300):  # d and e stand wherever there is a letter between b and c; f never does
        middle = generator.choice([8, 9])
        texts.append([6, middle, 7] if generator.random() < 0.6 else [10, 11, 12])
    vectors = Sequences.of(texts, 8, VOCABULARY).starting_vectors(VOCABULARY, 8)
    alike = torch.nn.functional.cosine_similarity
    assert alike(vectors[8], vectors[9], dim=0) > 0.95
    assert alike(vectors[8], vectors[11], dim=0) < 0.5


# Files


def test_plain_huggingface_reads_the_folder_and_finds_the_same(tmp_path):
    model = started()
    model.save(tmp_path, {"texts": ["letters"]})
    theirs = BertForMaskedLM.from_pretrained(tmp_path).eval()
    pieces = torch.tensor([[CLS, 6, MASK, 8, SEP]])
    assert torch.allclose(theirs(pieces).logits, model.network.eval()(pieces).logits, atol=1e-6)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("B c  zz")["input_ids"] == [CLS, *VOCABULARY.cut(["B c  zz"])[0], SEP]
    assert not list(tmp_path.glob("*.bin"))


def test_a_folder_is_the_same_bytes_every_time_and_says_where_it_is_from(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        started().save(tmp_path / name, {"texts": ["letters"]})
    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("one", "two")
    )
    assert one == two
    origin = json.loads(one["origin.json"])
    assert (origin["provenance"], origin["texts"]) == ("public: letters", ["letters"])
    assert PieceVocabulary.load(tmp_path / "one").provenance == "public: letters"
    assert PieceVocabulary.load(tmp_path / "one") == VOCABULARY


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.txt", "tokenizer.json"])
def test_an_origin_beside_other_files_is_refused(tmp_path, name):
    started().save(tmp_path)
    whole = (tmp_path / name).read_bytes()
    data = bytearray(whole)
    data[-3] ^= 1
    (tmp_path / name).write_bytes(bytes(data))
    with pytest.raises(ValueError, match=f"origin.json is about another {name}"):
        PieceVocabulary.load(tmp_path)
    (tmp_path / "origin.json").write_text("{}")
    with pytest.raises(ValueError, match=r"origin\.json is damaged"):
        PieceVocabulary.load(tmp_path)
    (tmp_path / "origin.json").unlink()
    (tmp_path / name).write_bytes(whole)
    assert PieceVocabulary.load(tmp_path).provenance == "unknown"


# Text


def test_named_texts_and_files_are_read_and_peoples_text_is_refused(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("one line\n" * 20, encoding="utf-8")
    found = read_public_text(["chatterbot", str(file)])
    refuse_people(found)
    assert found.names == ["chatterbot", "notes"]
    assert found.held_out[-2:] == ["one line"] * 2
    assert len(found.train) > len(found.held_out) > 20
    with pytest.raises(ValueError, match="chitchat is a corpus of people's text"):
        refuse_people(read_public_text(["chitchat"]))
    with pytest.raises(ValueError, match="no text: name a file"):
        read_public_text([])
    with pytest.raises(ValueError, match="nowhere"):
        read_public_text([str(tmp_path / "nowhere.txt")])
