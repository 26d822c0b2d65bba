"""A row of the table of tokenizers: what is measured, and what is claimed."""

from collections import Counter

import pytest

from tacit.debts import Debt
from tacit.evaluation.held_out import whole_texts
from tacit.evaluation.words import evaluate_words
from tacit.experiments import tokenizer_rows
from tacit.experiments.grid import Projection
from tacit.experiments.projected import has_one_kind_of_round, projected
from tacit.experiments.tokenizer_rows import measured, row_of, row_of_tokenizer, words_of
from tacit.privacy.accountants import accountant_named
from tacit.privacy.claims import PROJECTED
from tacit.privacy.events import (
    Composition,
    FixedSizeGaussian,
    PoissonGaussian,
    PostProcessing,
    PureDP,
)
from tacit.privacy.ledger import Header, Ledger
from tacit.stored_model import StoredModel
from tacit.tokenizers import build, provenance, stats
from tacit.tokenizers.divergence import kl_divergence
from tacit.tokenizers.folder import LearntTokenizer
from tacit.tokenizers.normalisation import count_words
from tacit.tokenizers.public import public_texts
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
    assert row.epsilon is None
    assert "No differential privacy" in row.claim


def test_a_model_in_a_folder_has_figures_and_no_claim(runs, texts):
    run = runs["bpe"]
    stored = StoredModel(run.path, run.model(), run.tokenizer, ())
    row = row_of(stored, texts, name="bundle", projection=TO)
    assert row.perplexity_per_word == row_of(run, texts).perplexity_per_word
    assert (row.epsilon, row.delta, row.kld, row.claim) == (None, None, None, "")


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
    monkeypatch.setattr(tokenizer_rows, "debt_to", lambda *_: Debt(**debt))


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
    monkeypatch.setattr(tokenizer_rows, "has_synthetic_users", lambda _: True)
    row = row_of(runs["bpe"], texts, projection=TO)
    assert row.synthetic_users
    assert row.projected_epsilon is None


def test_a_model_needs_its_own_tokenizer_and_words_to_predict(runs):
    bpe, word = runs["bpe"], runs["word"]
    with pytest.raises(ValueError, match="a vocabulary of 280 tokens and the tokenizer one of 12"):
        measured(bpe.model(), word.tokenizer, ["the dog"])
    for nothing in ([], ["", " "]):
        with pytest.raises(ValueError, match="no words to measure on"):
            measured(bpe.model(), bpe.tokenizer, nothing)


def test_a_tokenizer_without_a_model_has_its_own_figures_only(runs, texts):
    learnt = LearntTokenizer(runs["bpe"].tokenizer, count_words(PUBLIC, "papers"))
    row, with_model = row_of_tokenizer(learnt, texts, name="bare"), row_of(runs["bpe"], texts)
    same = ("kind", "data", "oov", "tokens_per_word", "kld", "words")
    assert all(getattr(row, name) == getattr(with_model, name) for name in same)
    assert (row.name, row.has_model, with_model.has_model) == ("bare", False, True)
    assert (row.word_accuracy, row.perplexity_per_word, row.epsilon, row.delta) == (None,) * 4
    with pytest.raises(ValueError, match="no words to measure on"):
        row_of_tokenizer(learnt, [" "], name="bare")


def test_the_words_of_public_text_that_comes_with_tacit_are_known(texts):
    learnt = LearntTokenizer(
        build.word_level(WORDS, provenance=provenance.public("chatterbot")), None
    )
    row = row_of_tokenizer(learnt, texts, name="public")
    expected = count_words(public_texts("chatterbot"), "papers")
    assert row.kld == kl_divergence(count_words(texts, "papers"), expected)


def test_texts_are_measured_in_pieces_with_the_same_result(runs, texts, monkeypatch):
    model, tokenizer = runs["bpe"].model(), runs["bpe"].tokenizer
    whole = measured(model, tokenizer, texts).words
    monkeypatch.setattr(tokenizer_rows, "_PIECE", 7)
    told = []
    pieces = measured(model, tokenizer, texts, lambda *now: told.append(now)).words
    assert (pieces.words, pieces.right, pieces.tokens) == (whole.words, whole.right, whole.tokens)
    assert pieces.log_prob == pytest.approx(whole.log_prob, rel=1e-12)
    assert told[0] == (7, len(texts))
    assert told[-1] == (len(texts), len(texts))


def test_costs_of_more_than_one_plan_are_not_projected(runs, texts, monkeypatch):
    """`projected` takes the first phase's noise for all rounds; a later phase may have less."""
    assert row_of(runs["bpe"], texts, projection=TO).projected_epsilon is not None
    monkeypatch.setattr(tokenizer_rows, "has_one_kind_of_round", lambda _: False)
    assert row_of(runs["bpe"], texts, projection=TO).projected_epsilon is None


def test_rounds_are_of_one_kind_only_if_all_of_them_cost_the_same(tmp_path):
    one, other = (PoissonGaussian(0.1, noise) for noise in (1.0, 2.0))
    free = PostProcessing("another tokenizer")
    assert has_one_kind_of_round(ledger_of(tmp_path / "same", one, free, one))
    assert not has_one_kind_of_round(ledger_of(tmp_path / "two", one, other))
    assert not has_one_kind_of_round(ledger_of(tmp_path / "none", free))
