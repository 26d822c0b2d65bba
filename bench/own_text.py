"""What `tacit train --corpus C --epsilon E --minutes M` makes of a corpus, and whether it says so.

    python bench/own_text.py corpora/scotus corpora/ubuntu_irc --out runs/own-text
    python bench/own_text.py --out runs/own-text --only-report

For each corpus: the plan as it is, at several epsilons and seeds, and the same plan without clip
and noise.  Each is measured on 75,000 tokens of test people, beside the start, a bigram of the
training people that has no privacy, and one that has as much as the model.  Runs are kept in OUT.
A finished training is a line of docs/results/own-text.jsonl, which is committed, so that a long
series can be recorded on several days; the same command goes on where it stopped.  The tables of
docs/results/own-text.md and its plot are then written from these lines.  Run it on a quiet machine:
plans follow its speed.  Lines of other base weights are left out.  Lines of plans that were chosen
otherwise are marked `earlier` by hand: they are shown, and their trainings are recorded anew.

A series has one plan for each corpus and epsilon, a line of docs/results/own-text-plans.jsonl, for
all seeds and days.  A machine that is F times as fast as the one that a series was begun on makes
the plans of that one with `--pace F`: for M minutes there it takes M / F.

On a machine that others use too, a round of two processes waits for the slower one.  There, make
the plans first, for all cores (`--only-plans`), and then train each corpus by itself with
`--workers 1`: the bits are the same, and the time that was taken is left out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tacit.cli.plots import new_figure, save
from tacit.config.experiment import Experiment
from tacit.engines.engine import available_cores
from tacit.evaluation.accuracy import evaluate
from tacit.evaluation.held_out import held_out_texts
from tacit.planner.proposal import Wish, propose
from tacit.privacy.randomness import RunKey
from tacit.runs.baselines import fit_baselines
from tacit.runs.private_baselines import release_baselines
from tacit.runs.stored_model import StoredModel
from tacit.tasks.language.starts import weights_file
from tacit.train import train
from tacit_papers.markdown import markdown_table

MEASURED = 75_000
UNPROTECTED = 0.0  # stands for the same plan without clip and noise
DOCS = Path(__file__).resolve().parent.parent / "docs"
RESULTS = DOCS / "results" / "own-text.jsonl"
PLANS = DOCS / "results" / "own-text-plans.jsonl"
PAGE = DOCS / "results" / "own-text.md"
BEGIN, END = "<!-- recorded: begin -->\n", "<!-- recorded: end -->\n"
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpora", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[8, 2, UNPROTECTED, 4, 1, 0.5])
    parser.add_argument(
        "--seeds", type=int, default=3, help="of epsilon 8, 2 and none; others have one"
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--pace", type=float, default=1.0, help="of this machine, in the series'")
    parser.add_argument("--workers", type=int, default=available_cores(), help="that train")
    parser.add_argument("--only-plans", action="store_true", help="make the plans, and stop")
    parser.add_argument("--only-report", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.only_report:
        for corpus, epsilon, seed in cells(options):
            if not any(is_of(row, corpus, epsilon, seed, options) for row in read(RESULTS)):
                planned = plan(corpus, epsilon, options)
                if options.only_plans:
                    continue
                row = measure(options, planned, corpus, epsilon, seed)
                append(RESULTS, row)
                print(json.dumps(row), flush=True)
    report(read(RESULTS))


def cells(options: argparse.Namespace) -> Iterator[tuple[Path, float, int]]:
    """Every training, those that decide most first."""
    for seed in range(options.seeds):
        for epsilon in options.epsilons:
            for corpus in options.corpora:
                if seed == 0 or epsilon in (8, 2, UNPROTECTED):
                    yield corpus, epsilon, seed


def is_of(row: Row, corpus: Path, epsilon: float, seed: int, options: argparse.Namespace) -> bool:
    key = (row["corpus"], row["epsilon_asked"], row["seed"], row["minutes"])
    return key == (corpus.name, epsilon, seed, options.minutes) and not row.get("earlier")


def base_digest() -> str:
    """Of the weights that trainings start from: figures of others are not comparable."""
    return hashlib.sha256(weights_file("base").read_bytes()).hexdigest()


def read(file: Path) -> list[Row]:
    """What was recorded with the base model as it is now."""
    lines = file.read_text().splitlines() if file.is_file() else []
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if row["base"] == base_digest()]


def append(file: Path, row: Row) -> None:
    with file.open("a") as lines:
        lines.write(json.dumps(row) + "\n")


def plan(corpus: Path, epsilon: float, options: argparse.Namespace) -> Row:
    """The plan of this corpus, epsilon and time, for all cores; made once for all seeds."""
    planned_for = epsilon or 8.0  # the same plan, with and without clip and noise
    made = {"corpus": corpus.name, "minutes": options.minutes, "epsilon": planned_for}
    for row in read(PLANS):
        if made.items() <= row.items():
            return row
    minutes = options.minutes / options.pace
    proposal = propose(Wish(str(corpus), planned_for, minutes, workers=available_cores()))
    choice = proposal.choice
    row = {
        "base": base_digest(),
        **made,
        "facts": {
            "expected_accuracy": proposal.expect().accuracy,
            "expected_seconds": proposal.seconds,
            "rounds": choice.rounds,
            "cohort": choice.cohort,
            "noise": choice.noise,
            "noise_kind": f"{choice.noises.kind}, {choice.noises.sampling}",
            "tokens_per_round": choice.reading.tokens,
            "users_per_second": choice.reading.users_per_second,
            "expected_fall": choice.fall,
            "rehearsal_gain": proposal.rehearsal.gain,
        },
        "experiment": proposal.experiment.to_toml(),
    }
    append(PLANS, row)
    return row


def measure(
    options: argparse.Namespace, planned: Row, corpus: Path, epsilon: float, seed: int
) -> Row:
    """Train by the plan and measure; a training that was interrupted goes on."""
    run = options.out / f"{corpus.name}-{options.minutes:g}min-epsilon{epsilon:g}-seed{seed}"
    experiment = Experiment.from_toml(planned["experiment"], str(PLANS)).changed(
        seed=seed, corpus={"source": str(corpus)}
    )
    if not epsilon:
        experiment = experiment.changed(
            plan={"clipping": "none", "noise_multiplier": 0.0}, privacy={"target_epsilon": None}
        )
    resume = (run / "experiment.toml").is_file()
    began = time.monotonic()
    trained = train(experiment, run, resume=resume, workers=options.workers)
    seconds = time.monotonic() - began
    spent = [value for value in trained.guarantee().epsilon.values() if value is not None]
    return {
        "base": base_digest(),
        "corpus": corpus.name,
        "epsilon_asked": epsilon,
        "seed": seed,
        "minutes": options.minutes,
        "seconds": None if resume or options.workers < available_cores() else seconds,
        "epsilon": min(spent) if spent else None,
        **planned["facts"],
        **figures(run, epsilon, seed),
    }


def figures(run: Path, epsilon: float, seed: int) -> Row:
    """Top-1 and perplexity of the model, its start, the unprotected bigram and a private one."""
    stored, start = StoredModel.open(run), StoredModel.open(run, 0)
    users, tokenizer = stored.corpus(None), stored.tokenizer
    sequences = held_out_texts(users.test, tokenizer, MEASURED).sequences
    predictors = {
        "model": stored.model,
        "start": start.model,
        "bigram": fit_baselines(stored, users, is_own=True)["bigram"],
    }
    if epsilon:
        released = release_baselines(stored, epsilon, key=RunKey.from_seed(seed))
        predictors["private_bigram"] = released.bigram
    row: Row = {}
    for name, predictor in predictors.items():
        metrics = evaluate(predictor, sequences, bos=tokenizer.bos, unk=tokenizer.unk)
        row[f"{name}_top1"], row[f"{name}_perplexity"] = metrics.accuracy_top1, metrics.perplexity
        row[f"{name}_top1_unk_competes"] = metrics.accuracy_top1_unk_competes
        row["unknown_rate"] = metrics.unknown_rate
    return row


def report(rows: list[Row]) -> None:
    """A line for each corpus and epsilon, and how far the plans were off."""
    reached, curves = [], {}
    for series in dict.fromkeys(map(series_of, rows)):
        own = [row for row in rows if series_of(row) == series]
        reached += reached_by(own)
        corpus, minutes, plan = series
        curves[f"{corpus}, {minutes:g} minutes{plan and f', {plan}'}"] = own
    for name in dict.fromkeys(row["corpus"] for row in rows):
        reached += baselines_of(next(row for row in rows if row["corpus"] == name))
    heads = ["corpus", "minutes", "epsilon", "noise", "top-1", "- bigram", "private bigram"]
    tables = markdown_table([*heads, "perplexity", "runs"], reached)
    present = [row for row in rows if row["epsilon_asked"] and not row.get("earlier")]
    heads = ["corpus", "minutes", "epsilon", "seed", "rounds", "tokens", "expected", "came out"]
    promised = markdown_table([*heads, "off", "time / said"], map(promise, present))
    write_page(f"{tables}\n\n{promised}\n")
    draw(curves)


def series_of(row: Row) -> tuple[str, float, str]:
    """What is averaged and drawn together."""
    return row["corpus"], row["minutes"], "earlier plan" if row.get("earlier") else ""


def reached_by(rows: list[Row]) -> Iterator[list[str]]:
    """What the trainings on a corpus in a time reached, by epsilon."""
    for epsilon in sorted({row["epsilon_asked"] for row in rows}):
        some = [row for row in rows if row["epsilon_asked"] == epsilon]
        accuracy = [100 * row["model_top1"] for row in some]
        spread = f" ± {statistics.stdev(accuracy):.2f}" if len(accuracy) > 1 else ""
        mean = statistics.mean(accuracy)
        yield [
            some[0]["corpus"],
            f"{some[0]['minutes']:g}",
            f"{epsilon:g}" if epsilon else "no clip, no noise",
            noise_of(some[0]),
            f"{mean:.2f}%{spread}",
            f"{mean - 100 * some[0]['bigram_top1']:+.2f}",
            private_bigram(some),
            f"{statistics.mean(row['model_perplexity'] for row in some):.1f}",
            f"{len(some)}",
        ]


def noise_of(row: Row) -> str:
    """Its kind, and whose plan chose it."""
    kind = str(row.get("noise_kind", "independent, poisson")) if row["epsilon_asked"] else ""
    return f"{kind} (earlier plan)".strip() if row.get("earlier") else kind


def baselines_of(row: Row) -> Iterator[list[str]]:
    """The start and the unprotected bigram on the same text."""
    for name in ("bigram", "start"):
        top1, perplexity = f"{100 * row[f'{name}_top1']:.2f}%", f"{row[f'{name}_perplexity']:.1f}"
        yield [row["corpus"], "", name, "", top1, "", "", perplexity, ""]


def promise(row: Row) -> list[str]:
    """What the plan said, and what came out."""
    late = row["seconds"] and row["seconds"] / row["expected_seconds"]
    return [
        row["corpus"],
        f"{row['minutes']:g}",
        f"{row['epsilon_asked']:g}",
        f"{row['seed']}",
        f"{row['rounds']} x {row['cohort']:,}",
        f"{row['tokens_per_round']}",
        f"{100 * row['expected_accuracy']:.1f}%",
        f"{100 * row['model_top1']:.1f}%",
        f"{100 * (row['model_top1'] - row['expected_accuracy']):+.1f}",
        f"{late:.2f}" if late else "",
    ]


def private_bigram(rows: list[Row]) -> str:
    """Top-1 of the bigram that has as much privacy as the model."""
    tops = [100 * row["private_bigram_top1"] for row in rows if "private_bigram_top1" in row]
    return f"{statistics.mean(tops):.2f}%" if tops else ""


def write_page(tables: str) -> None:
    """Put the tables between the page's two marks."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{tables}{END}{after}")
    print(tables)


def draw(curves: dict[str, list[Row]]) -> None:
    """Accuracy over epsilon; a dashed line is the bigram that has no privacy."""
    figure = new_figure()
    axes = figure.subplots()
    for label, rows in curves.items():
        points = sorted((r["epsilon_asked"], 100 * r["model_top1"]) for r in rows if r["epsilon"])
        if points:
            [line] = axes.plot(*zip(*points, strict=True), marker="o", label=label)
            axes.axhline(100 * rows[0]["bigram_top1"], color=line.get_color(), linestyle="--", lw=1)
    axes.set(xscale="log", xlabel="epsilon", ylabel="top-1 on test people, %")
    axes.legend()
    save(figure, DOCS / "images" / "own-text.png")


if __name__ == "__main__":
    main()
