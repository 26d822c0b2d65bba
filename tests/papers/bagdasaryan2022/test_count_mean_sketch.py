"""The count-mean sketch: private report by report, unbiased, and drawn as if reports were sent."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tacit.privacy.stream import Stream
from tacit_papers.bagdasaryan2022.heavy_hitters import (
    NOTHING,
    CountMeanSketch,
    _binomials,
    _digests,
    _Sketch,
)

KEY = b"k" * 32
WORDS = [f"word{i}" for i in range(200)]


def stream(number: int = 0) -> Stream:
    return Stream(number.to_bytes(32, "big"))


def buckets(protocol: CountMeanSketch, words: list[str], row: int) -> np.ndarray:
    """h_row of each word."""
    return protocol._bucket(_digests(words), np.full(1, row))


def report(protocol: CountMeanSketch, word: str | None, source: Stream) -> tuple[int, np.ndarray]:
    """What one client sends: its row, and a vector of +1 and -1.  None is "nothing"."""
    row = int(source.integers(protocol.hashes, 1)[0])
    entries = np.full(protocol.width, -1, np.int8)
    if word is not None:
        entries[buckets(protocol, [word], row)] = 1
    flips = _binomials(np.ones(protocol.width, np.int64), protocol.flip_prob, source)
    return row, np.where(flips == 1, -entries, entries)


def literal_matrix(protocol: CountMeanSketch, reports) -> np.ndarray:
    """The server of the paper: x = k (c/2 v + 1/2) is added to row j of M."""
    k, m = protocol.hashes, protocol.width
    e = math.exp(protocol.epsilon / 2)
    c = (e + 1) / (e - 1)
    matrix = np.zeros((k, m))
    for row, entries in reports:
        matrix[row] += k * (c / 2 * entries + 0.5)
    return matrix


def literal_estimate(protocol: CountMeanSketch, matrix: np.ndarray, n: float, word: str) -> float:
    """The paper's f(d), with the number of words reported, n."""
    k, m = protocol.hashes, protocol.width
    mean = sum(matrix[row, buckets(protocol, [word], row)[0]] for row in range(k)) / k
    return m / (m - 1) * (mean - n / m)


def literal_report(protocol: CountMeanSketch, word: int, generator: np.random.Generator):
    """The client of the paper, with another source of randomness."""
    row = int(generator.integers(protocol.hashes))
    entries = -np.ones(protocol.width)
    if word != NOTHING:
        entries[buckets(protocol, WORDS[word : word + 1], row)[0]] = 1
    flipped = generator.random(protocol.width) < 1 / (1 + math.exp(protocol.epsilon / 2))
    return row, np.where(flipped, -entries, entries)


def sketch_of(protocol: CountMeanSketch, reports) -> _Sketch:
    """The sketch that these very reports make."""
    pluses = np.zeros((protocol.hashes, protocol.width), np.int64)
    in_row = np.zeros(protocol.hashes, np.int64)
    for row, entries in reports:
        pluses[row] += entries == 1
        in_row[row] += 1
    return _Sketch(protocol, pluses, in_row)


# Privacy of a report


def law(entries: list[int], flip_prob: float) -> np.ndarray:
    """The probability of each of the 2^m reports, by enumeration."""
    outputs = itertools.product([-1, 1], repeat=len(entries))
    return np.array(
        [
            math.prod(
                flip_prob if out != e else 1 - flip_prob
                for out, e in zip(output, entries, strict=True)
            )
            for output in outputs
        ]
    )


def worst_ratio(one: list[int], other: list[int], flip_prob: float) -> float:
    return float(np.max(law(one, flip_prob) / law(other, flip_prob)))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8 / 3, 8.0])
def test_the_exact_ratio_of_a_report_is_e_to_the_epsilon_and_no_less(epsilon):
    p = CountMeanSketch(epsilon, 1, 4).flip_prob
    first, second, nothing = [1, -1, -1, -1], [-1, -1, 1, -1], [-1] * 4
    assert law(first, p).sum() == pytest.approx(1)
    assert worst_ratio(first, second, p) == pytest.approx(math.exp(epsilon), rel=1e-12)
    for one, other in ((first, nothing), (nothing, first)):
        assert worst_ratio(one, other, p) == pytest.approx(math.exp(epsilon / 2), rel=1e-12)
    assert worst_ratio(first, first, p) == 1
    # The flip probability that forgets that two entries differ is far from private enough.
    assert worst_ratio(first, second, 1 / (1 + math.exp(epsilon))) > math.exp(1.9 * epsilon)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 8 / 3, 8.0, 59.0])
def test_the_flip_probability_is_rounded_to_the_private_side(epsilon):
    from decimal import Decimal, getcontext

    getcontext().prec = 60
    p = Decimal(CountMeanSketch(epsilon).flip_prob)
    ratio = ((1 - p) / p) ** 2
    assert ratio <= Decimal(epsilon).exp()
    assert ratio >= Decimal(epsilon).exp() * (1 - Decimal("1e-13"))


