"""Texts cut into sentences: nothing is lost, and each is a record of its own."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.corpus.grouping import UserOptions
from tacit.corpus.ingest import ingest
from tacit.corpus.sentences import sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two?  Three!", ["One.", "Two?", "Three!"]),
        ("no end", ["no end"]),
        ('"Did he?" Yes... (He did.) So', ['"Did he?"', "Yes...", "(He did.)", "So"]),
        ("Mr. J. Doe paid 3.50 to Dr. Roe. So", ["Mr. J. Doe paid 3.50 to Dr. Roe.", "So"]),
        ("a line\n\nanother line\n", ["a line", "another line"]),
        ("\u4f60\u597d\u3002\u518d\u89c1\u3002", ["\u4f60\u597d\u3002", "\u518d\u89c1\u3002"]),
        ("www.example.com is up.", ["www.example.com is up."]),
        (" \n ", []),
    ],
)
def test_a_sentence_ends_where_a_reader_would_say(text, expected):
    assert sentences(text) == expected


@given(st.text("ab. !?\n\"'\u3002", max_size=60))
def test_nothing_is_lost_but_blanks_and_nothing_is_empty(text):
    found = sentences(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(piece and piece == piece.strip() for piece in found)
    assert [again for piece in found for again in sentences(piece)] == found


@given(st.text("ab. !?\n", max_size=40), st.text("ab. !?\n", max_size=40))
def test_a_text_is_cut_by_itself(one, other):
    assert sentences(f"{one}\n{other}") == sentences(one) + sentences(other)


def test_caps_count_sentences(tmp_path):
    said = {"ann": ["One. Two. Three. Four.", "Five."], "bob": ["All in one"]}
    rows = [json.dumps({"user": user, "texts": texts}) for user, texts in said.items()]
    (tmp_path / "in.jsonl").write_text("\n".join(rows))
    options = UserOptions(test_fraction=0, held_out_fraction=0, min_texts=2, max_texts=3)
    whole = ingest(tmp_path / "in.jsonl", tmp_path / "whole", options=options)
    assert [whole.texts(user) for user in range(len(whole))] == [said["ann"]]
    options = UserOptions(
        test_fraction=0, held_out_fraction=0, min_texts=2, max_texts=3, sentences=True
    )
    cut = ingest(tmp_path / "in.jsonl", tmp_path / "cut", options=options)
    assert [cut.texts(user) for user in range(len(cut))] == [["One.", "Two.", "Three."]]
    assert cut.info()["options"]["sentences"] is True
