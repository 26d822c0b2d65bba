"""One seed of a secret-sharer grid: each arm trained on the same planted text, then audited.

An arm leaves its files in a folder of its own, and what the audit found, memorization.json, is
written last: an arm that has it is done.  A federated arm is an ordinary run, which resumes at its
last checkpoint.  An arm on records is trained whole or not at all.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from tacit.config.experiment import Experiment
from tacit.evaluation.held_out import held_out_sequences
from tacit.models import weights
from tacit.models.base import LanguageModel
from tacit.privacy import durable
from tacit.privacy.guarantee import finite
from tacit.runs.directory import RunDirectory
from tacit.runs.run import LanguageRun
from tacit.runs.session import Progress
from tacit.tasks.language import assembly
from tacit.tasks.language import central_sgd as sgd
from tacit.tasks.language.people import People, public_frequencies
from tacit.tasks.language.planted_tokens import planted_tokens
from tacit.tasks.language.planting import Planted, read_planted, record_planted
from tacit.tasks.language.records import Records
from tacit.tokenizers.cache import TokenCache
from tacit.tokenizers.tokenizer import Tokenizer
from tacit.train import train
from tacit_papers.projected import projected_facts
from tacit_papers.thakkar2020.arms import Arm
from tacit_papers.thakkar2020.grid import Grid
from tacit_papers.thakkar2020.memorization import Audit

FOUND_FILE = "memorization.json"


class Watcher(Protocol):
    """Who is told where a training is."""

    def tell(self, what: str, done: int, of: int) -> None: ...

    def observe(self, now: Progress) -> None: ...


@dataclass(frozen=True)
class Bench:
    """The arms of one seed, in a folder of theirs, and what they have in common."""

    grid: Grid
    folder: Path
    seed: int
    workers: int = 1

    @cached_property
    def common(self) -> Experiment:
        """The experiment of the seed; it starts from a file if its start takes work."""
        found = self.grid.common()
        canaries = {"canaries": {"seed": self.seed}}
        model: dict[str, Any] = {"seed": found.model.seed + self.seed}
        found = found.changed(seed=self.seed, audit=canaries, model=model)
        if found.model.pretrain is None and not found.model.public_output_bias:
            return found
        file = self.folder / "start.safetensors"
        if not file.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            start = assembly.starting_model(found, self.tokenizer, self.people.corpus)
            weights.save(start.model, file, trained_on=start.trained_on)
        begin = {"start": str(file), "pretrain": None, "public_output_bias": False}
        return found.changed(model=begin)

    @cached_property
    def people(self) -> People:
        return People.of(self.grid.common())

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return assembly.tokenizer_of(self.grid.common(), self.people.users)

    @cached_property
    def audit(self) -> Audit:
        given = self.common
        assert given.audit.canaries is not None
        frequencies = None
        if given.audit.canaries.draw == "unigram":
            frequencies = public_frequencies(self.tokenizer, given.tokenizer.source)
        held_out = held_out_sequences(
            self.people.corpus.test, self.tokenizer, given.evaluation.max_tokens
        )
        settings = self.grid.extraction
        return Audit(self.tokenizer, settings, held_out, self.seed, frequencies)

    def found(self, arm: Arm) -> dict[str, Any] | None:
        """What the audit of an arm said, if it is done."""
        file = self.folder / arm.name / FOUND_FILE
        if not file.is_file():
            return None
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found

    def run(self, arm: Arm, watcher: Watcher) -> None:
        """Train the arm, or go on with it; then audit it."""
        directory = RunDirectory(self.folder / arm.name)
        experiment = arm.changed(self.common, self.grid)
        if arm.is_federated:
            facts, model = self._federated(arm, experiment, directory, watcher)
            planted = read_planted(directory.path)
        else:
            facts, model = self._records(arm, experiment, directory, watcher)
            planted = self._planted(experiment, directory)

        def progress(done: int, of: int) -> None:
            watcher.tell("looking for canaries", done, of)

        audited = self.audit.of(model, planted, progress)
        row = {
            "arm": arm.name,
            "optimizer": arm.optimizer,
            "data": arm.data,
            "batch": arm.batch,
            "unit": arm.unit,
            "seed": self.seed,
            **facts,
            **audited,
        }
        text = json.dumps(row, indent=1, allow_nan=False) + "\n"
        durable.write_whole(directory.path / FOUND_FILE, text.encode())

    def _planted(self, experiment: Experiment, directory: RunDirectory) -> list[Planted]:
        """The canaries of an arm without a ledger follow from the grid; their copies are counted.

        So no file can put another phrase in the place of one that was planted.
        """
        planting = self.people.planting(experiment, self.tokenizer)
        assert planting is not None
        rows = json.loads(directory.canaries_file.read_text(encoding="utf-8"))["canaries"]
        return [
            Planted(canary, row["sharers"], row["copies"])
            for canary, row in zip(planting.canaries, rows, strict=True)
        ]

    def _tokens(self, experiment: Experiment, watcher: Watcher) -> TokenCache:
        def progress(done: int, of: int) -> None:
            watcher.tell("tokenizing", done, of)

        private = self.folder / "private"  # as private as the text
        private.mkdir(mode=0o700, parents=True, exist_ok=True)
        return planted_tokens(self.people, experiment, self.tokenizer, private, progress)

    def _federated(
        self, arm: Arm, experiment: Experiment, directory: RunDirectory, watcher: Watcher
    ) -> tuple[dict[str, Any], LanguageModel]:
        """An ordinary run."""
        begun = directory.experiment_file.is_file()
        if not begun or directory.result() is None:
            if assembly.corpus_folder(self.people.corpus) is not None:
                self._tokens(experiment, watcher)  # which the run finds there
            train(
                None if begun else experiment,  # what was begun is held to the grid by its folder
                directory.path,
                resume=begun,
                workers=self.workers,
                observer=watcher.observe,
                announce=watcher.tell,
            )
        run = LanguageRun.open(directory.path)
        return _privacy_facts(run, arm, self.grid), run.model()

    def _records(
        self, arm: Arm, experiment: Experiment, directory: RunDirectory, watcher: Watcher
    ) -> tuple[dict[str, Any], LanguageModel]:
        """Training on records: not done, or done whole."""
        file = directory.path / "model.safetensors"
        if directory.result() is None:
            self._train_records(arm, experiment, directory, file, watcher)
        result = directory.result()
        assert result is not None
        own = experiment.model.name if ":" in experiment.model.name else None
        return result, weights.load(file, vocab_size=self.tokenizer.vocab_size, own_factory=own)

    def _train_records(
        self,
        arm: Arm,
        experiment: Experiment,
        directory: RunDirectory,
        file: Path,
        watcher: Watcher,
    ) -> None:
        directory.path.mkdir(parents=True, exist_ok=True)
        people = self.people
        start = assembly.starting_model(experiment, self.tokenizer, people.corpus)
        cache = self._tokens(experiment, watcher)
        planting = people.planting(experiment, self.tokenizer)
        assert planting is not None
        record_planted(directory.path, planting, (cache.tokens(user) for user in range(len(cache))))
        bos = self.tokenizer.bos
        records = Records.of((cache.tokens(user) for user in range(len(cache))), bos)

        def progress(now: sgd.Progress) -> None:
            watcher.tell("training on records", now.step, now.steps)

        settings = arm.record_training(self.grid, self.seed)
        trained = settings.train(start.model, records, bos=bos, progress=progress)
        weights.save(start.model, file, trained_on=(people.corpus.identity, *start.trained_on))
        self.tokenizer.save(directory.tokenizer_file)
        facts = {
            "training": asdict(settings) | {"steps_done": trained.steps, "epochs": trained.epochs},
            "epsilon": None,
            "claim": "No differential privacy: trained on records without clipping or noise.",
        }
        durable.write_whole(directory.result_file, (json.dumps(facts, indent=1) + "\n").encode())


def _privacy_facts(run: LanguageRun, arm: Arm, grid: Grid) -> dict[str, Any]:
    """How it was trained and what may be claimed for it."""
    plan, found = run.plans()[0], run.guarantee()
    norm = plan.initial_clip_state().total_norm
    facts = {
        "training": {
            "rounds": run.round,
            "clip_norm": norm if math.isfinite(norm) else None,
            "noise_multiplier": plan.noise_multiplier,
        },
        "epsilon": finite(found.value),
        "delta": found.delta,
        "accountant": found.accountant,
        "claim": found.claim,
    }
    is_asked = arm.optimizer == "dp-fedavg" and found.header.about_people
    if is_asked and grid.projection is not None:
        facts["projected"] = projected_facts(found, grid.projection)
    return facts
