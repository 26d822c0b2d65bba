"""`tacit train`: people's text in, a model and its epsilon out.

The command line becomes `Request`s (`tacit.cli.requests`), each is trained by `tacit.train.train`
with its progress shown, and the results are printed with their claims.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.endings import explain
from tacit.cli.options import (
    AsJson,
    Delta,
    Quiet,
    Seed,
    Settings,
    Unset,
    Workers,
    argument,
    count,
    flag,
    real,
    refuse_unfit,
    text,
    typed_options,
)
from tacit.cli.output import Interrupted, emit, epsilon, models_table, note, table
from tacit.privacy.claims import format_delta
from tacit.runs.figures import (
    BASELINES,
    better_baselines,
    describe_loss,
    percent,
    written_figures,
)
from tacit.runs.progress import Display, TensorBoard

if TYPE_CHECKING:
    from tacit.cli.requests import Request
    from tacit.planner.proposal import Wish
    from tacit.tasks.task import MakeEngine


_OF_A_RECIPE = {"--no-privacy", "--unset", "--rounds", "--epochs", "--variant"}
_LANGUAGE_ONLY = ("--rounds", "--engine", "--device", "--start", "--noise", "--min-separation")
_ONLY = {"language": _LANGUAGE_ONLY, "nlu": ("--epochs",)}
Result = dict[str, Any]
"""What result.json holds."""


def train(
    context: typer.Context,
    recipe: str | None = argument(None, "RECIPE", "A name from tacit recipes list, or a file."),
    *,
    run: Path = text(..., "DIR", "The run directory."),
    corpus: str | None = text(None, "C", "A corpus or set of utterances.  [default: the recipe's]"),
    resume: bool = flag("--resume", "Go on with the run that is in DIR."),
    from_run: str | None = text(None, "RUN@ROUND", "Start from its model and cost.", "--from"),
    variant: str | None = text(None, "NAME", "One variant.  [default: all, each in DIR]"),
    start: str | None = text(None, "DIR", "Weights and tokenizer of model pretrain, or base."),
    settings: Settings = None,
    unset: Unset = None,
    rounds: int | None = count(None, "T", "Rounds of training, in all."),
    epochs: int | None = count(None, "T", "Epochs, of an intent and slot model."),
    target_epsilon: float | None = real(
        None,
        "EPSILON",
        "Solve for the noise that meets it.  [default: 8 without a RECIPE]",
        "--epsilon",
        "--target-epsilon",
    ),
    minutes: float | None = real(
        None, "M", "Without a RECIPE: how long it may take.  [default: 30]"
    ),
    noise: str | None = text(
        None,
        "NAME",
        "independent, or partly taken back later: blt, banded, square-root, tree; or distributed,"
        " which users add.  [default: the plan's]",
    ),
    min_separation: int | None = count(
        None, "B", "In turns: nobody again within B rounds, and no sampling is assumed."
    ),
    budget_epsilon: float | None = real(None, "EPSILON", "Stop before it would be exceeded."),
    no_privacy: bool = flag("--no-privacy", "Train without noise: nobody is protected."),
    delta: Delta = None,
    population: int | None = count(None, "K", "Users or utterances, public.  [default: counted]"),
    seed: Seed = None,
    workers: Workers = None,
    device: str = text("cpu", "NAME", "Where users' updates are computed: cpu, cuda, mps."),
    engine: str = text("", "NAME", "processes or vectorized.  [default: by the device]"),
    keep_key: bool = flag("--keep-key", "Keep the run key at the end; the result says so."),
    tensorboard: bool = flag("--tensorboard", "Held-out metrics in DIR/tensorboard as well."),
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on people's text, and say what that cost them.

    A language model, or a model of intents and slots: the recipe says which.  DIR gets the model
    after each evaluation, the ledger, held-out metrics and the experiment with every value filled
    in.  A run that was stopped at any moment goes on with --resume and ends with the same weights.
    With --resume and --from no RECIPE is needed.

    Without a RECIPE, tacit plans the training for the --corpus, --epsilon and --minutes, shows the
    plan (as `tacit plan --corpus` does) and follows it.

    Engines: `processes` compute a user at a time each; `vectorized` computes many users at once and
    is the one for accelerators.

    Examples:

    `tacit train --corpus corpora/chats --run runs/first --epsilon 8 --minutes 30`

    `tacit train mcmahan2018-small --run runs/small`

    `tacit train mcmahan2018-small --corpus corpora/chats --start base --run runs/base`

    `tacit train mcmahan2018-small --run runs/turns --noise blt --min-separation 8 --epsilon 8`

    `tacit train --resume --run runs/first`

    `tacit train --from runs/first@100 --run runs/second --rounds 200 --set plan.clip_norm=5`

    `tacit train generated --corpus utterances.jsonl --run runs/intents --epsilon 8`
    """
    from tacit.cli import requests as asking
    from tacit.cli.plan import wish_for
    from tacit.engines.engine import available_cores, choose_engine
    from tacit.engines.launch import Launch
    from tacit.runs.directory import RunDirectory
    from tacit.tasks import recipes

    launch = Launch.of_this_process()
    if launch.rank > 0:  # torchrun has started this command several times
        from tacit.engines.teams import serve_rank_0

        serve_rank_0()
    parent = _parent(from_run) if from_run is not None else None
    if recipe is None and parent is None and not resume and corpus is not None:
        for name in sorted({*typed_options(context)} & _OF_A_RECIPE):
            raise ValueError(f"{name} changes a RECIPE: name one, or leave {name} out")
        _train_as_planned(
            wish_for(
                corpus,
                target_epsilon,
                minutes,
                delta,
                population,
                workers,
                start,
                noise,
                min_separation,
            ),
            run,
            asking.all_settings(settings, {"seed": seed, "privacy.budget_epsilon": budget_epsilon}),
            choose_engine(engine, workers, device),
            as_json=as_json,
            keep_key=keep_key,
            tensorboard=tensorboard,
            quiet=quiet,
        )
        return
    if minutes is not None:
        raise ValueError("--minutes is for a plan that tacit makes: leave RECIPE out, or --minutes")
    is_repeated = launch.restarts and parent is None and asking.run_paths(run)  # by torchrun
    before = RunDirectory(run if parent is None else parent[0])
    task = before.task if recipe is None else recipes.task_of_recipe(recipe)
    refuse_unfit(context, task, _ONLY)
    is_nlu = task == "nlu"
    plan = "noise" if is_nlu else "plan"
    options: dict[str, int | float | str | bool | None] = {
        "data.source" if is_nlu else "corpus.source": corpus,
        "rounds": rounds,
        "training.epochs": epochs,
        "training.workers": workers if is_nlu else None,
        "seed": seed,
        "plan.noise": noise,
        "plan.separation": min_separation,
        f"{plan}.population": population,
        f"{plan}.population_is_counted": None if population is None else False,
        "privacy.delta": delta,
        "privacy.target_epsilon": target_epsilon,
        "privacy.budget_epsilon": budget_epsilon,
    }
    changes, dropped = asking.all_settings(settings, options), list(unset or ())
    if no_privacy:
        more, keys = asking.no_privacy(task, changes)
        changes, dropped = changes + more, dropped + keys
    asked = asking.requests(
        recipe,
        run,
        changes,
        variant=variant,
        resume=bool(resume or is_repeated),
        parent=parent,
        start=start,
        unset=dropped,
    )
    computing = None if is_nlu else choose_engine(engine, workers, device)
    for request in asked:
        _warn(request, workers or available_cores())
    show = {"tensorboard": tensorboard, "quiet": quiet}
    carry_out(asked, computing, as_json=as_json, keep_key=keep_key, **show)


