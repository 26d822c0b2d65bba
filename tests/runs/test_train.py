"""What a training does besides learning: charges, stops, branches, claims, and cleans up."""

import json
import math
import shutil
import stat
from dataclasses import replace

import numpy as np
import pytest

from tacit.corpus.builtin import load_corpus
from tacit.corpus.people_ledger import PeopleLedger
from tacit.models import weights
from tacit.privacy.events import Adjacency, NonPrivate
from tacit.runs.run import Run
from tacit.runs.session import Session
from tacit.tokenizers import build, provenance
from tacit.train import train
from tests.runs.small import WORDS, experiment, files_of, make_corpus


def test_a_private_run_learns_and_says_what_it_cost(finished):
    run, _ = finished
    summary = run.summary()
    assert summary["rounds"] == summary["charged_rounds"] == run.round == 6
    assert summary["intact"] is True
    assert 1 < summary["epsilon"]["rdp"] < 10
    assert summary["epsilon"]["pld"] < summary["epsilon"]["rdp"]
    assert "User-level" in summary["claim"]
    assert "add/remove-one adjacency" in summary["claim"]
    assert "the number of training users, which is published" in summary["claim"]
    assert {"accuracy_top1", "accuracy_top3", "accuracy_top5", "perplexity", "tokens"} <= set(
        summary
    )
    first, *_, last = run.metrics()
    assert (first["round"], last["round"]) == (0, 6)
    assert last["perplexity"] < first["perplexity"]


def test_a_seeded_run_is_marked_as_a_simulation(finished):
    run, _ = finished
    assert run.ledger.header.simulation
    assert run.guarantee().claim.startswith("Simulation, not for release")


def test_the_key_is_gone_after_a_finished_run_unless_it_is_kept(folder, finished, tmp_path):
    run, _ = finished
    assert not run.directory.key_file.exists()
    kept = train(experiment(folder, rounds=1), tmp_path / "kept", keep_key=True)
    assert kept.directory.key_file.exists()
    assert kept.directory.result()["key_kept"] is True


def test_the_private_folder_is_for_its_owner_only(finished):
    run, _ = finished
    assert stat.S_IMODE(run.directory.private.stat().st_mode) == 0o700
    assert stat.S_IMODE((run.directory.private / "releases.jsonl").stat().st_mode) == 0o600
    assert stat.S_IMODE(run.directory.diagnostics_file.stat().st_mode) == 0o600


def test_nothing_public_tells_the_realised_cohort(finished):
    run, _ = finished
    cohorts = [json.loads(line)["cohort"] for line in run.directory.diagnostics_file.open()]
    assert len(cohorts) == 6
    assert len(set(cohorts)) > 1
    public = {key for row in run.metrics() for key in row} | set(run.summary())
    assert not public & {"cohort", "users", "norm_sum", "clipped", "loss_sum", "seconds"}


def test_an_empty_cohort_is_noised_applied_and_charged(folder, tmp_path):
    # q is so small that the seed's first rounds draw nobody.
    run = train(
        experiment(
            folder, rounds=3, plan={"cohort": 1e-6, "noise_multiplier": 1.0, "clip_norm": 1e-6}
        ),
        tmp_path / "run",
    )
    rows = [json.loads(line) for line in run.directory.diagnostics_file.open()]
    assert [row["cohort"] for row in rows] == [0, 0, 0]
    assert sum(entry.kind == "round" for entry in run.ledger.entries) == 3
    before, after = (_vector(run.model(round)) for round in (0, 3))
    assert (before != after).mean() > 0.9


def test_a_budget_is_a_hard_stop(folder, tmp_path):
    free = train(experiment(folder, rounds=3), tmp_path / "free")
    limit = free.guarantee().epsilon["rdp"] + 1e-6
    run = train(experiment(folder, rounds=50, privacy={"budget_epsilon": limit}), tmp_path / "run")
    assert run.round == 3
    assert run.guarantee().epsilon["rdp"] <= limit
    assert run.is_complete
    assert "budget of epsilon" in run.directory.result()["ending"]
    assert not run.directory.key_file.exists()


