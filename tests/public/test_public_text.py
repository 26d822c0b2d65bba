"""Public text comes from files and corpora, divided by author in a way that no author changes."""

import gzip
import json

import pytest

from tacit.public.text import read_public_text


def write_authors(path, authors: dict[str, list[str]]):
    lines = "".join(json.dumps({"user": u, "texts": t}) + "\n" for u, t in authors.items())
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines.encode(), mtime=0))
    else:
        path.write_text(lines, encoding="utf-8")
    return str(path)


def many(count: int) -> dict[str, list[str]]:
    return {f"author {i}": [f"text {i} a", f"text {i} b", "  "] for i in range(count)}


@pytest.mark.parametrize("name", ["books.jsonl", "books.jsonl.gz"])
def test_authors_are_held_out_whole(tmp_path, name):
    found = read_public_text([write_authors(tmp_path / name, many(200))])
    assert found.names == ["books"]
    assert found.authors + found.held_out_authors == 200
    assert 8 <= found.held_out_authors <= 35
    assert len(found.train) == 2 * found.authors  # without the blank texts
    assert {text.split()[1] for text in found.train}.isdisjoint(
        text.split()[1] for text in found.held_out
    )


def test_an_author_more_moves_no_other(tmp_path):
    some = read_public_text([write_authors(tmp_path / "some.jsonl", many(100))])
    more = read_public_text([write_authors(tmp_path / "more.jsonl", many(101))])
    assert set(some.train) <= set(more.train)
    assert set(some.held_out) <= set(more.held_out)


def test_of_plain_text_the_last_tenth_is_held_out(tmp_path):
    path = tmp_path / "plain.txt"
    path.write_text("".join(f"line {i}\n\n" for i in range(50)), encoding="utf-8")
    found = read_public_text([str(path)])
    assert found.train == [f"line {i}" for i in range(45)]
    assert found.held_out == [f"line {i}" for i in range(45, 50)]
    assert (found.authors, found.held_out_authors) == (0, 0)


def test_a_corpus_brings_its_own_split():
    found = read_public_text(["synthetic:users=40,words=20"])
    assert found.authors + found.held_out_authors == 40
    assert found.held_out_authors >= 1


def test_several_inputs_come_together(tmp_path):
    path = tmp_path / "plain.txt"
    path.write_text("one two\n" * 20, encoding="utf-8")
    both = read_public_text([str(path), write_authors(tmp_path / "books.jsonl", many(50))])
    assert both.names == ["plain", "books"]
    assert "one two" in both.train
    assert both.authors > 30


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"user": "a", "texts": ["b"]}\n{"user"', r"line 2 of '.*' is not JSON"),
        ('{"who": "a", "texts": ["b"]}\n', "no column whose name says that it is the user"),
        ('{"user": "", "texts": ["b"]}\n', "line 1 of .* does not say who its user is"),
        ('{"user": "a", "texts": ["b"]}\n{"texts": ["b"]}', "line 2 of .* does not say who"),
        ('{"user": true, "texts": ["b"]}\n', "line 1 of .* has a user of type bool"),
        ('["a"]\n', "line 1 of .* is JSON, but not an object"),
        ('{"user": "a", "texts": 1}\n', "has a text of type int"),
        ('{"user": "a", "texts": [1]}\n', "has a text of type int"),
        ('{"user": "a", "texts": ["b"]}\n', "there is no text to hold out"),
    ],
)
def test_bad_lines_are_named(tmp_path, content, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_public_text([str(path)])


def test_files_that_cannot_be_read_are_named(tmp_path):
    broken = tmp_path / "broken.jsonl.gz"
    broken.write_bytes(gzip.compress(b'{"user": "a", "texts": ["b"]}\n' * 1000, mtime=0)[:-20])
    with pytest.raises(ValueError, match=r"broken\.jsonl\.gz' is (cut short|damaged)"):
        read_public_text([str(broken)])
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"good\nb\xe9d\n")
    with pytest.raises(ValueError, match=r"line 2 of '.*latin\.txt' is not UTF-8"):
        read_public_text([str(latin)])
    empty = tmp_path / "empty.txt"
    empty.write_bytes(b"")
    with pytest.raises(ValueError, match=r"empty\.txt' is empty"):
        read_public_text([str(empty)])
    with pytest.raises(ValueError, match="no text: name a file"):
        read_public_text([])
    with pytest.raises(ValueError, match="nowhere"):
        read_public_text([str(tmp_path / "nowhere")])
