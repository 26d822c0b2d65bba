"""The secret sharer: the same canaries, many trainings, one table (Thakkar et al. 2020).

    OUT/secret-sharer.toml             the grid with every value, but for the seeds
    OUT/seed-0/ARM/                    a run directory; of an arm on records, model and result.json
    OUT/seed-0/ARM/memorization.json   what the audit of the arm's model found; written last

A seed decides about canaries, sharers, starting weights, cohorts and noise, and all arms of a seed
have these in common, so that they differ in the training alone.  All of it is simulation: a seeded
run is not for release, and neither is one whose text was tampered with.

Interrupted at any point, the same call goes on: finished arms are kept, a federated arm is an
ordinary run that resumes at its last checkpoint, and an arm on records begins again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from tacit.config.experiment import Experiment
from tacit.corpus.store import Corpus
from tacit.evaluation.held_out import held_out_texts
from tacit.models import weights
from tacit.models.base import LanguageModel
from tacit.privacy import durable
from tacit.privacy.claims import PROJECTED
from tacit.privacy.documents import read_json
from tacit.privacy.guarantee import Guarantee, finite
from tacit.privacy.projection import Projection
from tacit.runs.directory import RunDirectory
from tacit.runs.run import LanguageRun
from tacit.runs.session import TrainingProgress
from tacit.tasks.language import assembly
from tacit.tasks.language.canaries import Planted, read_planted, record_planted
from tacit.tasks.language.people import People, public_frequencies
from tacit.tokenizers.cache import TokenCache
from tacit.tokenizers.tokenizer import Tokenizer
from tacit.train import train
from tacit_papers.thakkar2020 import pooled_sgd as sgd
from tacit_papers.thakkar2020.grid import Arm, Grid
from tacit_papers.thakkar2020.memorization import MemorizationAudit
from tacit_papers.thakkar2020.planted_tokens import planted_tokens
from tacit_papers.thakkar2020.pooled_sgd import Records

_GRID_FILE = "secret-sharer.toml"
_RESULT_FILE = "memorization.json"


class Watcher(Protocol):
    """Is told how far a training is: by `train` after each round, and by all else in steps."""

    def tell(self, what: str, done: int, of: int) -> None: ...

    def observe(self, now: TrainingProgress) -> None: ...


Watch = Callable[[str], AbstractContextManager[Watcher]]  # makes one for each arm, by its title


@dataclass(frozen=True)
class SecretSharer:
    """A grid, the folder it is carried out in, and which arms and seeds of it are asked for.

    `workers` is the number of processes that compute a federated arm's users.  Arms and seeds may
    be others at the next call; the grid may not.
    """

    grid: Grid
    out: Path
    arms: Sequence[Arm]
    seeds: Sequence[int]
    workers: int = 1

    def run(self, watch: Watch) -> list[dict[str, Any]]:
        """Train and audit whatever is not done yet; return all results in the folder."""
        self._claim_folder()
        for seed in self.seeds:
            trainings = SeedTrainings(self.grid, self.out / f"seed-{seed}", seed, self.workers)
            for arm in self.arms:
                if not (trainings.folder / arm.name / _RESULT_FILE).is_file():
                    with watch(f"seed {seed}, {arm.name}") as watcher:
                        trainings.run(arm, watcher)
        return self.results()

    def results(self) -> list[dict[str, Any]]:
        """The results in the folder of all the grid's arms, also of those not asked for now."""
        rows = [
            read_json(path, dict[str, Any])
            for arm in self.grid.all_arms()
            for path in sorted(self.out.glob(f"seed-*/{arm.name}/{_RESULT_FILE}"))
        ]
        return sorted(rows, key=lambda row: row["seed"])

    def check(self) -> None:
        """Refuse whatever can be refused before anything is trained."""
        common = self.grid.common()
        people = People.of(common)
        users = len(people.users)
        people.planting(common, assembly.tokenizer_of(common, people.users).tokenizer)
        for arm in self.arms:
            self.grid.experiment_of(arm, common)
            if arm.is_federated and arm.batch > users:
                raise ValueError(
                    f"{arm.name}: {arm.batch} users a round are more than the {users:,} training"
                    f" users of {common.corpus.source}"
                )
            if not arm.is_federated:
                self.grid.record_training(arm, 0)

    def _claim_folder(self) -> None:
        """Begin a new folder with the grid's file, or go on in one with the very same grid."""
        text, file = self.grid.to_toml(), self.out / _GRID_FILE
        if file.is_file():
            begun = Grid.from_toml(file.read_text(encoding="utf-8"), str(file))
            begun.refuse_another(Grid.from_toml(text, "the grid"), self.out, "name another folder")
            return
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise ValueError(
                f"--out {str(self.out)!r} holds something else already; name a new directory"
            )
        self.check()
        self.out.mkdir(parents=True, exist_ok=True)
        durable.write_whole(file, text.encode())


