"""Ctrl-C, for commands that know what to do next."""

from __future__ import annotations


class Interrupted(Exception):
    """Ends a command with exit code 130 and its own sentence instead of "interrupted"."""
