"""What kinds of noise make of the same training: accuracy at the same epsilon.

    python bench/correlated_noise.py corpora/scotus corpora/ubuntu_irc --out runs/correlated
    python bench/correlated_noise.py --out runs/correlated --only-report

For each corpus, the same rounds, cohort, updates and server, from the base model, with four kinds
of noise: independent with Poisson sampling, banded with cyclic Poisson sampling (with as many bands
as leave the least noise in the model), buffered (BLT) without any claim of sampling, and
independent without one.  Each is solved for epsilon 8, 4, 2 and 1, with three seeds, and measured
on 75,000 tokens of test people.  A finished training is a line of
docs/results/correlated-noise.jsonl, which is committed; the same command goes on where it stopped.
The tables of docs/results/correlated-noise.md and its plot are written from these lines.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tacit.cli.plots import new_figure, save
from tacit.config.experiment import Experiment
from tacit.evaluation.accuracy import evaluate
from tacit.evaluation.held_out import held_out_texts
from tacit.mechanisms.noise_comparison import CYCLIC, POISSON, TURNS, compare
from tacit.mechanisms.planning import answers
from tacit.planner.noises import Terms
from tacit.planner.proposal import CAP, FULL_WEIGHT, MOMENTUM, NEGATIVES, RATE
from tacit.runs.stored_model import StoredModel
from tacit.train import train
from tacit_papers.markdown import markdown_table

MEASURED = 75_000
ARMS = {
    "independent, Poisson": ("independent", POISSON),
    "banded, cyclic Poisson": ("banded", CYCLIC),
    "BLT, no sampling claim": ("blt", TURNS),
    "independent, no sampling claim": ("independent", TURNS),
}
DOCS = Path(__file__).resolve().parent.parent / "docs"
RESULTS = DOCS / "results" / "correlated-noise.jsonl"
PAGE = DOCS / "results" / "correlated-noise.md"
BEGIN, END = "<!-- recorded: begin -->\n", "<!-- recorded: end -->\n"
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpora", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[8, 2, 1, 4])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=64)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=200, help="of a user in a round, at most")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only-report", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.only_report:
        for key in cells(options):
            if not any(key.items() <= row.items() for row in read()):
                row = measure(options, key)
                with RESULTS.open("a") as lines:
                    lines.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)
    report(read())


def cells(options: argparse.Namespace) -> Iterator[Row]:
    """Every training, by what tells it from the others; a first seed of everything comes first."""
    settings = {name: getattr(options, name) for name in ("rounds", "cohort", "tokens")}
    for seed in range(options.seeds):
        for epsilon in options.epsilons:
            for corpus in options.corpora:
                for arm in ARMS:
                    named = {"corpus": corpus.name, "arm": arm, "epsilon_asked": epsilon}
                    yield {**named, "seed": seed, **settings}


def read() -> list[Row]:
    lines = RESULTS.read_text().splitlines() if RESULTS.is_file() else []
    return [json.loads(line) for line in lines]


def measure(options: argparse.Namespace, key: Row) -> Row:
    """Train one cell and measure it; a training that was interrupted goes on."""
    [corpus] = [path for path in options.corpora if path.name == key["corpus"]]
    name = f"{corpus.name}-{list(ARMS).index(key['arm'])}-{key['epsilon_asked']:g}-{key['seed']}"
    run = options.out / name
    experiment = experiment_of(corpus, key)
    resume = (run / "experiment.toml").is_file()
    trained = train(experiment, run, resume=resume, workers=options.workers)
    stored = StoredModel.open(run)
    test = stored.corpus(None).test
    sequences = held_out_texts(test, stored.tokenizer, MEASURED).sequences
    bos, unk = stored.tokenizer.bos, stored.tokenizer.unk
    metrics = evaluate(stored.model, sequences, bos=bos, unk=unk)
    spent = [value for value in trained.guarantee().epsilon.values() if value is not None]
    plan = stored.experiment.plan
    row = {
        **key,
        "epsilon": min(spent),
        "top1": metrics.accuracy_top1,
        "top1_unk_competes": metrics.accuracy_top1_unk_competes,
        "perplexity": metrics.perplexity,
        "separation": plan.separation,
        "noise_multiplier": plan.noise_multiplier,
    }
    shutil.rmtree(run)
    return row


def experiment_of(corpus: Path, key: Row) -> Experiment:
    """The settings of a plan for one's own text, with this cell's noise."""
    noise, sampling = ARMS[key["arm"]]
    tables: dict[str, Any] = {
        "name": "correlated-noise",
        "rounds": key["rounds"],
        "seed": key["seed"],
        "corpus": {"source": str(corpus), "max_tokens_per_user": CAP},
        "model": {"start": "base"},
        "update": {
            "learning_rate": 1.0,
            "batch_size": 5,
            "unroll": 20,
            "tokens_per_round": key["tokens"],
            "sampled_negatives": NEGATIVES,
        },
        "plan": {
            "cohort": float(key["cohort"]),
            "clip_norm": 1.0,
            "user_weight_cap": float(FULL_WEIGHT),
            "noise": noise,
            "sampling": sampling,
        },
        "server": {
            "optimizer": "momentum",
            "learning_rate": RATE,
            "momentum": MOMENTUM,
            "schedule": {"kind": "cosine", "final_share": 0.05},
        },
        "privacy": {"target_epsilon": key["epsilon_asked"]},
        "evaluation": {"every": key["rounds"], "max_tokens": 2_000},
    }
    return with_bands(filled_in(Experiment.from_data(tables, "the bench")))


def filled_in(experiment: Experiment) -> Experiment:
    """The experiment with the start's sizes, the population and delta."""
    from tacit.corpus.builtin import load_corpus
    from tacit.tasks.language import plans
    from tacit.tasks.language.starts import fill_in_start

    users = len(load_corpus(experiment.corpus.source).train)
    return plans.declared(fill_in_start(experiment), users)