@dataclass(frozen=True)
class SeedTrainings:
    """The trainings of one seed, in a folder of their own, and what they have in common.

    Whatever takes work and is the same for all arms (people, tokenizer, starting weights, the
    audit's texts) is made once, when the first arm needs it.
    """

    grid: Grid
    folder: Path
    seed: int
    workers: int = 1

    @cached_property
    def common(self) -> Experiment:
        """The experiment of the seed; it starts from a file if its start takes work."""
        base = self.grid.common()
        common = base.changed(
            seed=self.seed,
            audit={"canaries": {"seed": self.seed}},
            model={"seed": base.model.seed + self.seed},
        )
        if common.model.pretrain is None and not common.model.public_output_bias:
            return common
        file = self.folder / "start.safetensors"
        if not file.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            start = assembly.StartingModel.of(common, self.tokenizer, self.people.corpus)
            durable.write_whole(file, weights.to_bytes(start.model, trained_on=start.trained_on))
        begin = {"start": str(file), "pretrain": None, "public_output_bias": False}
        return common.changed(model=begin)

    @cached_property
    def people(self) -> People:
        """Whose text it is, before anything is planted."""
        return People.of(self.grid.common())

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of all arms."""
        return assembly.tokenizer_of(self.grid.common(), self.people.users).tokenizer

    @cached_property
    def audit(self) -> MemorizationAudit:
        """How every arm's model is audited: all of them are asked the same."""
        common = self.common
        assert common.audit.canaries is not None
        frequencies = None
        if common.audit.canaries.draw == "unigram":
            frequencies = public_frequencies(self.tokenizer, common.tokenizer.source)
        held_out = held_out_texts(
            self.people.corpus.test, self.tokenizer, common.evaluation.max_tokens
        )
        return MemorizationAudit(
            self.tokenizer, self.grid.extraction, held_out.sequences, self.seed, frequencies
        )

    def run(self, arm: Arm, watcher: Watcher) -> None:
        """Train the arm, or go on with it; then audit its model and write the result."""
        directory = RunDirectory(self.folder / arm.name)
        experiment = self.grid.experiment_of(arm, self.common)
        train_arm = self._train_users if arm.is_federated else self._train_records
        facts, model, planted = train_arm(arm, experiment, directory, watcher)

        def progress(done: int, of: int) -> None:
            watcher.tell("looking for canaries", done, of)

        row = {
            "arm": arm.name,
            "optimizer": arm.optimizer,
            "data": arm.data,
            "batch": arm.batch,
            "unit": arm.unit,
            "seed": self.seed,
            **facts,
            **self.audit.of(model, planted, progress),
        }
        _write_json(directory.path / _RESULT_FILE, row)

    def _train_users(
        self, arm: Arm, experiment: Experiment, directory: RunDirectory, watcher: Watcher
    ) -> tuple[dict[str, Any], LanguageModel, list[Planted]]:
        """An ordinary run: how it was trained, its model, and what its ledger says was planted."""
        begun = directory.experiment_file.is_file()
        if not begun or directory.result() is None:
            if isinstance(self.people.corpus, Corpus):
                self._tokens(experiment, watcher)  # beside the corpus, where the run finds them
            train(
                None if begun else experiment,  # what was begun is held to the grid by its folder
                directory.path,
                resume=begun,
                workers=self.workers,
                observer=watcher.observe,
                announce=watcher.tell,
            )
        run = LanguageRun.open(directory.path)
        projection = self.grid.projection if arm.optimizer == "dp-fedavg" else None
        facts = _privacy_facts(run, projection.as_projection() if projection else None)
        return facts, run.model(), read_planted(directory.path)

    def _train_records(
        self, arm: Arm, experiment: Experiment, directory: RunDirectory, watcher: Watcher
    ) -> tuple[dict[str, Any], LanguageModel, list[Planted]]:
        """Training on records, whole or not at all: how, the model, and what was planted.

        Without a ledger the canaries follow from the grid, and only their copies are read from a
        file: no file can replace a phrase that was planted by another.
        """
        file = directory.path / "model.safetensors"
        planting = self.people.planting(experiment, self.tokenizer)
        assert planting is not None
        if not directory.result_file.exists():
            directory.path.mkdir(parents=True, exist_ok=True)
            cache = self._tokens(experiment, watcher)
            tokens = (cache.tokens(user) for user in range(len(cache)))
            record_planted(directory.path, planting, tokens)
            facts = self._fit_records(arm, experiment, cache, file, watcher)
            self.tokenizer.save(directory.tokenizer_file)
            _write_json(directory.result_file, facts)
        result = read_json(directory.result_file, dict[str, Any])
        own = experiment.model.own_factory
        model = weights.load(file, vocab_size=self.tokenizer.vocab_size, own_factory=own)
        rows = read_json(directory.canaries_file, dict[str, Any])["canaries"]
        planted = [
            Planted(canary, row["sharers"], row["copies"])
            for canary, row in zip(planting.canaries, rows, strict=True)
        ]
        return result, model, planted

    def _fit_records(
        self,
        arm: Arm,
        experiment: Experiment,
        cache: TokenCache,
        file: Path,
        watcher: Watcher,
    ) -> dict[str, Any]:
        """Train on the records of a cache, save the model, and say how it was trained."""
        start = assembly.StartingModel.of(experiment, self.tokenizer, self.people.corpus)
        bos = self.tokenizer.bos
        records = Records.of((cache.tokens(user) for user in range(len(cache))), bos)

        def progress(now: sgd.PooledStep) -> None:
            watcher.tell("training on records", now.step, now.steps)

        settings = self.grid.record_training(arm, self.seed)
        trained = settings.train(start.model, records, bos=bos, progress=progress)
        trained_on = (self.people.corpus.identity, *start.trained_on)
        durable.write_whole(file, weights.to_bytes(start.model, trained_on=trained_on))
        return {
            "training": asdict(settings) | {"steps_done": trained.steps, "epochs": trained.epochs},
            "epsilon": None,
            "claim": "No differential privacy: trained on records without clipping or noise.",
        }

    def _tokens(self, experiment: Experiment, watcher: Watcher) -> TokenCache:
        """The planted text as tokens, which all arms of the same view share."""

        def progress(done: int, of: int) -> None:
            watcher.tell("tokenizing", done, of)

        private = self.folder / "private"  # as private as the text
        private.mkdir(mode=0o700, parents=True, exist_ok=True)
        return planted_tokens(self.people, experiment, self.tokenizer, private, progress)


