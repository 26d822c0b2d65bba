"""One corpus for all tests of a session's worker."""

import pytest
import torch

from tests.runs.small import make_folder


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """What is tried here is too small for two, and other tests run beside it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("papers"))
