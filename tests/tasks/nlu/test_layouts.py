"""The same utterances from every layout, and the splits that each layout brings."""

import pytest

from tacit.tasks.nlu.data import Utterance
from tacit.tasks.nlu.readers import _folder_utterances, _rows, load_nlu
from tests.tasks.nlu.writing import ROWS, comma_separated, json_lines, write, write_folder

EXPECTED = [
    Utterance(tuple(tokens.split()), tuple(tags.split()), intent) for tokens, tags, intent in ROWS
]
MANY = [(f"say word{i}", "O B-word", "say") for i in range(60)]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_every_layout_reads_the_same_utterances(tmp_path, suffix):
    folder = write_folder(tmp_path / "set", suffix=suffix)
    lines = write(tmp_path / f"set.jsonl{suffix}", json_lines())
    table = write(tmp_path / f"set.csv{suffix}", comma_separated())
    assert list(_folder_utterances(folder)) == EXPECTED
    assert list(_rows(lines)) == [(utterance, None) for utterance in EXPECTED]
    assert list(_rows(table)) == [(utterance, None) for utterance in EXPECTED]


@pytest.mark.parametrize("end", ["\n", " \n", "\r\n", ""])
def test_blanks_and_line_ends_do_not_matter(tmp_path, end):
    for name, text in (("seq.in", "\ufeffa  b"), ("seq.out", "O\tO"), ("label", "ask ")):
        write(tmp_path / name, text + end)
    assert list(_folder_utterances(tmp_path)) == [Utterance(("a", "b"), ("O", "O"), "ask")]


def test_equal_words_and_tags_are_shared_in_memory(tmp_path):
    folder = write_folder(tmp_path, [("fly home", "O B-to", "fly")] * 2)
    one, other = _folder_utterances(folder)
    assert one.tokens[1] is other.tokens[1]
    assert one.tags is other.tags


def test_users_come_from_a_file_or_a_column(tmp_path):
    users = ["ann", "bob", "ann"]
    folder = write_folder(tmp_path / "set", users=users)
    lines = write(tmp_path / "set.jsonl", json_lines(user=users))
    table = write(tmp_path / "set.csv", comma_separated(user=users))
    assert [u.user for u in _folder_utterances(folder)] == users
    assert [u.user for u, _ in _rows(lines)] == users
    assert [u.user for u, _ in _rows(table)] == users


def test_another_column_can_be_the_user_and_may_hold_numbers(tmp_path):
    lines = write(tmp_path / "set.jsonl", json_lines(speaker=[7, 8, 7]))
    table = write(tmp_path / "set.csv", comma_separated(speaker=[7, 8, 7]))
    assert [u.user for u, _ in _rows(lines, "speaker")] == ["7", "8", "7"]
    assert [u.user for u, _ in _rows(table, "speaker")] == ["7", "8", "7"]


def test_parts_of_a_folder_are_its_usual_split(tmp_path):
    for part, rows in (("train", ROWS), ("valid", ROWS[1:2]), ("test", ROWS[:2])):
        write_folder(tmp_path / "trips" / part, rows)
    data = load_nlu(tmp_path / "trips")
    assert data.name == "trips"
    assert data.split == "the set's own"
    assert list(data.train) == EXPECTED
    assert (list(data.valid), list(data.test)) == (EXPECTED[1:2], EXPECTED[:2])


def test_papers_split_takes_all_parts_together(tmp_path):
    for part, rows in (("train", MANY[:40]), ("valid", MANY[40:50]), ("test", MANY[50:])):
        write_folder(tmp_path / "words" / part, rows)
    data = load_nlu(tmp_path / "words", split="paper")
    alone = load_nlu(write_folder(tmp_path / "flat" / "words", MANY))
    assert data.split == alone.split == "45:5:50 by digest"
    assert data.fingerprint == alone.fingerprint
    assert load_nlu(tmp_path / "words", split="paper", together=True).split.endswith("together")


def test_a_fold_column_of_part_names_is_a_split(tmp_path):
    parts = ["train", "train", "test"]
    for path in (
        write(tmp_path / "set.jsonl", json_lines(fold=parts)),
        write(tmp_path / "set.csv.gz", comma_separated(fold=parts)),
    ):
        data = load_nlu(path)
        assert data.name == "set"
        assert (list(data.train), list(data.test)) == (EXPECTED[:2], EXPECTED[2:])


def test_a_fold_column_of_numbers_is_for_cross_validation(tmp_path):
    path = write(tmp_path / "set.jsonl", json_lines(MANY, fold=[i % 10 + 1 for i in range(60)]))
    data = load_nlu(path, test_fold=10)
    assert {u.tokens[1] for u in data.test} == {f"word{i}" for i in range(9, 60, 10)}
    assert {u.tokens[1] for u in data.valid} == {f"word{i}" for i in range(0, 60, 10)}
    assert len(data.train) == 48
    assert load_nlu(path).split == "fold 1 of 10 to test, fold 2 to choose"
    assert load_nlu(path, split="paper").split == "45:5:50 by digest"


def test_generated_is_the_default_and_takes_options():
    assert load_nlu().name == "generated"
    data = load_nlu("generated:utterances=300,seed=2", split="paper")
    assert len(data.train) + len(data.valid) + len(data.test) == 300


def test_unseen_intents_are_refused_unless_they_are_to_be_kept(tmp_path):
    path = write(tmp_path / "set.jsonl", json_lines(fold=["train", "test", "train"]))
    with pytest.raises(ValueError, match=r"set: .*'ask' \(utterance 1 of test\)"):
        load_nlu(path)
    assert load_nlu(path, unseen_intents="keep").intents == ("fly",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "random"}, "split must be one of usual, paper, got 'random'"),
        ({"test_fold": 1}, "test_fold is for the usual split of a set with folds, got 1"),
        ({"together": True}, "together is for the paper's split"),
        ({"user_column": "who"}, "in a folder write a file `user`"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, options, message):
    for part in ("train", "valid", "test"):
        write_folder(tmp_path / part)
    with pytest.raises(ValueError, match=message):
        load_nlu(tmp_path, **options)


def test_what_is_no_set_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no set 'nowhere': name a folder, a file, or"):
        load_nlu("nowhere")
    with pytest.raises(ValueError, match=r"set.xml' is not a set of utterances: give a folder"):
        load_nlu(write(tmp_path / "set.xml", "<a/>"))
    write_folder(tmp_path / "train")
    with pytest.raises(ValueError, match="has no folder valid: give all of train, valid, test"):
        load_nlu(tmp_path)
