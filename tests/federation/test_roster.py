"""Who may be in a secure sum, by a list that an owner has confirmed."""

import json

import pytest

from tacit.corpus.enrolment import Enrolment
from tacit.federation import keys, roster
from tacit.federation.roster import Roster
from tacit.mechanisms.turns import turn_of


@pytest.fixture
def enrolled(tmp_path):
    folder = tmp_path / "enrolled"
    enrolment = keys.make_server(folder, ["127.0.0.1"])
    authority = (folder / "ca.pem").read_text()
    for name in ("a", "b", "c"):
        public = keys.ClientKey.generate(authority).save(tmp_path / name)
        enrolment = enrolment.add([keys.read_public(public)])
    Roster.of(enrolment).save(folder / roster.FILE)
    return folder


def test_an_owner_confirms_the_roster_that_the_others_have(tmp_path, enrolled):
    known = Roster.of(Enrolment.open(enrolled))
    for name in ("a", "b", "c"):
        roster.confirm(tmp_path / name, enrolled / roster.FILE, known.digest.upper())
        assert Roster.load(roster.copy_of(tmp_path / name)) == known
    assert sorted(known.numbers.values()) == [1, 2, 3]


def test_another_roster_has_another_digest_and_is_refused(tmp_path, enrolled):
    """A server that swaps a key, adds somebody or leaves somebody out is found out."""
    file = enrolled / roster.FILE
    digest, content = Roster.load(file).digest, json.loads(file.read_text())
    own = keys.ClientKey.load(tmp_path / "a").id
    other = next(one for one in content["signing_keys"] if one != own)
    stranger = keys.ClientKey.generate((enrolled / "ca.pem").read_text()).enrolled()
    listed = content["signing_keys"]
    for changed in (
        listed | {other: stranger["signing_key"]},
        listed | {stranger["id"]: stranger["signing_key"]},
        {one: key for one, key in listed.items() if one != other},
    ):
        file.write_text(json.dumps(content | {"signing_keys": changed}))
        with pytest.raises(ValueError, match="not the one that the others have"):
            roster.confirm(tmp_path / "a", file, digest)
    without = {one: key for one, key in listed.items() if one != own}
    file.write_text(json.dumps(content | {"signing_keys": without}))
    with pytest.raises(ValueError, match="not in the roster"):
        roster.confirm(tmp_path / "a", file, Roster.load(file).digest)
    assert not roster.copy_of(tmp_path / "a").exists()


def test_nobody_is_in_a_roster_twice_and_keys_are_keys():
    with pytest.raises(ValueError, match="somebody is in it twice"):
        Roster({"0" * 32: bytes(32), "1" * 32: bytes(32)})
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        keys.check_signing_key("00")


def test_everybody_works_out_the_same_group_and_all_have_a_turn(enrolled):
    known = Roster.load(enrolled / roster.FILE)
    one, other = known.groups(2)
    assert sorted(one + other) == list(known.keys)
    for number, group in enumerate((one, other)):
        assert all(turn_of(client, 2) == number for client in group)
