"""Trying again makes no evidence: the error of an audit is spent over all tries at a run."""

import functools
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from tacit.audit.gate import Gate
from tacit.audit.one_run import Guesses, epsilon_lower_bound
from tacit.audit.tries import Tries, _spent

ALPHA = 0.05


@pytest.fixture
def tries(tmp_path):
    return Tries(tmp_path / "audits.jsonl")


@given(st.lists(st.floats(0.5, 0.999), min_size=1, max_size=30))
def test_all_tries_together_err_less_often_than_was_asked_for(confidences):
    used = [_spent(asked, number) for number, asked in enumerate(confidences, start=1)]
    assert all(one > asked for one, asked in zip(used, confidences, strict=True))
    assert sum(1 - one for one in used) < (1 - min(confidences)) * (1 + 1e-9)


@functools.cache
def _bound(canaries, guesses, correct, confidence):
    return epsilon_lower_bound(canaries, guesses, correct, 0.0, confidence)


def _false_alarms(confidence_of, trainings=3000, canaries=120, epsilon=0.7):
    """How often some try refutes the truth: on randomized response, whose epsilon is exact."""
    draw = np.random.default_rng(7)
    looks = [Guesses(n, n) for n in (60, 50, 40, 30, 22, 16, 12, 9)]
    alarms = 0
    for _ in range(trainings):
        included = draw.random(canaries) < 0.5
        told = draw.random(canaries) < expit(epsilon)  # the answer is the truth so often
        scores = np.where(included == told, 1.0, -1.0) + draw.uniform(-0.1, 0.1, canaries)
        alarms += any(
            _bound(canaries, look.total, look.correct(scores, included), confidence_of(number))
            > epsilon
            for number, look in enumerate(looks, start=1)
        )
    return alarms / trainings


def test_whoever_tries_eight_ways_refutes_the_truth_no_oftener_than_stated():
    """3,000 trainings: 5 standard deviations are 0.02; the same tries unspent are beyond that."""
    assert _false_alarms(lambda number: _spent(1 - ALPHA, number)) < ALPHA
    assert _false_alarms(lambda number: 1 - ALPHA) > ALPHA + 0.02


def test_a_repetition_is_the_same_try(tries, tmp_path):
    first = tries.begin({"model": "a", "guesses": (3, 3)}, 0.95)
    assert (first.number, first.confidence) == (1, pytest.approx(0.975))
    tries.finish(first, 1.5)
    before = (tmp_path / "audits.jsonl").read_bytes()
    assert tries.begin({"guesses": (3, 3), "model": "a"}, 0.95) == first
    tries.finish(first, 1.5)
    assert (tmp_path / "audits.jsonl").read_bytes() == before


def test_each_other_setting_is_a_try_of_its_own(tries):
    wanted = [({"model": "a"}, 0.95), ({"model": "b"}, 0.95), ({"model": "a"}, 0.9)]
    found = [tries.begin(*one) for one in wanted]
    assert [one.number for one in found] == [1, 2, 3]
    assert [one.confidence for one in found] == pytest.approx([0.975, 0.9875, 0.9875])
    assert [tries.begin(*one).number for one in wanted] == [1, 2, 3]


def test_a_try_is_on_the_disk_before_it_is_made(tries, tmp_path):
    tries.begin({"model": "a"}, 0.95)
    file = tmp_path / "audits.jsonl"
    assert file.stat().st_mode & 0o777 == 0o600
    assert Tries(file).begin({"model": "b"}, 0.95).number == 2  # though the first never ended


def test_to_ask_is_not_to_try(tries, tmp_path):
    assert tries.next({"model": "a"}, 0.95).number == 1
    assert not (tmp_path / "audits.jsonl").exists()


def test_what_a_try_has_shown_remains_shown(tries):
    assert tries.highest() == 0
    for number, bound in enumerate((0.4, 2.5, 0.0)):
        tries.finish(tries.begin({"round": number}, 0.95), bound)
    assert tries.highest() == 2.5


def test_a_gate_looks_at_the_highest_bound_of_all_tries():
    figures = {"empirical_epsilon": {"lower_bound": 0.0, "highest_lower_bound": 2.5}}
    assert Gate.parse("empirical_epsilon>2").fails(figures)
    assert not Gate.parse("empirical_epsilon>3").fails(figures)


def test_tries_that_were_removed_are_missed(tmp_path):
    file = tmp_path / "audits.jsonl"
    for number in range(3):
        Tries(file).begin({"round": number}, 0.95)
    Tries(file, at_least=3).begin({"round": 0}, 0.95)
    file.write_bytes(file.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(ValueError, match=r"has 1 tries, and the run's audit\.json speaks of try 3"):
        Tries(file, at_least=3).begin({"round": 9}, 0.95)


@pytest.mark.parametrize(
    "content",
    [b"no\n", b'{"try": 2, "settings": {}, "asked": 0.9}\n', b'{"try": 1}\n'],
    ids=["not JSON", "not from 1 on", "nothing said"],
)
def test_a_damaged_file_is_refused(tmp_path, content):
    file = tmp_path / "audits.jsonl"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        Tries(file).begin({}, 0.95)


def test_an_end_that_a_crash_tore_off_is_no_try(tries, tmp_path):
    tries.begin({"round": 1}, 0.95)
    file = tmp_path / "audits.jsonl"
    file.write_bytes(file.read_bytes() + b'{"try": 2, "set')
    assert tries.begin({"round": 2}, 0.95).number == 2
    assert tries.begin({"round": 3}, 0.95).number == 3


def test_audits_at_the_same_time_are_as_many_tries(tmp_path):
    numbers = []

    def one(round):
        numbers.append(Tries(tmp_path / "audits.jsonl").begin({"round": round}, 0.95).number)

    threads = [threading.Thread(target=one, args=(round,)) for round in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 9))


def test_a_confidence_that_is_spent_shows_nothing_more():
    with pytest.raises(ValueError, match="number must be a try that can still show something"):
        _spent(0.95, 60)
    with pytest.raises(ValueError, match="confidence must"):
        _spent(float("nan"), 1)
