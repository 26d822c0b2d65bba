"""A row of the table of tokenizers: what is measured, and what is claimed."""

from collections import Counter
from dataclasses import replace

import pytest

from tacit.privacy.accountants import accountant_named
from tacit.privacy.claims import PROJECTED
from tacit.privacy.events import (
    Adjacency,
    Composition,
    FixedSizeGaussian,
    PoissonGaussian,
    PureDP,
)
from tacit.privacy.guarantee import Guarantee, ReleaseGroup
from tacit.privacy.ledger_lines import PriorCost
from tacit.privacy.projection import Projection
from tacit.runs.stored_model import StoredModel
from tacit.tokenizers import build, provenance
from tacit.tokenizers.history import LearntTokenizer
from tacit.tokenizers.normalisation import count_words
from tacit.tokenizers.public import PublicSource
from tacit.train import train
from tacit_papers.bagdasaryan2022 import fit as stats
from tacit_papers.bagdasaryan2022 import rows as tokenizer_rows
from tacit_papers.bagdasaryan2022.fit import kl_divergence
from tacit_papers.bagdasaryan2022.rows import (
    measured,
    row_of,
    row_of_tokenizer,
    whole_texts,
    words_of,
)
from tacit_papers.thakkar2020.training import projected_facts
from tests.evaluation.tiny import evaluate_words
from tests.runs.small import WORDS, experiment

PUBLIC = ["the tree and the house are red", "a big dog then eats the small tree slowly"] * 3
TO = Projection(population=1_000_000, cohort=5000, delta=1e-8)


@pytest.fixture(scope="module")
def runs(folder, tmp_path_factory):
    """Runs of two rounds: with a public BPE, a short public dictionary, and an oracle."""
    place = tmp_path_factory.mktemp("tokenizers")
    public = provenance.public("a few sentences")
    bpe = build.learn("bpe", PUBLIC, 280, provenance=public)
    LearntTokenizer(bpe, count_words(PUBLIC, "papers")).save(place / "bpe")
    build.word_level(WORDS[:9], provenance=public).save(place / "word" / "tokenizer.json")
    oracle = build.learn("bpe", PUBLIC, 290, provenance=provenance.ORACLE)
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
    there = run.guarantee().projected(Projection(5000, 1_000_000, 1e-8))
    assert row.projected_epsilon == there.value < row.epsilon
    assert row.projected_delta == 1e-8
    assert row.projected_claim == there.claim
    assert PROJECTED in row.projected_claim


def test_a_run_projected_to_itself_costs_what_it_costs(runs, texts):
    run = runs["bpe"]
    own = Projection(population=run.ledger.header.population, cohort=10)
    row = row_of(run, texts, projection=own)
    assert (row.projected_epsilon, row.projected_delta) == (row.epsilon, row.delta)


def claiming(monkeypatch, run, *, parts=None, **header):
    """The run with other terms or releases in its ledger."""
    found = run.guarantee()
    changed = Guarantee.for_releases(
        replace(found.header, **header), found.parts if parts is None else parts
    )
    monkeypatch.setattr(type(run), "guarantee", lambda _: changed)
    return changed


def beside(*events):
    cost = PriorCost("tokenizer", "beside", part="1/2", releases=Composition.of(events))
    return {"prior_costs": (cost,)}


def rounds(*events):
    return [ReleaseGroup("round", event, 1, "fixed-denominator") for event in events]


def test_what_was_randomised_at_home_is_not_cheaper_where_there_are_more(runs, texts, monkeypatch):
    claiming(monkeypatch, runs["bpe"], accountant=None, **beside(PureDP(8.0)))
    row = row_of(runs["bpe"], texts, projection=TO)
    # A delta of 1e-8 buys a hair: log(e^8 - 1e-8 (e^8 + 1)).
    assert row.projected_epsilon == pytest.approx(8, rel=1e-6)
    assert "at epsilon 8" in row.projected_claim
    assert "the epsilon stated is the larger of the two" in row.projected_claim


def test_what_others_of_the_corpus_have_paid_is_not_projected_away(runs, texts, monkeypatch):
    """They have paid: nobody asks what their rounds would have cost elsewhere."""
    paid = PoissonGaussian(sampling_prob=0.1, noise_multiplier=0.5)
    claiming(monkeypatch, runs["bpe"], accountant="pld", **beside(paid, paid, paid))
    theirs = accountant_named("pld").epsilon(Composition.of([(paid, 3)]), 1e-8)
    row = row_of(runs["bpe"], texts, projection=TO)
    assert row.projected_epsilon == theirs


def test_a_projection_may_have_other_rounds(runs, texts, monkeypatch):
    found = claiming(monkeypatch, runs["bpe"], accountant="pld")
    longer = replace(TO, rounds=5000)
    [part] = found.projected(Projection(5000, 1_000_000, 1e-8)).parts
    expected = accountant_named("pld").epsilon(Composition.of([(part.event, 5000)]), 1e-8)
    row = row_of(runs["bpe"], texts, projection=longer)
    assert row.projected_epsilon == expected
    assert "5,000 rounds" in row.projected_claim
    assert PROJECTED in row.projected_claim


def test_other_rounds_need_rounds_that_are_all_alike(runs, texts, monkeypatch):
    one, other = (PoissonGaussian(0.1, noise) for noise in (1.0, 2.0))
    found = claiming(monkeypatch, runs["bpe"], parts=rounds(one, other))
    row = row_of(runs["bpe"], texts, projection=TO)
    assert row.projected_epsilon is not None  # each with its own noise
    assert row.projected_epsilon < row.epsilon
    longer = replace(TO, rounds=5000)
    assert row_of(runs["bpe"], texts, projection=longer).projected_epsilon is None
    with pytest.raises(ValueError, match="5,000 rounds needs rounds that are all alike"):
        found.projected(longer)
    assert "5,000 rounds needs rounds" in projected_facts(found, longer)["claim"]


def test_what_cannot_be_projected_is_not(runs, texts, monkeypatch):
    fixed = rounds(FixedSizeGaussian(100, 10, 1.0))
    found = claiming(monkeypatch, runs["bpe"], parts=fixed, adjacency=Adjacency.REPLACE)
    row = row_of(runs["bpe"], texts, projection=TO)
    assert row.epsilon is not None
    assert row.projected_epsilon is None
    facts = projected_facts(found, TO)
    assert facts["epsilon"] is None
    assert facts["claim"].startswith("Nothing is projected: a projection needs noisy rounds")


@pytest.mark.parametrize("view", ["iid", "synthetic"])
def test_synthetic_users_have_no_epsilon(runs, texts, monkeypatch, view):
    claiming(monkeypatch, runs["bpe"], view=view)
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
    expected = PublicSource("chatterbot").word_weights()
    assert row.kld == kl_divergence(count_words(texts, "papers"), expected)


def test_texts_are_measured_in_pieces_with_the_same_result(runs, texts, monkeypatch):
    model, tokenizer = runs["bpe"].model(), runs["bpe"].tokenizer
    whole = measured(model, tokenizer, texts)[1]
    monkeypatch.setattr(tokenizer_rows, "_PIECE", 7)
    told = []
    pieces = measured(model, tokenizer, texts, lambda *now: told.append(now))[1]
    assert replace(pieces, log_prob=0.0) == replace(whole, log_prob=0.0)
    assert pieces.log_prob == pytest.approx(whole.log_prob, rel=1e-12)
    assert told[0] == (7, len(texts))
    assert told[-1] == (len(texts), len(texts))
