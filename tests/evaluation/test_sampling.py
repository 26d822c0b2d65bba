"""A sampled corpus follows the model's distribution and the key, however it is computed."""

import _thread
import itertools
import math
import signal
import threading
import time
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy import stats

from tacit.evaluation import sampling, scoring
from tacit.evaluation.sampling import Sampling, sample_texts, sample_tokens
from tacit.models.recurrent import LSTM
from tacit.models.registry import build
from tacit.tokenizers.build import learn, word_level
from tests.evaluation.tiny import SIZES, Table, tiny

BOS, EOS, UNK = 0, 1, 2
KEY = b"a key"
# Chance of a false alarm in each test of frequencies; the keys are fixed, so it happened or not.
FALSE_ALARM = 1e-4


@pytest.fixture(autouse=True)
def _many_slots(monkeypatch):
    """More of them than pay for so few tokens, and so fewer steps."""
    monkeypatch.setattr(sampling, "_SLOT_TOKENS", 16)


class Words(NamedTuple):
    """All that sampling tokens asks of a tokenizer."""

    vocab_size: int
    unk: int | None = None
    bos: int = BOS
    eos: int = EOS


def corpus(model, tokens=700, key=KEY, **options):
    settings = {
        name: options.pop(name)
        for name in ("temperature", "top_k", "max_length")
        if name in options
    }
    words = Words(model.config.vocab_size, options.pop("unk", None))
    return sample_tokens(model, words, key, tokens=tokens, sampling=Sampling(**settings), **options)


def first_token_table() -> torch.Tensor:
    """After BOS any of 3..7 with different probabilities; then EOS for sure."""
    logits = torch.full((8, 8), -torch.inf)
    logits[BOS, 3:] = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0])
    logits[3:, EOS] = 0.0
    return logits


def p_value(texts, temperature: float, kept: int = 5) -> float:
    """Chi-square: do the one-token texts follow the table at this temperature?"""
    probs = torch.softmax(first_token_table()[BOS, -kept:].double() / temperature, 0)
    counts = torch.bincount(torch.tensor(texts).squeeze(1), minlength=8)[8 - kept :]
    assert counts.sum() == len(texts)
    return stats.chisquare(counts, probs * len(texts)).pvalue


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_temperature_and_reject_another(temperature):
    texts = corpus(Table(first_token_table()), 5000, temperature=temperature)
    assert p_value(texts, temperature) > FALSE_ALARM
    for wrong in (temperature * 1.4, temperature / 1.4, temperature * 2):
        assert p_value(texts, wrong) < FALSE_ALARM


def test_pairs_follow_the_chain():
    logits = torch.randn(6, 6, generator=torch.Generator().manual_seed(2))
    texts = corpus(Table(logits), 8000, max_length=1000)
    allowed = logits.double().clone()
    allowed[:, BOS] = -torch.inf
    probs = torch.softmax(allowed, 1)
    whole = [[BOS, *text, EOS] for text in texts]
    for before in (BOS, 2, 4):
        after = [w for text in whole for v, w in itertools.pairwise(text) if v == before]
        counts = torch.bincount(torch.tensor(after), minlength=6)[1:]
        assert stats.chisquare(counts, probs[before, 1:] * len(after)).pvalue > FALSE_ALARM
        wrong = stats.chisquare(counts, probs[3, 1:] * len(after)).pvalue
        assert wrong < FALSE_ALARM


def test_top_k_cuts_the_tail_and_renormalises_the_rest():
    table = Table(first_token_table())
    texts = corpus(table, 3000, top_k=3)
    assert set(itertools.chain(*texts)) == {5, 6, 7}
    assert p_value(texts, 1.0, kept=3) > FALSE_ALARM
    assert p_value(corpus(table, 3000, top_k=3, temperature=2.0), 2.0, kept=3) > FALSE_ALARM
    assert p_value(texts, 2.0, kept=3) < FALSE_ALARM
    assert set(itertools.chain(*corpus(table, 50, top_k=1))) == {7}
    assert corpus(table, top_k=8) == corpus(table, top_k=100) == corpus(table)


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-30, 1e-3])
def test_a_tiny_temperature_is_the_first_choice(temperature):
    texts = corpus(Table(first_token_table()), 20, temperature=temperature)
    assert texts == [[7]] * len(texts)
    largest = torch.full((4, 4), -3e38)
    largest[:, 2] = 3e38
    assert corpus(Table(largest), 20, temperature=temperature, max_length=5) == [[2] * 5] * 4


