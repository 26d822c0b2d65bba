"""What a model is trained to do: a package per task, and how an experiment finds its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacit.config.experiment import Experiment
from tacit.privacy.documents import parse_toml
from tacit.tasks.nlu.experiment import NluExperiment

if TYPE_CHECKING:
    from tacit.tasks.task import Task

AnyExperiment = Experiment | NluExperiment
EXPERIMENTS: dict[str, type[AnyExperiment]] = {"language": Experiment, "nlu": NluExperiment}


def read_experiment(text: str, where: str) -> AnyExperiment:
    """The experiment of a TOML text, of the task that its key `task` names."""
    task = parse_toml(text, where).get("task", "language")
    if not isinstance(task, str) or task not in EXPERIMENTS:
        raise ValueError(f"{where}: task must be one of {', '.join(EXPERIMENTS)}, got {task!r}")
    return EXPERIMENTS[task].from_toml(text, where)


def task_of(experiment: AnyExperiment) -> Task:
    """The task that an experiment is about: a module with the functions of `Task`."""
    if isinstance(experiment, NluExperiment):
        from tacit.tasks.nlu import task as nlu

        return nlu
    from tacit.tasks.language import task as language

    return language
