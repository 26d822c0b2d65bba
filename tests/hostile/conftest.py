"""Commands are called as the tests of the command line call them."""

from tests.cli.conftest import _one_thread, command

__all__ = ["_one_thread", "command"]
