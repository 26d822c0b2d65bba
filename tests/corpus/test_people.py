"""People are recognised when they come again, and groups that turn out to be one are merged."""

import json
import subprocess
import sys

import pytest

from tacit.corpus import people
from tacit.corpus.people_costs import PeoplesBudget
from tacit.corpus.people_ledger import PeopleLedger
from tacit.corpus.sketches import Sketch


def ids(start, stop):
    return [b"user %d" % i for i in range(start, stop)]


def recognise(keys, **options):
    return people.recognise([Sketch.of(keys, people.secret())], **options)


@pytest.fixture
def merged(monkeypatch):
    """The pairs of groups (kept, other) whose ledgers are merged."""
    pairs, merge = [], people._merge_ledgers

    def remember(kept, other):
        assert people.folder(other).name == other  # still by itself, with all that is in it
        pairs.append((kept, other))
        merge(kept, other)

    monkeypatch.setattr(people, "_merge_ledgers", remember)
    return pairs


def test_people_who_come_again_are_known():
    first = recognise(ids(0, 100))
    assert (first.is_known, first.shared, first.declared_new, first.overlaps) == (
        False,
        0,
        None,
        (),
    )
    assert len(first.people) == 16
    again = recognise(ids(0, 100))
    assert again == people.Recognition(first.people, True, 1.0)


@pytest.mark.parametrize(
    ("start", "stop", "is_known"),
    [(0, 40, True), (0, 1000, True), (50, 150, True), (51, 151, False), (100, 200, False)],
)
def test_half_of_the_smaller_set_makes_the_same_people(start, stop, is_known):
    first = recognise(ids(0, 100))
    found = recognise(ids(start, stop))
    assert found.is_known is is_known
    assert (found.people == first.people) is is_known


def test_a_hundredth_of_many_people_is_recognised():
    first = recognise(ids(0, 60_000))
    assert recognise(ids(1000, 1600)).people == first.people


def test_people_who_change_little_by_little_stay_the_same():
    found = {recognise(ids(i * 20, i * 20 + 100)).people for i in range(20)}
    assert len(found) == 1


def test_too_few_in_common_are_reported_and_nothing_below_a_hundredth():
    first = recognise(ids(0, 1000))
    assert recognise(ids(900, 1900)).overlaps == ((first.people, 0.1),)
    found = recognise(ids(995, 1995))
    assert first.people not in dict(found.overlaps)


def test_declared_new_people_are_new_and_the_declaration_is_kept():
    first = recognise(ids(0, 100))
    new = recognise(ids(0, 100), new_people=True)
    assert new.people != first.people
    assert (new.is_known, new.declared_new, new.shared) == (False, first.people, 1.0)
    nobody = recognise(ids(500, 600), new_people=True)
    assert nobody.declared_new is None


def test_the_file_of_declared_new_people_is_theirs_when_it_comes_again(merged):
    first = recognise(ids(0, 100), inputs=["aa"])
    new = recognise(ids(0, 100), inputs=["bb"], new_people=True)
    assert recognise(ids(0, 100), inputs=["bb"]).people == new.people
    assert recognise(ids(0, 100), inputs=["aa"]).people == first.people
    both = recognise(ids(0, 100))
    assert both.people == first.people  # nobody can tell: what was spent on either counts
    assert merged == [(first.people, new.people)]


def test_groups_that_turn_out_to_be_one_are_merged_into_the_first(merged):
    one, two, three = (recognise(ids(i, i + 100)).people for i in (0, 200, 400))
    found = recognise(ids(0, 300))
    assert found.people == one
    assert merged == [(one, two)]
    assert (people.resolve(one), people.resolve(two), people.resolve(three)) == (one, one, three)
    assert people.folder(two) == people.folder(one)
    assert json.loads(
        (people.state_folder(create=False) / "people" / two / "people.json").read_text()
    ) == {"merged_into": one}
    assert recognise(ids(200, 300)).people == one
    assert recognise(ids(250, 500)).people == one
    assert people.resolve(three) == one


def test_a_merge_that_fails_leaves_both_groups(monkeypatch):
    one, two = (recognise(ids(i, i + 100)).people for i in (0, 200))

    def fails(kept, other):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(people, "_merge_ledgers", fails)
        with pytest.raises(OSError, match="disk full"):
            recognise(ids(0, 300))
    assert people.resolve(two) == two
    assert recognise(ids(0, 100)).people == one


def test_an_id_from_elsewhere_gets_an_empty_group():
    elsewhere = "0123456789abcdef"
    assert people.resolve(elsewhere) == elsewhere
    assert people.folder(elsewhere).is_dir()
    assert people.folder(elsewhere) == people.folder(elsewhere)
    assert not recognise(ids(0, 10)).is_known


@pytest.mark.parametrize("wrong", ["", "../../etc", "0123456789ABCDEF", "0" * 17])
def test_what_is_no_id_is_refused(wrong):
    with pytest.raises(ValueError, match="people must be 16 hexadecimal digits"):
        people.folder(wrong)


def test_what_is_remembered_is_for_its_owner_and_names_nobody():
    found = recognise([b"ann@example.org", b"bob"], inputs=["ab" * 32])
    folder = people.folder(found.people)
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o700
    assert (folder / "people.json").stat().st_mode & 0o777 == 0o600
    assert b"ann" not in (folder / "people.json").read_bytes()
    assert people.known_group(found.people).inputs == ("ab" * 32,)


def test_a_damaged_register_is_one_sentence_and_never_ignored():
    found = recognise(ids(0, 10))
    (people.folder(found.people) / "people.json").write_text('{"number": 1, ' + " " * 300)
    with pytest.raises(ValueError, match="restore it from a backup"):
        recognise(ids(0, 10))


def test_processes_at_once_find_one_group():
    people.secret()
    code = (  # without the people's ledger, whose accountants take seconds to import
        "from tacit.corpus import people, sketches;"
        "ids = sketches.Sketch.of([b'%d' % i for i in range(99)], people.secret());"
        "print(people.recognise([ids]).people)"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(4)
    ]
    found = {process.communicate()[0].decode().strip() for process in started}
    assert len({people.resolve(one) for one in found}) == 1


def test_merged_groups_have_one_ledger_and_budget():
    one, two = (recognise(ids(i, i + 100)).people for i in (0, 200))
    budget = PeoplesBudget(8.0, 1e-6)
    PeopleLedger(people.folder(two)).declare(budget)
    assert recognise(ids(0, 300)).people == one
    assert PeopleLedger(people.folder(one)).budget == budget
    assert PeopleLedger(people.folder(two)).budget == budget
