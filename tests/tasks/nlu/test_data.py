"""What an utterance and a set of them may be."""

import pytest

from tacit.tasks.nlu.data import NLUData, Utterance


def said(text: str, intent: str = "ask", user: str | None = None) -> Utterance:
    tokens = tuple(text.split())
    return Utterance(tokens, ("O",) * len(tokens), intent, user)


@pytest.mark.parametrize(
    ("tokens", "tags", "intent", "user", "message"),
    [
        ((), (), "ask", None, "the utterance is empty"),
        (("a", "b"), ("O",), "ask", None, "2 tokens and 1 tags: give each token one tag"),
        (("a b",), ("O",), "ask", None, "the token 'a b' is blank or has white space"),
        (("a", ""), ("O", "O"), "ask", None, "the token '' is blank"),
        (("a", "b"), ("O", "I-x"), "ask", None, "continues no slot"),
        (("a",), ("B-x y",), "ask", None, "white space in it"),
        (("a",), ("O",), "", None, "the intent '' must be a name"),
        (("a",), ("O",), "as\nk", None, "must be a name, not blank, on one line"),
        (("a",), ("O",), "ask", " ", "the user is blank"),
    ],
)
def test_a_malformed_utterance_is_refused(tokens, tags, intent, user, message):
    with pytest.raises(ValueError, match=message):
        Utterance(tokens, tags, intent, user)


def test_an_intent_that_train_lacks_is_refused_by_name_and_place():
    train, test = (said("a"),), (said("b"), said("c", "new"))
    with pytest.raises(ValueError, match=r"set: .* intent 'new' \(utterance 2 of test\); add some"):
        NLUData("set", train, (), test)
    kept = NLUData("set", train, (), test, unseen_intents="keep")
    assert kept.intents == ("ask",)
    assert kept.unseen() == {"new": "utterance 2 of test"}


def test_an_intent_of_valid_alone_is_refused_too():
    with pytest.raises(ValueError, match=r"'new' \(utterance 1 of valid\)"):
        NLUData("set", (said("a"),), (said("c", "new"),), (said("b"),))


def test_unknown_answer_to_unseen_intents_is_refused():
    with pytest.raises(ValueError, match="unseen_intents must be refuse or keep, got 'drop'"):
        NLUData("set", (said("a"),), (), (said("b"),), unseen_intents="drop")


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_part_without_utterances_is_refused(part):
    parts = {"train": (said("a"),), "valid": (), "test": (said("b"),)} | {part: ()}
    with pytest.raises(ValueError, match=f"set has no utterance in {part}"):
        NLUData("set", **parts)


@pytest.mark.parametrize("parts", [("train", "test"), ("train", "valid"), ("valid", "test")])
def test_a_user_in_two_parts_is_refused(parts):
    one, other = parts
    every = {part: (said(part, user=part),) for part in ("train", "valid", "test")}
    every |= {part: (said(part, user="eve"),) for part in parts}
    with pytest.raises(ValueError, match=f"user 'eve' is in {one} and in {other}"):
        NLUData("set", **every)


def test_what_a_model_can_answer_comes_from_train_alone():
    train = (
        Utterance(("to", "rome"), ("O", "B-to"), "fly"),
        Utterance(("new", "york"), ("B-city", "I-city"), "ask"),
    )
    test = (Utterance(("now",), ("B-date",), "fly"),)
    data = NLUData("set", train, (), test)
    assert data.intents == ("ask", "fly")
    assert data.slot_types == ("city", "to")
    assert data.tags == ("O", "B-city", "I-city", "B-to", "I-to")
    assert not data.has_users


def test_fingerprint_tells_sets_apart_and_identity_says_nothing_of_the_text():
    data = NLUData("set", (said("a"), said("b")), (said("c"),), (said("d"),))
    others = [
        NLUData("set", (said("b"), said("a")), (said("c"),), (said("d"),)),
        NLUData("set", (said("a"), said("b"), said("c")), (), (said("d"),)),
        NLUData("set", (said("a"), said("b")), (said("c"),), (said("d", user="u"),)),
        NLUData("set", (said("a"), said("b")), (said("c"),), (said("e"),)),
    ]
    assert len({one.fingerprint for one in [data, *others]}) == 5
    assert {one.identity for one in [data, *others]} == {data.identity}
    again = NLUData("other", data.train, data.valid, data.test)
    assert again.fingerprint == data.fingerprint
    assert again.identity != data.identity
