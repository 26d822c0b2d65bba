"""`tacit --help` is quick: what takes long to import is imported by the commands that need it."""

import subprocess
import sys

HEAVY = ("torch", "numpy", "scipy", "matplotlib", "pydantic", "pyarrow", "transformers")


def test_the_command_line_imports_nothing_heavy_before_a_command_is_run():
    script = f"import sys, tacit.cli.main; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
