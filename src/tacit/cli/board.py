"""TensorBoard, an extra: the held-out metrics of a training, and nothing that is private."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.runs.session import Progress


class Board:
    """Writes the rows of metrics.jsonl as they come, into DIR/tensorboard."""

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError(
                "--tensorboard needs the package tensorboard: pip install 'tacit[tensorboard]'"
            ) from None
        self._make = SummaryWriter
        self._folder = run / "tensorboard"
        self._writer: Any = None  # made with the first row, when the run directory is there
        self._last = -1

    def observe(self, now: Progress) -> None:
        """Only held-out metrics are in a row; cohorts and users are never written."""
        row = now.metrics
        if row is None or row["round"] <= self._last:
            return
        if self._writer is None:  # after a resume, what was measured past the checkpoint goes
            make: Any = self._make
            self._writer = make(str(self._folder), purge_step=row["round"])
        self._last = row["round"]
        for name, value in row.items():
            if name != "round" and value is not None:
                self._writer.add_scalar(f"held_out/{name}", value, row["round"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
