"""From the words of `tacit train` to the trainings that are asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tacit.config import recipes
from tacit.config.experiment import Experiment
from tacit.config.sections import by_dotted_key
from tacit.runs.directory import RunDirectory

NOISE = ("plan.noise_multiplier", "plan.noise_stddev")
TARGET = "privacy.target_epsilon"
INHERITED = ("corpus", "tokenizer", "model")  # what a branch has from its parent
# Filled in when a run begins, so that they are no part of what was asked for.
RESOLVED = ("name", "corpus.identity", "plan.population_is_counted")


@dataclass(frozen=True)
class Request:
    """One training: what `tacit.train.train` is called with."""

    run: Path
    experiment: Experiment | None  # None: the one that the run, or its parent, holds
    variant: str = ""
    resume: bool = False
    branch_from: tuple[Path, int] | None = None
    finished: bool = False  # there is nothing left to do


def settings_of(
    given: Sequence[str], options: Mapping[str, int | float | str | bool | None]
) -> list[str]:
    """All that is set, as key=value; an option comes later, so it wins over --set."""
    keys = [text.partition("=")[0].strip() for text in given]
    both = [key for key in keys if key in NOISE]
    if both and options.get(TARGET) is not None:
        raise ValueError(
            f"--target-epsilon solves for the noise, and --set {both[0]} sets it; leave one out"
        )
    made = [f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None]
    return [*given, *made]


def parent_of(text: str) -> tuple[Path, int]:
    """RUN@ROUND."""
    run, at, round = text.rpartition("@")
    if not (at and run and round.isdecimal()):
        raise ValueError(f"--from must be RUN@ROUND, such as runs/first@20, got {text!r}")
    return Path(run), int(round)


def requests(
    recipe: str | None,
    run: Path,
    settings: Sequence[str],
    *,
    variant: str | None = None,
    resume: bool = False,
    parent: tuple[Path, int] | None = None,
) -> list[Request]:
    """One request, or one for each variant; what contradicts itself is refused."""
    if recipe is not None and _sets(settings, ("rounds",)):
        _refuse_phases(recipe, variant)
    if resume and parent is not None:
        raise ValueError(
            "--resume goes on with a run and --from starts another; a branch that was interrupted"
            " goes on with --resume alone"
        )
    if variant is not None and recipe is None:
        raise ValueError("--variant needs the RECIPE whose variant it is")
    if parent is not None:
        return [_branch(recipe, run, settings, variant, parent)]
    if recipe is None:
        if not resume:
            raise ValueError("name a RECIPE (tacit recipes list), or add --resume or --from")
        return [_resumed(run, settings)]
    found = recipes.load(recipe, settings, variant)
    if variant is not None or not found.variants:
        experiment = _without_target(found.only(variant), settings)
        if resume:
            _refuse_another(experiment, RunDirectory.open(run))
        return [Request(run, experiment, resume=resume)]
    every = {name: _without_target(one, settings) for name, one in found.experiments.items()}
    if (run / "experiment.toml").is_file():
        raise ValueError(
            f"{run} holds a run already, and the recipe {found.name} has variants that each get a"
            " directory in it; name another directory, or one --variant"
        )
    return [_of_variant(run / name, name, one, resume) for name, one in every.items()]


def repeated(request: Request) -> Request:
    """A branch that was begun already by the very same command."""
    if request.branch_from is None:
        return request
    return replace(request, resume=True, branch_from=None)


def holds_runs(path: Path) -> bool:
    """Whether there is a run at the path, or in it."""
    return (path / "experiment.toml").is_file() or bool(runs_in(path))


def runs_in(path: Path) -> list[Path]:
    """The run directories in a directory: those of a recipe's variants."""
    return sorted(file.parent for file in path.glob("*/experiment.toml"))


