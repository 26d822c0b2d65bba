"""The walk through the documentation's page, as it is printed there."""

import os
import subprocess
import sys

import pytest

from tests.test_docs import blocks, commands, is_printed

pytest.importorskip("tacit.federation.flower", exc_type=ImportError)


@pytest.mark.slow
def test_the_walk_on_one_machine_prints_what_the_page_says(tmp_path):
    every = [body for name, body in blocks("console no-test") if "docs/federation.md" in name]
    [walk] = commands(every[0])
    assert walk.words[:3] == ("tacit", "federate", "try")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tacit.cli.main", *walk.words[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=1500,
        env=os.environ
        | {"COLUMNS": "100", "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout
    assert is_printed(walk.output, done.stdout), done.stdout
