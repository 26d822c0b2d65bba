"""`use.py` runs a bundle's model where tacit is not installed, and answers as tacit does."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from tacit.evaluation.suggestions import Suggester
from tacit.models import registry
from tacit.models.base import LanguageModel
from tacit.privacy import durable
from tacit.runs.use_script import use_script
from tacit.tasks.nlu.encoding import Labels, PieceEncoder, WordEncoder
from tacit.tasks.nlu.models import NluModel, build
from tacit.tasks.nlu.predictions import understand
from tacit.tokenizers.build import learn
from tacit.tokenizers.tokenizer import Tokenizer
from tacit.tokenizers.wordpiece import PieceVocabulary
from tests.models.small import SIZES, save
from tests.models.small_bert import SIZES as BERT_SIZES
from tests.tasks.nlu.small_models import SIZES as CLC_SIZES
from tests.tasks.nlu.small_models import small_data

ROOT = Path(__file__).parents[2]
TEXTS = ["see you at the station", "you see the café at seven o'clock", "wake me up, see"] * 3
ASKED = ("see you ", "wake me up, ", "unheard-of SEE  ", "")
SAID = ("wake me up at seven", "Play Ça-va by NINA O’Neil!", "x", "set " * 20)

# In each folder: nothing of tacit, nor what only tacit's extras bring, can be imported.
RUNNER = """
import json, os, runpy, sys
for name in ("tacit", "tacit_papers", "transformers"):
    sys.modules[name] = None
answers = {}
for folder, texts in json.loads(sys.argv[1]).items():
    script = runpy.run_path(os.path.join(folder, "use.py"))
    answers[folder] = [script["predict"](text) for text in texts]
assert not any(name.startswith("tacit.") for name in sys.modules)
print(json.dumps(answers))
"""

LANGUAGE = {
    **{name: (name, SIZES[name], "word") for name in SIZES},
    "with bias and context": ("lstm", {"cells": 7, "output_bias": True, "context_size": 3}, "word"),
    "transformer in pieces": ("transformer-14m", SIZES["transformer-14m"], "wordpiece"),
    "two layers in bytes": ("gru", SIZES["gru"] | {"layers": 2}, "bpe"),
    "characters": ("cifg", SIZES["cifg"], "char"),
    "own": ("tests.models.own_modules:Bigram", {"scale": 0.5}, "word"),
    "own with state": ("tests.models.own_modules:Counter", {}, "word"),
}


def moved(model: torch.nn.Module) -> torch.nn.Module:
    """With all weights moved, so that none could be left out unnoticed."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for values in model.parameters():
            values.add_(torch.randn(values.shape, generator=generator), alpha=0.4)
    return model.eval()


@cache
def language_model(name: str) -> tuple[LanguageModel, Tokenizer]:
    kind, options, words = LANGUAGE[name]
    size = {"word": 17, "wordpiece": 60, "bpe": 300, "char": 30}[words]
    tokenizer = learn(words, TEXTS, size, provenance="public: made up")
    model = registry.build(kind, tokenizer.vocab_size, **options)
    return moved(model), tokenizer


