"""One finished grid for all tests of a session's worker."""

import pytest

from tacit_papers.thakkar2020.training import SecretSharer
from tests.papers.thakkar2020.small_grid import Silent, small_grid


@pytest.fixture(scope="session")
def finished(folder, _one_thread):
    """All arms of two seeds, and what was found."""
    grid = small_grid(folder)
    sharer = SecretSharer(grid, folder / "finished", grid.all_arms(), (0, 1))
    return sharer, sharer.run(lambda title: Silent())
