"""Models of the user's own, given as Python objects: a class or function becomes its import path.

An experiment is a file of settings, so it can only say where a model's code is: "package.module:
factory", and the options that it is called with.  Worker processes and a resumed run make the model
again from these.  What `tacit.models.registry` asks of the module stands there.

Whoever hands over the object itself wants its code to run, and so it is trusted from then on
(`tacit.models.own_code`).  A path is only a name, which may have come from a file.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tacit.models import own_code


def model_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The `[model]` of an experiment with a class, function or partial as `name` written as a path.

    Raises:
        ValueError: if the object cannot be found again under a name of its module.
    """
    name = settings.get("name", "")
    if isinstance(name, str):
        return dict(settings)
    options = dict(settings.get("options") or {})
    if isinstance(name, functools.partial):
        if name.args:
            raise ValueError(
                f"give {_called(name.func)} its arguments by name: partial({_called(name.func)},"
                f" size=...), got {len(name.args)} without one"
            )
        options = name.keywords | options
        name = name.func
    path = _import_path(name)
    own_code.trust(path)
    return dict(settings) | {"name": path, "options": options}


def _import_path(factory: Callable[..., Any]) -> str:
    """Where a class or function is, as package.module:name."""
    if not (inspect.isclass(factory) or inspect.isfunction(factory)):
        raise ValueError(
            f"name must be a model's name, or the class or function that makes one, got an object"
            f" of {type(factory).__name__}: a run makes its model anew in every process, so give"
            f" {type(factory).__name__} itself, and what it is called with as options"
        )
    module, name = factory.__module__, factory.__qualname__
    home = inspect.getmodule(factory)
    if not name.isidentifier() or getattr(home, name, None) is not factory:
        raise ValueError(
            f"{name} of {module} cannot be imported again: move it to the top level of a module"
        )
    return f"{module}:{name}"


def _called(factory: Callable[..., Any]) -> str:
    return getattr(factory, "__qualname__", repr(factory))
