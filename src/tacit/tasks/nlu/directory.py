"""A run directory of an intent and slot model: that of any run, with a file or two of its own.

    nlu.toml          every value that decided about the run
    scaling.json      the factors alpha_k of eDP-SGD; in `private/` if people's gradients gave them
    metrics.jsonl     on valid, by epoch
    result.json       how it ended, with the metrics on test; only a finished run has one

and `ledger.jsonl`, `checkpoints/` (after each epoch) and `private/` as in `tacit.runs.directory`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

from tacit.mechanisms import parts
from tacit.mechanisms.layer_scaling import LayerScaling
from tacit.privacy import durable
from tacit.runs.directory import RunDirectory
from tacit.tasks.nlu.experiment import NluExperiment


class NluDirectory(RunDirectory):
    """Where the files of such a run are."""

    experiment_name: ClassVar[str] = "nlu.toml"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.scaling_file = path / "scaling.json"
        self._private_scaling_file = self.private / "scaling.json"
        self.attack_file = self.private / "attack.json"

    def experiment(self) -> NluExperiment:  # type: ignore[override]
        """What the run was started with."""
        text = self.experiment_file.read_text(encoding="utf-8")
        return NluExperiment.from_toml(text, str(self.experiment_file))

    def write_scaling(self, scaling: LayerScaling) -> None:
        data = json.dumps(parts.to_json(scaling)) + "\n"
        file = self.scaling_file if scaling.is_public else self._private_scaling_file
        durable.write_whole(file, data.encode())

    def scaling(self) -> LayerScaling:
        """The factors that the run began with; a damaged file is refused."""
        is_private = self._private_scaling_file.exists()
        file = self._private_scaling_file if is_private else self.scaling_file
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            found = parts.from_json(data, {LayerScaling.kind: LayerScaling})
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(f"{file} is missing or damaged: {error}") from error
        assert isinstance(found, LayerScaling)
        return found
