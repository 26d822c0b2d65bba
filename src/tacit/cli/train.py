"""`tacit train`: people's text in, a model and its epsilon out."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.options import (
    AsJson,
    KeepKey,
    Quiet,
    Resume,
    Seed,
    TargetEpsilon,
    number,
    whole_number,
)
from tacit.cli.output import Interrupted, percent, perplexity
from tacit.cli.progress import Display
from tacit.privacy.claims import format_delta, format_epsilon

if TYPE_CHECKING:
    from tacit.cli.progress import TensorBoard as Board
    from tacit.cli.requested import Request
    from tacit.runs.session import Progress
    from tacit.tasks.language.trainer import EngineChoice

EXAMPLES = """
Examples:

`tacit train mcmahan2018-small --run runs/small`

`tacit train mcmahan2018 --corpus corpora/chats --run runs/first --target-epsilon 8`

`tacit train --resume --run runs/first`

`tacit train --from runs/first@100 --run runs/second --rounds 200 --set plan.clip_norm=5`
"""


def train(
    recipe: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            metavar="RECIPE",
            help="A name from tacit recipes list, or a .toml file; not needed with --resume and"
            " --from.",
            show_default=False,
        ),
    ] = None,
    *,
    run: Annotated[Path, typer.Option(metavar="DIR", help="The run directory.")],
    corpus: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="C", help="A corpus directory, or chitchat.  [default: that of the recipe]"
        ),
    ] = None,
    resume: Resume = False,
    from_run: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--from", metavar="RUN@ROUND", help="Start from another run's model, and its cost."
        ),
    ] = None,
    variant: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="NAME", help="A variant of the recipe.  [default: all, each in DIR]"),
    ] = None,
    settings: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", metavar="KEY=VALUE", help="Such as plan.clip_norm=3; repeatable."),
    ] = None,
    rounds: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(parser=whole_number, metavar="T", help="Rounds of training, in all."),
    ] = None,
    target_epsilon: TargetEpsilon = None,
    budget_epsilon: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(parser=number, metavar="EPSILON", help="Stop before a round exceeds it."),
    ] = None,
    delta: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(parser=number, metavar="DELTA", help="Below 1/K.  [default: the recipe's]"),
    ] = None,
    population: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=whole_number,
            metavar="K",
            help="Users in all, declared public.  [default: the corpus's training users]",
        ),
    ] = None,
    seed: Seed = None,
    workers: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(parser=whole_number, metavar="N", help="Processes.  [default: all cores]"),
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="Where users' updates are computed: cpu, cuda, mps.")
    ] = "cpu",
    engine: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="processes: a user at a time in each; vectorized: many users at once, for"
            " accelerators.  [default: what the device is good at]",
            show_default=False,
        ),
    ] = "",
    keep_key: KeepKey = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Held-out metrics in DIR/tensorboard as well.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on people's text, and say what that cost them.

    DIR gets the model after each evaluation, the ledger, held-out metrics and the experiment with
    every value filled in.  A run that was stopped at any moment goes on with --resume and ends
    with the same weights.
    """
    from tacit.cli import requested
    from tacit.engines.launch import Launch

    launch = Launch.of_this_process()
    if launch.rank > 0:  # torchrun has started this command several times
        from tacit.engines.torchrun import serve_rank_0

        serve_rank_0()
    again = bool(launch.restarts) and requested.holds_runs(run)  # torchrun repeats its command
    options: dict[str, int | float | str | bool | None] = {
        "corpus.source": corpus,
        "rounds": rounds,
        "seed": seed,
        "plan.population": population,
        "plan.population_is_counted": None if population is None else False,
        "privacy.delta": delta,
        "privacy.target_epsilon": target_epsilon,
        "privacy.budget_epsilon": budget_epsilon,
    }
    wanted = requested.requests(
        recipe,
        run,
        requested.settings_of(settings or [], options),
        variant=variant,
        resume=resume or (again and from_run is None),
        parent=requested.parent_of(from_run) if from_run is not None else None,
    )
    if again:  # goes on with what is there, if that is what the command asks for
        wanted = [requested.repeated(request) for request in wanted]
    requested.check_cohorts(wanted)
    boards = [_board(request.run) if tensorboard else None for request in wanted]
    computing = engine_of(engine, workers, device)
    carry_out(wanted, computing, boards, keep_key=keep_key, quiet=quiet, as_json=as_json)


