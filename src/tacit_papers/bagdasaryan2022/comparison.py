"""What `tacit papers tokenizers` compares: runs and tokenizers, and whose texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.cli.options import run_and_round

if TYPE_CHECKING:
    from tacit.corpus.source import UserCorpus
    from tacit.runs.run import Run
    from tacit.runs.stored_model import StoredModel
    from tacit.tokenizers.history import LearntTokenizer


@dataclass(frozen=True)
class Place:
    """What is at one of the places that are compared."""

    name: str
    model: StoredModel | None
    tokenizer: LearntTokenizer | None  # where there is no model

    @property
    def run(self) -> Run | None:
        return None if self.model is None else self.model.run


def opened(texts: Sequence[str]) -> list[Place]:
    """Each place under a short name: the last part of its path, or all of it if that is not one."""
    paths = [run_and_round(text) for text in texts]
    exact = [(path.resolve(), round) for path, round in paths]
    if twice := next(
        (text for text, one in zip(texts, exact, strict=True) if exact.count(one) > 1), ""
    ):
        raise ValueError(f"{twice} is named twice")
    short = [path.name + ("" if round is None else f"@{round}") for path, round in exact]
    names = short if len(set(short)) == len(short) else texts
    return [_at(name, *place) for name, place in zip(names, paths, strict=True)]


def _at(name: str, path: Path, round: int | None) -> Place:
    from tacit.runs.stored_model import MODEL_FILE, StoredModel
    from tacit.tokenizers.history import LearntTokenizer

    if not path.exists():
        raise ValueError(f"there is no run and no tokenizer at {path}")
    if (path / "experiment.toml").is_file() or (path / MODEL_FILE).is_file():
        return Place(name, StoredModel.open(path, round), None)
    if round is not None:
        raise ValueError(f"{path} is no run, so that it has no round {round}")
    return Place(name, None, LearntTokenizer.load(path))


def corpus_of(found: Sequence[Place], named: str | None) -> UserCorpus:
    """The one whose test users are measured on."""
    from tacit.corpus.builtin import load_corpus

    if named is None:
        runs = {place.run.ledger.header.data: place for place in found if place.run}
        if not runs:
            raise ValueError("none of the places is a run, so say on which text: add --corpus C")
        if len(runs) > 1:
            one, other, *_ = (place.name for place in runs.values())
            raise ValueError(
                f"{one} and {other} were trained on different corpora; say on which text to"
                " measure: add --corpus C"
            )
        [place] = runs.values()
        assert place.model is not None
        return place.model.corpus(None)
    corpus = load_corpus(named)
    if len(corpus.test) == 0:
        raise ValueError(f"the corpus {named} has no test users to measure on")
    return corpus


def runs_of(found: Sequence[Place]) -> dict[str, Run]:
    """Each run once, by name, however many of its rounds are compared."""
    runs = {place.run.path.resolve(): place.run for place in found if place.run is not None}
    if not runs:
        raise ValueError("--curve draws the rounds of runs, and none of the places is one")
    names = [path.name for path in runs]
    unique = len(set(names)) == len(names)
    return {path.name if unique else str(run.path): run for path, run in runs.items()}
