"""A process pre-trains once for all variants of a recipe that begin alike, and for no others."""

import pytest

from tacit.config.experiment import Pretraining
from tacit.models import registry
from tacit.models.base import to_vector
from tacit.tasks.language import assembly
from tacit.tokenizers import build, provenance
from tests.runs.small import WORDS

TEXTS = [" ".join(WORDS[start : start + 6]) for start in range(0, len(WORDS) - 6, 2)]


@pytest.fixture
def pretrained(tmp_path, monkeypatch):
    """Pre-trains a fresh model; the list grows with every training that really happens."""
    trainings = []
    run = assembly.pretrain
    monkeypatch.setattr(assembly, "pretrain", lambda *a, **k: (trainings.append(1), run(*a, **k)))
    monkeypatch.setattr(assembly, "_LAST_PRETRAINED", {})
    (source := tmp_path / "public.txt").write_text("\n".join(TEXTS))
    tokenizer = build.word_level(WORDS, provenance=provenance.public("a list in the tests"))

    def weights(seed=3, **choices):
        model = registry.build("cifg", tokenizer.vocab_size, seed=seed)
        choice = Pretraining(source=str(source), batch_size=4, unroll=4, **choices)
        assembly._pretrain(model, tokenizer, choice, None)
        return to_vector(model).tobytes()

    return weights, trainings


def test_the_second_variant_gets_the_same_weights_without_a_training(pretrained):
    weights, trainings = pretrained
    assert weights() == weights()
    assert len(trainings) == 1


@pytest.mark.parametrize("change", [{"seed": 4}, {"learning_rate": 1e-2}, {"epochs": 2}])
def test_another_beginning_or_another_setting_is_trained(pretrained, change):
    weights, trainings = pretrained
    assert weights() != weights(**change)
    assert len(trainings) == 2
