"""kill -9 at any moment of any writing command, and then the same command once more.

The sample in test_fuzz.py has a few of these.
"""

from __future__ import annotations

import pytest

from tests.hostile.fuzz import kills
from tests.hostile.fuzz.sample import figures_of, unknown


@pytest.mark.slow
def test_a_hundred_kills_over_all_writing_commands_leave_the_same_bits_and_nothing_else(tmp_path):
    figures = figures_of(tmp_path, {"kills": 100}, 3600, whole=True)
    assert unknown(figures) == []
    killed = {kind.rpartition(",")[0] for kind in figures["kinds"]["kills"]}
    assert killed == set(kills.ACTS)


def test_a_hidden_part_and_scratch_are_leftovers(tmp_path):
    (tmp_path / "tmp" / "tacit-abc").mkdir(parents=True)
    (tmp_path / ".out.0123.partial").touch()
    (tmp_path / "tmp" / "5rtl2iea").write_text("blat")  # Python's, while it looks for the folder
    (tmp_path / "tmp" / "5rtl2ieb").write_text("somebody's text")
    assert kills.leftovers(tmp_path) == [".out.0123.partial", "tmp/5rtl2ieb", "tmp/tacit-abc"]
