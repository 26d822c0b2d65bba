"""`tacit demo`: the main job on one screen, on chat that comes with the package."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from tacit.cli.demo_audit import POOLED_EPOCHS, audit_all, pooled_model, print_memorized
from tacit.cli.options import Seed
from tacit.cli.output import Interrupted
from tacit.cli.progress import Display, bar, tracked
from tacit.privacy.claims import format_delta, format_epsilon

if TYPE_CHECKING:
    from tacit.config.experiment import Experiment
    from tacit.corpus.source import UserCorpus
    from tacit.evaluation.accuracy import Metrics
    from tacit.evaluation.predictors import Predictor
    from tacit.models.base import LanguageModel
    from tacit.runs.run import LanguageRun as Run
    from tacit.tokenizers.tokenizer import Tokenizer

FEDAVG, CLIPPED, PRIVATE = "fedavg", "fedavg-clip", "dp-fedavg"
POOLED = "pooled"
LEVELS = ("unigram", "pre-trained")  # what the picture compares with
PREFIXES = ("how are", "i like", "what is your", "nice to", "do you")
# 24 canaries shared by few people, and 3 shared by 30 to show where a guarantee for one user ends:
# in expectation one text in six, which is more than an audit of a real run would plant.
CANARIES = (
    "audit.canaries.sharers=[1.0, 4.0, 16.0]",
    "audit.canaries.example_probs=[0.1, 1.0]",
    "audit.canaries.per_cell=4",
    "audit.canaries.also=[{sharers=30.0, example_prob=1.0, canaries=3}]",
    "audit.canaries.max_share=0.17",
)
QUICK = (  # a smoke test
    "rounds=2",
    "corpus.users=100",
    "plan.cohort=25",
    "model.pretrain.epochs=0.2",
    "evaluation.every=1",
    "evaluation.max_tokens=2000",
    "audit.canaries.sharers=[1.0]",
    "audit.canaries.also=[{sharers=30.0, example_prob=1.0, canaries=1}]",
    "audit.canaries.max_share=0.5",
)
QUICK_SAMPLES, QUICK_CONTROLS, QUICK_EPOCHS = 2000, 5, 0.2
LABELS = {
    POOLED: "SGD on records",
    FEDAVG: "FedAvg",
    CLIPPED: "FedAvg+clip",
    PRIVATE: "DP-FedAvg",
}
# What the same noise on the average would mean where more people take part.
PROJECTED_USERS, PROJECTED_COHORT, PROJECTED_DELTA = 1_000_000, 1000, 1e-7


def demo(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Each demo makes a folder of its own in DIR.")
    ] = Path("demo"),
    seed: Seed = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smoke test of seconds: its figures say nothing.")
    ] = False,
) -> None:
    """Train models without privacy and one with it, on 1,171 people's chat; then attack them.

    Takes a few minutes.  They are ordinary runs, which the other commands can be tried on.
    """
    began = time.monotonic()
    import torch

    from tacit.config import recipes
    from tacit.engines.processes import available_cores

    torch.set_num_threads(1)  # products this small are slower on two, and processes use the cores
    given = [*CANARIES, *(QUICK if quick else ()), *([f"seed={seed}"] if seed is not None else ())]
    experiments = recipes.load("demo", given).experiments
    folder = _new_folder(out)
    try:
        workers = 1 if quick else available_cores()  # starting one takes seconds
        start, runs = _trained(folder, experiments, workers)
        pooled, findings = _audited(start, runs, workers, quick=quick)
    except KeyboardInterrupt:
        raise Interrupted(_left_behind(folder)) from None
    except BaseException:
        _left_behind(folder)
        raise
    rows = _measured(start, runs, pooled)
    console = Console(highlight=False)
    _print_figures(console, start, rows, quick=quick)
    print_memorized(console, findings, LABELS)
    _print_privacy(console, runs[PRIVATE])
    _print_suggestions(console, start, runs)
    picture = folder / "curves.png"
    _draw(picture, rows, runs)
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    path = runs[PRIVATE].path
    page = _reported(runs[PRIVATE])
    ending = f"Took {minutes} min {seconds} s.  Held-out curves are in {picture}, and the report on"
    console.print(f"{ending} the private model in {page}.  Next:", markup=False, soft_wrap=True)
    for command in (
        f'tacit predict {path} "see you"',
        f"tacit ledger {path}",
        "tacit ingest messages.jsonl --out corpora/mine",
        "tacit train demo --variant dp-fedavg --corpus corpora/mine --run runs/mine",
    ):
        console.print(f"  {command}", markup=False, soft_wrap=True)
    console.print(f"The runs are in {folder}", markup=False, soft_wrap=True)


def _new_folder(out: Path) -> Path:
    """The next number in `out`.  Earlier demos stay: their ledgers say what they have cost."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {str(out)!r} is a file: name a directory")
    out.mkdir(parents=True, exist_ok=True)
    taken = [int(path.name) for path in out.iterdir() if path.name.isdecimal()]
    number = max(taken, default=0) + 1
    while True:
        folder = out / str(number)
        try:
            folder.mkdir()
        except FileExistsError:  # by another demo, meanwhile
            number += 1
        else:
            return folder