def with_bands(experiment: Experiment) -> Experiment:
    """Of banded noise, the separation that leaves the least in the model."""
    plan, privacy = experiment.plan, experiment.privacy
    if plan.sampling != CYCLIC:
        return experiment
    assert plan.population is not None
    terms = Terms(
        plan.population,
        round(plan.cohort),
        experiment.rounds,
        privacy.target_epsilon,
        privacy.delta,
    )
    question = terms.question("independent", POISSON)
    [answer], _ = answers(question)
    best = compare(question, answer, kinds=(("banded", CYCLIC),))[-1]
    return experiment.changed(plan={"separation": best.answer.question.separation})


def report(rows: list[Row]) -> None:
    """A line for each corpus and kind of noise, a column for each epsilon, and a plot."""
    epsilons = sorted({row["epsilon_asked"] for row in rows})
    corpora = list(dict.fromkeys(row["corpus"] for row in rows))
    lines = []
    for corpus in corpora:
        for arm in ARMS:
            cells = [
                cell([r for r in rows if (r["corpus"], r["arm"], r["epsilon_asked"]) == key])
                for key in ((corpus, arm, epsilon) for epsilon in epsilons)
            ]
            lines.append([corpus, arm, *cells])
    heads = ["corpus", "noise", *(f"epsilon {epsilon:g}" for epsilon in epsilons)]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{markdown_table(heads, lines)}\n{END}{after}")
    draw(rows, corpora)


def cell(rows: list[Row]) -> str:
    """Mean top-1 with its standard error, and how many seeds it is of."""
    if not rows:
        return ""
    tops = [100 * row["top1"] for row in rows]
    if len(tops) == 1:
        return f"{tops[0]:.2f} (1)"
    return f"{statistics.mean(tops):.2f} ± {error(tops):.2f} ({len(tops)})"


def error(values: list[float]) -> float:
    """The standard error of their mean."""
    return statistics.stdev(values) / len(values) ** 0.5


def draw(rows: list[Row], corpora: list[str]) -> None:
    """Accuracy over epsilon, a panel for each corpus."""
    figure = new_figure(4.2 * max(1, len(corpora)), 3.6)
    for index, corpus in enumerate(corpora):
        axes = figure.add_subplot(1, len(corpora), index + 1)
        for arm in ARMS:
            own = [row for row in rows if (row["corpus"], row["arm"]) == (corpus, arm)]
            epsilons = sorted({row["epsilon_asked"] for row in own})
            of = [[100 * r["top1"] for r in own if r["epsilon_asked"] == e] for e in epsilons]
            bars = [error(tops) if len(tops) > 1 else 0.0 for tops in of]
            axes.errorbar(
                epsilons, [statistics.mean(t) for t in of], bars, marker="o", capsize=3, label=arm
            )
        axes.set(xscale="log", xlabel="epsilon", ylabel="top-1 on test people, %", title=corpus)
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    figure.axes[0].legend(fontsize="small")
    save(figure, DOCS / "images" / "correlated-noise.png")


if __name__ == "__main__":
    main()
