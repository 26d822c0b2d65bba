"""A run whose model is a mean over rounds: what is released, kept, resumed and branched from."""

import numpy as np
import pytest

from tacit.federated.schedule import RateSchedule
from tacit.models.base import from_vector_, to_vector
from tacit.runs.checkpoints import Checkpoints
from tacit.runs.export import export_run
from tacit.runs.stored_model import StoredModel
from tacit.tasks.language.trainer import LanguageTrainer
from tacit.train import train
from tests.runs.small import experiment, files_of
from tests.runs.test_resume import Died, dies
from tests.runs.test_switching import SWITCH, bpe_folder, switching

__all__ = ["bpe_folder"]  # a fixture

ROUNDS = 6
EVERY_MODEL = {"every": 1, "snapshot_every": 1, "max_tokens": 200}
TAIL, EMA = {"kind": "tail", "share": 0.5}, {"kind": "ema", "decay": 0.7}


def averaged(folder, averaging, **changes):
    server = {"averaging": averaging, "optimizer": "adam", "learning_rate": 0.02}
    return experiment(folder, server=server, evaluation=EVERY_MODEL, **changes)


@pytest.fixture(scope="module")
def plain(folder):
    """The same training without a mean, whose models are the iterates."""
    return train(averaged(folder, None), folder / "plain")


@pytest.fixture(scope="module", params=[TAIL, EMA], ids=["tail", "ema"])
def run(request, folder):
    return train(averaged(folder, request.param), folder / f"averaged-{request.param['kind']}")


def iterates(plain):
    return [to_vector(plain.model(round)) for round in range(ROUNDS + 1)]


def mean_after(plain, averaging, round):
    """By the definition: weights of 1 in the tail, or of decay to the power of the age."""
    ages = {n: round - n for n in range(1, round + 1)}
    if averaging.kind == "tail":
        if round <= ROUNDS - 3:
            return iterates(plain)[round]
        weights = {n: 1.0 for n in range(ROUNDS - 3 + 1, round + 1)}
    else:
        weights = {n: averaging.decay**age for n, age in ages.items()}
    total = sum(weights.values())
    mean = sum(w * iterates(plain)[n].astype(float) for n, w in weights.items()) / total
    model = plain.model()
    from_vector_(model, mean.astype(np.float32))
    model.normalise_()
    return to_vector(model)


@pytest.mark.parametrize("round", range(ROUNDS + 1))
def test_the_model_of_a_round_is_the_mean_of_the_iterates_of_the_same_training(run, plain, round):
    averaging = run.experiment.server.averaging
    wanted = mean_after(plain, averaging, round) if round else iterates(plain)[0]
    assert to_vector(run.model(round)) == pytest.approx(wanted, abs=1e-6)
    if round == ROUNDS:
        assert not np.allclose(to_vector(run.model()), iterates(plain)[-1], atol=1e-4)


def test_training_goes_on_from_the_iterate(run, plain):
    arrays = Checkpoints(run.path / "checkpoints").read().arrays
    assert np.array_equal(arrays["averaging.iterate"], iterates(plain)[-1])
    assert run.guarantee().epsilon == plain.guarantee().epsilon


def test_vectors_of_unit_norm_are_so_in_the_mean(run):
    norms = run.model().embedding.weight.norm(dim=1)
    assert norms.detach().numpy() == pytest.approx(1, abs=1e-5)


def test_what_is_measured_and_exported_is_the_mean(run, plain, tmp_path):
    rows, others = run.metrics(), plain.metrics()
    assert rows[0] == others[0]
    assert rows[-1]["perplexity"] != others[-1]["perplexity"]
    export_run(run.path, tmp_path / "bundle", not_for_release=True)
    model = StoredModel.open(tmp_path / "bundle").model
    assert np.array_equal(to_vector(model), to_vector(run.model()))
    card = (tmp_path / "bundle" / "README.md").read_text()
    assert "| averaging | m" in card


@pytest.mark.parametrize("call", [2, 5])
def test_a_run_that_dies_goes_on_with_the_same_bits(run, call, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        dies(patch, LanguageTrainer, "run", call=call, after=True)
        with pytest.raises(Died):
            train(run.experiment, tmp_path / "run")
    train(None, tmp_path / "run", resume=True)
    assert files_of(tmp_path / "run") == files_of(run.path)


def test_a_branch_starts_from_the_mean_and_averages_anew(run, tmp_path):
    branch = train(
        run.experiment.changed(rounds=8), tmp_path / "branch", branch_from=(run.path, ROUNDS)
    )
    assert np.array_equal(to_vector(branch.model(ROUNDS)), to_vector(run.model()))
    first, last = (
        Checkpoints(branch.path / "checkpoints").read(round).arrays for round in (ROUNDS, 8)
    )
    assert first.keys() == {"mean", "square", "step"}
    assert last["averaging.count"].tolist() == [2]


def test_a_switch_of_tokenizers_goes_on_from_the_mean_and_averages_anew(bpe_folder, tmp_path):
    server = {"averaging": EMA}
    run = train(switching(bpe_folder, 3, 2, switch=SWITCH, server=server), tmp_path / "run")
    arrays = Checkpoints(run.path / "checkpoints").read().arrays
    assert arrays["averaging.count"].tolist() == [2]
    assert len(arrays["averaging.mean"]) == len(to_vector(run.model()))


def test_a_switch_to_the_same_tokenizer_goes_on_from_the_mean(bpe_folder, tmp_path):
    server, same = {"averaging": EMA}, {"source": str(bpe_folder / "tokenizer.json")}
    changes = {"server": server, "evaluation": EVERY_MODEL}
    run = train(switching(bpe_folder, 2, 1, switch=same, **changes), tmp_path / "run")
    before, after = (row for row in run.metrics() if row["round"] == 2)
    assert before["perplexity"] == after["perplexity"]
    assert after["switched"]


def test_a_schedule_is_applied_by_the_number_of_the_round(folder, tmp_path, monkeypatch):
    settings = {"kind": "cosine", "warmup_rounds": 2, "final_share": 0.1}
    one = experiment(folder, server={"optimizer": "sgd", "schedule": settings})
    asked = []

    def share(self, round, rounds, original=RateSchedule.share):
        asked.append((round, rounds))
        return original(self, round, rounds)

    monkeypatch.setattr(RateSchedule, "share", share)
    with monkeypatch.context() as patch:
        dies(patch, LanguageTrainer, "run", call=4, after=True)
        with pytest.raises(Died):
            train(one, tmp_path / "run")
    train(None, tmp_path / "run", resume=True)
    assert asked == [(n, ROUNDS) for n in (0, 1, 2, 3, 3, 4, 5)]
    train(one, tmp_path / "whole")
    assert files_of(tmp_path / "run") == files_of(tmp_path / "whole")


def test_the_first_round_moves_by_its_share_of_the_rate(folder, tmp_path):
    one = experiment(folder, rounds=2, server={"optimizer": "sgd"}, evaluation=EVERY_MODEL)
    half = one.changed(server={"schedule": {"kind": "linear", "warmup_rounds": 1}})
    options = {"embedding_size": 6, "cells": 8, "unit_norm": False}
    start, full, slow = (
        to_vector(train(each.changed(model={"options": options}), tmp_path / name).model(round))
        for name, each, round in (("a", one, 0), ("b", one, 1), ("c", half, 1))
    )
    assert slow - start == pytest.approx((full - start) / 2, abs=1e-6)


def test_a_warm_up_that_never_ends_is_refused(folder):
    with pytest.raises(ValueError, match="warmup_rounds must be below rounds, which is 6, got 6"):
        experiment(folder, server={"schedule": {"warmup_rounds": 6}})
