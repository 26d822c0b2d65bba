"""Every example in a command's help is one that works: all are parsed, and quick ones run.

An example that was renamed, or whose option is gone, fails here before anybody copies it.
"""

import re
import shlex

import pytest
from typer.main import get_command

from tacit.cli.main import app
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
        _, _, listed = (command.help or "").partition("Examples:")
        yield from (flat(line) for line in _EXAMPLE.findall(listed))


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
    with pytest.raises(Exception, match="No such option: --gone"):
        TREE["ledger",].make_context("ledger", ["runs/first", "--gone"])


@pytest.mark.parametrize("line", [line for line in ALL if line.startswith("tacit plan --pop")])
def test_examples_of_planning_are_run(line):
    code, out, err = tacit(*shlex.split(line)[1:])
    assert code == 0, err
    assert "-differential privacy" in out


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