def test_a_target_epsilon_is_met_and_nearly_used_up(folder, tmp_path):
    wanted = experiment(
        folder,
        plan={"noise_multiplier": None, "noise_stddev": 0.5},
        privacy={"target_epsilon": 4.0},
    )
    run = train(wanted, tmp_path / "run")
    assert 3.9 < run.guarantee().epsilon["rdp"] <= 4.0
    assert run.experiment.plan.noise_multiplier is not None
    assert run.experiment.plan.noise_stddev is None


def test_sigma_on_the_average_becomes_the_noise_multiplier_of_the_paper(folder, tmp_path):
    wanted = experiment(folder, rounds=1, plan={"noise_multiplier": None, "noise_stddev": 0.03})
    run = train(wanted, tmp_path / "run")
    [plan] = run.plans()
    assert run.plans_to_read() == (replace(plan, layers=None),)
    assert plan.noise_multiplier == pytest.approx(0.03 * 10 / 0.3)  # sigma qW / S
    assert plan.noise_stddev() == pytest.approx(0.03)


def test_without_clip_and_noise_there_is_no_privacy_and_it_says_so(folder, tmp_path):
    plan = {"clipping": "none", "clip_norm": None, "noise_multiplier": None}
    run = train(experiment(folder, rounds=2, plan=plan), tmp_path / "run")
    assert run.guarantee().epsilon == {"rdp": math.inf}
    assert "No differential privacy: no noise" in run.guarantee().claim
    assert run.summary()["epsilon"] == {"rdp": None}
    assert all(
        isinstance(entry.event, NonPrivate) for entry in run.ledger.entries if entry.kind == "round"
    )


def test_phases_change_the_plan_where_they_begin(folder, tmp_path):
    phases = [
        {"rounds": 2},
        {"rounds": 2, "plan": {"clip_norm": 0.1, "noise_multiplier": 2.0}},
    ]
    run = train(experiment(folder, rounds=4, phases=phases), tmp_path / "run")
    multipliers = [e.event.noise_multiplier for e in run.ledger.entries if e.kind == "round"]
    assert multipliers == [1.0, 1.0, 2.0, 2.0]
    assert [row["clip_norm"] for row in run.metrics()] == [0.3, 0.1, 0.1]
    said = "4 rounds, Poisson sampling with probability 0.227273, Gaussian noise of 1 times the"
    assert f"{said} sensitivity in 2 of them and of 2 times in 2" in run.guarantee().claim
    one = train(experiment(folder, rounds=4), tmp_path / "one")
    assert run.guarantee().epsilon["rdp"] < one.guarantee().epsilon["rdp"]


def test_a_branch_inherits_the_ledger_and_shares_no_noise(folder, finished, tmp_path):
    parent, contents = finished
    branch = train(None, tmp_path / "branch", branch_from=(parent.path, 4))
    assert files_of(parent.path) == contents
    assert np.array_equal(_vector(branch.model(4)), _vector(parent.model(4)))
    assert not np.array_equal(_vector(branch.model(6)), _vector(parent.model(6)))
    ours, theirs = branch.ledger, parent.ledger
    assert [e.event for e in ours.entries] == [e.event for e in theirs.entries]
    assert ours.entries[4].branch == "main" != ours.entries[5].branch
    assert ours.header.parent.run_id == theirs.header.run_id
    assert ours.header.run_id != theirs.header.run_id


def test_a_branch_of_a_simulation_is_a_simulation_whatever_it_says(finished, tmp_path):
    parent, _ = finished
    hidden = parent.experiment.changed(seed=None, rounds=5)
    branch = train(hidden, tmp_path / "branch", branch_from=(parent.path, 4))
    assert branch.ledger.header.simulation
    assert branch.guarantee().claim.startswith("Simulation, not for release")


def test_a_branch_may_change_the_plan_and_go_further(folder, finished, tmp_path):
    parent, _ = finished
    changed = parent.experiment.changed(rounds=8, plan={"clip_norm": 0.1})
    branch = train(changed, tmp_path / "branch", branch_from=(parent.path, 6))
    assert branch.round == 8
    assert branch.guarantee().rounds == 8
    assert branch.guarantee().epsilon["rdp"] > parent.guarantee().epsilon["rdp"]