def test_a_clients_reports_have_the_law_of_the_enumeration():
    """Chi-squared over the 16 reports of each input; false alarms: 1 in 10,000 each."""
    protocol = CountMeanSketch(1.5, 1, 4)
    p = protocol.flip_prob
    source = stream(1)
    for word in ("a", None):
        entries = [-1] * 4
        if word:
            entries[buckets(protocol, [word], 0)[0]] = 1
        codes = np.zeros(16)
        for _ in range(800):
            _, sent = report(protocol, word, source)
            codes[int("".join("1" if e == 1 else "0" for e in sent), 2)] += 1
        assert stats.chisquare(codes, 800 * law(entries, p)).pvalue > 1e-4
        wrong = 1 / (1 + math.exp(1.5))
        assert stats.chisquare(codes, 800 * law(entries, wrong)).pvalue < 1e-10


# Estimates


def test_the_estimate_is_the_papers_where_everybody_reports_a_word():
    protocol = CountMeanSketch(2.0, 8, 16)
    source = stream(2)
    reports = [report(protocol, WORDS[i % 5], source) for i in range(400)]
    matrix = literal_matrix(protocol, reports)
    estimated_n = matrix.sum() / protocol.hashes
    ours = sketch_of(protocol, reports).estimate(WORDS[:10])
    for word, found in zip(WORDS[:10], ours, strict=True):
        assert found == pytest.approx(literal_estimate(protocol, matrix, estimated_n, word))


def repeated(protocol_at, words, reported, times):
    """Estimates of `times` independent sketches, each with hash functions of its own."""
    return np.array(
        [protocol_at(i).collect(words, reported, stream(i)).estimate(words) for i in range(times)]
    )


def test_estimates_are_unbiased_with_the_variance_that_is_stated():
    """Words reported 0, 40, 400 times among 1,000 reports, of which 500 are nothing."""
    k, m, times = 16, 8, 300
    reported = np.repeat([0, 1, 2, NOTHING], [40, 400, 60, 500])
    true = np.array([40, 400, 60, 0])
    found = repeated(
        lambda seed: CountMeanSketch(2.0, k, m, hash_seed=seed), WORDS[:4], reported, times
    )
    p = CountMeanSketch(2.0).flip_prob
    flips = 1000 * p * (1 - p) / (1 - 2 * p) ** 2 * m / (m - 1)
    assert p * (1 - p) / (1 - 2 * p) ** 2 == pytest.approx(math.e / (math.e - 1) ** 2)
    for word in range(4):
        others = np.delete(true, word)
        shared = np.sum(others + others * (others - 1) / k) / (m - 1)
        standard_error = math.sqrt((flips + shared) / times)
        assert abs(found[:, word].mean() - true[word]) < 4.5 * standard_error
        ratio = found[:, word].var(ddof=1) / (flips + shared)
        assert 0.65 < ratio < 1.4  # more than 4 standard errors of a variance of 300 values
        # With the number of reports in place of that of words, as in the paper, it would be biased.
        assert 500 / (m - 1) > 10 * standard_error


def test_drawing_the_sums_has_the_law_of_sending_the_reports():
    """Literal clients against `collect`: Kolmogorov-Smirnov on estimates of three words."""
    protocol = CountMeanSketch(1.0, 4, 8)
    reported = np.repeat([0, 1, NOTHING], [12, 6, 6])
    clients = np.random.default_rng(0)
    drawn, sent = [], []
    for i in range(400):
        drawn.append(protocol.collect(WORDS, reported, stream(i)).estimate(WORDS[:3]))
        reports = [literal_report(protocol, int(word), clients) for word in reported]
        sent.append(sketch_of(protocol, reports).estimate(WORDS[:3]))
    drawn, sent = np.array(drawn), np.array(sent)
    for word in range(3):
        assert stats.ks_2samp(drawn[:, word], sent[:, word]).pvalue > 1e-4
    other = CountMeanSketch(2.0, 4, 8)
    wrong = [other.collect(WORDS, reported, stream(i)).estimate(WORDS[:1])[0] for i in range(400)]
    assert stats.ks_2samp(np.array(wrong), sent[:, 0]).pvalue < 1e-4


def test_without_flips_and_collisions_the_counts_are_exact():
    protocol = CountMeanSketch(60.0, 64, 1 << 14)
    reported = np.repeat([3, 5, NOTHING], [700, 20, 280])
    found = protocol.collect(WORDS, reported, stream()).estimate(["word3", "word5", "word7"])
    assert found == pytest.approx([700, 20, 0], abs=2)


def test_the_stated_deviation_is_that_of_words_that_nobody_reports():
    protocol = CountMeanSketch(8 / 3, 256, 256)
    reported = np.arange(20_000) % 5000
    words = [f"w{i}" for i in range(9000)]
    sketch = protocol.collect(words, reported, stream(5))
    absent = sketch.estimate(words[5000:])
    assert absent.std() == pytest.approx(sketch.stddev, rel=0.06)  # 5 standard errors
    assert abs(absent.mean()) < 5 * sketch.stddev / math.sqrt(4000)
    assert int(sketch.in_row.sum()) == 20_000
    p, m = protocol.flip_prob, 256
    flips = p * (1 - p) / (1 - 2 * p) ** 2 * m / (m - 1)
    assert sketch.stddev == pytest.approx(math.sqrt(20_000 * (flips + 1 / (m - 1))), rel=0.02)