def _left_behind(folder: Path) -> str:
    """A folder without a run goes; one with a run stays, because its ledger counts."""
    if any((folder / name).exists() for name in (FEDAVG, CLIPPED, PRIVATE)):
        return (
            f"interrupted; what was trained so far is in {folder}, and another demo starts afresh"
        )
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # there are other demos in it
        folder.parent.rmdir()
    return "interrupted before the first round; nothing is left behind"


@dataclass(frozen=True)
class _Start:
    """What both trainings have in common."""

    experiment: Experiment
    corpus: UserCorpus
    tokenizer: Tokenizer
    untrained: LanguageModel
    pretrained: LanguageModel


def _trained(
    folder: Path, experiments: Mapping[str, Experiment], workers: int
) -> tuple[_Start, dict[str, Run]]:
    """Pre-train once; then all trainings start from the same file."""
    from tacit.models import weights
    from tacit.runs.run import LanguageRun
    from tacit.train import train

    start = _started(experiments[PRIVATE])
    file = folder / "pretrained.safetensors"
    weights.save(start.pretrained, file)
    model = {"start": str(file), "pretrain": None, "public_output_bias": False}
    runs = {}
    for name in (FEDAVG, CLIPPED, PRIVATE):
        with Display(name) as display:
            train(
                experiments[name].changed(model=model),
                folder / name,
                workers=workers,
                observer=display.observe,
                announce=display.tell,
            )
        runs[name] = LanguageRun.open(folder / name)
    return start, runs


def _audited(
    start: _Start, runs: dict[str, Run], workers: int, *, quick: bool
) -> tuple[LanguageModel, dict[str, dict[str, Any]]]:
    """The model of pooled records, and what all models give away."""
    from tacit.audit.auditing import Audit
    from tacit.audit.extraction import Extraction

    epochs = QUICK_EPOCHS if quick else POOLED_EPOCHS
    pooled = pooled_model(runs[FEDAVG], start.pretrained, epochs)
    wanted = Audit()
    if quick:
        wanted = Audit(Extraction(samples=QUICK_SAMPLES), controls=QUICK_CONTROLS)
    return pooled, audit_all(runs, pooled, wanted, workers)


def _started(experiment: Experiment) -> _Start:
    from tacit.corpus.builtin import load_corpus
    from tacit.models import registry
    from tacit.tasks.language import assembly

    with bar("reading the chats") as show:
        show("reading the chats", 0, None, "")
        corpus = load_corpus(experiment.corpus.source)
        tokenizer = assembly.tokenizer_of(experiment, corpus.train)
        given = experiment.model
        untrained = registry.build(
            given.name, tokenizer.vocab_size, seed=given.seed, **given.options
        )
        pretrained = assembly.starting_model(
            experiment,
            tokenizer,
            corpus,
            tell=lambda what, done, of: show(what, done, of, "shared by both"),
        ).model
    return _Start(experiment, corpus, tokenizer, untrained, pretrained)


@dataclass(frozen=True)
class _Row:
    """A line of the table."""

    name: str
    trained_on: str
    evaluated: Metrics  # as `tacit evaluate` counts


def _measured(start: _Start, runs: dict[str, Run], pooled: LanguageModel) -> list[_Row]:
    """Every predictor on the same text of test users."""
    from tacit.evaluation.accuracy import evaluate
    from tacit.evaluation.held_out import held_out_sequences
    from tacit.evaluation.network import as_predictor

    tokenizer, limit = start.tokenizer, start.experiment.evaluation.max_tokens
    bos, unk = tokenizer.bos, tokenizer.unk
    held_out = held_out_sequences(start.corpus.test, tokenizer, limit)
    predictors = {
        ("untrained", "nothing"): as_predictor(start.untrained),
        ("unigram", "users, no privacy"): _unigram(start, runs[FEDAVG]),
        ("pre-trained", "public text"): as_predictor(start.pretrained),
        ("SGD", "records, no privacy"): as_predictor(pooled),
        ("FedAvg", "users, no privacy"): as_predictor(runs[FEDAVG].model()),
        ("FedAvg+clip", "users, no privacy"): as_predictor(runs[CLIPPED].model()),
        ("DP-FedAvg", "users, with privacy"): as_predictor(runs[PRIVATE].model()),
    }
    rows = []
    for (name, text), predictor in tracked(list(predictors.items()), "measuring"):
        rows.append(_Row(name, text, evaluate(predictor, held_out, bos=bos, unk=unk)))
    return rows


