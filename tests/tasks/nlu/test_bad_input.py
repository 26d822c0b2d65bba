"""Every mistake in a file is one sentence with the file, the line and what would be right."""

import gzip

import pytest

from tacit.tasks.nlu.readers import _folder_utterances, _rows, load_nlu
from tests.tasks.nlu.writing import ROWS, comma_separated, json_lines, write, write_folder

# What an utterance may have wrong, with the second line of a file being the wrong one.
WRONG_ROWS = {
    "counts": (("one two", "O", "ask"), "2 tokens and 1 tags: give each token one tag"),
    "orphan": (("one two", "O I-x", "ask"), "'I-x' of token 2 continues no slot: put B-x or I-x"),
    "other type": (("one two", "B-y I-x", "ask"), "'I-x' of token 2 continues no slot"),
    "no tag": (("one", "X", "ask"), "'X' is not a tag: write O, B-type or I-type"),
    "empty": (("", "", "ask"), "the utterance is empty: give at least one token"),
    "no intent": (("one", "O", ""), "the intent '' must be a name"),
}


def refused(sentence: str, function, *arguments, **options) -> None:
    with pytest.raises(ValueError) as problem:  # noqa: PT011 (the text is checked below)
        for _ in function(*arguments, **options):
            pass
    text = str(problem.value)
    assert sentence in text
    assert "\n" not in text


@pytest.mark.parametrize("case", list(WRONG_ROWS))
def test_a_wrong_utterance_is_named_by_file_and_line(tmp_path, case):
    row, sentence = WRONG_ROWS[case]
    rows = [ROWS[0], row, ROWS[2]]
    folder = write_folder(tmp_path / "set", rows)
    refused(f"line 2 of '{folder / 'seq.in'}': ", _folder_utterances, folder)
    refused(sentence, _folder_utterances, folder)
    lines = write(tmp_path / "set.jsonl", json_lines(rows))
    refused(f"line 2 of '{lines}': ", _rows, lines)
    refused(sentence, _rows, lines)
    table = write(tmp_path / "set.csv", comma_separated(rows))
    refused(f"line 3 of '{table}': ", _rows, table)  # the first line is the header
    refused(sentence, _rows, table)


@pytest.mark.parametrize("name", ["seq.in", "seq.out", "label"])
def test_a_missing_file_of_the_three_is_named(tmp_path, name):
    write_folder(tmp_path)
    (tmp_path / name).unlink()
    refused(f"'{tmp_path}' has no {name} (nor {name}.gz): give", _folder_utterances, tmp_path)


@pytest.mark.parametrize("name", ["seq.in", "seq.out", "label", "user"])
def test_the_shortest_of_files_of_different_lengths_is_named(tmp_path, name):
    write_folder(tmp_path, users="abc")
    path = tmp_path / name
    write(path, "".join(path.read_text().splitlines(keepends=True)[:1]))
    refused(f"'{path}' has no line 2, which another file of", _folder_utterances, tmp_path)


def at(folder):
    return _folder_utterances, folder


@pytest.mark.parametrize("name", ["seq.in", "seq.out", "label"])
def test_the_file_that_is_not_utf8_is_blamed(tmp_path, name):
    write_folder(tmp_path)
    good = (tmp_path / name).read_bytes().splitlines(keepends=True)
    write(tmp_path / name, good[0] + b"caf\xe9\n" + good[2])
    refused(f"line 2 of '{tmp_path / name}' is not UTF-8: byte 0xe9", *at(tmp_path))


@pytest.mark.parametrize("name", ["seq.in.gz", "seq.out.gz", "label.gz"])
def test_the_file_whose_gzip_is_cut_is_blamed(tmp_path, name):
    write_folder(tmp_path, [(f"w{i * 7919}", "O", f"ask{i * i}") for i in range(5000)], ".gz")
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    refused(f"'{tmp_path / name}' is cut short: its gzip data does not decompress", *at(tmp_path))


