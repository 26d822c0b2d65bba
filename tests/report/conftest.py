"""Runs to report on: made once, and never written to."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from tacit.report.facts import gather
from tacit.runs.run import Run
from tacit.train import train
from tests.report import audits
from tests.report.remembered import epsilons
from tests.runs.small import experiment, make_folder

PLAIN = {"clipping": "none", "clip_norm": None, "noise_multiplier": None}
# One run for each kind of warning.  A round is enough for most.
KINDS = {
    "private": {"privacy": {"accountant": "pld"}},
    "simulated": {"seed": 5, "rounds": 1},
    "plain": {"plan": PLAIN, "rounds": 2},
    "large": {"plan": {"noise_multiplier": 0.1}, "rounds": 1},
    "vast": {"plan": {"noise_multiplier": 0.03}, "rounds": 1},
    "synthetic": {
        "rounds": 1,
        "corpus": {"source": "synthetic:users=60,words=40,vocabulary=50", "identity": ""},
    },
    "switched": {
        "rounds": 2,
        "phases": [{"rounds": 1}, {"rounds": 1, "tokenizer": {"sampled_tokens": 100, "size": 15}}],
        "evaluation": {"every": 1},
    },
    "iid": {"rounds": 1, "corpus": {"view": "iid"}},
    "canaries": {"rounds": 1, "audit": {"canaries": {"per_cell": 1, "max_share": 0.9}}},
    "clients": {"rounds": 1, "audit": {"canary_clients": 20}},
    "turns": {
        "rounds": 5,
        "plan": {"sampling": "min-separation", "separation": 2, "noise": "blt", "buffers": 2},
        "privacy": {"accountant": "pld"},
    },
    "budgeted": {"rounds": 1, "privacy": {"accountant": "pld", "budget_epsilon": 30.0}},
}


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """What is trained here is too small for two, and other tests run beside it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def _remembered():
    with epsilons():
        yield


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("reported"))


@pytest.fixture(scope="session")
def run_of(folder):
    """`run_of("private")` is the directory of that run."""

    def made(kind: str) -> Path:
        path = folder / kind
        if not path.exists():
            train(experiment(folder).changed(**{"seed": None} | KINDS[kind]), path)
        return path

    return made


@pytest.fixture
def run(run_of, tmp_path):
    """A finished private run that may be written to."""
    shutil.copytree(run_of("private"), tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def audited(run):
    """The same, with an audit."""
    accounted = Run.open(run).guarantee().epsilon["pld"]
    audits.put(run, audits.audit(accounted_epsilon=accounted))
    return run


@pytest.fixture
def facts_of():
    """The facts of a run directory, as they come back from JSON."""
    return lambda path, **options: json.loads(
        json.dumps(gather(Run.open(path), **options), allow_nan=False)
    )
