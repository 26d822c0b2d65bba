"""A run of which only some parameters are trained: what it clips, noises, keeps and claims."""

import numpy as np
import pytest
import torch

from tacit.models.base import to_vector, whole_vector
from tacit.privacy.ledger import Ledger
from tacit.runs.export import export_run
from tacit.runs.stored_model import StoredModel
from tacit.tasks.language.trainer import LanguageTrainer
from tacit.train import train
from tacit.verification.verifying import verify
from tests.runs.small import experiment, files_of
from tests.runs.test_resume import Died, dies
from tests.runs.test_switching import bpe_folder, switching

__all__ = ["bpe_folder"]  # a fixture

TRAINED = ("layers", "projection")
FROZEN = ("embedding.weight", "embedding.output_bias")
SIZES = {"embedding_size": 6, "cells": 8, "output_bias": True}


def partly(folder, trained=TRAINED, **changes):
    settings = {"update": {"sampled_negatives": 3}} | changes
    return experiment(folder).changed(model={"trained": trained, "options": SIZES}, **settings)


@pytest.fixture(scope="module")
def run(folder):
    return train(partly(folder), folder / "partly")


def tensors(model):
    return {name: value.detach().numpy() for name, value in model.named_parameters()}


def test_frozen_parameters_keep_every_bit_and_the_others_move(run):
    first, last = tensors(run.model(0)), tensors(run.model())
    for name in first:
        is_same = first[name].tobytes() == last[name].tobytes()
        assert is_same == (name in FROZEN), name


def test_noise_and_the_servers_state_are_of_what_is_trained(folder):
    """With an empty cohort the update is the noise and nothing else."""
    plan = {"cohort": 1e-6}
    nobody = train(partly(folder, plan=plan, rounds=1), folder / "nobody")
    first, last = nobody.model(0), nobody.model()
    count = len(to_vector(last))
    assert count == sum(run_plan_layers(nobody)) < len(whole_vector(last))
    assert np.all(to_vector(last) != to_vector(first))
    assert len(nobody.directory.checkpoints.read().arrays["velocity"]) == count
    assert np.sum(whole_vector(last) != whole_vector(first)) == count


def run_plan_layers(run):
    return run.plans()[0].layers


def test_guarantee_is_that_of_training_everything(run, folder):
    """Less noise in sum, but the same event: sensitivity and noise by coordinate are the same."""
    whole = train(partly(folder, ()), folder / "everything")
    assert run.guarantee().epsilon == whole.guarantee().epsilon
    events = [[entry.event for entry in each.ledger.entries] for each in (run, whole)]
    assert events[0] == events[1]
    noises = [np.std(to_vector(each.model()) - to_vector(each.model(0))) for each in (run, whole)]
    assert noises[0] == pytest.approx(noises[1], rel=0.3)


def test_a_run_that_died_goes_on_with_the_same_bits(run, folder, monkeypatch):
    path = folder / "partly-died"
    dies(monkeypatch, LanguageTrainer, "run", call=3, after=True)
    with pytest.raises(Died):
        train(partly(folder), path)
    monkeypatch.undo()
    train(None, path, resume=True)
    assert files_of(path) == files_of(run.path)


def test_a_bundle_has_the_whole_model_and_verifies(run, folder, tmp_path):
    export_run(run.path, tmp_path / "bundle", not_for_release=True)
    model = StoredModel.open(tmp_path / "bundle").model
    assert whole_vector(model).tobytes() == whole_vector(run.model()).tobytes()
    for path in (run.path, tmp_path / "bundle"):
        assert not verify(path).differences


def test_per_layer_clipping_has_a_norm_for_each_trained_layer(folder):
    plan = {"clipping": "per-layer", "clip_norm": None, "layer_clip_norms": [0.1] * 10}
    run = train(partly(folder, plan=plan, rounds=1), folder / "per-layer")
    assert len(run.plans()[0].layers) == 10
    assert run.plans_to_read() == run.plans()
    with pytest.raises(ValueError, match="layer"):
        train(partly(folder, plan=plan | {"layer_clip_norms": [0.1] * 12}), folder / "twelve")
    assert not (folder / "twelve").exists()


def test_canary_clients_are_looked_for_where_the_noise_is(folder):
    audited = partly(folder, audit={"canary_clients": 20}, rounds=2)
    run = train(audited, folder / "audited")
    assert tensors(run.model(0))["embedding.weight"].tobytes() == (
        tensors(run.model())["embedding.weight"].tobytes()
    )


def test_a_frozen_embedding_is_remapped_by_a_switch_and_stays_frozen(bpe_folder):
    switch = switching(bpe_folder, 2, 2, model={"trained": TRAINED})
    run = train(switch, bpe_folder / "partly-switched")
    table = run.model().embedding.weight
    assert not table.requires_grad
    assert len(table) == run.tokenizer.vocab_size != 262
    last = Ledger.read(run.path / "ledger.jsonl").entries[-1]
    assert last.round == 3
    assert torch.isfinite(table).all()


def test_a_name_of_no_parameter_is_refused_before_anything_is_written(folder):
    with pytest.raises(ValueError, match=r"model\.trained: there is no parameter 'head'"):
        train(partly(folder, ("head",)), folder / "wrong")
    assert not (folder / "wrong").exists()