@cache
def nlu_model(kind: str) -> NluModel:
    data = small_data()
    labels = Labels(data.intents, data.tags)
    words = [token for utterance in data.train for token in utterance.tokens]
    if kind == "clc":
        encoder, sizes = WordEncoder.oracle(data.train, 60), CLC_SIZES
    else:
        encoder = PieceEncoder(PieceVocabulary.learn(words, 120), longest=64)
        sizes = {name: BERT_SIZES[name] for name in ("width", "layers", "heads", "intermediate")}
    return NluModel(moved(build(kind, labels, encoder, sizes)), encoder, labels)


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> dict[str, list]:
    """What every script answers to all texts, in one process without tacit."""
    top, asked = tmp_path_factory.mktemp("bundles"), {}
    for name in LANGUAGE:
        model, tokenizer = language_model(name)
        (top / name).mkdir()
        save(model, top / name / "model.safetensors")
        tokenizer.save(top / name)
        asked[name] = ASKED
    for kind in ("clc", "bert"):
        (top / kind).mkdir()
        durable.write_whole(top / kind / "model.safetensors", nlu_model(kind).to_bytes())
        asked[kind] = SAID
    for name in asked:
        (top / name / "use.py").write_text(use_script(top / name / "model.safetensors"))
    done = subprocess.run(
        [sys.executable, "-B", "-c", RUNNER, json.dumps(asked)],
        cwd=top,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", LANGUAGE)
def test_a_language_model_answers_as_in_tacit(answers, name):
    model, tokenizer = language_model(name)
    special = [id for id in (tokenizer.bos, tokenizer.eos, tokenizer.unk) if id is not None]
    for text, said in zip(ASKED, answers[name], strict=True):
        ids = tokenizer.encode(text.rstrip())[:-1]
        with torch.no_grad():
            shares = torch.softmax(model(torch.tensor([ids]))[0][0, -1].double(), 0)
        shares[special] = 0
        best = shares.topk(3)
        assert [share for _, share in said] == pytest.approx(best.values.tolist(), rel=1e-4)
        assert [word for word, _ in said] == [tokenizer.decode([id]) for id in best.indices]


@pytest.mark.parametrize("name", ["lstm", "transformer-14m"])
def test_words_after_a_space_are_those_that_tacit_suggests(answers, name):
    suggester = Suggester(*language_model(name))
    for text, said in zip(ASKED, answers[name], strict=True):
        expected = [(one.word, pytest.approx(one.probability, rel=1e-4)) for one in
                    suggester.suggest(text)]  # fmt: skip
        assert [(word, share) for word, share in said] == expected


@pytest.mark.parametrize("kind", ["clc", "bert"])
def test_an_intent_model_answers_as_in_tacit(answers, kind):
    model = nlu_model(kind)
    for text, said in zip(SAID, answers[kind], strict=True):
        understood = understand(model, text)
        slots = [{"type": type, "words": words} for type, words in understood.slots]
        assert said == {"intent": understood.intent, "slots": slots}


def test_answers_differ_between_texts(answers):
    """So that agreement above says something."""
    for name, said in answers.items():
        assert len({json.dumps(one) for one in said}) > 1, name
    assert any(one["slots"] for one in answers["clc"])
    assert any(one["slots"] for one in answers["bert"])


def test_every_built_in_model_is_tried():
    assert {LANGUAGE[name][0] for name in LANGUAGE} >= set(registry.NAMES)


def test_scripts_are_short_and_written_as_the_house_writes(answers, tmp_path):
    for name in ("lstm", "transformer-14m", "own", "clc", "bert"):
        if name in LANGUAGE:
            save(language_model(name)[0], tmp_path / f"{name}.safetensors")
        else:
            durable.write_whole(tmp_path / f"{name}.safetensors", nlu_model(name).to_bytes())
        text = use_script(tmp_path / f"{name}.safetensors")
        (tmp_path / f"{name.replace('-', '_')}.py").write_text(text)
        assert len(text.splitlines()) <= 130, name
        assert "tacit." not in text.replace("tacit is not", "")
    rules = ["--isolated", "--line-length", "100"]
    for command in (["check", "--select", "E,F,I,W"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, *rules, "--no-cache", str(tmp_path)]
        done = subprocess.run(ruff, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "metadata", [None, {"tacit": "{"}, {"tacit": "[]"}, {"tacit": '{"model": "gpt", "config": {}}'}]
)
def test_a_file_of_another_model_is_refused(tmp_path, metadata):
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors", metadata)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        use_script(tmp_path / "model.safetensors")


def test_a_factory_cannot_smuggle_code_into_the_script(tmp_path):
    from safetensors.torch import save_file

    config = {"vocab_size": 3, "factory": "os:system\nimport evil", "options": {}}
    about = json.dumps({"model": "own", "config": config})
    save_file({"w": torch.zeros(2)}, tmp_path / "model.safetensors", {"tacit": about})
    with pytest.raises(ValueError, match=r"package\.module:factory"):
        use_script(tmp_path / "model.safetensors")
