"""`tacit papers tokenizers`: runs and tokenizers on the same words, and the picture of Figure 4."""

from __future__ import annotations

import json
import shutil

import pytest

from tacit.privacy.claims import PROJECTED
from tacit.runs.run import Run
from tacit.runs.stored_model import StoredModel
from tacit.tokenizers import build, provenance
from tacit.tokenizers.history import LearntTokenizer
from tacit_papers.bagdasaryan2022.command import projection
from tacit_papers.bagdasaryan2022.rows import row_of, whole_texts, words_of
from tests.runs.small import WORDS

WORDS_TO_MEASURE = ["--words", 60]


@pytest.fixture
def tacit(command):
    return command("papers tokenizers")


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A tokenizer's folder, with the words that it was learnt from."""
    made = build.learn("bpe", [" ".join(WORDS)] * 3, 270, provenance=provenance.public("words"))
    folder = tmp_path_factory.mktemp("bare") / "bare"
    return LearntTokenizer(made, dict.fromkeys(WORDS, 3.0)).save(folder)


def test_rows_are_those_of_the_models_on_the_same_texts_of_test_users(tacit, private_run, bare):
    found = tacit.json(private_run, f"{private_run}@2", bare, *WORDS_TO_MEASURE)
    last, second, tokenizer = found["rows"]
    assert [row["name"] for row in found["rows"]] == ["private", "private@2", "bare"]
    users = Run.open(private_run).corpus().test
    texts, reference = whole_texts(users, 60), words_of(users)
    for row, round in ((last, 6), (second, 2)):
        expected = row_of(StoredModel.open(private_run, round), texts, reference=reference)
        for name in ("oov", "tokens_per_word", "kld", "word_accuracy", "perplexity_per_word"):
            assert row[name] == getattr(expected, name)
        assert (row["round"], row["words"]) == (round, expected.words)
        assert row["epsilon"] == Run.open(private_run).guarantee().epsilon["pld"]
    assert last["perplexity_per_word"] != second["perplexity_per_word"]
    assert tokenizer["kind"] == "bpe"
    assert tokenizer["words"] == last["words"] >= 60
    assert tokenizer["tokens_per_word"] > last["tokens_per_word"] == 1
    assert tokenizer["kld"] > 0
    nothing = ("word_accuracy", "perplexity_per_word", "epsilon", "delta")
    assert all(tokenizer[name] is None for name in nothing)
    assert (found["gap_closed"], last["projected_epsilon"]) == (None, None)


