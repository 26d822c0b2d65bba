"""`tacit plan`: what training would cost, before anything is trained.

Epsilon follows from the population, the cohort, the rounds, the noise and delta alone, so that it
can be known, and any one of these solved for, without data.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tacit.cli.options import (
    AsJson,
    Delta,
    Workers,
    count,
    flag,
    number,
    real,
    text,
    whole_number,
)
from tacit.cli.output import emit, epsilon, table
from tacit.privacy.claims import format_delta, format_epsilon
from tacit.privacy.projection import SmallExperiment
from tacit.runs.terminal import Terminal

if TYPE_CHECKING:
    from tacit.cli.plots import Panel
    from tacit.mechanisms.planning import Answer, Question
    from tacit.planner.proposal import Wish


def _small_experiment(text: str) -> SmallExperiment:
    """Read cohort=100,sigma=0.003,clip=15 and, if they differ, population=... and rounds=..."""
    readers = dict.fromkeys(("cohort", "sigma", "clip"), number)
    readers |= dict.fromkeys(("population", "rounds"), whole_number)
    example = "cohort=100,sigma=0.003,clip=15"
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in readers or name in values:
            raise typer.BadParameter(
                f"{part!r} is not one of {', '.join(readers)}, each given once; write {example}"
            )
        values[name] = readers[name](value)
    if missing := [name for name in ("cohort", "sigma", "clip") if name not in values]:
        raise typer.BadParameter(f"{', '.join(missing)} is missing; write {example}")
    return SmallExperiment(values.pop("cohort"), values.pop("sigma"), values.pop("clip"), **values)


def plan(
    population: int | None = count(None, "K", "Users in all: a declared, public number."),
    cohort: int | None = count(None, "C", "Users per round, on average."),
    rounds: int | None = count(None, "T", "Rounds of training."),
    noise_multiplier: float | None = real(None, "Z", "Noise over the sensitivity (add/remove)."),
    target_epsilon: float | None = real(
        None, "EPSILON", "Solve for whichever is left out.", "--epsilon", "--target-epsilon"
    ),
    delta: Delta = None,
    accept_large_delta: bool = flag(
        "--accept-large-delta", "A delta of 1/K or more: the claim says what that means."
    ),
    corpus: str | None = text(None, "C", "Plan a training on this corpus, down to the last value."),
    minutes: float | None = real(None, "M", "How long that may take.  [default: 30]"),
    start: str | None = text(None, "DIR", "What it starts from.  [default: base]"),
    explain: bool = flag("--explain", "Say why each value is as it is."),
    out: Path | None = text(None, "FILE.toml", "Write that plan as an experiment to train."),
    workers: Workers = None,
    accountant: str | None = text(
        None, "NAME", "pld, rdp, moments, zcdp, or all. [default: the tightest sound one]"
    ),
    sampling: str | None = text(
        None,
        "NAME",
        "poisson, truncated (Poisson, capped), fixed, min-separation or cyclic-poisson (in turns)."
        "  [default: by the noise]",
    ),
    noise: str | None = text(
        None,
        "NAME",
        "independent, blt, banded, square-root, tree or distributed; all are compared.",
    ),
    min_separation: int | None = count(
        None, "B", "Nobody takes part again within B rounds.  [default: as many as there can be]"
    ),
    bands: int | None = count(None, "N", "Of banded and square-root noise.  [default: B]"),
    buffers: int | None = count(None, "N", "Of blt noise.  [default: 4]"),
    replace_one: bool = flag("--replace-one", "With min-separation: replace-one adjacency."),
    estimator: str = text("fixed", "NAME", "Denominator of the average: fixed or clipped."),
    max_cohort: int | None = count(None, "N", "Cap of a truncated cohort. [default: derived]"),
    unit: str = text("user", "NAME", "What is protected: user or record."),
    from_experiment: Annotated[
        Any,
        typer.Option(
            parser=_small_experiment,
            metavar="cohort=C,sigma=SIGMA,clip=S",
            help="Project from a small experiment: its noise on the average, at another cohort.",
        ),
    ] = None,
    precise: bool = flag("--precise", "The finest grid for pld: slower, 0.001% tight."),
    as_json: AsJson = False,
    plot: Path | None = text(
        None,
        "FILE",
        "Draw epsilon over rounds (with --noise, over its error): .png, .svg or .pdf.",
    ),
) -> None:
    """Compute the epsilon of a training before it is run, or what it takes to meet an epsilon.

    With --corpus: the plan that `tacit train --corpus C` would follow, from the number of people,
    epsilon, the time and this machine's speed.  Without: leave one of --noise-multiplier, --rounds
    and --cohort out and give --epsilon to solve for it; no data is read.  Nothing is trained.

    Examples:

    `tacit plan --corpus corpora/chats --epsilon 8 --minutes 30 --explain`

    `tacit plan --population 763430 --cohort 5000 --rounds 5000 --noise-multiplier 1 --delta 1e-9`

    `tacit plan --population 1e8 --cohort 20000 --rounds 5000 --target-epsilon 2 --delta 1e-9`

    `tacit plan --population 1e8 --cohort 5000 --rounds 5000 --from-experiment
    cohort=100,sigma=0.003,clip=15`

    `tacit plan --population 763430 --cohort 5000 --rounds 5000 --epsilon 4 --delta 1e-9
    --noise blt --min-separation 152`
    """
    if corpus is not None:
        _refuse_with_corpus(
            cohort=cohort,
            rounds=rounds,
            noise_multiplier=noise_multiplier,
            from_experiment=from_experiment,
            sampling=sampling,
            bands=bands,
            buffers=buffers,
            replace_one=replace_one or None,
            max_cohort=max_cohort,
            accountant=accountant,
            accept_large_delta=accept_large_delta or None,
            plot=plot,
        )
        wish = wish_for(
            corpus,
            target_epsilon,
            minutes,
            delta,
            population,
            workers,
            start,
            noise,
            min_separation,
        )
        _plan_training(wish, explain=explain, out=out, as_json=as_json)
        return
    from tacit.mechanisms.planning import BUFFERS, TURNS, Question

    if population is None:
        raise ValueError("give --population K, the number of users, or --corpus C to plan for")
    question = Question(
        population=population,
        cohort=cohort,
        rounds=rounds,
        noise_multiplier=noise_multiplier,
        target_epsilon=target_epsilon,
        delta=delta,
        accept_large_delta=accept_large_delta,
        sampling=sampling or default_sampling(noise, min_separation),
        noise=noise,
        separation=min_separation,
        bands=bands,
        buffers=BUFFERS if buffers is None else buffers,
        replace_one=replace_one,
        estimator=estimator,
        max_cohort=max_cohort,
        unit=unit,
        experiment=from_experiment,
    )
    is_compared = noise is not None or question.sampling in TURNS
    _account(question, accountant, is_compared, precise=precise, as_json=as_json, plot=plot)


def default_sampling(noise: str | None, separation: int | None) -> str:
    """Poisson sampling; or turns and no claim of sampling, where noise or separation need them."""
    from tacit.mechanisms.noise import NOISES

    is_usual = separation is None and (noise is None or noise in NOISES)
    return "poisson" if is_usual else "min-separation"


def _account(
    question: Question,
    accountant: str | None,
    is_compared: bool,
    *,
    precise: bool,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Answer a question, beside all other kinds of noise if they are to be compared."""
    from tacit.cli import noises, plots
    from tacit.mechanisms.planning import answers

    if plot is not None:
        plots.check_target(plot)
    with Terminal(stderr=True).status("accounting"):
        answered, refused = answers(question, accountant, precise=precise)
    rows = [_as_row(answer) for answer in answered]
    compared = noises.compare_all(question) if is_compared else []
    if is_compared:
        rows[0]["noises"] = [noises.as_row(one) for one in compared]

    def show(console: Console) -> None:
        _print(console, rows, refused, question.asked)
        if is_compared:
            noises.show(console, compared, is_at_epsilon=question.target_epsilon is not None)

    emit(rows, as_json, show)
    if plot is not None:
        panel = noises.trade_offs(compared) if is_compared else _epsilon_over_rounds(answered[0])
        plots.draw(plot, panel)


