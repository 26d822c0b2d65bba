"""`use.py` of a bundle: plain torch that loads and runs its model where tacit is not installed.

There is one template, of which each kind of model takes its part.  The script reads sizes, labels
and vocabulary from the model's file, so that it follows from the kind of model alone (and, for a
model of the user's own, from the name of its factory), and `tacit verify` makes it again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from tacit.models.registry import OwnConfig
from tacit.runs.card import templates

USE_FILE = "use.py"

_RECURRENT = ("lstm", "cifg", "cifg-projected", "gru", "lstm-14m")
_KINDS = (*_RECURRENT, "transformer-14m", "clc", "bert")  # with a part there


def use_script(model_file: Path) -> str:
    """The script that runs the model of a file, a language model or one of intents and slots.

    Raises:
        ValueError: if the file does not say which kind of model it holds.
    """
    key, about = _metadata(model_file)
    kind, module, factory = about["model"], "", ""
    if kind == OwnConfig.kind:  # which refuses a factory that is not written as a path of names
        module, _, factory = OwnConfig(**about["config"]).factory.partition(":")
    elif kind not in _KINDS:
        raise ValueError(f"{model_file} holds the model {kind!r}, which {USE_FILE} has no part for")
    template = templates().get_template(f"{USE_FILE}.j2")
    return template.render(kind=kind, key=key, module=module, factory=factory)


def _metadata(model_file: Path) -> tuple[str, dict[str, Any]]:
    """The one entry of a model file's metadata: its key, and what it says of the model."""
    try:
        with safe_open(model_file, framework="pt", device="cpu") as file:
            [(key, text)] = (file.metadata() or {}).items()
        about: dict[str, Any] = json.loads(text)
        about["model"], about["config"]
    except (SafetensorError, ValueError, KeyError, TypeError) as problem:
        raise ValueError(f"{model_file} does not say which model it holds: {problem}") from problem
    return key, about
