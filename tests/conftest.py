"""Settings shared by all tests."""

import atexit
import os
import shutil
import tempfile

import pytest
from hypothesis import settings

# No deadline: accountants cache, so the first example of a test is slower than all others.
settings.register_profile("random", deadline=None, max_examples=50)
# The same examples every time, so that a red build is the fault of the change; `make test-all`
# draws others, so that what they miss is found some day.
settings.register_profile("fixed", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("random" if os.environ.get("TACIT_RANDOM_EXAMPLES") else "fixed")

# What is tried is small, and tests run beside each other: threads of BLAS would only wait.  It is
# set before anything imports NumPy, and what tests start inherits it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What is remembered about people is never that of whoever runs the tests: one folder for what
# fixtures of a session make, and all processes started by them; and a fresh one for each test.
_STATE = tempfile.mkdtemp(prefix="tacit-state-")
os.environ["TACIT_STATE"] = _STATE
atexit.register(shutil.rmtree, _STATE, ignore_errors=True)

# The models that tests bring are trusted; what happens without that is tested in tests/hostile.
os.environ["TACIT_TRUST_CODE"] = ",".join(
    f"tests.{module}"
    for module in (
        "engines.test_vectorized",
        "federated.test_user_update",
        "kernels.test_sampled_softmax",
        "kernels.test_stacked",
        "models.nowhere",
        "models.own_modules",
        "models.test_vocabulary",
    )
)


@pytest.fixture(autouse=True)
def _fresh_state(tmp_path_factory, monkeypatch):
    """No test knows the people of another."""
    monkeypatch.setenv("TACIT_STATE", str(tmp_path_factory.mktemp("state") / "tacit"))
