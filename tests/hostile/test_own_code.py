"""Code that a file names runs only if the person at the machine has named it, too."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tacit.cli import main as cli
from tacit.config.experiment import Experiment
from tacit.models import own_code
from tacit.models.registry import build
from tests.models.own_modules import Bigram

CODE = """
from pathlib import Path
import torch

Path(__file__).with_name("imported").touch()

class Small(torch.nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(vocab_size, vocab_size))

    def forward(self, tokens):
        return self.table[tokens]
"""
PATH = "someone_s_code:Small"


@pytest.fixture
def code(tmp_path, monkeypatch):
    """A module that can be imported, and that nobody trusts; gives what it makes if it is."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "someone_s_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.setenv(own_code.VARIABLE, "")
    yield tmp_path / "code" / "imported"
    sys.modules.pop("someone_s_code", None)


def said(capsys, *arguments):
    """What a command that must be refused says."""
    with pytest.raises(SystemExit) as stopped:
        cli.main([*map(str, arguments)])
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_a_name_is_no_permission(code):
    with pytest.raises(ValueError, match=rf"if you trust it, say tacit --trust-code {PATH} "):
        build(PATH, 5)
    assert not code.exists()
    own_code.trust(PATH)
    assert build(PATH, 5).config.factory == PATH
    assert code.exists()


@pytest.mark.parametrize(
    "trusted", ["someone_s_code:Other", "someone_s", "code", "Small", ":Small"]
)
def test_trust_in_something_else_is_not_enough(code, trusted):
    own_code.trust(trusted)
    with pytest.raises(ValueError, match="if you trust it"):
        build(PATH, 5)
    assert not code.exists()


def test_a_module_is_trusted_with_all_that_is_in_it(code):
    own_code.trust("someone_s_code")
    assert build(PATH, 5)


def test_code_that_is_imported_already_is_not_called_either(monkeypatch):
    monkeypatch.setenv(own_code.VARIABLE, "")
    with pytest.raises(ValueError, match="if you trust it"):
        build("os:system", 5)


def test_whoever_hands_over_the_code_itself_has_consented(monkeypatch):
    monkeypatch.setenv(own_code.VARIABLE, "")
    path = "tests.models.own_modules:Bigram"
    Experiment(model={"name": path})
    assert not os.environ[own_code.VARIABLE]
    Experiment(model={"name": Bigram})
    assert os.environ[own_code.VARIABLE] == path
    assert build(path, 5)


TRAIN = (
    "train {recipe} --corpus synthetic:users=60,words=40 --rounds 1 --workers 2 --quiet"
    " --set tokenizer.size=300 --set plan.cohort=10 --set plan.noise_multiplier=1"
    " --set plan.clip_norm=1 --delta 1e-3 --run {run}"
)


def test_a_recipe_s_code_does_not_run_when_it_is_trained(code, tmp_path, capsys):
    (tmp_path / "theirs.toml").write_text(f'[model]\nname = "{PATH}"\n')
    command = TRAIN.format(recipe=tmp_path / "theirs.toml", run=tmp_path / "run")
    assert f"--trust-code {PATH}" in said(capsys, *command.split())
    assert not code.exists()
    assert not (tmp_path / "run").exists()


def test_a_recipe_can_be_looked_at_without_running_its_code(code, tmp_path, capsys):
    (tmp_path / "theirs.toml").write_text(f'[model]\nname = "{PATH}"\n')
    with pytest.raises(SystemExit) as stopped:
        cli.main(["recipes", "show", str(tmp_path / "theirs.toml")])
    assert stopped.value.code == 0
    assert not code.exists()


@pytest.mark.slow
def test_training_resuming_and_using_a_run_each_ask_for_consent(
    code, tmp_path, capsys, monkeypatch
):
    (tmp_path / "theirs.toml").write_text(f'[model]\nname = "{PATH}"\n')
    run, bundle = tmp_path / "run", tmp_path / "bundle"
    command = TRAIN.format(recipe=tmp_path / "theirs.toml", run=run).split()
    with pytest.raises(SystemExit) as stopped:  # its worker processes have the same consent
        cli.main(["--trust-code", PATH, *command])
    assert stopped.value.code == 0
    with pytest.raises(SystemExit) as stopped:
        cli.main(["export", str(run), "--out", str(bundle), "--allow-weak"])
    capsys.readouterr()
    monkeypatch.setenv(own_code.VARIABLE, "")
    del sys.modules["someone_s_code"]
    code.unlink()
    others = tmp_path / "others"
    shutil.copytree(run, others)
    for refused in (
        ["evaluate", others],
        ["predict", others, "see you"],
        ["audit", others],
        ["train", "--from", f"{others}@1", "--run", tmp_path / "branch", "--rounds", 2],
        ["tokenizer", "sample", others],
        ["tokenizer", "train", tmp_path / "words", "--from", others],
    ):
        assert f"--trust-code {PATH}" in said(capsys, *refused), refused
        assert not code.exists(), refused
    for looked_at in (["ledger", others], ["verify", others], ["report", others]):
        with pytest.raises(SystemExit):
            cli.main([*map(str, looked_at)])
        assert not code.exists(), looked_at


@pytest.mark.parametrize("module", ["tacit", "tacit.cli.main"])
def test_python_m_takes_no_module_from_the_working_directory(tmp_path, module):
    for name in ("typer", "rich", "tomli_w", "difflib", "tacit_papers"):
        (tmp_path / f"{name}.py").write_text(
            "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n"
        )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    source = Path(cli.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", module, "recipes", "--help"],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("*.ran")) == []