@pytest.mark.parametrize(
    ("write_rows", "suffix"), [(json_lines, "jsonl"), (comma_separated, "csv")]
)
def test_damaged_single_files_are_refused(tmp_path, write_rows, suffix):
    text = write_rows([(f"w{i * 7919}", "O", "ask") for i in range(5000)])
    path = tmp_path / f"set.{suffix}.gz"
    path.write_bytes(gzip.compress(text.encode())[:-3000])
    refused(f"'{path}' is cut short", _rows, path)
    path.write_bytes(b"no gzip at all")
    refused("is not gzip data, though its name says so", _rows, path)
    latin = write(tmp_path / f"latin.{suffix}", write_rows().encode() + b"\xe9\n")
    refused(f"of '{latin}' is not UTF-8", _rows, latin)
    empty = write(tmp_path / f"empty.{suffix}", "")
    refused(f"'{empty}' is empty", _rows, empty)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "line 4 of {path}: the line is blank: write an utterance"),
        ("{", "line 4 of {path}: not JSON text"),
        ('["a"]', "line 4 of {path}: no object: write"),
        ('{"tokens": ["a"], "tags": ["O"]}', "line 4 of {path}: there is no column 'intent'"),
        ('{"tokens": "a", "tags": ["O"], "intent": "x"}', '"tokens" must be a list of strings'),
        ('{"tokens": ["a"], "tags": [0], "intent": "x"}', '"tags" must be a list of strings'),
        ('{"tokens": ["a"], "tags": ["O"], "intent": 3}', '"intent" must be a string, got 3'),
        ('{"tokens": ["a b"], "tags": ["O"], "intent": "x"}', "the token 'a b' is blank or has"),
        ('{"tokens": ["\\ud800"], "tags": ["O"], "intent": "x"}', "of {path}: not JSON text"),
        (
            '{"tokens": ["a"], "tags": ["O"], "intent": "x", "users": 1}',
            "line 4 of {path}: the column 'users' is unknown: the columns are tokens, tags, intent",
        ),
        (
            '{"tokens": ["a"], "tags": ["O"], "intent": "x", "user": "u"}',
            "line 4 of {path}: there is a user, unlike in the lines before: give all utterances",
        ),
        (
            '{"tokens": ["a"], "tags": ["O"], "intent": "x", "fold": 1.5}',
            '"fold" must be a name or a whole number, got 1.5',
        ),
    ],
)  # fmt: skip
def test_a_wrong_line_of_json_is_refused(tmp_path, line, sentence):
    path = write(tmp_path / "set.jsonl", json_lines() + line + "\n")
    refused(sentence.replace("{path}", f"'{path}'"), _rows, path)


def test_a_line_without_the_user_that_others_have_is_refused(tmp_path):
    path = write(tmp_path / "set.jsonl", json_lines(user=["a", None, "a"]))
    refused(f"line 2 of '{path}': there is no user, unlike", _rows, path)
    table = write(tmp_path / "set.csv", comma_separated(user=["a", " ", "a"]))
    refused(f"line 3 of '{table}': \"user\" must be a name", _rows, table)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tokens,tags\na,O\n", "line 1 of {path}: there is no column 'intent': the"),
        ("tokens,tags,intent,usr\na,O,x,u\n", "line 1 of {path}: the column 'usr' is unknown"),
        ("tokens,tags,intent,tags\na,O,x,O\n", "line 1 of {path}: a column is named twice"),
        ("tokens,tags,intent\na,O\n", "line 2 of {path}: there are 2 fields: give 3, as in"),
        ("tokens,tags,intent\na,O,x\n\n", "line 3 of {path}: there are 0 fields: give 3"),
        ('tokens,tags,intent\n"a"b,O,x\n', "line 2 of {path}: not CSV"),
        ('tokens,tags,intent\n"a,O,x\n', "of {path}: not CSV"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path, text, sentence):
    path = write(tmp_path / "set.csv", text)
    refused(sentence.replace("{path}", f"'{path}'"), _rows, path)


def test_a_user_column_that_is_not_there_is_refused(tmp_path):
    lines = write(tmp_path / "set.jsonl", json_lines())
    refused(f"line 1 of '{lines}': there is no column 'who'", _rows, lines, "who")
    table = write(tmp_path / "set.csv", comma_separated())
    refused(f"line 1 of '{table}': there is no column 'who'", _rows, table, "who")


def test_a_line_with_a_fold_among_lines_without_is_refused(tmp_path):
    path = write(tmp_path / "set.jsonl", json_lines(fold=[None, 2, None]))
    with pytest.raises(ValueError, match=r"utterance 2 of .* has a fold, unlike those before"):
        load_nlu(path)


def test_a_table_without_utterances_is_refused(tmp_path):
    path = write(tmp_path / "set.csv", "tokens,tags,intent\n")
    with pytest.raises(ValueError, match=r"set.csv' has no utterance: give one in each line"):
        load_nlu(path)
