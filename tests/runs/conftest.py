"""One corpus for all tests of a session's worker; one finished run to compare with."""

import pytest

from tacit.train import train
from tests.runs.small import experiment, files_of, make_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def finished(folder):
    """The run that nothing happened to, and its files."""
    path = folder / "finished"
    run = train(experiment(folder), path)
    return run, files_of(path)
