"""What a reader of docs/contributing/ does next: uses of the changes that its pages describe.

None of this works in the repository as it is: tests/test_contributing.py runs each of these in a
copy with the diffs of these pages applied.
"""

import math

from tacit.audit.language import AuditSettings, audit_run
from tacit.config.experiment import Experiment
from tacit.runs.run import Run
from tacit.train import train
from tests.runs.small import experiment, make_folder


def test_model_trains_for_two_rounds(tmp_path):
    tables = experiment(make_folder(tmp_path), rounds=2).model_dump()
    tables["model"] = {"name": "conv", "options": {"embedding_size": 6, "layers": 2}}
    run = train(Experiment.from_data(tables, "the test"), tmp_path / "run")
    assert run.model().config.kind == "conv"
    assert math.isfinite(run.guarantee().epsilon["rdp"])


def test_noise_trains_for_two_rounds(tmp_path):
    changed = experiment(make_folder(tmp_path), rounds=2, plan={"noise": "two-server"})
    run = train(changed, tmp_path / "run")
    assert run.plans()[0].to_json()["noise"]["kind"] == "two-server"
    # Another noise of the same z costs the same.
    plain = train(experiment(tmp_path, rounds=2), tmp_path / "plain")
    assert run.guarantee().epsilon == plain.guarantee().epsilon


def test_attack_is_part_of_an_audit(tmp_path):
    run = train(experiment(make_folder(tmp_path), rounds=1), tmp_path / "run")
    settings = AuditSettings(membership=True, references=1, texts="training")
    findings = audit_run(Run.open(run.path), settings)
    names = [attack.name for attack in findings.internal.membership.attacks]
    assert names[0] == "user_inference"  # whose area is stated
    assert names[-1] == "nearest_reference"