def test_the_table_says_what_its_figures_mean(tacit, private_run, bare, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    code, out, err = tacit(private_run, bare, *WORDS_TO_MEASURE)
    assert (code, err) == (0, "")
    [line] = [line.split() for line in out.splitlines() if line.split()[:2] == ["bare", "BPE"]]
    assert line[-3:] == ["-", "-", "-"]
    text = " ".join(out.split())
    assert "words of test users, who are in no training on their corpus" in text
    assert "KLD: from the reference's words" in text
    assert "Epsilon is user-level" in text
    assert f"private: {Run.open(private_run).guarantee().claim}" in text
    assert "bare public: words" in text
    assert "Projected" not in text


def test_markdown_is_a_table_with_the_same_notes(tacit, private_run, bare):
    code, out, _ = tacit(private_run, bare, *WORDS_TO_MEASURE, "--markdown")
    notes = tacit.json(private_run, bare, *WORDS_TO_MEASURE)["notes"]
    table, *said = out.removesuffix("\n").split("\n\n")
    assert (code, said) == (0, notes)
    assert [line.split(" | ")[0] for line in table.splitlines()] == [
        "| Tokenizer",
        "| ---",
        "| private",
        "| bare",
    ]


def test_a_projected_epsilon_stands_beside_the_actual_one_with_its_label(
    tacit, private_run, plain_run
):
    words = ["--projected", "cohort=5000,population=1e6", *WORDS_TO_MEASURE]
    found = tacit.json(private_run, plain_run, *words)
    private, plain = found["rows"]
    assert private["projected_epsilon"] < private["epsilon"]
    assert private["projected_delta"] == pytest.approx(1e6**-1.1)
    assert PROJECTED in private["projected_claim"]
    assert (plain["epsilon"], plain["projected_epsilon"]) == (None, None)
    assert f"Projected epsilon: {PROJECTED}." in found["notes"]
    assert any(note.startswith("Nothing is projected for plain: ") for note in found["notes"])


def test_no_claim_is_made_about_people_who_do_not_exist(tacit, synthetic_run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    [row] = tacit.json(synthetic_run, *WORDS_TO_MEASURE)["rows"]
    assert row["synthetic_users"] is True
    assert "no claim" in tacit.says(synthetic_run, *WORDS_TO_MEASURE)


@pytest.mark.slow
def test_the_share_of_the_gap_that_is_closed(tacit, plain_run):
    ends = [f"{plain_run}@{round}" for round in (0, 2, 6)]
    rows = tacit.json(*ends, *WORDS_TO_MEASURE)["rows"]
    ranked = sorted(rows, key=lambda row: row["perplexity_per_word"])
    best, middle, worst = (row["name"] for row in ranked)
    found = tacit.json(*ends, *WORDS_TO_MEASURE, "--worst", worst, "--best", best)
    values = [row["perplexity_per_word"] for row in ranked]
    share = (values[2] - values[1]) / (values[2] - values[0])
    assert found["gap_closed"] == pytest.approx({worst: 0, best: 1, middle: share})
    assert any(f"from {worst} to {best}, that is closed: {middle}" in n for n in found["notes"])
    back = tacit.json(*ends, *WORDS_TO_MEASURE, "--worst", best, "--best", worst)
    assert back["gap_closed"] is None
    assert any("there is no gap to close" in note for note in back["notes"])


def test_curves_are_drawn_once_for_each_run(tacit, plain_run, simulated_run, tmp_path):
    places = [plain_run, f"{plain_run}@2", simulated_run]
    path = tmp_path / "curves.png"
    notes = tacit.json(*places, *WORDS_TO_MEASURE, "--curve", path)["notes"]
    assert path.read_bytes().startswith(b"\x89PNG")
    assert notes[-1].startswith(f"The curves of plain, simulated are in {path}")
    assert [file.name for file in tmp_path.iterdir()] == ["curves.png"]


def test_a_run_whose_metrics_have_no_words_is_measured_again(
    tacit, plain_run, tmp_path, monkeypatch
):
    from tacit_papers.bagdasaryan2022 import curves as tokenizer_plot

    drawn = []
    monkeypatch.setattr(tokenizer_plot, "draw", lambda curves, _: drawn.append(curves))
    older = tmp_path / "older"
    shutil.copytree(plain_run, older)
    rows = [json.loads(line) for line in (older / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        del row["perplexity_per_word"]
    (older / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    tacit.json(plain_run, older, *WORDS_TO_MEASURE, "--curve", tmp_path / "curves.svg")
    [curves] = drawn
    measured, again = dict(curves["plain"]), dict(curves["older"])
    assert again.keys() <= measured.keys()
    assert all(again[round] == pytest.approx(measured[round], rel=1e-6) for round in again)


def test_places_of_the_same_name_are_told_apart_by_their_paths(tacit, plain_run, bare, tmp_path):
    other = tmp_path / "plain"
    shutil.copytree(bare, other)
    rows = tacit.json(plain_run, other, *WORDS_TO_MEASURE)["rows"]
    assert [row["name"] for row in rows] == [str(plain_run), str(other)]


def test_another_corpus_can_be_measured_on(tacit, plain_run, synthetic_run, bare, small):
    file = bare / "tokenizer.json"
    [row] = tacit.json(file, "--corpus", small / "corpus", *WORDS_TO_MEASURE)["rows"]
    assert (row["name"], row["kind"]) == ("tokenizer.json", "bpe")
    rows = tacit.json(plain_run, synthetic_run, "--corpus", small / "corpus")["rows"]
    assert rows[0]["words"] == rows[1]["words"] > row["words"]


WRONG = [
    ("nowhere", "there is no run and no tokenizer at nowhere"),
    ("B", "none of the places is a run, so say on which text: add --corpus C"),
    ("B@3", "is no run, so that it has no round 3"),
    ("P@9", "there is no checkpoint of round 9"),
    ("P P", "is named twice"),
    ("P Y", "private and synthetic were trained on different corpora"),
    ("P --words 0", "--words must be at least 1"),
    ("P --json --markdown", "--json and --markdown each print everything"),
    ("P --curve curves.txt", "plot file must end in .png, .svg, .pdf"),
    ("B --corpus S --curve curves.png", "--curve draws the rounds of runs, and none"),
    ("P --worst private", "--worst and --best go together"),
    ("P B --worst private --best bare", "--best must be one of the models (private), got 'bare'"),
    ("P --worst private --best private", "must be two different ones"),
    ("P --corpus nowhere", "there is no corpus 'nowhere'"),
    ("P --projected cohort=10", "--projected needs both of cohort=5000,population=1e6"),
    ("P --projected size=10", "--projected must be such as cohort=5000,population=1e6"),
    ("P --projected cohort=1,cohort=2", "--projected must be such as"),
    (
        "P --projected cohort=20,population=10",
        "cohort must be at most the projected population of 10",
    ),
    ("P --projected cohort=0,population=10", "the projected cohort must be"),
    ("P --projected cohort=x,population=10", "'x' is not a whole number"),
    ("P --projected cohort=2,population=10,delta=1", "the projected delta must be"),
    ("P --projected cohort=2,population=10,rounds=0", "the projected rounds must be"),
    ("", "Missing argument"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=lambda value: value[:40])
def test_a_mistake_is_one_sentence(
    tacit, private_run, synthetic_run, small, bare, words, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    names = {"P": private_run, "Y": synthetic_run, "B": bare, "S": small / "corpus"}
    names |= {"B@3": f"{bare}@3", "P@9": f"{private_run}@9"}
    assert message in tacit.refused(*(names.get(word, word) for word in words.split()))
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_run_is_refused(tacit, private_run, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(private_run, damaged)
    other = build.word_level(WORDS[:5], provenance=provenance.public("words"))
    (damaged / "tokenizer.json").write_text(other.to_json())
    assert "is not the tokenizer that the run was trained with" in tacit.refused(damaged)


def test_a_projection_is_read_with_all_that_it_may_have():
    found = projection("cohort=20, population=1e3 ,delta=1e-5,rounds=7")
    assert (found.cohort, found.population, found.delta, found.rounds) == (20, 1000, 1e-5, 7)
    assert projection("cohort=2,population=10").delta is None  # as `Guarantee.projected` has it


def test_only_test_users_are_read(tacit, plain_run, monkeypatch):
    from tacit.corpus.store import Corpus

    def read(self):
        raise AssertionError("the training users' text was opened")

    monkeypatch.setattr(Corpus, "train", property(read))
    assert tacit.json(plain_run, *WORDS_TO_MEASURE)["rows"]


def test_a_corpus_without_test_users_has_nothing_to_measure_on(tacit, bare, tmp_path):
    from tacit.corpus.grouping import UserOptions
    from tacit.corpus.ingest import ingest_records

    path = tmp_path / "corpus"
    everybody = UserOptions(test_fraction=0.0, held_out_fraction=0.0)
    ingest_records([("a", ["the dog"]), ("b", ["a cat"])], path, count=2, options=everybody)
    assert "has no test users to measure on" in tacit.refused(bare, "--corpus", path)
