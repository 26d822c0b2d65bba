"""What `tacit papers tokenizers` compares: runs and tokenizers, on whose texts, and their rows.

Only test users' text is read, who are in no training on their corpus: a table of tokenizers may be
published, and training users' words may not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit.cli.options import run_and_round
from tacit.corpus.builtin import load_corpus
from tacit.corpus.source import UserCorpus, UserSource
from tacit.privacy.projection import Projection
from tacit.runs.run import LanguageRun
from tacit.runs.stored_model import MODEL_FILE, StoredModel
from tacit.tokenizers.history import LearntTokenizer
from tacit_papers.bagdasaryan2022.rows import TokenizerRow, row_of, row_of_tokenizer, words_of

Show = Callable[[str, float, float | None, str], None]  # of `tacit.runs.progress.bar`


@dataclass(frozen=True)
class Contender:
    """A model with its tokenizer, or a tokenizer alone, under the name that the table has."""

    name: str
    model: StoredModel | None
    tokenizer: LearntTokenizer | None  # if there is no model

    @property
    def run(self) -> LanguageRun | None:
        """The run that the model is of."""
        return None if self.model is None else self.model.run


def open_contenders(texts: Sequence[str]) -> list[Contender]:
    """Open RUN, RUN@ROUND, and a tokenizer's folder or file.

    Each is named by the last part of its path, or by the whole path where two have the same.
    """
    paths = [run_and_round(text) for text in texts]
    exact = [(path.resolve(), round) for path, round in paths]
    for text, one in zip(texts, exact, strict=True):
        if exact.count(one) > 1:
            raise ValueError(f"{text} is named twice")
    short = [path.name + ("" if round is None else f"@{round}") for path, round in exact]
    names = short if len(set(short)) == len(short) else texts
    return [_open(name, *path) for name, path in zip(names, paths, strict=True)]


def _open(name: str, path: Path, round: int | None) -> Contender:
    """The run, model or tokenizer at a path."""
    if not path.exists():
        raise ValueError(f"there is no run and no tokenizer at {path}")
    if (path / "experiment.toml").is_file() or (path / MODEL_FILE).is_file():
        return Contender(name, StoredModel.open(path, round), None)
    if round is not None:
        raise ValueError(f"{path} is no run, so that it has no round {round}")
    return Contender(name, None, LearntTokenizer.load(path))


def corpus_of(contenders: Sequence[Contender], named: str | None) -> UserCorpus:
    """The corpus whose test users are measured on: the named one, or that of the runs."""
    if named is not None:
        corpus = load_corpus(named)
        if len(corpus.test) == 0:
            raise ValueError(f"the corpus {named} has no test users to measure on")
        return corpus
    by_data = {one.run.ledger.header.data: one for one in contenders if one.run}
    if not by_data:
        raise ValueError("none of the places is a run, so say on which text: add --corpus C")
    first, *others = by_data.values()
    if others:
        raise ValueError(
            f"{first.name} and {others[0].name} were trained on different corpora; say on which"
            " text to measure: add --corpus C"
        )
    assert first.model is not None
    return first.model.corpus(None)


def runs_of(contenders: Sequence[Contender]) -> dict[str, LanguageRun]:
    """Each run once, by name, however many of its rounds are compared."""
    runs = {one.run.path.resolve(): one.run for one in contenders if one.run is not None}
    if not runs:
        raise ValueError("--curve draws the rounds of runs, and none of the places is one")
    names = [path.name for path in runs]
    unique = len(set(names)) == len(names)
    return {path.name if unique else str(run.path): run for path, run in runs.items()}


def measure(
    contenders: Sequence[Contender],
    users: UserSource,
    texts: Sequence[str],
    projection: Projection | None,
    show: Show,
) -> list[TokenizerRow]:
    """A row for each contender on the same texts; the KLD compares with all that `users` say."""

    def telling(step: str, unit: str) -> Callable[[int, int], None]:
        return lambda done, of: show(step, done, of, f"{done:,} of {of:,} {unit}")

    reference = words_of(users, telling("words of test users", "users"))
    rows = []
    for one in contenders:
        if one.model is not None:
            progress = telling(f"measuring {one.name}", "texts")
            row = row_of(
                one.model,
                texts,
                name=one.name,
                reference=reference,
                projection=projection,
                progress=progress,
            )
        else:
            assert one.tokenizer is not None
            row = row_of_tokenizer(one.tokenizer, texts, name=one.name, reference=reference)
        rows.append(row)
    return rows