def test_the_stated_deviation_has_the_shared_buckets_of_heavy_words_in_it():
    """One word has half of all reports: with 8 rows that is most of the deviation."""
    protocol = CountMeanSketch(8.0, 8, 256)
    words = [f"w{i}" for i in range(9000)]
    reported = np.where(np.arange(20_000) % 2 == 0, 0, np.arange(20_000) % 5000)
    sketch = protocol.collect(words, reported, stream(6))
    absent = sketch.estimate(words[5000:])
    assert absent.std() == pytest.approx(sketch.stddev, rel=0.15)
    flips_alone = math.sqrt(20_000 * math.e**4) / (math.e**4 - 1)
    assert sketch.stddev > 3 * flips_alone


# Hash functions


def test_hash_functions_are_pairwise_independent():
    """All 16 pairs of buckets of two words over 4,000 functions; the seed alone decides."""
    protocol = CountMeanSketch(1.0, 4000, 4, hash_seed=7)
    rows = np.arange(4000)
    pairs = np.zeros((4, 4))
    for row in rows:
        one, other = buckets(protocol, ["the", "then"], int(row))
        pairs[one, other] += 1
    assert stats.chisquare(pairs.ravel()).pvalue > 1e-4
    again = CountMeanSketch(2.0, 4000, 4, hash_seed=7)
    assert buckets(again, WORDS, 3).tolist() == buckets(protocol, WORDS, 3).tolist()
    another = CountMeanSketch(1.0, 4000, 4, hash_seed=8)
    assert buckets(another, WORDS, 3).tolist() != buckets(protocol, WORDS, 3).tolist()


# Binomials


@pytest.mark.parametrize("p", [0.0, 0.25, 0.1, 0.7, 1 / 3, 1.0])
@pytest.mark.parametrize("n", [1, 5, 63, 64, 65, 200])
def test_binomials_have_their_law(n, p):
    """Chi-squared on bins with at least 5 expected; false alarms: 1 in 100,000 each."""
    found = _binomials(np.full((50, 40), n), p, stream(n)).ravel()
    expected = 2000 * stats.binom.pmf(np.arange(n + 1), n, p)
    observed = np.bincount(found, minlength=n + 1)
    assert observed.sum() == 2000
    common = expected >= 5
    if common.sum() < 2:
        assert np.all(found == round(n * p))
        return
    rest = expected[~common].sum()
    bins = [*expected[common], rest] if rest > 1 else expected[common]
    seen = [*observed[common], observed[~common].sum()] if rest > 1 else observed[common]
    assert stats.chisquare(seen, np.array(bins) * sum(seen) / sum(bins)).pvalue > 1e-5


def test_binomials_of_many_counts_at_once_are_in_their_places(monkeypatch):
    counts = np.array([0, 1000, 0, 1, 130, 0])
    assert _binomials(counts, 1.0, stream()).tolist() == counts.tolist()
    halves = _binomials(np.array([0, 10**7, 64]), 0.5, stream())
    assert halves[0] == 0
    assert abs(halves[1] - 5e6) < 5 * math.sqrt(2.5e6)
    whole = _binomials(counts, 0.3, stream(3)).tolist()
    import importlib

    module = importlib.import_module("tacit_papers.bagdasaryan2022.heavy_hitters")
    monkeypatch.setattr(module, "_WORDS_AT_ONCE", 2)
    assert _binomials(counts, 0.3, stream(3)).tolist() == whole


# Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be a finite number above 0, got 0.0"),
        ({"epsilon": math.nan}, "epsilon must be"),
        ({"epsilon": 61.0}, "epsilon of a report must be at most 60.0, got 61.0"),
        ({"hashes": 0}, "hashes must be at least 1, got 0"),
        ({"width": 1}, "width must be at least 2, got 1"),
        ({"width": 1000}, "width must be a power of two of at most 65536, got 1000"),
        ({"width": 1 << 17}, "width must be a power of two of at most 65536"),
        ({"hash_seed": -1}, "hash_seed must be at least 0, got -1"),
        ({"hash_seed": 1.5}, "hash_seed must be a whole number, got 1.5"),
    ],
)
def test_bad_parameters_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        CountMeanSketch(**({"epsilon": 1.0} | arguments))


@pytest.mark.parametrize("bad", [-2, 3])
def test_reports_of_words_that_are_not_there_are_refused(bad):
    with pytest.raises(ValueError, match="reported must hold indices from 0 to 2, or -1"):
        CountMeanSketch(1.0, 4, 4).collect(["a", "b", "c"], np.array([0, bad]), stream())