def _warn(request: Request, workers: int) -> None:
    """Say what a new training would waste or keep in memory, before it starts."""
    from tacit.config.experiment import Experiment
    from tacit.planner.waste import warnings_before
    from tacit.tasks.language.first_checks import noise_note
    from tacit.tasks.language.people import People

    if not isinstance(request.experiment, Experiment) or request.resume or request.branch_from:
        return
    title = f"{request.variant}: " if request.variant else ""
    kept = noise_note(request.experiment, People.of(request.experiment))
    wasted = warnings_before(request.experiment, str(request.run), workers)
    for line in [*([kept] if kept else []), *wasted]:
        note(f"{title}{line}")


def _train_as_planned(
    wish: Wish,
    run: Path,
    settings: Sequence[str],
    engine: MakeEngine | None,
    *,
    as_json: bool,
    quiet: bool,
    **options: bool,
) -> None:
    """Train by the plan that tacit makes for a wish, with the settings on top of it.

    The plan is shown first, and is an experiment like any other: the run directory holds it.
    """
    from tacit.cli import proposal
    from tacit.cli.requests import Request, with_one_noise
    from tacit.config.recipes import with_settings
    from tacit.runs.directory import RunDirectory

    RunDirectory.check_free(run)
    made = proposal.make(wish)
    if not quiet and not as_json:
        proposal.announce(made)
    experiment = with_one_noise(with_settings(made.experiment, settings), settings)
    carry_out([Request(run, experiment)], engine, as_json=as_json, quiet=quiet, **options)