def wish_for(
    corpus: str,
    epsilon: float | None,
    minutes: float | None,
    delta: float | None,
    population: int | None,
    workers: int | None,
    start: str | None,
    noise: str | None,
    separation: int | None,
) -> Wish:
    """What the options of `tacit plan` and `tacit train` ask for; what is None has its default."""
    from tacit.engines.engine import available_cores
    from tacit.planner.proposal import Wish

    asked: dict[str, Any] = {
        "epsilon": epsilon,
        "minutes": minutes,
        "delta": delta,
        "population": population,
        "start": start,
        "workers": workers or available_cores(),
        "noise": noise,
        "separation": separation,
    }
    return Wish(corpus, **{name: value for name, value in asked.items() if value is not None})


def _plan_training(wish: Wish, *, explain: bool, out: Path | None, as_json: bool) -> None:
    """Show the plan for a wish, and write it as an experiment if asked to."""
    from tacit.cli import proposal
    from tacit.privacy import durable

    if out is not None and out.exists():
        raise ValueError(f"--out {str(out)!r} exists already: choose a file that does not")
    made = proposal.make(wish)
    if out is not None:
        durable.write_whole(out, made.experiment.to_toml().encode(), mode=durable.SHARED)
    emit(
        proposal.as_row(made),
        as_json,
        lambda console: proposal.show(console, made, explain=explain),
    )


