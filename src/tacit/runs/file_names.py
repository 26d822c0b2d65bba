"""Files as they are named to others: without folders, which tell about the machine they are on."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, TypeVar

from tacit.config.sections import Complete

_Experiment = TypeVar("_Experiment", bound=Complete)
_PATHS = ("source", "start", "vocabulary", "vectors", "pretrained")  # settings that may be paths


def without_folders(experiment: _Experiment) -> _Experiment:
    """The experiment with paths shortened to file names: paths tell about a machine's owner."""

    def shortened(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: shortened(one, name) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [shortened(one, key) for one in value]
        return without_folder(value) if key in _PATHS and isinstance(value, str) else value

    return experiment.changed(**shortened(experiment.model_dump()))


def without_folder(source: str) -> str:
    """A file by its name alone, unless its path is relative to the working directory.

    A provenance such as "public: a path" keeps its first word.
    """
    kind, colon, name = source.partition(": ")
    if colon:
        return f"{kind}: {without_folder(name)}"
    path = PurePath(source)
    is_outside = path.is_absolute() or ".." in path.parts or source.startswith("~")
    return path.name if is_outside else source