def _parent(text: str) -> tuple[Path, int]:
    """Read RUN@ROUND, the value of --from."""
    run, at, round = text.rpartition("@")
    if not (at and run and round.isdecimal()):
        raise ValueError(f"--from must be RUN@ROUND, such as runs/first@20, got {text!r}")
    return Path(run), int(round)


def carry_out(
    asked: Sequence[Request],
    engine: MakeEngine | None,
    *,
    as_json: bool = False,
    **options: bool,
) -> None:
    """Train everything that is asked for, one after the other, and print the figures.

    Args:
        asked: the trainings, from `tacit.cli.requests`; all of one task.
        engine: how cohorts are computed; None for intents and slots.
        as_json: print what result.json holds, and nothing else.
        options: `keep_key`, `tensorboard` and `quiet`, as `train_one` has them.
    """
    results = []
    for request in asked:
        try:
            results.append(train_one(request, engine, **options))
        except KeyboardInterrupt:
            raise Interrupted(_how_to_go_on(request, len(asked) > 1)) from None
        except (OSError, MemoryError, RuntimeError) as stop:
            said, code = explain(stop)
            if code == 1 or "--resume" in said or not _is_begun(request):
                raise
            raise ValueError(f"{said}; {_how_to_go_on(request, len(asked) > 1)}") from stop
    result = results if asked[0].variant else results[0]
    emit(result, as_json, lambda console: _print(console, asked, results))


def train_one(
    request: Request,
    engine: MakeEngine | None,
    *,
    keep_key: bool = False,
    tensorboard: bool = False,
    quiet: bool = False,
) -> Result:
    """Train one run to its end, with its progress shown; return what its result.json holds.

    Args:
        request: what to train, and where.
        engine: how cohorts are computed; None for intents and slots.
        keep_key: keep the run's key, with which noise could be subtracted.
        tensorboard: write held-out metrics into the run's folder `tensorboard` as well.
        quiet: show no progress.
    """
    from tacit.runs.directory import RunDirectory
    from tacit.train import train as run_training

    if not request.is_finished:
        board = TensorBoard(request.run, request.leg_name) if tensorboard else None
        watching = Display(request.variant, leg=request.leg_name, quiet=quiet, board=board)
        with watching as display:
            run_training(
                request.experiment,
                request.run,
                resume=request.resume,
                branch_from=request.branch_from,
                engine=engine,
                observer=display.observe,
                announce=display.tell,
                keep_key=keep_key,
            )
    return RunDirectory.open(request.run).result() or {}


def _is_begun(request: Request) -> bool:
    from tacit.runs.directory import RunDirectory

    return bool(RunDirectory(request.run).checkpoints.legs())


