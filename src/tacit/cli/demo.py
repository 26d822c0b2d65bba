"""`tacit demo`: the main job on one screen.  Until training exists, that is planning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from tacit.privacy.claims import format_epsilon

# McMahan et al. 2018, Table 2: clip norm, noise on the average, cohort, printed epsilon.
TABLE_2 = (
    (763_430, 15.0, 0.003, 5000, "4.634"),
    (763_430, 10.0, 0.006, 1667, "2.314"),
    (763_430, 15.0, 0.012, 1250, "2.038"),
    (10**8, 15.0, 0.003, 5000, "1.152"),
    (10**8, 10.0, 0.006, 1667, "0.991"),
    (10**8, 15.0, 0.012, 1250, "0.987"),
)


def demo(
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the picture goes: .png, .svg or .pdf.")
    ] = Path("demo-epsilon.png"),
) -> None:
    """Plan a private next-word model: what a published training cost, and what it costs you."""
    from tacit.cli import plotting
    from tacit.cli.progress import tracked
    from tacit.mechanisms.planning import Question, answers
    from tacit.privacy.projection import SmallExperiment

    plotting.check_target(out)
    console = Console()
    table = Table(
        title="McMahan et al. 2018, Table 2: 5,000 rounds, delta 1e-9, noise multiplier 1",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for name in ("users", "cohort", "clip S", "sigma", "printed", "moments", "rdp", "pld"):
        table.add_column(name, justify="right", style="bold" if name == "pld" else None)
    for population, clip, sigma, cohort, printed in tracked(TABLE_2, "accounting"):
        question = Question(
            population=population,
            cohort=cohort,
            rounds=5000,
            noise_multiplier=1.0,
            delta=1e-9,
        )
        found, _ = answers(question, "all")
        epsilon = {answer.accountant: answer.epsilon for answer in found}
        figures = [f"{epsilon['moments']:.3f}"]
        figures += [format_epsilon(epsilon[name]) for name in ("rdp", "pld")]
        table.add_row(
            f"{population:,}", f"{cohort:,}", f"{clip:g}", f"{sigma:g}", printed, *figures
        )
    console.print(table)
    console.print(
        "The moments column reproduces the paper; the privacy loss distribution (pld) gives the"
        " same runs a smaller epsilon, because it is tight.\n"
    )

    project = Question(
        population=763_430,
        cohort=5000,
        rounds=5000,
        noise_multiplier=None,
        delta=1e-9,
        experiment=SmallExperiment(100, 0.003, 15.0),
    )
    (projected, actual), _ = answers(project)
    console.print(
        "An experiment with 100 users a round, as the papers ran it, and what it stands for:"
    )
    console.print(f"  actual     {actual.claim}", highlight=False)
    console.print(f"  projected  {projected.claim}\n", highlight=False)

    solve = Question(
        population=10**8,
        cohort=20_000,
        rounds=5000,
        noise_multiplier=None,
        target_epsilon=2.0,
        delta=1e-9,
    )
    (solved,), _ = answers(solve)
    console.print("Your turn: which noise keeps 100 million users within epsilon = 2?")
    console.print(f"  noise multiplier {solved.plan.noise_multiplier:.4f}: {solved.claim}\n")
    plotting.epsilon_over_rounds(projected, out)
    console.print(f"Epsilon over rounds, by accountant: {out}")
