"""The walk-throughs of docs/contributing/ are true: their diffs apply, and what they add works."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "contributing"
WALK_THROUGHS = ("model", "noise", "attack")
DIFF = re.compile(r"^```diff\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`((?:src|tests|docs)/[^`]+\.\w+|[A-Z]+\.md|pyproject\.toml)`")


def diff_of(page: str) -> str:
    """All diffs of a page, in its order, as one."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return "".join(match["body"] for match in DIFF.finditer(text))


def changed_by(diff: str) -> list[str]:
    return re.findall(r"^\+\+\+ b/(.+)$", diff, re.MULTILINE)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the code, in which nothing of the original is imported."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("src", "tests"):  # with what Python has compiled, which saves seconds
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def run_in(copy: Path, *command: str, given: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}",
        "GIT_CEILING_DIRECTORIES": str(copy.parent),  # git is not to look for a repository above
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        command, input=given, cwd=copy, env=environment, capture_output=True, text=True, check=False
    )


# One test for all pages: they touch different files, and each process imports torch for seconds.
def test_the_walk_throughs_can_be_followed(copy):
    tests = ["tests/contributing_uses.py", "tests/models/test_contract.py"]
    for page in WALK_THROUGHS:
        diff = diff_of(page)
        applied = run_in(copy, "git", "apply", "--whitespace=nowarn", "-", given=diff)
        assert applied.returncode == 0, f"docs/contributing/{page}.md is stale: {applied.stderr}"
        added = [name for name in changed_by(diff) if "/test_" in name]
        assert added, f"the change of docs/contributing/{page}.md comes without a test"
        tests += added
    others = "not lstm and not cifg and not gru and not transformer"  # of the contract's models
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", others]
    done = run_in(copy, sys.executable, "-m", "pytest", *options, *tests)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", WALK_THROUGHS)
def test_a_page_lists_exactly_the_files_that_its_diffs_change(page):
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\S+)` \|", text, re.MULTILINE)
    assert sorted(listed) == sorted(changed_by(diff_of(page)))


def test_the_index_names_files_that_exist():
    named = FILE.findall((PAGES / "index.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []
