"""Settings shared by all tests."""

import atexit
import os
import shutil
import tempfile

import pytest
from hypothesis import settings

# No deadline: accountants cache, so the first example of a test is slower than all others.
settings.register_profile("local", deadline=None, max_examples=50)
# In CI the same examples every time, so that a red build is the fault of the change.
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# What is remembered about people is never that of whoever runs the tests: one folder for what
# fixtures of a session make, and all processes started by them; and a fresh one for each test.
_STATE = tempfile.mkdtemp(prefix="tacit-state-")
os.environ["TACIT_STATE"] = _STATE
atexit.register(shutil.rmtree, _STATE, ignore_errors=True)


@pytest.fixture(autouse=True)
def _fresh_state(tmp_path_factory, monkeypatch):
    """No test knows the people of another."""
    monkeypatch.setenv("TACIT_STATE", str(tmp_path_factory.mktemp("state") / "tacit"))
