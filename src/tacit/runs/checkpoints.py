"""Checkpoints: the model after a round, and beside it all that the next round needs.

    round-000020.safetensors        the model, as any tacit model is stored
    round-000020.state.safetensors  the server optimizer's state; as metadata the clip norms, the
                                    head of the ledger, the tokenizer and the model file's digest

The state is written last, so a checkpoint without one does not count.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, numpy, safe_open

from tacit.privacy import durable
from tacit.privacy.ledger_lines import Head

_KEY = "tacit"
_STATE = re.compile(r"round-(\d{6,})\.state\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """What is known after `round` rounds.  The model is in `model_file`."""

    round: int
    model_file: Path
    optimizer: dict[str, NDArray[Any]]
    clip_norms: tuple[float, ...]
    clip_round: int
    head: Head
    tokenizer: str  # its fingerprint


class Checkpoints:
    """The folder of a run's checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rounds(self) -> list[int]:
        """The rounds there are checkpoints of, in order."""
        found = (_STATE.fullmatch(path.name) for path in self.folder.glob("round-*"))
        return sorted(int(match[1]) for match in found if match)

    def model_file(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.safetensors"

    def state_file(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.state.safetensors"

    def write(self, model: bytes, checkpoint: Checkpoint) -> None:
        """Both files, synced; the checkpoint exists from the moment the second one does."""
        durable.write_whole(self.model_file(checkpoint.round), model)
        facts = {
            "round": checkpoint.round,
            "clip_norms": list(checkpoint.clip_norms),
            "clip_round": checkpoint.clip_round,
            "head": checkpoint.head.to_json(),
            "tokenizer": checkpoint.tokenizer,
            "model": hashlib.sha256(model).hexdigest(),
        }
        # A file needs at least one tensor.
        arrays = {name: np.ascontiguousarray(value) for name, value in checkpoint.optimizer.items()}
        arrays["round"] = np.array([checkpoint.round], np.int64)
        data = numpy.save(arrays, {_KEY: json.dumps(facts, sort_keys=True)})
        durable.write_whole(self.state_file(checkpoint.round), data)

    def read(self, round: int | None = None) -> Checkpoint:
        """The checkpoint of a round, by default the last; damage is refused."""
        rounds = self.rounds()
        if not rounds:
            raise ValueError(f"{self.folder} has no checkpoint")
        round = rounds[-1] if round is None else round
        if round not in rounds:
            near = min(rounds, key=lambda there: abs(there - round))
            raise ValueError(f"there is no checkpoint of round {round}; the nearest is {near}")
        path = self.state_file(round)
        try:
            with safe_open(path, framework="numpy") as file:
                facts = json.loads((file.metadata() or {})[_KEY])
                optimizer = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            del optimizer["round"]
            found = Checkpoint(
                round=facts["round"],
                model_file=self.model_file(round),
                optimizer=optimizer,
                clip_norms=tuple(facts["clip_norms"]),
                clip_round=facts["clip_round"],
                head=Head.from_json(facts["head"]),
                tokenizer=facts["tokenizer"],
            )
            model = self.model_file(round).read_bytes()
        except (SafetensorError, KeyError, ValueError, TypeError, OSError) as error:
            raise ValueError(_damaged(path, rounds, str(error))) from error
        if hashlib.sha256(model).hexdigest() != facts["model"] or found.round != round:
            raise ValueError(_damaged(found.model_file, rounds, "its digest is another"))
        return found

    def prune(self, is_kept: Callable[[int], bool]) -> None:
        """Remove all but those to keep and the last two.

        Two, so that who reads a run that is still going does not lose the file under its hands,
        and so that there is one to go back to if the last is damaged.
        """
        for round in self.rounds()[:-2]:
            if not is_kept(round):
                self.state_file(round).unlink(missing_ok=True)
                self.model_file(round).unlink(missing_ok=True)


def _damaged(path: Path, rounds: list[int], why: str) -> str:
    """Going back is safe: the same rounds are repeated with the same noise, or charged again."""
    round = int(path.name.split("-")[1].split(".")[0])
    before = [there for there in rounds if there < round]
    advice = f"; delete round {round}'s files to go on from round {before[-1]}" if before else ""
    return f"the checkpoint {path} is truncated or damaged ({why}){advice}"
