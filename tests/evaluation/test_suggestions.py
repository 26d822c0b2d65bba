"""Whole words from any tokenizer: against an exhaustive search, where that can be done."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from tacit.evaluation.suggestions import Suggester
from tacit.models import registry
from tacit.tokenizers import build
from tests.evaluation.tiny import SIZES


@pytest.fixture(autouse=True)
def _one_thread():
    """So that a small training gives the same model on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


TEXTS = ["see you soon", "see you there, then", "don't be late", "the thing is there"] * 3


def tokenizer_of(kind):
    size = {"word": 100, "bpe": 290, "wordpiece": 60, "char": 40}[kind]
    return build.learn(kind, TEXTS, size, provenance="public: tests")


def model_for(tokenizer, name="lstm", seed=3):
    model = registry.build(name, tokenizer.vocab_size, seed=seed, **SIZES[name])
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # an untrained model hardly prefers any word
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.5)
    return model


def log_prob(model, tokens, start):
    """Of the tokens from `start` on, given those before."""
    model.eval()
    with torch.no_grad():
        logs = torch.log_softmax(model(torch.tensor([tokens]))[0][0].double(), -1)
    return sum(float(logs[place - 1, tokens[place]]) for place in range(start, len(tokens)))


def test_characters_agree_with_an_exhaustive_search():
    tokenizer = build.learn("char", ["ab", "b a"], 1000, provenance="public: tests")
    model = model_for(tokenizer)
    assert tokenizer.vocab_size == 6  # BOS, EOS, UNK, space, a, b
    ids = {token: tokenizer.token_id(token) for token in (" ", "a", "b")}
    context = tokenizer.encode("ab")[:-1]
    expected = {}
    for length in range(1, 7):
        for letters in itertools.product("ab", repeat=length):
            tokens = [*context, ids[" "], *(ids[letter] for letter in letters)]
            ends = [[*tokens, end] for end in (ids[" "], tokenizer.eos)]
            expected["".join(letters)] = sum(
                math.exp(log_prob(model, whole, len(context))) for whole in ends
            )
    best = sorted(expected, key=expected.get, reverse=True)[:4]
    found = Suggester(model, tokenizer).suggest("ab ", top=4)
    assert [each.word for each in found] == best
    for each in found:
        assert each.probability == pytest.approx(expected[each.word], rel=1e-5)


@pytest.mark.parametrize("name", ["lstm", "transformer-14m"])
def test_pieces_of_bytes_have_the_probability_of_word_and_end(name):
    tokenizer = tokenizer_of("bpe")
    model = model_for(tokenizer, name)
    context = tokenizer.encode("see you")[:-1]
    found = Suggester(model, tokenizer).suggest("see you ", top=3)
    assert len(found) == 3
    for each in found:
        whole = tokenizer.encode(f"see you {each.word}")[:-1]
        ends = [
            id
            for id in range(tokenizer.vocab_size)
            if id == tokenizer.eos
            or (
                id != tokenizer.bos
                and not (tokenizer.decode([id])[0].isalnum() or tokenizer.decode([id])[0] in "_'’�")
            )
        ]
        tokens = log_prob(model, whole, len(context))
        model.eval()
        with torch.no_grad():
            after = torch.softmax(model(torch.tensor([whole]))[0][0, -1].double(), -1)
        is_word = each.word[0].isalnum() or each.word[0] in "_'’"
        one_way = math.exp(tokens) * (float(after[ends].sum()) if is_word else 1.0)
        # Other ways to cut the word into tokens may add to it.
        assert each.probability >= one_way * (1 - 1e-6)
        assert tokenizer.words(each.word) == [each.word]


@pytest.mark.parametrize("kind", ["word", "bpe", "wordpiece", "char"])
@pytest.mark.parametrize("text", ["", "see", "see ", "see yo", "see you, th", "DON'", "…"])
def test_suggestions_are_distinct_whole_words_in_falling_order(kind, text):
    tokenizer = tokenizer_of(kind)
    found = Suggester(model_for(tokenizer), tokenizer).suggest(text, top=8)
    words = [each.word for each in found]
    assert found
    assert len(set(words)) == len(words)
    probabilities = [each.probability for each in found]
    assert probabilities == sorted(probabilities, reverse=True)
    assert all(0 < p <= 1 for p in probabilities)
    assert sum(probabilities) <= 1 + 1e-9
    for word in words:
        assert tokenizer.words(word) == [word]
        assert not word.startswith("⟨")


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "char"])
def test_an_incomplete_word_is_completed(kind):
    tokenizer = tokenizer_of(kind)
    suggester = Suggester(trained(tokenizer), tokenizer)
    found = suggester.suggest("see you th", top=3)
    assert found[0].word in ("the", "there")
    assert all(each.word.startswith("th") and each.word != "th" for each in found)
    # A whole word without a space after it is not completed but followed.
    assert suggester.suggest("see you", top=1)[0].word in ("soon", "there")
    assert suggester.suggest("see ", top=1)[0].word == "you"


def trained(tokenizer, texts=TEXTS):
    from tacit.public.pretrain import Settings, pretrain

    model = registry.build("lstm", tokenizer.vocab_size, seed=0, embedding_size=16, cells=32)
    settings = Settings(learning_rate=0.02, epochs=60, warmup_steps=5, batch=12)
    pretrain(model, tokenizer.encode_batch(texts), settings, bos=tokenizer.bos)
    return model


def test_what_does_not_fit_is_refused():
    tokenizer = tokenizer_of("word")
    model = model_for(tokenizer)
    with pytest.raises(ValueError, match="top must be at least 1, got 0"):
        Suggester(model, tokenizer).suggest("x", top=0)
    with pytest.raises(ValueError, match="use the tokenizer that it was trained with"):
        Suggester(model, tokenizer_of("char"))


def test_characters_of_several_bytes_are_put_together():
    texts = ["où est le café près de là"] * 3
    tokenizer = build.learn("bpe", texts, 258, provenance="public: tests")  # bytes and nothing else
    assert len(tokenizer.encode("café")) == 2 + 5
    suggester = Suggester(trained(tokenizer, texts), tokenizer)
    assert suggester.suggest("où est le ", top=1)[0].word == "café"
    assert suggester.suggest("où est le caf", top=1)[0].word == "café"
    assert suggester.suggest("où est le café pr", top=1)[0].word == "près"


def test_half_a_character_is_never_suggested():
    tokenizer = build.learn("bpe", ["a"], 258, provenance="public: tests")
    found = Suggester(model_for(tokenizer), tokenizer).suggest("", top=50)
    assert found
    assert all(each.word.isprintable() and "\ufffd" not in each.word for each in found)
