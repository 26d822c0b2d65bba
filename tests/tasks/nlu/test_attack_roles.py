"""Who does what in an attack follows from each utterance alone, and copies stay together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.tasks.nlu.generated import generate
from tacit.tasks.nlu.utterances import attack_roles, unit
from tests.tasks.nlu.attack_fakes import distinct


def test_roles_have_their_shares_and_miss_nobody():
    test = list(generate(4000, seed=3))
    roles = attack_roles(test, references=2)
    every = [*roles.seen, *roles.population, *roles.non_members]
    assert sorted(each.content for each in every) == sorted(each.content for each in test)
    for part in roles.references:
        assert len(part) / 4000 == pytest.approx(0.25, abs=0.03)
    assert len(roles.population) / 4000 == pytest.approx(0.1, abs=0.03)


@given(st.integers(0, 99))
def test_nobody_moves_anybody_else(left_out):
    test = distinct("text", 100)
    before = attack_roles(test)
    after = attack_roles([*test[:left_out], *test[left_out + 1 :]])
    for name in ("seen", "population", "non_members"):
        assert set(getattr(before, name)) - {test[left_out]} == set(getattr(after, name))


@pytest.mark.parametrize("users", [0, 50])
def test_copies_of_a_text_and_utterances_of_a_user_have_one_role(users):
    test = list(generate(3000, seed=1, users=users))
    roles = attack_roles(test, references=2)
    parts = [*roles.references, roles.population, roles.non_members]
    units = [{unit(each) for each in part} for part in parts]
    assert sum(map(len, units)) == len({unit(each) for each in test}) < 3000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"references": 0}, "references must be at least 1"),
        ({"references": 40}, "50 test utterances are too few for 40 references"),
    ],
)
def test_roles_that_leave_nobody_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        attack_roles(distinct("text", 50), **options)