def _unigram(start: _Start, run: Run) -> Predictor:
    """Word frequencies of all that the training users trained on."""
    from tacit.evaluation.baselines import Unigram
    from tacit.tasks.language import assembly
    from tacit.tasks.language.people import People
    from tacit.tokenizers.cache import TokenCache

    users = People.of(run.experiment, start.corpus).view(run.experiment, start.tokenizer)
    cache = TokenCache.open_or_build(
        users,
        start.tokenizer,
        assembly.corpus_folder(start.corpus) or run.directory.private,
        max_tokens_per_user=run.experiment.corpus.max_tokens_per_user,
    )
    tokens = [cache.tokens(user) for user in range(len(users))]
    return Unigram.fit(tokens, start.tokenizer.vocab_size, bos=start.tokenizer.bos)


def _print_figures(console: Console, start: _Start, rows: list[_Row], *, quick: bool) -> None:
    from tacit.models.vectors import parameter_count

    if quick:
        console.print("A smoke test: these figures show that it runs, not what it can do.\n")
    size, users = parameter_count(start.pretrained), len(start.corpus.test)
    table = Table(
        title=f"An LSTM of {size:,} parameters on the chat of {users} test users",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("next-word model")
    table.add_column("trained on")
    for name in ("top-1", "perplexity"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.name,
            row.trained_on,
            f"{row.evaluated.accuracy_top1:.1%}",
            f"{row.evaluated.perplexity:,.0f}",
            style="bold" if row is rows[-1] else None,
        )
    console.print(table)
    (_, unigram, *_, private), unknown = rows, rows[0].evaluated.unknown_rate
    ours, theirs = private.evaluated.accuracy_top1, unigram.evaluated.accuracy_top1
    console.print(
        f"The private model {'beats' if ours > theirs else 'does not beat'} the unigram model: its"
        f" first suggestion is right {ours:.1%} of the time, the other's {theirs:.1%}."
        f"  Unknown words, {unknown:.0%} of all, are missed.\n"
    )


def _print_privacy(console: Console, run: Run) -> None:
    """The actual claim, and beside it a projected one (design rule 10)."""
    from tacit.privacy.guarantee import Projection

    found = run.guarantee()
    to = Projection(PROJECTED_COHORT, PROJECTED_USERS, PROJECTED_DELTA)
    projected = found.projected(to)
    console.print("What the private model may claim", style="bold")
    console.print(f"Actual: {found.claim}", markup=False)
    console.print(f"At the same noise on the average: {projected.claim}", markup=False)
    console.print(
        "The settings were chosen on training users held out for that, which epsilon does not"
        " count.  The FedAvg model may claim nothing: do not release it."
    )
    if found.others:
        console.print(f"Every demo is a training on the same people.  {found.others}", markup=False)
    console.print()


def _print_suggestions(console: Console, start: _Start, runs: dict[str, Run]) -> None:
    from tacit.evaluation.suggestions import Suggester

    models = {
        "pre-trained": start.pretrained,
        "FedAvg": runs[FEDAVG].model(),
        "DP-FedAvg": runs[PRIVATE].model(),
    }
    table = Table(title="Suggestions", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("typed")
    for name in models:
        table.add_column(name, style="bold" if name == "DP-FedAvg" else None)
    suggesters = [Suggester(model, start.tokenizer) for model in models.values()]
    for prefix in PREFIXES:
        found = (suggester.suggest(f"{prefix} ", 3) for suggester in suggesters)
        table.add_row(prefix, *("  ".join(each.word for each in words) for words in found))
    console.print(table)


def _reported(run: Run) -> Path:
    """The page for whoever has to believe the claim."""
    from tacit.report.facts import gather
    from tacit.report.write import Target

    page = run.path / "report.html"
    Target(page).write(gather(run))
    return page


def _draw(path: Path, rows: list[_Row], runs: dict[str, Run]) -> None:
    from tacit.cli.figures import perplexity_over_rounds

    found = runs[PRIVATE].guarantee()
    epsilon, delta = format_epsilon(found.value), format_delta(found.delta)
    perplexity_over_rounds(
        path,
        {"FedAvg": runs[FEDAVG].metrics(), "DP-FedAvg": runs[PRIVATE].metrics()},
        {row.name: row.evaluated.perplexity for row in rows if row.name in LEVELS},
        f"User-level epsilon {epsilon} at delta {delta}, or no privacy",
    )
