"""The built-in set: what it promises about its size, its variety and its draws."""

from collections import Counter
from itertools import islice

import pytest

from tacit.tasks.nlu.generated import _tables, generate, generated_utterances
from tacit.tasks.nlu.metrics import slots
from tacit.tasks.nlu.readers import load_nlu


@pytest.fixture(scope="module")
def data():
    return load_nlu()


def test_the_default_set_is_large_and_varied_enough(data):
    every = [*data.train, *data.valid, *data.test]
    assert data.name == "generated"
    assert len(every) == len({(u.tokens, u.tags) for u in every}) == 5000
    assert set(data.intents) == set(_tables()["templates"])
    assert len(data.intents) == 14
    assert len(data.slot_types) == 20
    assert min(Counter(u.intent for u in data.train).values()) >= 20
    assert not data.has_users


def test_every_slot_of_the_test_part_can_be_learnt(data):
    in_test = {slot.type for utterance in data.test for slot in slots(utterance.tags)}
    assert in_test <= set(data.slot_types)


def test_some_of_it_is_new_and_some_of_it_is_ambiguous(data):
    known = {token for utterance in data.train for token in utterance.tokens}
    values = Counter()
    for utterance in data.train:
        for slot in slots(utterance.tags):
            values[" ".join(utterance.tokens[slot.start : slot.end]), slot.type] += 1
    types = Counter(value for value, _ in values)
    assert types["chicago"] > 1  # heard and visited
    assert sum(count == 1 for count in values.values()) > 300  # to remember
    assert {token for utterance in data.test for token in utterance.tokens} & known


def test_a_longer_stream_begins_with_the_shorter_one():
    long = list(generate(3000, seed=5))
    assert list(generate(10, seed=5)) == long[:10]
    assert list(generate(1500, seed=5)) == long[:1500]
    assert list(generate(1500, seed=6)) != long[:1500]
    assert list(generate(0)) == []


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="count must be at least 0, got -1"):
        generate(-1)


def test_a_stream_is_not_made_before_it_is_asked_for():
    assert len(list(islice(generate(10**12), 3))) == 3


def test_users_have_favourites():
    every = list(generate(20_000, seed=1, users=50))
    assert {u.user for u in every} == {f"generated-{i}" for i in range(50)}
    cities: dict[str, Counter] = {}
    for utterance in every:
        for slot in slots(utterance.tags):
            if slot.type == "city":
                value = " ".join(utterance.tokens[slot.start : slot.end])
                cities.setdefault(utterance.user, Counter())[value] += 1
    shares = [count.most_common(1)[0][1] / count.total() for count in cities.values()]
    assert sum(shares) / len(shares) > 0.5
    # Not everybody has the same one.
    assert len({count.most_common(1)[0][0] for count in cities.values()}) > 20
    nobody = list(generate(20_000, seed=1))
    values = Counter(
        u.tokens[slot.start] for u in nobody for slot in slots(u.tags) if slot.type == "city"
    )
    assert values.most_common(1)[0][1] / values.total() < 0.4


def test_users_are_divided_by_user():
    data = load_nlu("generated:utterances=2000,users=100")
    assert data.has_users
    assert not {u.user for u in data.train} & {u.user for u in data.test}


def test_every_template_is_drawn_and_every_slot_has_values():
    used = {
        word.strip("{}").partition(":")[2] or word.strip("{}")
        for templates in _tables()["templates"].values()
        for template in templates
        for word in template.split()
        if word.startswith("{")
    }
    assert used == set(_tables()["values"])
    assert all(len(set(values)) == len(values) for values in _tables()["values"].values())
    assert {u.intent for u in generate(2000)} == set(_tables()["templates"])


def test_options_are_read_from_a_name():
    named = generated_utterances("generated:utterances=70,users=3, seed=9")
    assert len(named) == 70
    assert {utterance.user for utterance in named} == {f"generated-{user}" for user in range(3)}
    stream = list(generate(200, seed=9, users=3))
    assert all(utterance in stream for utterance in named)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("generated:size=3", "generated takes utterances, users, seed"),
        ("generated:seed=x", "has no whole number, such as seed=1000"),
        ("generated:utterances=0", "utterances must be at least 1, got 0"),
        ("generated:users=-1", "users must be at least 0, got -1"),
    ],
)
def test_wrong_options_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        generated_utterances(name)


def test_more_than_there_is_is_refused(monkeypatch):
    monkeypatch.setattr("tacit.tasks.nlu.generated._PATIENCE", 1)
    with pytest.raises(ValueError, match="there are no 5000 distinct utterances: ask for fewer"):
        generated_utterances("generated")