def _refuse_with_corpus(**options: object) -> None:
    """A plan for a corpus chooses these itself."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(
                f"--{name.replace('_', '-')} is chosen by the plan for a --corpus; leave one out"
            )


def _epsilon_over_rounds(answer: Answer, points: int = 24) -> Panel:
    """Epsilon against rounds, on log axes, by every accountant that is sound for the plan."""
    import numpy as np

    from tacit.cli.plots import Panel
    from tacit.privacy.accountants import sound_accountants
    from tacit.runs.progress import tracked

    plan, delta = answer.plan, answer.delta
    accountants, _ = sound_accountants(plan.releases(1))
    rounds = sorted({round(float(x)) for x in np.geomspace(1, answer.rounds, points)})
    curves: dict[str, list[tuple[float, float]]] = {each.title: [] for each in accountants}
    steps = [(accountant, after) for accountant in accountants for after in rounds]
    for accountant, after in tracked(steps, "epsilon over rounds"):
        spent = accountant.epsilon(plan.releases(after), delta)
        curves[accountant.title].append((after, spent))
    title = (
        f"{plan.expected_cohort:,.6g} {plan.unit}s a round of {plan.population:,},"
        f" z = {plan.noise_multiplier:.4g}"
    )
    label = f"epsilon at delta = {delta:g}"
    return Panel("rounds", label, curves, title=title, log_x=True, log_y=True)


def _as_row(answer: Answer) -> dict[str, Any]:
    """One answer under the names that scripts rely on."""
    from tacit.mechanisms.turns import FIRST

    plan = answer.plan
    # Of Gaussian noise: all other plans are refused before.
    event: Any = plan.event(replace(FIRST, rounds=answer.rounds))
    return {
        "accountant": answer.accountant,
        "epsilon": answer.epsilon if math.isfinite(answer.epsilon) else None,
        "delta": answer.delta,
        "noise_multiplier": plan.noise_multiplier,
        "sampling_prob": plan.sampler.sampling_prob,
        "rounds": answer.rounds,
        "unit": plan.unit,
        "adjacency": plan.adjacency.value,
        "claim": answer.claim,
        "projected": answer.projected,
        "population": plan.population,
        "cohort": plan.expected_cohort,
        "sampler": plan.sampler.describe(),
        "accounted_noise_multiplier": event.noise_multiplier,
    }


def _print(
    console: Console, rows: list[dict[str, Any]], refused: dict[str, str], asked: str
) -> None:
    """What was asked, what was solved for, a line for each accountant, and the claim.

    A projected figure is labelled and stands beside the actual one (design rule 10).
    """
    first = rows[0]
    console.print(
        f"{first['rounds']:,} rounds of {first['cohort']:,.6g} {first['unit']}s a round out of"
        f" {first['population']:,}, delta {first['delta']:g}"
    )
    if asked != "epsilon":
        solved = f"{first[asked]:,.6g}" if asked == "noise_multiplier" else f"{first[asked]:,.0f}"
        console.print(f"{asked.replace('_', ' ')}: {solved} (solved for, by {first['accountant']})")
    columns = {
        "accountant": [row["accountant"] for row in rows],
        ">epsilon": [epsilon(row["epsilon"]) for row in rows],
        ">noise multiplier": [f"{row['noise_multiplier']:.6g}" for row in rows],
    }
    if any(row["noise_multiplier"] != row["accounted_noise_multiplier"] for row in rows):
        columns[">accounted as"] = [f"{row['accounted_noise_multiplier']:.6g}" for row in rows]
    columns[">sampling prob."] = [f"{row['sampling_prob']:.6g}" for row in rows]
    if any(row["projected"] for row in rows):
        columns["this is"] = ["projected" if row["projected"] else "actual" for row in rows]
    console.print(table(*columns, rows=zip(*columns.values(), strict=True)))
    console.print(first["claim"])
    console.print(_meaning(first))
    for name, reason in refused.items():
        console.print(f"{name}: not shown, because {reason}.", style="dim")


def _meaning(row: dict[str, Any]) -> str:
    """What (epsilon, delta) bounds, in one sentence: TPR <= exp(epsilon) FPR + delta."""
    if row["epsilon"] is None or row["epsilon"] > 20:
        return (
            "In words: at this epsilon the guarantee says next to nothing about whether one"
            f" {row['unit']} took part."
        )
    factor = format_epsilon(math.exp(row["epsilon"]), 3)
    is_hidden = "took part"
    if row["adjacency"] == "zero-out-one":  # where that is known
        is_hidden = "had any data to take part with"
    return (
        f"In words: any test for whether a given {row['unit']} {is_hidden}, even by somebody who"
        " knows everybody else's data, has a true positive rate of at most"
        f" {factor} x its false positive rate + {format_delta(row['delta'])}."
    )