def _branch(
    recipe: str | None,
    run: Path,
    settings: Sequence[str],
    variant: str | None,
    parent: tuple[Path, int],
) -> Request:
    origin = RunDirectory.open(parent[0])
    there = origin.experiment()
    for text in settings:
        key, _, value = text.partition("=")
        fixed = key.strip().partition(".")[0] in INHERITED
        if fixed and not (key == "corpus.source" and value == json.dumps(there.source)):
            raise ValueError(
                f"a branch has its parent's corpus, tokenizer and model, so {key.strip()} cannot be"
                " set with --from"
            )
    if recipe is None:
        # Its noise was solved for over all of its own rounds; a branch goes on with that noise.
        experiment = recipes.load(str(origin.experiment_file), settings).only()
        if not _sets(settings, (TARGET,)):
            experiment = experiment.changed(privacy={"target_epsilon": None})
    else:
        experiment = _without_target(
            recipes.load(recipe, settings, variant).only(variant), settings
        )
    kept = {name: getattr(there, name).model_dump() for name in INHERITED}
    return Request(run, experiment.changed(**kept), branch_from=parent)


def _resumed(run: Path, settings: Sequence[str]) -> Request:
    """The run that is there; whatever is set has to be what it was started with."""
    if not (run / "experiment.toml").is_file() and runs_in(run):
        raise ValueError(
            f"{run} holds the runs of several variants; name the RECIPE to go on with them"
        )
    directory = RunDirectory.open(run)
    if not settings:
        return Request(run, None, resume=True)
    experiment = recipes.load(str(directory.experiment_file), settings).only()
    return Request(run, _without_target(experiment, settings), resume=True)


def _of_variant(run: Path, name: str, experiment: Experiment, resume: bool) -> Request:
    """Finished variants are skipped, those begun go on, the others begin."""
    if not resume:
        RunDirectory.check_free(run)
    if not (run / "experiment.toml").is_file():
        return Request(run, experiment, name)
    directory = RunDirectory.open(run)
    _refuse_another(experiment, directory)
    finished = directory.result() is not None
    return Request(run, experiment, name, resume=True, finished=finished)


def _without_target(experiment: Experiment, settings: Sequence[str]) -> Experiment:
    """Noise that is set takes the place of a recipe's target epsilon, which would override it."""
    if _sets(settings, NOISE) and not _sets(settings, (TARGET,)):
        return experiment.changed(privacy={"target_epsilon": None})
    return experiment


def _refuse_phases(recipe: str, variant: str | None) -> None:
    """A number of rounds does not say which phase is to be longer or shorter."""
    for experiment in recipes.load(recipe, (), variant).experiments.values():
        if experiment.phases:
            each = " and ".join(str(phase.rounds) for phase in experiment.phases)
            raise ValueError(
                f"rounds cannot be set for {experiment.name}, whose phases have {each} rounds;"
                " write a recipe that extends it, with phases of its own"
            )


def _sets(settings: Sequence[str], keys: Sequence[str]) -> bool:
    return any(text.partition("=")[0].strip() in keys for text in settings)


def _refuse_another(wanted: Experiment, directory: RunDirectory) -> None:
    """All that is asked for has to be what the run in the directory was started with."""
    there = dict(by_dotted_key(directory.experiment().model_dump()))
    solved = NOISE if wanted.privacy.target_epsilon is not None else ()
    for key, value in by_dotted_key(wanted.model_dump()):
        free = value is None or key in (*RESOLVED, *solved) or key.startswith("about.")
        if not free and there.get(key) != value:
            raise ValueError(
                f"{directory.path} holds another experiment: {key} is {there.get(key)!r} there and"
                f" {value!r} here; go on with it unchanged, or name another directory"
            )


def check_cohorts(wanted: Sequence[Request]) -> None:
    """Before anything is prepared: are there enough users for each of the trainings?"""
    from tacit.corpus.builtin import load_corpus
    from tacit.corpus.source import UserCorpus
    from tacit.tasks.language.people import People

    corpora: dict[str, UserCorpus] = {}
    for request in wanted:
        experiment = request.experiment
        if experiment is None or request.resume or request.branch_from or request.finished:
            continue  # those have their users already
        source = experiment.corpus.source
        corpora.setdefault(source, load_corpus(source))
        users = len(People.of(experiment, corpora[source]).users)
        if experiment.plan.cohort > users:
            raise ValueError(
                f"{experiment.name}: plan.cohort of {experiment.plan.cohort:g} users a round is"
                f" more than the {users:,} training users of {source}; lower it with --set"
                " plan.cohort=..."
            )