class OwnForward(LSTM):
    """Walked by its own forward, as a model that is not of ours."""

    def forward(self, tokens, state=None, context=None):
        return super().forward(tokens, state, context)


def models():
    seeds = {"gru": 3, "transformer-14m": 2}  # those that say EOS now and then
    for kind in SIZES:
        yield kind, tiny(kind, seed=seeds.get(kind, 0))
    config = build("lstm", 7, **SIZES["lstm"]).config
    with torch.no_grad():
        own = OwnForward(config)
        for parameter in own.parameters():
            parameter.mul_(3)
        rich = build(
            "cifg", 7, embedding_size=4, cells=5, layers=3, context_size=2, output_bias=True, seed=3
        )
        for parameter in rich.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    yield "own", own.double()
    yield "rich", rich.double()
    table = torch.randn(7, 7, generator=torch.Generator().manual_seed(4))
    yield "table", Table(table)
    yield "whole-text-table", Table(table, carry=False)


MODELS = dict(models())


def one_at_a_time(model, key, lane, quota, slots, max_length) -> list[list[int]]:
    """The slow twin: each slot's texts token by token, from the same uniform numbers.

    Slot j has the j-th of each step's numbers.  A text counts if it began before the step after
    which the lane had its share.
    """
    steps = 3 * (quota // slots + max_length)
    uniform = [numbers.random(slots) for numbers in [sampling._generator(key, lane)] * steps]
    spoken, found = np.zeros(steps, int), []
    for slot in range(slots):
        began, text = 0, [BOS]
        for step in range(steps):
            with torch.no_grad():
                logits = model(torch.tensor([text]))[0][0, -1].double()
            logits[[BOS, UNK]] = -torch.inf
            cumulative = torch.softmax(logits, 0).cumsum(0)
            token = int((cumulative <= uniform[step][slot]).sum())
            spoken[step] += token != EOS
            text = text if token == EOS else [*text, token]
            if token == EOS or len(text) == max_length + 1:
                found.append((began, slot, text[1:]))
                began, text = step + 1, [BOS]
    full = int(np.argmax(spoken.cumsum() >= quota))
    assert spoken.sum() > 2 * quota
    return [text for began, _, text in sorted(found) if began <= full]


@pytest.mark.parametrize("name", list(MODELS))
def test_it_is_what_one_text_at_a_time_gives(name, monkeypatch):
    monkeypatch.setattr(sampling, "_LANE_TOKENS", 80)
    monkeypatch.setattr(sampling, "_SLOT_TOKENS", 20)
    model = MODELS[name]
    found = corpus(model, 161, max_length=6, unk=UNK)
    first = one_at_a_time(model, KEY, 0, 80, 4, 6)
    second = one_at_a_time(model, KEY, 1, 81, 4, 6)
    assert found == first + second
    assert len({len(text) for text in found}) > 2


@pytest.mark.parametrize("name", list(MODELS))
def test_the_key_decides_and_the_threads_do_not(name, monkeypatch):
    monkeypatch.setattr(sampling, "_LANE_TOKENS", 60)
    monkeypatch.setattr(sampling, "_SLOT_TOKENS", 10)
    model = MODELS[name]
    one = corpus(model, 200, max_length=6, threads=1)
    for threads in (None, 2, 3):
        assert corpus(model, 200, max_length=6, threads=threads) == one
    assert corpus(model, 200, key=b"another", max_length=6) != one


def test_threads_do_not_matter_in_float32_at_full_size(monkeypatch):
    monkeypatch.setattr(sampling, "_LANE_TOKENS", 5_000)
    model = build("lstm", 1000)
    one = corpus(model, 10_000, max_length=30, threads=1)
    assert corpus(model, 10_000, max_length=30, threads=2) == one
    assert sum(map(len, one)) >= 10_000


def test_no_two_sampling_say_the_same(monkeypatch):
    monkeypatch.setattr(sampling, "_LANE_TOKENS", 100)
    texts = [tuple(text) for text in corpus(build("lstm", 1000), 1600, max_length=5)]
    assert len(set(texts)) == len(texts) > 300


@pytest.mark.parametrize("tokens", [1, 2, 127, 128, 1000, 20_000])
def test_the_size_is_reached_and_not_by_much(tokens):
    total = sum(map(len, corpus(MODELS["table"], tokens, max_length=20)))
    assert tokens <= total <= tokens + 20 * max(1, tokens // sampling._SLOT_TOKENS)


def length_z(p_end: float, max_length: int) -> float:
    """Standard score of the mean length, exactly of variance 1 by Wald's two identities."""
    logits = torch.tensor([[-math.inf, math.log(p_end), math.log1p(-p_end)]] * 3)
    # Length k < max_length has probability p (1 - p)^k, and max_length all the rest.
    lengths = np.arange(max_length + 1)
    probs = p_end * (1 - p_end) ** lengths
    probs[-1] = (1 - p_end) ** max_length
    mean = (lengths * probs).sum()
    deviation = math.sqrt(((lengths - mean) ** 2 * probs).sum())
    texts = [len(text) for text in corpus(Table(logits), 100_000, max_length=max_length)]
    return (sum(texts) - mean * len(texts)) / (deviation * math.sqrt(len(texts)))


def test_lengths_are_those_of_the_model_and_dropping_unfinished_texts_is_noticed(monkeypatch):
    monkeypatch.setattr(sampling, "_LANES", 1)
    monkeypatch.setattr(sampling, "_SLOTS", 1000)
    monkeypatch.setattr(sampling, "_SLOT_TOKENS", 1)
    limit = stats.norm.isf(FALSE_ALARM / 2)
    assert abs(length_z(0.03, 100)) < limit
    keep = sampling._Lane._keep
    monkeypatch.setattr(sampling._Lane, "_keep", lambda lane, rows: keep(lane, rows[:0]))
    assert length_z(0.03, 100) < -limit


def test_no_text_is_longer_than_the_longest_nor_has_what_is_never_said():
    texts = corpus(Table(torch.zeros(5, 5)), max_length=6, unk=UNK)
    assert {len(text) for text in texts} == set(range(7))
    assert set(itertools.chain(*texts)) == {3, 4}


def test_a_model_that_only_says_eos_is_stopped():
    logits = torch.zeros(4, 4)
    logits[:, EOS] = 20
    with pytest.raises(ValueError, match=r"almost nothing but EOS \(0 tokens in 1,\d{3} texts\)"):
        corpus(Table(logits), 100_000, threads=2)
    logits[:, EOS] = 3.5  # 6 % are tokens: slow, and no reason to stop
    assert sum(map(len, corpus(Table(logits), 1000))) >= 1000


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"temperature": 2.0, "top_k": 2}])
def test_broken_weights_are_named(wrong, settings):
    logits = torch.zeros(3, 3)
    logits[EOS + 1, 2] = wrong
    with pytest.raises(ValueError, match="its weights are broken"):
        corpus(Table(torch.full((3, 3), wrong)), **settings)
    if not settings:
        with pytest.raises(ValueError, match="its weights are broken"):
            corpus(Table(logits))


