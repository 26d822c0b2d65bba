"""Files as they are written elsewhere: delimiters, encodings, and dates that are not ISO."""

from __future__ import annotations

import pytest

from tacit.corpus.grouping import UserOptions
from tacit.corpus.ingest import ingest
from tests.corpus.test_bad_input import put, refused

ALL = UserOptions(test_fraction=0, held_out_fraction=0)


def texts_of(tmp_path, inputs, **options):
    """The texts of all users, in the order of a corpus made of the inputs."""
    corpus = ingest(inputs, tmp_path / "out", options=ALL, new_people=True, **options)
    return [corpus.train.texts(user) for user in range(len(corpus.train))]


@pytest.mark.parametrize(("delimiter", "character"), [(";", ";"), ("tab", "\t"), ("\\t", "\t")])
def test_a_delimiter_divides_the_fields(tmp_path, delimiter, character):
    rows = f"user{character}text\nann{character}one, two\n"
    assert texts_of(tmp_path, put(tmp_path, "in.csv", rows), delimiter=delimiter) == [["one, two"]]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-le", "UTF8"])
def test_an_encoding_is_read(tmp_path, encoding):
    file = put(tmp_path, "in.csv", "user,text\nann,süß\n".encode(encoding))
    assert texts_of(tmp_path, file, encoding=encoding) == [["süß"]]


def test_dates_of_another_form_are_sorted_by_time(tmp_path):
    rows = (
        "user,text,when\nann,c,01.02.2024 09:00\nann,a,31.12.2022 23:59\nann,b,02.01.2023 10:00\n"
    )
    file = put(tmp_path, "in.csv", rows)
    options = {"order_column": "when", "order_format": "%d.%m.%Y %H:%M"}
    assert texts_of(tmp_path, file, **options) == [["a", "b", "c"]]


def test_zones_count(tmp_path):
    rows = "user,text,when\nann,b,2024/01/01 00:30 +0000\nann,a,2024/01/01 01:00 +0200\n"
    options = {"order_column": "when", "order_format": "%Y/%m/%d %H:%M %z"}
    assert texts_of(tmp_path, put(tmp_path, "in.csv", rows), **options) == [["a", "b"]]


@pytest.mark.parametrize(
    "values", [("2", "10"), ("2023-12-31", "2024-01-01T10:00:00Z"), ("1.5", "1e3")]
)
def test_numbers_and_iso_dates_need_no_form(tmp_path, values):
    rows = f"user,text,when\nann,b,{values[1]}\nann,a,{values[0]}\n"
    assert texts_of(tmp_path, put(tmp_path, "in.csv", rows), order_column="when") == [["a", "b"]]


def test_values_that_are_sorted_as_text_are_counted(tmp_path):
    file = put(tmp_path, "in.csv", "user,text,when\nann,b,second\nann,a,first\n")
    corpus = ingest(file, tmp_path / "out", order_column="when", new_people=True)
    assert corpus.info()["input"]["text_orders"] == 2


@pytest.mark.parametrize("date", ["03.02.2024", "3/2/24", "12-31-2023 10:00", "3. Februar 2024"])
def test_a_date_that_would_be_sorted_as_text_is_refused(tmp_path, date):
    file = put(tmp_path, "in.csv", f"user,text,when\nann,b,{date}\n")
    message = r"line 2 of '.*in.csv' has the order .* say how dates .* order_format"
    refused(tmp_path, file, message, order_column="when")


MISTAKES = [
    ({"delimiter": ";;"}, r"delimiter must be one character such as ';', or tab, got ';;'"),
    ({"delimiter": ""}, r"delimiter must be one character"),
    ({"delimiter": '"'}, r"delimiter must be one character"),
    ({"encoding": "klingon"}, r"encoding must be such as utf-8, .* got 'klingon'"),
    ({"encoding": "base64"}, r"encoding must be such as utf-8, .* got 'base64'"),
    ({"encoding": "ascii"}, r"in.csv' is not ascii after line \d"),
    ({"order_format": "%d.%m.%Y"}, r"name that column as well"),
    ({"order_column": "when", "order_format": "dd.mm.yyyy"}, r"such as '%d.%m.%Y %H:%M', got 'dd"),
    ({"order_column": "when", "order_format": "%q"}, r"order_format must be such as"),
    ({"order_column": "when", "order_format": "%Y"}, r"line 2 .* order '1.1.20', .* form '%Y'"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_every_mistake_is_one_sentence(tmp_path, options, message):
    file = put(tmp_path, "in.csv", "user,text,when\nann,süß,1.1.20\n")
    refused(tmp_path, file, message, **options)


def test_options_of_other_formats_are_refused(tmp_path):
    file = put(tmp_path, "in.jsonl", '{"user": "a", "text": "b"}\n')
    refused(tmp_path, file, r"delimiter is for CSV and TSV, and .* JSON Lines", delimiter=";")
    file = put(tmp_path, "in.parquet", b"PAR1")
    refused(tmp_path, file, r"Parquet is always UTF-8: leave it out", encoding="latin-1")


def test_text_that_is_not_utf8_is_refused_with_the_way_out(tmp_path):
    file = put(tmp_path, "in.csv", "user,text\nann,süß\n".encode("latin-1"))
    refused(tmp_path, file, r"line 2 .* is not UTF-8: .* say its encoding, such as latin-1")
