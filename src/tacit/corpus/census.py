"""Who is in a corpus that is being made, kept in passing while its users are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.corpus import hashing, installation, people
from tacit.corpus.lines import Lines, LineSketch, LineSketchMaker
from tacit.corpus.people import OnMerge, Recognition
from tacit.corpus.sketch import Sketch
from tacit.corpus.writer import Block, text_bytes


@dataclass(frozen=True)
class InputDigest:
    """A file that was ingested: its name and its SHA-256."""

    name: str
    sha256: str


class Census:
    """Takes the blocks of a corpus; then says who the people are, and has them remembered."""

    def __init__(self, salt: bytes, *, about_people: bool, new_people: bool) -> None:
        self._about_people, self._new_people = about_people, new_people
        self._folded: list[npt.NDArray[np.uint64]] = []
        self._sketches: list[Sketch] = []
        self._lines = LineSketchMaker(salt)
        if about_people:  # generated users need no installation to remember them
            self._ids, self._exported = people.sketch_maker(), people.sketch_maker()
            self._known_lines = LineSketchMaker(installation.secret())

    def add(self, block: Block) -> None:
        """Take a block."""
        self._folded.append(block.folded)
        lines = Lines.of(*text_bytes(block.texts))
        self._lines.add(lines)
        if not self._about_people:
            return
        keys = block.keys.astype(">u8").tobytes()
        size = hashing.KEY_BYTES
        self._ids.add(keys[i : i + size] for i in range(0, len(keys), size))
        # An export names users by their hashed ids: if it is ingested, they are known by those.
        ids = (block.ids[i : i + 16].hex() for i in range(0, len(block.ids), 16))
        self._exported.add(map(hashing.user_key, ids))
        self._known_lines.add(lines)

    def lines(self) -> LineSketch:
        """A sample of lines for the corpus to keep, under its salt."""
        return self._lines.finish()

    def lookalikes(self) -> int:
        """How many ids differ from another one in case or blanks only."""
        folded = np.concatenate([np.zeros(0, np.uint64), *self._folded])
        _, counts = np.unique(folded, return_counts=True)
        return int(counts[counts > 1].sum())

    def find(self, inputs: Sequence[InputDigest], fingerprint: str) -> Recognition:
        """Who they are; nothing is remembered yet."""
        if not self._about_people:
            return Recognition(hashing.derived("nobody", fingerprint)[:16], False, 0.0)
        self._sketches = [self._ids.finish(), self._exported.finish()]
        digests = [file.sha256 for file in inputs]
        return people.find(self._sketches, inputs=digests, new_people=self._new_people)

    def register(
        self, found: Recognition, inputs: Sequence[InputDigest], on_merge: OnMerge
    ) -> None:
        """Remember who they are."""
        if self._about_people:
            people.register(
                found,
                self._sketches,
                inputs=[file.sha256 for file in inputs],
                lines=self._known_lines.finish(),
                on_merge=on_merge,
            )

    def facts(self, found: Recognition) -> dict[str, Any]:
        """What corpus.json says about whose text it is."""
        return {
            "people": found.people,
            "known_people": found.is_known,
            "new_people": found.declared_new,
            "overlaps": [list(pair) for pair in found.overlaps],
            "about_people": self._about_people,
        }
