"""Tables of tokenizers: what is measured, what is claimed, how it reads, and the gap."""

import io
import json
import math
from collections import Counter
from dataclasses import replace

import pytest
from rich.console import Console

from tacit.debts import Debt
from tacit.evaluation.held_out import whole_texts
from tacit.evaluation.words import evaluate_words
from tacit.experiments import tokenizer_table
from tacit.experiments.grid import Projection
from tacit.experiments.projected import projected
from tacit.experiments.tokenizer_table import (
    HEADERS,
    Row,
    as_json,
    cells,
    gap_closed,
    markdown,
    measured,
    notes,
    row_of,
    table,
    words_of,
)
from tacit.privacy.accountants import accountant_named
from tacit.privacy.claims import PROJECTED
from tacit.privacy.events import Composition, FixedSizeGaussian, PoissonGaussian, PureDP
from tacit.privacy.ledger import Header, Ledger
from tacit.stored_model import StoredModel
from tacit.tokenizers import build, provenance, stats
from tacit.tokenizers.divergence import kl_divergence
from tacit.tokenizers.folder import LearntTokenizer
from tacit.tokenizers.normalisation import count_words
from tacit.train import train
from tests.train.small import WORDS, experiment

PUBLIC = ["the tree and the house are red", "a big dog then eats the small tree slowly"] * 3
TO = Projection(population=1_000_000, cohort=5000, delta=1e-8)


@pytest.fixture(scope="module")
def runs(folder, tmp_path_factory):
    """Runs of two rounds: with a public BPE, a short public dictionary, and an oracle."""
    place = tmp_path_factory.mktemp("tokenizers")
    public = provenance.public("a few sentences")
    bpe = build.train_bpe(PUBLIC, 280, provenance=public)
    LearntTokenizer(bpe, count_words(PUBLIC, "papers")).save(place / "bpe")
    build.word_level(WORDS[:9], provenance=public).save(place / "word" / "tokenizer.json")
    oracle = build.train_bpe(PUBLIC, 290, provenance=provenance.ORACLE)
    LearntTokenizer(oracle, {"the": 1.0}).save(place / "oracle")
    return {
        kind: train(
            experiment(
                folder,
                rounds=2,
                tokenizer={"source": str(place / kind), "accept_oracle": kind == "oracle"},
            ),
            place / f"run-{kind}",
        )
        for kind in ("bpe", "word", "oracle")
    }


@pytest.fixture(scope="module")
def texts(runs):
    return whole_texts(runs["bpe"].corpus().test, 150)


def made(name="wiki", **changes):
    row = Row(
        name=name,
        kind="bpe",
        data="Wiki",
        oov=0.0,
        tokens_per_word=1.4123,
        kld=0.78251,
        word_accuracy=0.22161,
        perplexity_per_word=1276.54,
        epsilon=None,
        delta=1e-6,
        words=1000,
    )
    return replace(row, **changes)


def text_of(row) -> dict[str, str]:
    return dict(zip(HEADERS, cells(row), strict=True))


def test_a_row_has_the_figures_of_the_model_on_the_texts(runs, texts):
    run = runs["bpe"]
    row = row_of(run, texts, data="Wiki")
    fit = stats.fit(run.tokenizer, texts)
    words = evaluate_words(run.model(), run.tokenizer, texts)
    assert (row.name, row.kind, row.data, row.round) == ("run-bpe", "bpe", "Wiki", 2)
    assert (row.oov, row.words) == (0, words.words)
    assert row.tokens_per_word == fit.tokens_per_word > 1
    assert row.word_accuracy == words.word_accuracy
    assert row.perplexity_per_word == words.perplexity_per_word
    expected = kl_divergence(count_words(texts, "papers"), count_words(PUBLIC, "papers"))
    assert row.kld == expected > 0
    found = run.guarantee()
    assert (row.epsilon, row.delta) == (found.epsilon["rdp"], 1e-3)
    assert row.claim == found.claim
    assert row.projected_epsilon is None


def test_all_tokenizers_are_measured_on_the_same_words(runs, texts):
    rows = [row_of(run, texts) for run in runs.values()]
    assert len({row.words for row in rows}) == 1
    dictionary = rows[1]
    assert dictionary.data == "public: a few sentences"
    assert dictionary.tokens_per_word == 1
    assert 0.2 < dictionary.oov < 0.8
    assert dictionary.kld is None  # it was saved without the words behind it


def test_the_divergence_can_be_given_other_words(runs, texts):
    counts, users = {"the": 5.0, "dog": 2.0}, {"dog": 9.0, "cat": 3.0}
    row = row_of(runs["word"], texts, learnt_from=counts, reference=users)
    assert row.kld == kl_divergence(users, counts)
    with pytest.raises(ValueError, match="other has no words"):
        row_of(runs["word"], texts, learnt_from={})


