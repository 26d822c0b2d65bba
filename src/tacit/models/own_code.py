"""Whose code may run here: a model of the user's own is made by a function that a file names.

A recipe, a run directory or a bundle may come from anybody, and can name whatever can be imported.
What is imported has all rights of the person at the machine, and sees people's text.  So a name is
no permission: a function is imported and called only if that person has named it, too, by

    tacit --trust-code shop.models:Small train ...      on the command line
    TACIT_TRUST_CODE=shop.models:Small                  for all that is started from a shell
    trust("shop.models:Small")                          in Python; "shop.models" is all in it
    Experiment(model={"name": shop.models.Small})       in Python, which hands over the code itself

Nothing that is read from a file adds to these.  They stand in the environment, because the
processes that a training starts need them, too.
"""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Callable
from typing import Any

VARIABLE = "TACIT_TRUST_CODE"


def trust(*factories: str) -> None:
    """Allow models to be made by these, each a "package.module:factory" or a whole module."""
    os.environ[VARIABLE] = ",".join(sorted({*_trusted(), *factories} - {""}))


def load(path: str) -> Callable[..., Any]:
    """The callable that "package.module:factory" names.

    Raises:
        ValueError: if nobody has said that it is trusted, before anything is imported; or if there
            is no such factory, with the nearest one.
    """
    module_name, _, name = path.partition(":")
    if not _trusted() & {path, module_name}:
        raise ValueError(
            f"the model is made by the code {path}, which could do whatever you can: if you trust"
            f" it, say tacit --trust-code {path} and then the command, or set {VARIABLE}={path}, or"
            f" in Python tacit.models.own_code.trust({path!r})"
        )
    try:
        module = importlib.import_module(module_name)
    except ImportError as mistake:
        raise ValueError(
            f"cannot import {module_name!r} of {path!r}: {mistake}; is its folder on PYTHONPATH?"
        ) from mistake
    factory: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(factory):
        names = [each for each, value in vars(module).items() if callable(value)]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{module_name!r} has no factory {name!r}{hint}")
    return factory


def _trusted() -> set[str]:
    return {path.strip() for path in os.environ.get(VARIABLE, "").split(",")}
