"""Starting a process that imports torch takes seconds: one pair serves all that do not break it."""

import pytest
import torch

from tacit.engines.engine import ProcessEngine
from tacit.engines.teams import Children
from tests.federated.tiny import small
from tests.runs.small import make_folder


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model():
    return small()


@pytest.fixture(scope="session")
def two(model):
    """An engine of two processes."""
    engine = ProcessEngine(model, Children(2))
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("small"))
