"""Every example in a command's help is one that works: all are parsed, and all are run.

An example that was renamed, or whose option is gone, fails here before anybody copies it.  Each is
run in a copy of a folder that has what examples name, made small (`help_world`); those that would
train or sample for minutes are told to do less.
"""

import fcntl
import io
import os
import re
import shlex
import shutil
import sys

import pytest
from typer.main import get_command

from tacit.cli.main import app
from tests.cli.help_world import make_world
from tests.cli.training import flat, tacit

_EXAMPLE = re.compile(r"`(tacit [^`]+)`")


def commands(command, words=()):
    """All commands of the tree that do something, with the words that lead to them."""
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from commands(each, (*words, name))
    else:
        yield words, command


TREE = dict(commands(get_command(app)))


def examples():
    for command in TREE.values():
        told = f"{command.help or ''}\n{getattr(command, 'epilog', None) or ''}"
        _, *listed = re.split(r"Examples?:\n", told)
        yield from (flat(line) for part in listed for line in _EXAMPLE.findall(part))


ALL = sorted(set(examples()))


def test_there_are_examples():
    assert len(ALL) > 30


@pytest.mark.parametrize("line", ALL)
def test_an_example_can_be_parsed_by_its_command(line):
    """Every option exists, every value can be read, and nothing that is required is left out."""
    _, *arguments = shlex.split(line)
    words = next(words for words in TREE if tuple(arguments[: len(words)]) == words)
    context = TREE[words].make_context(words[-1], arguments[len(words) :])
    assert context.command.callback is not None


def test_an_example_with_an_option_that_is_gone_is_noticed():
    with pytest.raises(Exception, match=r"No such option:? '?--gone"):
        TREE["ledger",].make_context("ledger", ["runs/first", "--gone"])


ONE = "--workers 1 "
PLANNED = "--minutes 0.05 --start pretrained "
# What is added to an example that is too long for a test: less of the same.
LESS = {
    "tacit train --corpus": ONE + PLANNED + "--set rounds=1",
    "tacit train --from": ONE + "--rounds 101",
    "tacit train --resume": ONE,
    "tacit train generated": ONE + "--epochs 1 --set training.batch_size=16",
    "tacit train mcmahan2018-small --corpus": ONE + "--rounds 1 --set plan.cohort=4",
    "tacit train mcmahan2018-small --run": ONE + "--rounds 1 --set plan.cohort=4",
    "tacit plan --corpus": ONE + PLANNED,
    "tacit model pretrain": "--minutes 0.02 --threads 1 --measure-tokens 500",
    "tacit model suggest-clip": "--users 3 --rounds 0 --set corpus.max_tokens_per_user=20",
    "tacit audit runs/private": "--samples 500 --controls 3",
    "tacit evaluate pretrained": "--tokens 500",
    "tacit tokenizer train tokenizers/free": "--tokens 3000 --size 300",
    "tacit tokenizer train tokenizers/private": "--size 300",
    "tacit tokenizer train tokenizers/public": "--size 300",
    "tacit papers nlu dupuy2021-clc --data atis --out": (
        "--set training.epochs=1 --set training.batch_size=16"
    ),
    "tacit papers nlu dupuy2021-clc --data atis --time": "--time 1 --set training.batch_size=16",
    "tacit papers pretrain-bert": (
        "--minutes 0.01 --layers 1 --width 8 --heads 2 --intermediate 8 --threads 1 --vocab 200"
        " --measure-tokens 200"
    ),
    "tacit papers secret-sharer": (
        "--workers 1 --quiet --set experiment.rounds=1"
        " --set extraction.samples=100 --set extraction.controls=3"
    ),
}
# Those that still take more than two seconds: they read much public text, or train many models.
SLOW = (
    "tacit audit runs/atis --shadow",
    "tacit model pretrain chitchat",
    "tacit model suggest-clip mcmahan2018-small",
    "tacit papers heavy-hitters",
    "tacit papers nlu",
    "tacit papers pretrain-bert",
    "tacit papers secret-sharer",
    "tacit plan --corpus",
    "tacit plan --population 1e8",
    "tacit tokenizer train tokenizers/german",
    "tacit tokenizer train tokenizers/public",
    "tacit train --corpus",
    "tacit tokenizer train tokenizers/private",
    "tacit train generated",
    "tacit train mcmahan2018-small",
)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Made once, by whichever process of the test run asks for it first."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / "help.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "help").is_dir():
            make_world(folder / "help")
    return folder / "help"


def added(line, table, otherwise):
    """What a table has for an example, by how the example begins."""
    return next((value for start, value in table.items() if line.startswith(start)), otherwise)


def made_by(arguments):
    """What an example makes, and which is therefore not there before."""
    for option in ("--out", "--run"):
        if option in arguments and "--resume" not in arguments:
            return arguments[arguments.index(option) + 1]
    return arguments[2] if arguments[:2] == ["tokenizer", "train"] else None


def prepare(arguments, folder):
    """Make room for what an example makes; a training that is to go on is one that was stopped."""
    made = made_by(arguments)
    if made and (folder / made).is_dir():
        shutil.rmtree(folder / made)
    if "--resume" in arguments:
        shutil.rmtree(folder / "runs" / "first")
        shutil.move(folder / "runs" / "stopped", folder / "runs" / "first")


@pytest.mark.parametrize(
    "line",
    [pytest.param(line, marks=[pytest.mark.slow] if line.startswith(SLOW) else []) for line in ALL],
)
def test_an_example_is_run(line, world, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    shutil.copytree(world, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "stdin", io.StringIO("the red\n"))
    _, *arguments = shlex.split(line)
    prepare(arguments, folder)
    code, out, err = tacit(*arguments, *shlex.split(added(line, LESS, "")))
    assert code == 0, err
    assert out or os.listdir(folder) != os.listdir(world)


def test_nothing_is_shortened_that_is_no_example():
    for start in (*LESS, *SLOW):
        assert any(line.startswith(start) for line in ALL), start


@pytest.mark.parametrize(
    "recipe",
    sorted(
        {
            line.split()[2]
            for line in ALL
            if line.startswith("tacit train ") and line.split()[2][0] != "-"
        }
    ),
)
def test_recipes_in_examples_exist(recipe):
    from tacit.tasks import recipes

    assert recipes.load(recipe).experiments
