"""One corpus and one finished grid for all tests of a session's worker."""

import pytest
import torch

from tacit_papers.thakkar2020.training import SecretSharer
from tests.papers.thakkar2020.small_grid import Silent, small_grid
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
    return make_folder(tmp_path_factory.mktemp("sharer"))


@pytest.fixture(scope="session")
def finished(folder, _one_thread):
    """All arms of two seeds, and what was found."""
    grid = small_grid(folder)
    sharer = SecretSharer(grid, folder / "finished", grid.all_arms(), (0, 1))
    return sharer, sharer.run(lambda title: Silent())