def _privacy_facts(run: LanguageRun, projection: Projection | None) -> dict[str, Any]:
    """How a run was trained, what may be claimed for it, and what is projected for real people."""
    plan, guarantee = run.plans()[0], run.guarantee()
    norm = plan.initial_clip_state().total_norm
    facts = {
        "training": {
            "rounds": run.round,
            "clip_norm": norm if math.isfinite(norm) else None,
            "noise_multiplier": plan.noise_multiplier,
        },
        "epsilon": finite(guarantee.value),
        "delta": guarantee.delta,
        "accountant": guarantee.accountant,
        "claim": guarantee.claim,
    }
    if projection is not None and guarantee.header.about_people:
        facts["projected"] = projected_facts(guarantee, projection)
    return facts


def projected_facts(actual: Guarantee, to: Projection) -> dict[str, Any]:
    """The projected claim (design rule 10) as a result's file has it, or why there is none."""
    facts: dict[str, Any] = {"label": PROJECTED, "cohort": to.cohort, "population": to.population}
    try:
        projected = actual.projected(to)
    except ValueError as why:
        nothing = {"epsilon": None, "delta": to.delta, "accountant": None}
        return facts | nothing | {"claim": f"Nothing is projected: {why}."}
    return facts | {
        "epsilon": finite(projected.value),
        "delta": projected.delta,
        "accountant": projected.accountant,
        "claim": projected.claim,
    }


def _write_json(path: Path, row: dict[str, Any]) -> None:
    """Write a result whole or not at all: an arm that has one is done."""
    durable.write_whole(path, (json.dumps(row, indent=1, allow_nan=False) + "\n").encode())