def test_all_words_of_test_users_can_be_the_reference(runs, texts):
    users = runs["bpe"].corpus().test
    counts = words_of(users)
    every = [text for user in range(len(users)) for text in users.texts(user)]
    assert counts == Counter(word for text in every for word in text.split())
    assert len(every) > len(texts)
    row = row_of(runs["bpe"], texts, reference=counts)
    assert row.kld == kl_divergence(counts, count_words(PUBLIC, "papers"))


def test_an_oracle_has_no_epsilon_and_none_is_projected(runs, texts):
    row = row_of(runs["oracle"], texts, projection=TO)
    assert (row.epsilon, row.delta, row.projected_epsilon) == (None, 1e-3, None)
    assert text_of(row)["Epsilon"] == "infinity"
    assert "No differential privacy" in row.claim


def test_a_model_in_a_folder_has_figures_and_no_claim(runs, texts):
    run = runs["bpe"]
    stored = StoredModel(run.path, run.model(), run.tokenizer, ())
    row = row_of(stored, texts, name="bundle", projection=TO)
    assert row.perplexity_per_word == row_of(run, texts).perplexity_per_word
    assert (row.epsilon, row.delta, row.kld, row.claim) == (None, None, None, "")
    assert text_of(row)["Epsilon"] == "unknown"


def test_an_earlier_model_is_measured_as_it_was(runs, texts):
    first = row_of(StoredModel.open(runs["bpe"].path, 0), texts)
    last = row_of(runs["bpe"], texts)
    assert (first.round, last.round) == (0, 2)
    assert first.perplexity_per_word != last.perplexity_per_word
    assert first.epsilon == last.epsilon


def test_the_projection_is_that_of_the_run(runs, texts):
    run = runs["bpe"]
    row = row_of(run, texts, projection=TO)
    there = projected(run, TO)
    assert row.projected_epsilon == there["epsilon"] < row.epsilon
    assert row.projected_delta == 1e-8
    assert PROJECTED in row.projected_claim


def ledger_of(path, *events, population=100):
    header = Header(run_id="other", unit="user", population=population, delta=1e-3)
    with Ledger.create(path, header) as ledger:
        for round, event in enumerate(events):
            ledger.append(kind="x", round=round, attempt=0, event=event, plan_hash="ab" * 32)
    return Ledger.read(path)


def with_debt(monkeypatch, **debt):
    monkeypatch.setattr(tokenizer_table, "debt_to", lambda *_: Debt(**debt))


def test_what_was_randomised_at_home_is_not_cheaper_where_there_are_more(
    runs, texts, monkeypatch, tmp_path
):
    with_debt(monkeypatch, beside=ledger_of(tmp_path / "l", PureDP(8.0)), part="1/2")
    row = row_of(runs["bpe"], texts, projection=TO)
    # A delta of 1e-8 buys a hair: log(e^8 - 1e-8 (e^8 + 1)).
    assert row.projected_epsilon == pytest.approx(8, rel=1e-6)
    assert "from have epsilon 8" in row.projected_claim
    assert "which is what the table states" in row.projected_claim


def test_rounds_on_other_users_are_projected_too(runs, texts, monkeypatch, tmp_path):
    # 10 of 100 users with noise 0.004: at 5,000 of a million the noise is 500 times as large.
    rounds = [PoissonGaussian(sampling_prob=0.1, noise_multiplier=0.004)] * 3
    with_debt(monkeypatch, beside=ledger_of(tmp_path / "l", *rounds), part="1/2")
    larger = PoissonGaussian(sampling_prob=0.005, noise_multiplier=2.0)
    pld = accountant_named("pld")
    theirs = pld.epsilon(Composition.of([(larger, 3)]), 1e-8)
    own = projected(runs["bpe"], TO)["epsilon"]
    assert theirs > own
    row = row_of(runs["bpe"], texts, projection=TO)
    assert row.projected_epsilon == pytest.approx(theirs, rel=1e-6)
    longer = row_of(runs["bpe"], texts, projection=TO.model_copy(update={"rounds": 5000}))
    theirs = pld.epsilon(Composition.of([(larger, 5000)]), 1e-8)
    assert longer.projected_epsilon == pytest.approx(theirs, rel=1e-6)


def test_what_cannot_be_projected_is_not(runs, texts, monkeypatch, tmp_path):
    fixed = ledger_of(tmp_path / "l", FixedSizeGaussian(100, 10, 1.0))
    for debt in ({"beside": fixed}, {"inherited": fixed}):
        with_debt(monkeypatch, **debt)
        row = row_of(runs["bpe"], texts, projection=TO)
        assert row.epsilon is not None
        assert row.projected_epsilon is None


def test_synthetic_users_have_no_epsilon(runs, texts, monkeypatch):
    monkeypatch.setattr(tokenizer_table, "has_synthetic_users", lambda _: True)
    row = row_of(runs["bpe"], texts, projection=TO)
    assert text_of(row)["Epsilon"] == "no claim"
    assert row.projected_epsilon is None