def carry_out(
    wanted: Sequence[Request],
    engine: EngineChoice,
    boards: Sequence[Board | None] = (None,),
    *,
    keep_key: bool = False,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """All trainings that are asked for, and their figures in print."""
    results = []
    for request, board in zip(wanted, boards, strict=True):
        try:
            results.append(_trained(request, engine, board, keep_key=keep_key, quiet=quiet))
        except KeyboardInterrupt:
            raise Interrupted(_how_to_go_on(request, len(wanted) > 1)) from None
    first = wanted[0]
    if as_json:
        whole = results if first.variant else results[0]
        json.dump(whole, sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        _print(wanted, results, first.run.parent if first.variant else first.run)


def _trained(
    request: Request,
    engine: EngineChoice,
    board: Board | None,
    *,
    keep_key: bool,
    quiet: bool,
) -> dict[str, Any]:
    """What result.json holds in the end."""
    from tacit.runs.run import LanguageRun
    from tacit.train import train as run_training

    if request.finished:
        return LanguageRun.open(request.run).directory.result() or {}
    with Display(request.variant, quiet=quiet) as display:
        observers = [display.observe] + ([board.observe] if board is not None else [])

        def observe(now: Progress) -> None:
            for observer in observers:
                observer(now)

        try:
            done = run_training(
                request.experiment,
                request.run,
                resume=request.resume,
                branch_from=request.branch_from,
                engine=engine,
                observer=observe,
                announce=display.tell,
                keep_key=keep_key,
            )
        finally:
            if board is not None:
                board.close()
    return done.directory.result() or {}


def _board(run: Path) -> Board:
    from tacit.cli.progress import TensorBoard as Board

    return Board(run)


def engine_of(name: str, workers: int | None, device: str) -> EngineChoice:
    """How cohorts are computed: here, in several processes, or on an accelerator."""
    name = name or ("processes" if device == "cpu" else "vectorized")
    if name not in ("processes", "vectorized"):
        raise ValueError(f"--engine must be processes or vectorized, got {name!r}")
    if workers is not None and workers < 1:
        raise ValueError(f"--workers must be at least 1, got {workers}")
    if name == "vectorized":
        if workers not in (None, 1):
            raise ValueError("--workers is for --engine processes; leave it out with vectorized")
        return _on_device(device)
    if device != "cpu":
        raise ValueError(f"--engine processes computes on the cpu; with {device} leave it out")
    from tacit.engines.processes import available_cores, engine_for

    count = workers or available_cores()
    return lambda model: engine_for(model, count)


def _on_device(device: str) -> EngineChoice:
    import torch

    from tacit.engines.vectorized import VectorizedEngine

    there: dict[str, Callable[[], bool]] = {
        "cpu": lambda: True,
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
    }
    kind = device.partition(":")[0]
    if kind not in there:
        raise ValueError(f"--device must be cpu, cuda or mps, got {device!r}")
    if not there[kind]():
        raise ValueError(f"--device {device}: torch finds none here; leave it out to use the cpu")
    return lambda model: VectorizedEngine(model, device)


def _how_to_go_on(request: Request, several: bool) -> str:
    """After Ctrl-C: what is there, and the command that goes on with it."""
    from tacit.runs.directory import RunDirectory

    rounds = RunDirectory(request.run).checkpoints.legs()
    if several:
        words = [word for word in sys.argv[1:] if word != "--resume"]
        command = shlex.join(["tacit", *words, "--resume"])
    else:
        command = shlex.join(["tacit", "train", "--resume", "--run", str(request.run)])
    if not rounds and not several:
        return "interrupted before the first round; nothing was released and nothing is left behind"
    of = f" of {request.variant}" if several else ""
    return f"interrupted after round {(rounds or [0])[-1]}{of}; nothing is lost: {command}"


def _print(wanted: Sequence[Request], results: Sequence[dict[str, Any]], run: Path) -> None:
    console = Console(highlight=False)
    several = bool(wanted[0].variant)
    console.print(_variants_table(wanted, results) if several else _table(results[0]))
    for sentences, names in _by_sentences(wanted, results).items():
        of = f"{', '.join(names)}: " if several else ""
        console.print(of + "  ".join(sentences), markup=False)
    path = shlex.quote(str(run))
    console.print(f"The {'runs are' if several else 'run is'} in {path}", markup=False)
    if several:
        console.print(f"next:  tacit compare {path}", markup=False, soft_wrap=True)
        return
    console.print(f'next:  tacit predict {path} "see you"', markup=False, soft_wrap=True)
    [result] = results
    if not result["simulation"] and result["epsilon"][result["accountant"]] is not None:
        console.print(f"       tacit export {path}", markup=False, soft_wrap=True)


def _table(result: dict[str, Any]) -> Table:
    """One run: a figure per line."""
    table = Table()
    table.add_column("held out, on test users" if result.get("tokens") else "")
    table.add_column("", justify="right")
    table.add_row("rounds", f"{result['rounds']:,}")
    for k in (1, 3, 5):
        table.add_row(f"top-{k} accuracy", percent(result.get(f"accuracy_top{k}")))
    table.add_row("perplexity", perplexity(result.get("perplexity")))
    table.add_row("perplexity per word", perplexity(result.get("perplexity_per_word")))
    table.add_section()
    for name, epsilon in result["epsilon"].items():
        at = f"epsilon at delta {format_delta(result['delta'])}, by {name}"
        table.add_row(at, _epsilon(epsilon))
    return table


def _variants_table(wanted: Sequence[Request], results: Sequence[dict[str, Any]]) -> Table:
    """Several runs: one per line, with epsilon by the accountant that its claim names."""
    table = Table()
    table.add_column("variant", overflow="fold")
    for name in ("rounds", "top-1", "top-3", "top-5", "perplexity", "epsilon", "delta"):
        table.add_column(name, justify="right")
    for request, result in zip(wanted, results, strict=True):
        table.add_row(
            request.variant,
            f"{result['rounds']:,}",
            *(percent(result.get(f"accuracy_top{k}")) for k in (1, 3, 5)),
            perplexity(result.get("perplexity")),
            _epsilon(result["epsilon"][result["accountant"]]),
            format_delta(result["delta"]),
        )
    return table


def _epsilon(value: float | None) -> str:
    return format_epsilon(math.inf if value is None else value)


def _by_sentences(
    wanted: Sequence[Request], results: Sequence[dict[str, Any]]
) -> dict[tuple[str, ...], list[str]]:
    """What has to be said about each run, once for those of which the same is to be said."""
    said: dict[tuple[str, ...], list[str]] = {}
    for request, result in zip(wanted, results, strict=True):
        ending = result["ending"]
        stopped = "" if ending == "complete" else f"Stopped early: {ending}."
        kept = "The run key was kept: delete it before release." if result["key_kept"] else ""
        sentences = (stopped, result["claim"], result["other_runs"] or "", kept)
        said.setdefault(tuple(filter(None, sentences)), []).append(request.variant)
    return said
