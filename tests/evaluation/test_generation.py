"""Generated text follows the model's distribution, and the seed."""

import itertools
import math

import pytest
import torch
from scipy import stats

from tacit.evaluation.generation import generate
from tests.evaluation.tiny import SIZES, Table, tiny

BOS, EOS, UNK = 0, 1, 2
# Chance of a false alarm in each test of frequencies; the seeds are fixed, so it happened or not.
FALSE_ALARM = 1e-4


def first_token_table() -> torch.Tensor:
    """After BOS any of 3..7 with different probabilities; then EOS for sure."""
    logits = torch.full((8, 8), -torch.inf)
    logits[BOS, 3:] = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0])
    logits[3:, EOS] = 0.0
    return logits


def first_token_p_value(texts, temperature: float, kept: int = 5) -> float:
    """Chi-square: do the first tokens follow the table at this temperature?"""
    logits = first_token_table()[BOS, 3:]
    probs = torch.softmax(logits[-kept:].double() / temperature, 0)
    counts = torch.bincount(torch.tensor([text[1] for text in texts]), minlength=8)[8 - kept :]
    assert counts.sum() == len(texts)
    return stats.chisquare(counts, probs * len(texts)).pvalue


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_temperature_and_reject_another(temperature):
    texts = generate(
        Table(first_token_table()), 5000, bos=BOS, eos=EOS, seed=11, temperature=temperature
    )
    assert first_token_p_value(texts, temperature) > FALSE_ALARM
    for wrong in (temperature * 1.4, temperature / 1.4):
        assert first_token_p_value(texts, wrong) < FALSE_ALARM


def test_top_k_cuts_the_tail_and_renormalises_the_rest():
    texts = generate(Table(first_token_table()), 3000, bos=BOS, eos=EOS, seed=5, top_k=3)
    assert {text[1] for text in texts} == {5, 6, 7}
    assert first_token_p_value(texts, 1.0, kept=3) > FALSE_ALARM
    only_first = generate(Table(first_token_table()), 50, bos=BOS, eos=EOS, seed=5, top_k=1)
    assert {text[1] for text in only_first} == {7}


def test_pairs_follow_the_chain():
    logits = torch.randn(6, 6, generator=torch.Generator().manual_seed(2))
    texts = generate(Table(logits), 2000, bos=BOS, eos=EOS, seed=3, max_length=20)
    allowed = logits.double().clone()
    allowed[:, BOS] = -torch.inf
    probs = torch.softmax(allowed, 1)
    for before in (BOS, 2, 4):
        after = [w for text in texts for v, w in itertools.pairwise(text) if v == before]
        counts = torch.bincount(torch.tensor(after), minlength=6)[1:]
        result = stats.chisquare(counts, probs[before, 1:] * len(after))
        assert result.pvalue > FALSE_ALARM


@pytest.mark.parametrize("kind", list(SIZES))
def test_the_seed_decides_and_the_batch_does_not(kind):
    model = tiny(kind)
    arguments = {"bos": BOS, "eos": EOS, "max_length": 8}
    texts = generate(model, 8, seed=7, **arguments)
    assert generate(model, 8, seed=7, **arguments) == texts
    assert generate(model, 8, seed=7, batch_size=3, **arguments) == texts
    assert generate(model, 8, seed=torch.Generator().manual_seed(7), **arguments) == texts
    assert generate(model, 5, seed=7, **arguments) == texts[:5]
    assert generate(model, 8, seed=8, **arguments) != texts


@pytest.mark.parametrize("kind", list(SIZES))
def test_the_state_that_is_carried_is_that_of_the_whole_text(kind):
    model = tiny(kind)
    for text in generate(model, 3, bos=BOS, eos=EOS, seed=0, temperature=0, max_length=8):
        for place in range(1, len(text)):
            with torch.no_grad():
                logits = model(torch.tensor([text[:place]]))[0][0, -1]
            logits[BOS] = -torch.inf
            assert text[place] == logits.argmax()


def test_a_text_ends_at_eos_or_at_its_longest():
    texts = generate(tiny("lstm"), 200, bos=BOS, eos=EOS, seed=1, max_length=6)
    assert {len(text) for text in texts} > {2, 7}
    for text in texts:
        assert text[0] == BOS
        assert EOS not in text[:-1]
        assert BOS not in text[1:]
        assert len(text) == 7 or text[-1] == EOS


def test_a_prompt_is_continued_and_what_is_forbidden_is_not_said():
    model = Table(torch.zeros(5, 5))
    texts = generate(
        model, 50, bos=BOS, eos=EOS, seed=0, prompt=[3, 4], forbidden=[UNK], max_length=8
    )
    assert all(text[:3] == [BOS, 3, 4] for text in texts)
    assert {token for text in texts for token in text[3:]} == {EOS, 3, 4}


def test_rows_that_ended_leave_the_batch():
    model = Table(first_token_table())
    generate(model, 10, bos=BOS, eos=EOS, seed=0, max_length=50)
    assert model.calls == [(10, 1), (10, 1)]


def test_a_tiny_temperature_is_the_first_choice():
    model = Table(first_token_table())
    for temperature in (0.0, 1e-300):
        texts = generate(model, 20, bos=BOS, eos=EOS, seed=0, temperature=temperature)
        assert texts == [[BOS, 7, EOS]] * 20


def test_no_text_is_no_text():
    assert generate(Table(torch.zeros(3, 3)), 0, bos=BOS, eos=EOS, seed=0) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": -1}, "count must be at least 0, got -1"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"temperature": -0.1}, "temperature must be a finite number of at least 0"),
        ({"temperature": math.nan}, "temperature must be a finite number of at least 0, got nan"),
        ({"temperature": math.inf}, "temperature must be a finite number"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"prompt": [9]}, "token 9 is not among the model's 3"),
        ({"forbidden": [1, 2]}, "forbidden leaves no token to sample"),
    ],
)
def test_what_cannot_be_generated_is_refused(options, message):
    arguments = {"count": 1, "bos": BOS, "eos": EOS, "seed": 0, **options}
    with pytest.raises(ValueError, match=message):
        generate(Table(torch.zeros(3, 3)), arguments.pop("count"), **arguments)


def test_broken_weights_are_named():
    with pytest.raises(ValueError, match="its weights are broken"):
        generate(Table(torch.full((3, 3), torch.nan)), 1, bos=BOS, eos=EOS, seed=0)