def _how_to_go_on(request: Request, several: bool) -> str:
    """After Ctrl-C, or a full disk: what was kept, and the command that goes on with it."""
    from tacit.runs.directory import RunDirectory

    legs = RunDirectory(request.run).checkpoints.legs()
    if not legs and not several:
        return "interrupted before anything was released; nothing is left behind"
    words = ["train", "--resume", "--run", str(request.run)]
    if several:
        words = [*(word for word in sys.argv[1:] if word != "--resume"), "--resume"]
    command = shlex.join(["tacit", *words])
    of = f" of {request.variant}" if several else ""
    leg = f"{request.leg_name} {(legs or [0])[-1]}"
    return f"interrupted after {leg}{of}; nothing is lost: {command}"


def _print(console: Console, asked: Sequence[Request], results: Sequence[Result]) -> None:
    """Figures, claims and where the runs are, then the commands that come next.

    A claim stands beside every epsilon (design rule 2), and claims of several runs that say the
    same are printed once, under the names of all of them.
    """
    several = bool(asked[0].variant)
    console.print(_variants_table(asked, results) if several else _table(results[0]))
    names_by_sentences: dict[str, list[str]] = {}  # what is true of several runs is said once
    for request, result in zip(asked, results, strict=True):
        names_by_sentences.setdefault(_sentences(result), []).append(request.variant)
    for sentences, names in names_by_sentences.items():
        console.print(f"{', '.join(names)}: {sentences}" if several else sentences)
    run = asked[0].run.parent if several else asked[0].run
    path = shlex.quote(str(run))
    console.print(f"The {'runs are' if several else 'run is'} in {path}")
    commands = [f"tacit compare {path}"] if several else _next_commands(results[0], path)
    for lead, command in zip(("next:  ", "       "), commands, strict=False):
        console.print(lead + command, soft_wrap=True)


def _next_commands(result: Result, path: str) -> Iterator[str]:
    """What to try on one run; `tacit export` only if it may be released."""
    if result["task"] == "nlu":
        yield f'tacit predict {path} "wake me up at seven"'
        yield f"tacit audit {path}"
        return
    yield f'tacit predict {path} "see you"'
    if not result["simulation"] and result["epsilon"][result["accountant"]] is not None:
        yield f"tacit export {path}"


def _table(result: Result) -> Table:
    """One run: a figure per line."""
    on = {"nlu": "on test", "language": "held out, on test users"}[result["task"]]
    shown = table(on, ">", rows=written_figures(result["task"], _measured(result)))
    leg = "epochs" if result["task"] == "nlu" else "rounds"
    shown.add_row(leg, f"{result[leg]:,}")
    shown.add_section()
    for name, row in (result.get("baselines") or {}).items():
        shown.add_row(f"top-1 of {BASELINES[name]}", percent(row["accuracy_top1"]))
    shown.add_section()
    for name, value in result["epsilon"].items():
        at = f"epsilon at delta {format_delta(result['delta'])}, by {name}"
        shown.add_row(at, epsilon(value))
    return shown


def _variants_table(asked: Sequence[Request], results: Sequence[Result]) -> Table:
    """Several runs: one per line, with epsilon by the accountant that its claim names."""
    legs = f"{asked[0].leg_name}s"
    measured = {
        request.variant: _measured(result) for request, result in zip(asked, results, strict=True)
    }
    more = {
        f">{legs}": [f"{result[legs]:,}" for result in results],
        ">epsilon": [epsilon(result["epsilon"][result["accountant"]]) for result in results],
        ">delta": [format_delta(result["delta"]) for result in results],
    }
    return models_table(results[0]["task"], "variant", measured, more)


def _measured(result: Result) -> Result:
    """Where the figures stand: those of intents and slots by themselves, as they are on test."""
    return result.get("test") or result


def _sentences(result: Result) -> str:
    """What has to be said about a run, the claim above all."""
    ending = result["ending"]
    stopped = "" if ending == "complete" else f"Stopped early: {ending}."
    better = better_baselines(_measured(result), result.get("baselines") or {})
    loses = f"{describe_loss('The model', _measured(result), better)}\n" if better else ""
    kept = "The run key was kept: delete it before release." if result["key_kept"] else ""
    projected = result.get("projected_claim")
    beside = f"Beside it: {projected}" if projected else ""
    said = (stopped, result["claim"], result["other_runs"], beside, kept)
    return loses + "  ".join(filter(None, said))