def test_a_model_needs_its_own_tokenizer_and_words_to_predict(runs):
    bpe, word = runs["bpe"], runs["word"]
    with pytest.raises(ValueError, match="a vocabulary of 280 tokens and the tokenizer one of 12"):
        measured(bpe.model(), word.tokenizer, ["the dog"])
    for nothing in ([], ["", " "]):
        with pytest.raises(ValueError, match="no words to measure on"):
            measured(bpe.model(), bpe.tokenizer, nothing)


def test_a_row_reads_as_in_the_paper():
    projected = {"projected_epsilon": 2.0001, "projected_delta": 1e-8}
    shown = text_of(made(epsilon=156_283.7, **projected))
    assert shown == {
        "Tokenizer": "wiki",
        "Type": "BPE",
        "Learnt from": "Wiki",
        "OOV %": "0.0",
        "Tokens per word": "1.41",
        "KLD": "0.783",
        "Word acc. %": "22.16",
        "Perp. per word": "1,276.5",
        "Epsilon": "156300 at 1e-06",
        "Projected epsilon": "2.001 at 1e-08",
    }
    shown = text_of(made(kind="word", oov=0.13, kld=None))
    assert (shown["Type"], shown["OOV %"], shown["KLD"]) == ("Word-level", "13.0", "-")
    assert (shown["Epsilon"], shown["Projected epsilon"]) == ("infinity", "-")


def test_the_perplexity_of_a_dictionary_is_marked_and_explained():
    rows = [made(), made("words", kind="word", oov=0.13)]
    assert text_of(rows[0])["Perp. per word"] == "1,276.5"
    assert text_of(rows[1])["Perp. per word"] == "1,276.5*"
    assert any(note.startswith("* Predicts UNK") for note in notes(rows))
    assert not any(note.startswith("*") for note in notes(rows[:1]))


def test_notes_say_every_claim_once_and_which_rows_do_not_compare():
    rows = [made("a", claim="Claim."), made("b", claim="Claim.", projected_claim="Other.")]
    assert notes(rows)[1:] == ["a, b: Claim.", "b: Other."]
    assert "1,000 words" in notes(rows)[0]
    rows.append(made("c", words=999, projected_epsilon=1.0, projected_delta=1e-8))
    said = notes(rows)
    assert "999 or 1,000 words" in said[0]
    assert "do not compare" in said[1]
    assert f"Projected epsilon: {PROJECTED}." in said


def test_markdown_and_terminal_have_a_line_for_each_row():
    rows = [made("a|b", data="[bold]x"), made("c")]
    lines = markdown(rows).splitlines()
    assert lines[0].count("|") == lines[1].count("|") == len(HEADERS) + 1
    assert lines[2].startswith("| a\\|b | BPE | [bold]x | 0.0 | 1.41 |")
    assert lines[3].startswith("| c | BPE | Wiki |")
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table(rows))
    text = console.export_text()
    assert "[bold]x" in text
    assert all(header in text for header in HEADERS)


def test_json_has_null_for_what_is_not_a_number(runs, texts):
    rows = [made(perplexity_per_word=math.inf), row_of(runs["bpe"], texts)]
    first, second = json.loads(json.dumps(as_json(rows), allow_nan=False))
    assert first["perplexity_per_word"] is None
    assert second["perplexity_per_word"] == rows[1].perplexity_per_word
    assert {"name", "kind", "data", "oov", "tokens_per_word", "kld", "word_accuracy"} <= set(first)
    assert {"epsilon", "delta", "projected_epsilon", "claim"} <= set(first)


def test_the_gap_is_closed_as_far_as_in_table_2():
    # StackOverflow: wiki 124.6, oracle 108.2, heavy hitters 115.9, sampled 108.7.
    paper = {"wiki": 124.6, "oracle": 108.2, "hitters": 115.9, "sampled": 108.7}
    rows = [made(name, perplexity_per_word=value) for name, value in paper.items()]
    rows.append(made("words", kind="word", oov=0.02, perplexity_per_word=50.0))
    found = gap_closed(rows, "wiki", "oracle")
    assert found == pytest.approx(
        {"wiki": 0, "oracle": 1, "hitters": 8.7 / 16.4, "sampled": 15.9 / 16.4}
    )


@pytest.mark.parametrize(
    ("worst", "best", "message"),
    [
        ("wiki", "nobody", "there is no row 'nobody' .* but 'wiki', 'same'"),
        ("words", "wiki", "there is no row 'words'"),
        ("broken", "wiki", "there is no row 'broken'"),
        ("wiki", "same", "no gap to close: 'wiki' has a perplexity per word of 1276.54"),
        ("better", "wiki", "no gap to close"),
    ],
)
def test_a_gap_needs_two_ends(worst, best, message):
    rows = [
        made(),
        made("same"),
        made("better", perplexity_per_word=9.0),
        made("broken", perplexity_per_word=math.inf),
        made("words", oov=0.1),
    ]
    with pytest.raises(ValueError, match=message):
        gap_closed(rows, worst, best)
