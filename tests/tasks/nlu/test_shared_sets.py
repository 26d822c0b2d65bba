"""ATIS, SNIPS and NLU-EVAL where they are there, with the counts that their sources state."""

from pathlib import Path

import pytest

from tacit.tasks.nlu.data import NLUData
from tacit.tasks.nlu.metrics import slots
from tacit.tasks.nlu.readers import load_nlu

DATA = Path(__file__).parents[4] / "shared" / "data"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the shared sets are not here")


def figures(data: NLUData) -> tuple[int, int, int, int]:
    """Utterances, intents, slot types and tokens of all parts together."""
    every = [*data.train, *data.valid, *data.test]
    types = {slot.type for utterance in every for slot in slots(utterance.tags)}
    intents = {utterance.intent for utterance in every}
    return len(every), len(intents), len(types), sum(len(u.tokens) for u in every)


def test_atis_has_its_counts_and_intents_that_only_test_has():
    with pytest.raises(ValueError, match=r"atis: .*'atis_day_name' \(utterance 35 of test\)"):
        load_nlu(DATA / "atis")
    data = load_nlu(DATA / "atis", unseen_intents="keep")
    assert (len(data.train), len(data.valid), len(data.test)) == (4478, 500, 893)
    assert figures(data) == (5871, 26, 83, 65_364)
    assert len(data.intents) == 21
    assert len(data.unseen()) == 5


def test_snips_has_its_counts():
    data = load_nlu(DATA / "snips")
    assert (len(data.train), len(data.valid), len(data.test)) == (13_084, 700, 700)
    assert figures(data) == (14_484, 7, 39, 130_438)


def test_nlu_eval_has_its_counts():
    data = load_nlu(DATA / "nlu_eval" / "nlu_eval_cv11k.jsonl.gz", test_fold=10)
    every = [*data.train, *data.valid, *data.test]
    assert (len(data.valid), len(data.test)) == (1076, 1352)
    assert figures(data)[:3] == (11_036, 64, 54)
    assert sum(len(slots(utterance.tags)) for utterance in every) == 9133


@pytest.mark.parametrize("name", ["atis", "snips", "nlu_eval/nlu_eval_cv11k.jsonl.gz"])
def test_papers_split_has_the_papers_shares(name):
    data = load_nlu(DATA / name, split="paper", unseen_intents="keep")
    count = figures(data)[0]
    assert len(data.train) / count == pytest.approx(0.45, abs=0.015)
    assert len(data.valid) / count == pytest.approx(0.05, abs=0.006)
    assert len(data.test) / count == pytest.approx(0.50, abs=0.015)