def test_progress_never_goes_back_and_ends_with_the_size(monkeypatch):
    monkeypatch.setattr(scoring, "_REPORT_SECONDS", 0.01)
    calls = []
    threads = set()

    def progress(done, wanted):
        calls.append((done, wanted))
        threads.add(threading.current_thread())

    texts = corpus(build("lstm", 1000), 8_000, threads=2, progress=progress)
    done = [done for done, _ in calls]
    assert done == sorted(done)
    assert {wanted for _, wanted in calls} == {8_000}
    assert done[-1] == sum(map(len, texts)) >= 8_000
    assert len(calls) > 2
    assert threads == {threading.current_thread()}


@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_stops_all_threads_at_once(threads):
    before = threading.active_count()
    timer = threading.Timer(0.3, _thread.interrupt_main)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job may ignore it
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            corpus(MODELS["lstm"], 10**9, threads=threads)
        timer.join()
    finally:
        signal.signal(signal.SIGINT, handler)
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before
    assert torch.get_num_threads() == 1


def test_everything_is_left_as_it_was():
    model = tiny("lstm").train()
    torch.set_num_threads(2)
    try:
        random = torch.random.get_rng_state(), np.random.get_state()[1].tolist()
        corpus(model, 200, threads=1)
        assert torch.equal(torch.random.get_rng_state(), random[0])
        assert np.random.get_state()[1].tolist() == random[1]
        assert torch.get_num_threads() == 2
        assert model.training
        assert not any(parameter.grad is not None for parameter in model.parameters())
    finally:
        torch.set_num_threads(1)


