"""Settings shared by the tests of intent and slot models."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Several test processes share the machine, and torch's threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
