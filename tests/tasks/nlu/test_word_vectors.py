"""FastText's text format: what is asked for is found, and every mistake has its line."""

import gzip

import numpy as np
import pytest

from tacit.tasks.nlu.word_vectors import read_word_vectors

TEXT = "4 2\nthe 0.5 -1\nParis 1 2 \nparis 3e-1 4\nPARIS 9 9\n"


@pytest.fixture(params=["plain", "gzip"])
def write(request, tmp_path):
    def written(text):
        data = text if isinstance(text, bytes) else text.encode()
        path = tmp_path / "words.vec"
        path.write_bytes(gzip.compress(data) if request.param == "gzip" else data)
        return path

    return written


def test_each_word_gets_its_own_vector_and_others_none(write):
    vectors = read_word_vectors(write(TEXT), ["of", "paris", "the"], 2)
    assert {vector.dtype for vector in vectors.values()} == {np.dtype(np.float32)}
    assert sorted(vectors) == ["paris", "the"]
    np.testing.assert_array_equal(vectors["paris"], np.float32([0.3, 4]))
    np.testing.assert_array_equal(vectors["the"], np.float32([0.5, -1]))


def test_a_word_that_only_stands_there_with_capitals_gets_the_first_of_those(write):
    vectors = read_word_vectors(write("3 1\nParis 1\nPARIS 2\nparIs 3\n"), ["paris"], 1)
    assert vectors == {"paris": [1.0]}


def test_capitals_that_are_asked_for_are_not_lowered(write):
    vectors = read_word_vectors(write("2 1\nparis 1\nParis 2\n"), ["Paris", "PARIS"], 1)
    assert vectors == {"Paris": [2.0]}


def test_words_outside_of_ascii_are_found(write):
    vectors = read_word_vectors(write("2 1\ncafé 1\nx\N{NO-BREAK SPACE}y 2\n"), ["café"], 1)
    assert list(vectors) == ["café"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "words.vec' is empty"),
        ("the 0.5 1\n", "line 1 of .*words.vec': expected how many words .* got 'the 0.5 1'"),
        ("4\nthe 1 2\n", "line 1 of .*words.vec': expected how many words"),
        (
            "1 3\nthe 1 2 3\n",
            "line 1 of .*words.vec': its vectors have 3 numbers, and the model's words have 2",
        ),
        ("1 2\nthe 1\n", "line 2 of .*words.vec': expected a word and 2 numbers"),
        (
            "2 2\na 1 2\nthe 1 2 3\n",
            "line 3 of .*words.vec': expected a word and 2 numbers .* got 'the 1 2 3'",
        ),
        ("1 2\n\n", "line 2 of .*words.vec': expected a word and 2 numbers"),
        ("1 2\n 1 2\n", "line 2 of .*words.vec': expected a word and 2 numbers"),
        (
            "1 2\nthe 1 two\n",
            "line 2 of .*words.vec': the vector of 'the' has something in it that is no number",
        ),
        ("1 2\nthe 1 nan\n", "line 2 of .*words.vec': the vector of 'the' is not finite"),
        ("1 2\nthe 1 1e99\n", "line 2 of .*words.vec': the vector of 'the' is not finite"),
        ("3 2\nthe 1 2\na 1 2\n", "words.vec' ends after 2 words, .* says 3"),
        ("1 2\nthe 1 2\na 1 2\n", "words.vec' ends after 2 words, .* says 1"),
        (b"1 2\nth\xff 1 2\n", "line 2 of .*words.vec' is not UTF-8"),
    ],
)
def test_a_mistake_is_one_sentence_with_file_and_line(write, text, message):
    with pytest.raises(ValueError, match=message):
        read_word_vectors(write(text), ["the"], 2)


def test_a_gzip_file_that_is_cut_off_is_refused(tmp_path):
    path = tmp_path / "words.vec.gz"
    lines = "".join(f"w{n} {n} {n * n % 97}\n" for n in range(5000))
    path.write_bytes(gzip.compress(f"5000 2\n{lines}".encode())[:-3000])
    with pytest.raises(ValueError, match=r"words\.vec\.gz' is cut short"):
        read_word_vectors(path, ["w1"], 2)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*none\.vec': No such file"):
        read_word_vectors(tmp_path / "none.vec", ["the"], 2)
