"""How a command line becomes trainings: a recipe, options and --set in, `Request`s out.

A recipe may have variants, a run may be resumed, and a training may branch from another run.
Everything that contradicts itself is refused here, before a corpus is opened or a file is written,
so that a mistake in the last variant does not show after hours of training the first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tacit.config.experiment import Experiment
from tacit.config.sections import by_dotted_key
from tacit.mechanisms.noise import NOISES
from tacit.mechanisms.planning import TURNS
from tacit.mechanisms.samplers import MinSeparationSampler
from tacit.runs.directory import RunDirectory
from tacit.tasks import AnyExperiment, recipes
from tacit.tasks.nlu.experiment import NluExperiment

Value = int | float | str | bool | None

_NOISE = ("plan.noise_multiplier", "plan.noise_stddev", "noise.noise_multiplier")
_TARGET = "privacy.target_epsilon"
_TARGETS = (_TARGET, "projection.target_epsilon")
_INHERITED = ("corpus", "tokenizer", "model", "data")  # what a branch has from its parent
_Some = TypeVar("_Some", Experiment, NluExperiment)


@dataclass(frozen=True)
class Request:
    """One training: what `tacit.train.train` is called with."""

    run: Path
    experiment: AnyExperiment | None  # None: the one that the run holds
    variant: str = ""
    resume: bool = False
    branch_from: tuple[Path, int] | None = None
    is_finished: bool = False  # nothing is left to do

    @property
    def leg_name(self) -> str:
        """What the training counts in: rounds of a language model, epochs of intents and slots."""
        experiment = self.experiment or RunDirectory.open(self.run).experiment()
        return experiment.leg_name


def all_settings(settings: Sequence[str] | None, options: Mapping[str, Value]) -> list[str]:
    """The --set words and the options that were given, all as key=value.

    Options come last, so that they win over --set.
    """
    words = [f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None]
    return [*(settings or ()), *words]


def with_one_noise(experiment: _Some, settings: Sequence[str]) -> _Some:
    """A recipe's experiment with noise that is either set or solved for, as the settings say.

    Noise that is set takes the place of the recipe's target epsilon, which would override it, and a
    target that of the recipe's noise.

    Raises:
        ValueError: if the settings have both.
    """
    keys = [_key(setting) for setting in settings]
    noise = [key for key in keys if key in _NOISE]
    target = [key for key in keys if key in _TARGETS]
    if noise and target:
        raise ValueError(
            f"{target[0]} solves for the noise, and --set {noise[0]} sets it; leave one out"
        )
    if isinstance(experiment, Experiment):
        experiment = _in_turns(experiment, settings)
    if isinstance(experiment, NluExperiment):
        if noise:
            return experiment.changed(privacy={"target_epsilon": None})
        return experiment.changed(noise={"noise_multiplier": None}) if target else experiment
    return experiment.without_target() if noise else experiment


def _in_turns(experiment: Experiment, settings: Sequence[str]) -> Experiment:
    """Users take turns, without a claim of sampling, where noise or separation were set to need it.

    A recipe whose users take turns already keeps its sampling.
    """
    keys = {_key(setting) for setting in settings}
    if "plan.sampling" in keys or not {"plan.noise", "plan.separation"} & keys:
        return experiment
    plan = experiment.plan
    is_correlated = plan.noise is not None and plan.noise not in NOISES
    if plan.sampling in TURNS or not (is_correlated or plan.separation):
        return experiment
    return experiment.changed(plan={"sampling": MinSeparationSampler.kind})


def no_privacy(task: str, settings: Sequence[str]) -> tuple[list[str], list[str]]:
    """What --no-privacy stands for: further settings, and keys to unset.

    Raises:
        ValueError: if the settings ask for noise, or for an epsilon, at the same time.
    """
    for key in (*_NOISE, "plan.noise", *_TARGETS, "privacy.budget_epsilon"):
        if key in map(_key, settings):
            raise ValueError(f"--no-privacy adds no noise, and {key} asks for it; leave one out")
    if task == "nlu":
        return ["training.method=sgd"], ["noise.noise_multiplier", _TARGET]
    return ["plan.noise_multiplier=0.0"], []


def requests(
    recipe: str | None,
    run: Path,
    settings: Sequence[str],
    *,
    variant: str | None = None,
    resume: bool = False,
    parent: tuple[Path, int] | None = None,
    start: str | None = None,
    unset: Sequence[str] = (),
) -> list[Request]:
    """What a command asks for: one training, or one for each variant of the recipe.

    Args:
        recipe: a recipe's name or file; None with `resume` or `parent`.
        run: the run directory, or with variants the directory that holds theirs.
        settings: changes to the recipe, as key=value.
        variant: the only variant to train, in `run` itself.
        resume: go on with what `run` holds.
        parent: the run and round to branch from.
        unset: keys of the recipe that go back to their defaults.
        start: a folder or base model whose weights, sizes and tokenizer replace the recipe's.

    Raises:
        ValueError: in one sentence, if these contradict each other or what `run` holds.
    """
    if resume and parent is not None:
        raise ValueError(
            "--resume goes on with a run and --from starts another; a branch that was interrupted"
            " goes on with --resume alone"
        )
    if start is not None and (parent is not None or recipe is None):
        raise ValueError("--start is for a new run of a RECIPE: this one has its model already")
    if variant is not None and recipe is None:
        raise ValueError("--variant needs the RECIPE whose variant it is")
    for key in set(unset) & set(map(_key, settings)):
        raise ValueError(f"{key} is both set and unset; leave one of them out")
    if parent is not None:
        return [_branch(recipe, run, settings, variant, parent, unset)]
    if recipe is None:
        if not resume:
            raise ValueError(
                "name a --corpus to plan for, a RECIPE (tacit recipes list), --resume or --from"
            )
        return [_resumption(run, settings, unset)]
    loaded = recipes.load(recipe, settings, variant, unset)
    if variant is not None or not loaded.variants:
        experiment = _started(with_one_noise(loaded.only(variant), settings), start)
        if resume:
            _refuse_another(experiment, RunDirectory.open(run))
        return [Request(run, experiment, resume=resume)]
    if (run / "experiment.toml").is_file():
        raise ValueError(
            f"{run} holds a run already, and the recipe {loaded.name} has variants that each get a"
            " directory in it; name another directory, or one --variant"
        )
    every = [
        _of_variant(run / name, name, _started(with_one_noise(experiment, settings), start), resume)
        for name, experiment in loaded.experiments.items()
    ]
    refuse_early(every)
    return every


def run_paths(path: Path) -> list[Path]:
    """The run directory itself, or the ones in it: those of a recipe's variants."""
    if (path / "experiment.toml").is_file():
        return [path]
    return sorted(file.parent for file in path.glob("*/experiment.toml"))