def test_texts_are_decoded_without_unknown_or_empty_ones():
    tokenizer = word_level(["red", "green", "blue"])
    model = Table(torch.zeros(6, 6))
    arguments = {"tokens": 500, "sampling": Sampling(max_length=4)}
    texts = sample_texts(model, tokenizer, KEY, **arguments)
    found = sample_tokens(model, tokenizer, KEY, **arguments)
    assert texts == [tokenizer.decode(text) for text in found if text]
    assert len(texts) < len(found)
    assert {word for text in texts for word in text.split(" ")} == {"red", "green", "blue"}
    assert texts == sample_texts(model, tokenizer, KEY, threads=2, **arguments)


def test_byte_level_tokens_become_text_too():
    tokenizer = learn("bpe", ["the cat sat on the mat"] * 3, 270)
    model = build("lstm", tokenizer.vocab_size)
    texts = sample_texts(model, tokenizer, KEY, tokens=100)
    assert all(isinstance(text, str) and text for text in texts)


def test_bytes_that_are_no_character_leave_nothing_behind():
    tokenizer = learn("bpe", ["déjà vu " * 3] * 3, 270)
    # The 256 bytes are tokens: equally likely, they are rarely what UTF-8 allows.
    model = Table(torch.zeros(tokenizer.vocab_size, tokenizer.vocab_size))
    arguments = {"tokens": 300, "sampling": Sampling(max_length=3)}
    texts = sample_texts(model, tokenizer, KEY, **arguments)
    found = sample_tokens(model, tokenizer, KEY, **arguments)
    decoded = [tokenizer.decode(text) for text in found]
    assert any(set(text) == {"\ufffd"} for text in decoded)
    assert any("\ufffd" in text and set(text) != {"\ufffd"} for text in decoded)
    assert texts == [kept for text in decoded if (kept := text.replace("\ufffd", ""))]
    assert all("\ufffd" not in text and text for text in texts)


def test_a_tokenizer_of_another_size_is_refused():
    with pytest.raises(ValueError, match="has 6 tokens and the tokenizer 4: the tokenizer does"):
        sample_texts(Table(torch.zeros(6, 6)), word_level(["red"]), KEY, tokens=10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"max_length": 2.5}, "max_length must be a whole number, got 2.5"),
        ({"temperature": -0.1}, "temperature must be a finite number of at least 0, got -0.1"),
        ({"temperature": math.nan}, "temperature must be a finite number of at least 0, got nan"),
        ({"temperature": math.inf}, "temperature must be a finite number"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"tokens": 0}, "tokens must be at least 1, got 0"),
        ({"tokens": True}, "tokens must be a whole number, got True"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"key": b""}, "key must be bytes, at least one"),
        ({"key": "text"}, "key must be bytes"),
    ],
)
def test_what_cannot_be_sampled_is_refused(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        corpus(Table(torch.zeros(3, 3)), **{"tokens": 5, **options})
    assert "\n" not in str(caught.value)
