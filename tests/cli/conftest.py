"""Runs that commands on trained models are tried on: made once, never written to."""

import json
from pathlib import Path

import pytest
import torch

from tacit.cli.main import main
from tacit.train import train
from tests.runs.small import experiment, make_folder


@pytest.fixture(autouse=True)
def _one_thread():
    """What is tried here is too small for two, and other tests run beside it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A corpus of 60 people and a dictionary."""
    return make_folder(tmp_path_factory.mktemp("cli-small"))


def _trained(small: Path, name: str, **changes) -> Path:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(experiment(small, **changes), small / name)
    finally:
        torch.set_num_threads(threads)
    return small / name


@pytest.fixture(scope="session")
def private_run(small):
    """A run with a guarantee, finished, with a key from the operating system and a budget."""
    return _trained(
        small, "private", seed=None, privacy={"accountant": "pld", "budget_epsilon": 50.0}
    )


@pytest.fixture(scope="session")
def simulated_run(small):
    return _trained(small, "simulated")


@pytest.fixture(scope="session")
def plain_run(small):
    """FedAvg: no clip, no noise, no guarantee."""
    plan = {"clipping": "none", "clip_norm": None, "noise_multiplier": None}
    return _trained(small, "plain", seed=None, plan=plan)


@pytest.fixture(scope="session")
def synthetic_run(small):
    """60 people who do not exist."""
    source = "synthetic:users=60,words=40,vocabulary=50"
    return _trained(
        small, "synthetic", seed=None, rounds=2, corpus={"source": source, "identity": ""}
    )


class Command:
    """One command of tacit, such as "papers nlu": what it prints, and how it ends."""

    def __init__(self, capsys, name: str) -> None:
        self._capsys, self._name = capsys, name

    def __call__(self, *arguments) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([*self._name.split(), *map(str, arguments)])
        out, err = self._capsys.readouterr()
        return stop.value.code, out, err

    def says(self, *arguments) -> str:
        """What it prints, as one line of words."""
        code, out, err = self(*arguments)
        assert code == 0, err
        return " ".join(out.split())

    def json(self, *arguments):
        code, out, err = self(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    def refused(self, *arguments) -> str:
        """The one sentence that a mistake ends in."""
        code, out, err = self(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("tacit: ")
        assert err.count("\n") == 1
        return err


@pytest.fixture
def command(capsys):
    """`command("evaluate")` runs that command."""
    return lambda name: Command(capsys, name)
