"""The wheel has all that the package needs, and works where the sources are not."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import tacit

ROOT = Path(__file__).parents[1]
PACKAGES = ("tacit", "tacit_papers")


def run(words: list[object], folder: Path) -> str:
    """What a command prints, in a folder from which the sources cannot be imported."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"NO_COLOR": "1", "COLUMNS": "200", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, since building leaves files behind."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    run([sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", "dist", "."], folder)
    [path] = (folder / "dist").iterdir()
    return path


@pytest.fixture(scope="module")
def tacit_command(wheel, tmp_path_factory):
    """`tacit` from the wheel, in an environment that has the dependencies of this one."""
    folder = tmp_path_factory.mktemp("installed")
    run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], folder)
    python = folder / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    run([*install, "--no-deps", "--no-index", wheel], folder)
    [site] = (folder / "venv").glob("lib/*/site-packages")
    # A path in a .pth file is searched for modules, but .pth files in it are not read: an editable
    # installation of the sources beside the dependencies is not seen.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run([python, "-c", "import tacit, tacit_papers; print(tacit.__path__)"], folder)
    assert str(site) in where
    return folder / "venv" / "bin" / "tacit"


def test_every_file_of_the_sources_is_in_the_wheel(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [path for name in PACKAGES for path in (ROOT / "src" / name).rglob("*.*")]
    expected = {
        path.relative_to(ROOT / "src").as_posix()
        for path in files
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {Path(name).suffix for name in expected} >= {".py", ".toml", ".cpp", ".npy", ".html"}
    assert "tacit/py.typed" in expected
    assert expected <= names
    assert {name.partition("/")[0] for name in names - expected} == {
        f"tacit_dp-{tacit.__version__}.dist-info"
    }


def test_the_wheel_says_what_it_is(wheel):
    archive = zipfile.ZipFile(wheel)
    info = f"tacit_dp-{tacit.__version__}.dist-info"
    metadata = archive.read(f"{info}/METADATA").decode()
    assert "Name: tacit-dp\n" in metadata
    assert f"Version: {tacit.__version__}\n" in metadata
    extras = set(re.findall(r"^Provides-Extra: (\w+)$", metadata, re.MULTILINE))
    assert extras == {"dev", "docs", "federation", "fuzz", "nlu", "tensorboard"}
    entries = archive.read(f"{info}/entry_points.txt").decode()
    assert "tacit = tacit.cli.main:main" in entries
    assert f"{info}/licenses/LICENSE" in archive.namelist()


@pytest.mark.slow
def test_an_installed_wheel_plans_and_trains(tacit_command, tmp_path):
    assert run([tacit_command, "--version"], tmp_path) == f"tacit {tacit.__version__}\n"
    listed = run([tacit_command, "recipes", "list"], tmp_path)
    assert "demo" in listed
    assert "mcmahan2018-table2" in listed  # of the papers
    assert "secret-sharer" in run([tacit_command, "papers", "--help"], tmp_path)
    asked = "plan --population 1e5 --cohort 500 --rounds 100 --noise-multiplier 1"
    assert "epsilon" in run([tacit_command, *asked.split()], tmp_path)
    corpus = "synthetic:users=40,words=30,vocabulary=50"
    words = f"train mcmahan2018-small --corpus {corpus} --run run --workers 1 --quiet"
    changes = ("rounds=2", "plan.cohort=5", "evaluation.every=1", "tokenizer.size=50")
    run([tacit_command, *words.split(), *(f"--set={each}" for each in changes)], tmp_path)
    assert (tmp_path / "run" / "result.json").is_file()
    run([tacit_command, "verify", "run"], tmp_path)
    run([tacit_command, "report", "run"], tmp_path)
    assert (tmp_path / "run" / "report.html").is_file()