@pytest.mark.parametrize(
    ("round", "rounds", "message"),
    [(3, 9, "no checkpoint of round 3; the nearest is 2"), (6, 6, "rounds must be more than that")],
)
def test_a_branch_from_nowhere_or_to_nowhere_is_refused(round, rounds, message, finished, tmp_path):
    parent, _ = finished
    with pytest.raises(ValueError, match=message):
        train(
            parent.experiment.changed(rounds=rounds),
            tmp_path / "branch",
            branch_from=(parent.path, round),
        )
    assert not (tmp_path / "branch").exists()


def test_the_corpus_knows_its_runs_and_the_claim_counts_them(tmp_path):
    from tests.runs.small import make_folder

    own = make_folder(tmp_path / "own")
    alone = train(experiment(own, seed=None), own / "one")
    assert alone.guarantee().others == ""
    train(experiment(own, seed=None), own / "two")
    train(experiment(own), own / "seeded")
    plan = {"clipping": "none", "clip_norm": None, "noise_multiplier": None}
    train(experiment(own, seed=None, rounds=1, plan=plan), own / "open")
    others = Run.open(own / "one").guarantee().others
    assert "3 other runs on record" in others
    assert "All 2 private ones together: epsilon" in others
    assert "1 without privacy, which must not be released" in others
    assert "1 with a seed, which must not be released" in others
    people = PeopleLedger.open(load_corpus(own / "corpus").identity)
    terms = ("user", Adjacency.ADD_REMOVE)
    together = people.spent(terms)
    assert sum(count for _, count in together.costly()) == 12
    shutil.rmtree(own / "two")  # deleting a run does not delete what it has told
    assert people.spent(terms) == together
    branch = train(None, own / "branch", branch_from=(own / "one", 4))
    assert not branch.ledger.header.simulation
    # Rounds 0 to 3 of the branch are those of its parent, and are counted once.
    assert sum(count for _, count in people.spent(terms).costly()) == 14


def test_a_vocabulary_from_the_users_text_voids_the_guarantee_and_needs_consent(folder, tmp_path):
    oracle = {"source": "oracle", "kind": "word", "size": 15}
    with pytest.raises(ValueError, match=r"voids every guarantee.*accept_oracle"):
        train(experiment(folder, tokenizer=oracle), tmp_path / "run")
    run = train(
        experiment(folder, rounds=1, tokenizer=oracle | {"accept_oracle": True}), tmp_path / "run"
    )
    assert run.guarantee().epsilon == {"rdp": math.inf}
    assert "the tokenizer voids the guarantee" in run.guarantee().claim
    assert run.ledger.entries[0].kind == "tokenizer"


def test_starting_from_weights_of_the_same_corpus_is_refused(folder, finished, tmp_path):
    parent, _ = finished
    start = str(parent.directory.checkpoints.model_file(6))
    with pytest.raises(ValueError, match=r"trained on this very corpus.*--from RUN@ROUND"):
        train(experiment(folder, model={"start": start}), tmp_path / "run")


def test_starting_from_public_weights_works_and_is_not_charged(folder, finished, tmp_path):
    parent, _ = finished
    (tmp_path / "public.safetensors").write_bytes(weights.to_bytes(parent.model(0)))
    run = train(
        experiment(folder, rounds=1, model={"start": str(tmp_path / "public.safetensors")}),
        tmp_path / "run",
    )
    assert np.array_equal(_vector(run.model(0)), _vector(parent.model(0)))
    assert [entry.kind for entry in run.ledger.entries] == ["tokenizer", "round"]


def test_weights_of_another_shape_are_refused(folder, finished, tmp_path):
    parent, _ = finished
    (tmp_path / "public.safetensors").write_bytes(weights.to_bytes(parent.model(0)))
    options = {"embedding_size": 6, "cells": 9}
    with pytest.raises(ValueError, match=r"model.start: .* holds .*cells=8.* asks for .*cells=9"):
        train(
            experiment(
                folder, model={"start": str(tmp_path / "public.safetensors"), "options": options}
            ),
            tmp_path / "run",
        )


