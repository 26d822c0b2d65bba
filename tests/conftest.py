"""Settings shared by all tests."""

import os

from hypothesis import settings

# No deadline: accountants cache, so the first example of a test is slower than all others.
settings.register_profile("local", deadline=None, max_examples=50)
# In CI the same examples every time, so that a red build is the fault of the change.
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