def _started(experiment: _Some, start: str | None) -> _Some:
    """The experiment with the values filled in that it leaves to a start."""
    from tacit.tasks.language.starts import fill_in_start, with_start

    if not isinstance(experiment, Experiment):
        return experiment
    return fill_in_start(experiment) if start is None else with_start(experiment, start)


def _key(setting: str) -> str:
    return setting.partition("=")[0].strip()


def _branch(
    recipe: str | None,
    run: Path,
    settings: Sequence[str],
    variant: str | None,
    parent: tuple[Path, int],
    unset: Sequence[str] = (),
) -> Request:
    """A training that starts from the model of another run and inherits what it has cost."""
    origin = RunDirectory.open(parent[0])
    inherited = origin.experiment()
    for setting in (*settings, *unset):
        key = _key(setting)
        repeats = setting == f"{key}={json.dumps(inherited.source)}"
        if key.partition(".")[0] in _INHERITED and not repeats:
            raise ValueError(
                f"a branch has its parent's corpus, tokenizer and model, so {key} cannot be"
                " set with --from"
            )
    if recipe is not None:
        loaded = recipes.load(recipe, settings, variant, unset).only(variant)
        experiment = with_one_noise(loaded, settings)
    else:
        # The noise was solved for over all of the parent's rounds; the branch goes on with it.
        experiment = recipes.load(str(origin.experiment_file), settings, unset=unset).only()
        if not set(_TARGETS) & set(map(_key, settings)):
            experiment = experiment.without_target()
    return Request(run, experiment, branch_from=parent)


def _resumption(run: Path, settings: Sequence[str], unset: Sequence[str] = ()) -> Request:
    """The run that `run` holds; settings, if any, have to be those it was started with."""
    if run_paths(run) not in ([], [run]):
        raise ValueError(
            f"{run} holds the runs of several variants; name the RECIPE to go on with them"
        )
    directory = RunDirectory.open(run)
    if not settings and not unset:
        return Request(run, None, resume=True)
    experiment = recipes.load(str(directory.experiment_file), settings, unset=unset).only()
    return Request(run, with_one_noise(experiment, settings), resume=True)


def _of_variant(run: Path, name: str, experiment: AnyExperiment, resume: bool) -> Request:
    """With `resume`, finished variants are skipped, those begun go on, and the others begin."""
    if not resume:
        RunDirectory.check_free(run)
    if not (run / "experiment.toml").is_file():
        return Request(run, experiment, name)
    directory = RunDirectory.open(run)
    _refuse_another(experiment, directory)
    is_finished = directory.result() is not None
    return Request(run, experiment, name, resume=True, is_finished=is_finished)


def _refuse_another(asked: AnyExperiment, directory: RunDirectory) -> None:
    """Refuse to go on with a run unless it was started with every value that is asked for."""
    target = asked.noise_target if isinstance(asked, Experiment) else asked.privacy.target_epsilon
    solved = _NOISE if target is not None else ()
    unset = [
        key
        for key, value in by_dotted_key(asked.model_dump())
        if value in (None, "", ()) or key.endswith("_is_counted")
    ]
    directory.experiment().refuse_another(
        asked, directory.path, "name another directory", filled_in=(*solved, *unset)
    )


def refuse_early(every: Sequence[Request]) -> None:
    """Refuse what no training could begin with, in any of them, before the first is trained."""
    from tacit.corpus.builtin import load_corpus
    from tacit.corpus.source import UserCorpus
    from tacit.tasks.language import first_checks
    from tacit.tasks.language.people import People

    corpora: dict[str, UserCorpus] = {}
    for request in every:
        experiment = request.experiment
        if not isinstance(experiment, Experiment) or request.resume:
            continue  # it has no cohorts, or its users already
        source = experiment.corpus.source
        if source not in corpora:
            corpora[source] = load_corpus(source)
        people = People.of(experiment, corpora[source])
        first_checks.refuse_early(experiment, people, request.run)
        if request.branch_from is None:  # else earlier ones are in the parent's folder
            first_checks.refuse_missing_tokenizers(experiment)