def test_the_iid_view_makes_no_claim_about_people(folder, tmp_path):
    run = train(experiment(folder, rounds=1, corpus={"view": "iid"}), tmp_path / "run")
    assert run.guarantee().claim.startswith("No claim about people")


def test_a_cohort_larger_than_the_corpus_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match=r"plan.cohort of 100 users a round is more than the \d+"):
        train(experiment(folder, plan={"cohort": 100}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_population_smaller_than_the_corpus_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match=r"plan.population of 20 is less than the \d+ training"):
        train(experiment(folder, plan={"population": 20}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_delta_must_be_below_one_over_the_population(folder, tmp_path):
    with pytest.raises(ValueError, match=r"privacy.delta must be below 1/population"):
        train(experiment(folder, privacy={"delta": 0.1}), tmp_path / "run")


def test_a_run_whose_updates_are_not_finite_is_stopped_by_nobodys_update(folder, tmp_path):
    """An absurd local rate: every user's update is NaN or infinite, and counts as zero."""
    run = train(
        experiment(folder, rounds=2, update={"learning_rate": 1e38, "batch_size": 1}),
        tmp_path / "run",
    )
    rows = [json.loads(line) for line in run.directory.diagnostics_file.open()]
    assert sum(row["not_finite"] for row in rows) > 0
    assert np.isfinite(_vector(run.model())).all()


def test_changing_other_users_leaves_a_users_contribution_bit_equal(folder, tmp_path):
    """Through files, caches and views: everybody else writes something else."""
    from tests.runs.small import make_tokenizer

    found = []
    for name, changed in (("one", {}), ("two", {n: ["the cat runs"] for n in range(1, 60)})):
        own = tmp_path / name
        own.mkdir()
        make_corpus(own / "corpus", changed)
        make_tokenizer(own)
        found.append(_contributions(experiment(own), own / "run"))
    key = next(key for key in found[0] if found[0][key] == found[1].get(key))
    same = [key for key in found[0] if found[0][key] == found[1][key]]
    assert same == [key]  # user 0's, if it is a training user; everybody else's differ
    assert len(found[0]) > 20


def _contributions(wanted, run):
    """Each training user's quantised update in round 0, by hashed id."""
    from tacit.federated.cohort import user_result
    from tacit.kernels.local_sgd import local_sgd_for
    from tacit.runs.start import create

    session: Session = create(wanted, run)
    trainer = session.trainer
    task, job, sgd = trainer.phase(0), trainer.job(0, 0), local_sgd_for(trainer.model)
    found = {}
    for user in range(len(task.users)):
        result = user_result(task, job, user, sgd)
        total = task.plan.contribution(result.update, result.examples, job.clip_state)
        found[task.users.key(user)] = (total.update.tobytes(), total.weight)
    return found


def test_a_tokenizer_of_the_wrong_vocabulary_size_is_refused_with_starting_weights(
    folder, finished, tmp_path
):
    parent, _ = finished
    (tmp_path / "public.safetensors").write_bytes(weights.to_bytes(parent.model(0)))
    other = build.word_level(WORDS[:-1], provenance=provenance.public("fewer words"))
    other.save(tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match="vocabulary of 20 tokens and the tokenizer one of 19"):
        train(
            experiment(
                folder,
                model={"start": str(tmp_path / "public.safetensors")},
                tokenizer={"source": str(tmp_path / "tokenizer.json")},
            ),
            tmp_path / "run",
        )


def test_an_intact_ledger_is_needed_to_open_a_run(folder, tmp_path):
    run = train(experiment(folder, rounds=2), tmp_path / "run")
    path = run.directory.ledger_file
    path.write_bytes(
        path.read_bytes().replace(b'"noise_multiplier":1.0', b'"noise_multiplier":9.0')
    )
    with pytest.raises(ValueError, match="line 3"):
        Run.open(tmp_path / "run")


def _vector(model):
    return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])
