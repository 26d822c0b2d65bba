"""What noise that users share makes of a training, beside the noise of a server.

    python bench/distributed_noise.py corpora/ubuntu_irc --out runs/distributed
    python bench/distributed_noise.py --out runs/distributed --only-report

The same rounds, cohort, updates and server, from the base model, where people take turns and no
sampling is claimed.  Three kinds of noise: a server's, solved for an epsilon; that of the people
themselves at the same epsilon, as discrete Gaussian shares at 16 bits a coordinate of which two
thirds are enough; and a server's of the size that all these shares add up to, which tells what the
amount costs from what rounding and bits do.  Three seeds each, measured on 75,000 tokens of test
people.  A finished training is a line of docs/results/distributed-noise.jsonl, which is committed;
the same command goes on where it stopped.  The table of docs/results/distributed-noise.md is
written from these lines.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tacit.config.experiment import Experiment
from tacit.corpus.builtin import load_corpus
from tacit.evaluation.accuracy import evaluate
from tacit.evaluation.held_out import held_out_texts
from tacit.mechanisms.planning import Question, answers
from tacit.models.base import layer_sizes, parameter_count
from tacit.planner.proposal import CAP, FULL_WEIGHT, MOMENTUM, NEGATIVES, RATE
from tacit.privacy.guarantee import default_delta
from tacit.runs.stored_model import StoredModel
from tacit.tasks.language.first_checks import sized_model
from tacit.tasks.language.starts import fill_in_start
from tacit.train import train
from tacit_papers.markdown import markdown_table

MEASURED = 75_000
SERVER, SHARED, AS_LARGE = "a server's", "people's, 16 bits", "a server's, as large as people's"
ARMS = (SERVER, SHARED, AS_LARGE)
DOCS = Path(__file__).resolve().parent.parent / "docs"
RESULTS = DOCS / "results" / "distributed-noise.jsonl"
PAGE = DOCS / "results" / "distributed-noise.md"
BEGIN, END = "<!-- recorded: begin -->\n", "<!-- recorded: end -->\n"
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpora", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[8])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--cohort", type=int, default=80)
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
    sizes = "-".join(str(key[name]) for name in ("rounds", "cohort", "tokens"))
    arm = ARMS.index(key["arm"])
    run = options.out / f"{corpus.name}-{arm}-{key['epsilon_asked']:g}-{key['seed']}-{sizes}"
    resume = (run / "experiment.toml").is_file()
    began = time.process_time()
    trained = train(experiment_of(corpus, key), run, resume=resume, workers=options.workers)
    seconds = time.process_time() - began
    stored = StoredModel.open(run)
    sequences = held_out_texts(stored.corpus(None).test, stored.tokenizer, MEASURED).sequences
    bos, unk = stored.tokenizer.bos, stored.tokenizer.unk
    metrics = evaluate(stored.model, sequences, bos=bos, unk=unk)
    [plan] = trained.plans()
    assert plan.noise is not None
    row = {
        **key,
        "epsilon": min(value for value in trained.guarantee().epsilon.values() if value),
        "top1": metrics.accuracy_top1,
        "perplexity": metrics.perplexity,
        "separation": stored.experiment.plan.separation,
        "parameters": parameter_count(stored.model),
        "noise_multiplier": plan.noise_multiplier,
        "noise": plan.noise.noise_multiplier * plan.noise.relative_error(1),
        "processor_seconds": None if resume else round(seconds),
    }
    shutil.rmtree(run)
    return row


def experiment_of(corpus: Path, key: Row) -> Experiment:
    """The settings of a plan for one's own text, with this cell's noise."""
    users = len(load_corpus(corpus).train)
    separation = max(users // key["cohort"], 1)
    plan: Row = {
        "cohort": users / separation,
        "separation": separation,
        "sampling": "min-separation",
        "clip_norm": 1.0,
        "user_weight_cap": float(FULL_WEIGHT),
    }
    privacy: Row = {"target_epsilon": key["epsilon_asked"]}
    if key["arm"] == SHARED:
        plan |= {"noise": "distributed", "width": 16}
    if key["arm"] == AS_LARGE:
        shared = experiment_of(corpus, key | {"arm": SHARED})
        plan["noise_multiplier"], privacy = as_large(shared, users, key), {}
    tables: dict[str, Any] = {
        "name": "distributed-noise",
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
        "plan": plan,
        "server": {
            "optimizer": "momentum",
            "learning_rate": RATE,
            "momentum": MOMENTUM,
            "schedule": {"kind": "cosine", "final_share": 0.05},
        },
        "privacy": privacy,
        "evaluation": {"every": key["rounds"], "max_tokens": 2_000},
    }
    return Experiment.from_data(tables, "the bench")


def as_large(shared: Experiment, users: int, key: Row) -> float:
    """The multiplier of a server's noise that is as large as all shares together."""
    question = Question(
        population=users,
        cohort=key["cohort"],
        rounds=key["rounds"],
        noise_multiplier=None,
        target_epsilon=key["epsilon_asked"],
        delta=default_delta(users),
        noise="distributed",
        width=16,
        sampling="min-separation",
        layers=layer_sizes(sized_model(fill_in_start(shared))),
    )
    [answer], _ = answers(question)
    assert answer.plan.noise is not None
    return answer.plan.noise.noise_multiplier * answer.plan.noise.relative_error(1)


def report(rows: list[Row]) -> None:
    """A line for each corpus and kind of noise, a column for each epsilon."""
    epsilons = sorted({row["epsilon_asked"] for row in rows})
    lines = []
    for corpus in dict.fromkeys(row["corpus"] for row in rows):
        for arm in ARMS:
            own = [row for row in rows if (row["corpus"], row["arm"]) == (corpus, arm)]
            of = [[row for row in own if row["epsilon_asked"] == epsilon] for epsilon in epsilons]
            lines.append([corpus, arm, *(cell(some) for some in of)])
    heads = ["corpus", "noise", *(f"epsilon {epsilon:g}" for epsilon in epsilons)]
    table = f"{markdown_table(heads, lines)}\n" if lines else "Nothing yet.\n"
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{table}{END}{after}")


def cell(rows: list[Row]) -> str:
    """Mean top-1, its standard error, how many seeds it is of; and how large the noise is."""
    if not rows:
        return ""
    tops = [100 * row["top1"] for row in rows]
    error = f" ± {statistics.stdev(tops) / len(tops) ** 0.5:.2f}" if len(tops) > 1 else ""
    noise = statistics.mean(row["noise"] for row in rows)
    return f"{statistics.mean(tops):.2f}{error} ({len(tops)}), noise {noise:.3f} S"


if __name__ == "__main__":
    main()
