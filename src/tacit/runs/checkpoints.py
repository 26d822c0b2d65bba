"""Checkpoints: the model after a leg, and beside it all that the next leg needs.

    model-000020.safetensors  the model, as any model of its task is stored
    state-000020.safetensors  the optimizer's arrays; as metadata the head of the ledger, the model
                              file's digest, and what else the task needs

The state is written last, so a checkpoint without one does not count.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, numpy, safe_open

from tacit.privacy import durable, trusted
from tacit.privacy.documents import fitted, parse_json
from tacit.privacy.ledger_lines import Head
from tacit.tasks.task import LastState, State

_KEY = "tacit"
_STATE = re.compile(r"state-(\d{6,})\.safetensors")
_OWN = ("leg", "head", "model", "arrays")
_OF_LANGUAGE = {"tokenizer", "clip_norms", "clip_round"}


class _Facts(TypedDict):
    """The metadata of a checkpoint; what the trainers of the tasks add to it is theirs."""

    leg: int
    head: dict[str, Any]
    model: str
    arrays: NotRequired[str]  # their digest; older checkpoints have none
    tokenizer: NotRequired[str]  # the three of a language model
    clip_norms: NotRequired[list[float]]
    clip_round: NotRequired[int]
    horizon: NotRequired[str]  # where its rounds are charged together
    horizon_rounds: NotRequired[int]
    experiment: NotRequired[str]  # the two of intents and slots
    scaling: NotRequired[str]


@dataclass(frozen=True)
class Checkpoint(LastState):
    """What is known after `leg` legs; the ledger must not be shorter than `head` says."""

    head: Head


class Checkpoints:
    """The folder of a run's checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._unpruned: list[int] | None = None  # None before the folder was looked at

    def legs(self) -> list[int]:
        """After how many legs there are checkpoints, in order."""
        matches = (_STATE.fullmatch(path.name) for path in self.folder.glob("state-*"))
        return sorted(int(match[1]) for match in matches if match)

    def model_file(self, leg: int) -> Path:
        return self.folder / f"model-{leg:06d}.safetensors"

    def state_file(self, leg: int) -> Path:
        return self.folder / f"state-{leg:06d}.safetensors"

    def write(self, leg: int, state: State, head: Head) -> None:
        """Write both files, synced; the checkpoint exists from the moment the second one does."""
        durable.write_whole(self.model_file(leg), state.model)
        arrays = {name: np.ascontiguousarray(value) for name, value in state.arrays.items()}
        arrays["leg"] = np.array([leg], np.int64)  # a file needs at least one tensor
        facts = {
            **state.facts,
            "leg": leg,
            "head": head.to_json(),
            "model": hashlib.sha256(state.model).hexdigest(),
            "arrays": _digest_of(arrays),
        }
        data = numpy.save(arrays, {_KEY: json.dumps(facts, sort_keys=True)})
        durable.write_whole(self.state_file(leg), data)
        if self._unpruned is not None and leg not in self._unpruned:
            self._unpruned.append(leg)

    def read(self, leg: int | None = None) -> Checkpoint:
        """The checkpoint after a leg, by default the last; a damaged one is refused."""
        legs = self.legs()
        if not legs:
            raise ValueError(f"{self.folder} has no checkpoint")
        leg = legs[-1] if leg is None else leg
        if leg not in legs:
            nearest = min(legs, key=lambda other: abs(other - leg))
            raise ValueError(f"there is no checkpoint of round {leg}; the nearest is {nearest}")
        path = self.state_file(leg)
        try:
            trusted.refuse_irregular(path)  # a pipe would be waited for
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            stated = fitted(parse_json(metadata[_KEY], path), _Facts, path)
            if stated.get("arrays", own := _digest_of(arrays)) != own:
                raise ValueError("the digest of its arrays is another")
            del arrays["leg"]
            facts = {name: value for name, value in stated.items() if name not in _OWN}
            if not (facts.keys() >= _OF_LANGUAGE or "experiment" in facts):
                raise ValueError(f"{_KEY} lacks what its task needs")
            head = Head.from_json(stated["head"])
            checkpoint = Checkpoint(leg, self.model_file(leg), arrays, facts, head)
            model = trusted.read_bytes(checkpoint.model_file)
        except (SafetensorError, KeyError, ValueError, TypeError, OSError) as error:
            raise ValueError(_damaged(path, leg, legs, str(error))) from error
        if hashlib.sha256(model).hexdigest() != stated["model"] or stated["leg"] != leg:
            raise ValueError(_damaged(checkpoint.model_file, leg, legs, "its digest is another"))
        return checkpoint

    def prune(self, is_kept: Callable[[int], bool]) -> None:
        """Remove all but those to keep and the last two.

        Two, so that a reader of a run that is still going does not lose the file in its hands, and
        so that there is one to go back to if the last is damaged.  The folder is listed the first
        time only: a run that keeps all of its checkpoints must not list them after each leg.
        """
        legs = self.legs() if self._unpruned is None else self._unpruned
        self._unpruned = legs[-2:]
        for leg in legs[:-2]:
            if not is_kept(leg):
                self.state_file(leg).unlink(missing_ok=True)
                self.model_file(leg).unlink(missing_ok=True)


def _digest_of(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over the names, types, shapes and values of arrays."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        value = arrays[name]
        digest.update(f"{name} {value.dtype.str} {value.shape} ".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def _damaged(path: Path, leg: int, legs: list[int], why: str) -> str:
    """Going back is safe: the same legs are repeated with the same noise, or charged again."""
    before = [other for other in legs if other < leg]
    advice = f"; delete both files of {leg:06d} to go on from {before[-1]}" if before else ""
    return f"the checkpoint {path} is truncated or damaged ({why}){advice}"
