"""`tacit demo`: the main job on one screen, on chat that comes with the package.

First a model worth shipping: what `tacit train --corpus chitchat --epsilon 8` plans and trains,
beside what it has to beat.  Then what such training protects from: the variants of the recipe
`demo`, a model small enough to be trained several times, with sentences planted in people's text
and looked for afterwards.  All of it goes through the very functions that `tacit train`,
`evaluate`, `audit` and `report` use.  One model is added that no command trains: plain SGD on
pooled records, as it is done where privacy is no concern.
"""

from __future__ import annotations

import copy
import shutil
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tacit.cli.options import Seed, flag, text
from tacit.cli.output import Interrupted, emit, table
from tacit.runs.figures import UNK_COMPETES
from tacit.runs.progress import bar, tracked

if TYPE_CHECKING:
    from tacit.audit.results import PublicAudit
    from tacit.evaluation.accuracy import Metrics
    from tacit.evaluation.scoring import Predictor
    from tacit.models.base import LanguageModel
    from tacit.runs.run import LanguageRun as Run
    from tacit.runs.stored_model import StoredModel

FEDAVG, CLIPPED, PRIVATE = "fedavg", "fedavg-clip", "dp-fedavg"
POOLED = "pooled"
SHIPPED = "shipped"  # the model that tacit plans by itself
EPSILON, MINUTES = 8.0, 1.25
LABELS = {  # of the trained models, from no protection to privacy
    POOLED: "SGD on records",
    FEDAVG: "FedAvg",
    CLIPPED: "FedAvg+clip",
    PRIVATE: "DP-FedAvg",
}
PREFIXES = ("how are", "i like", "what is your", "nice to", "do you")
WIDELY = 30.0  # sharers of the canaries that show where a guarantee for one user ends
POOLED_EPOCHS, POOLED_RATE = 4.0, 0.5


def demo(
    out: Path = text(Path("demo"), "DIR", "Each demo makes a folder of its own in DIR."),
    seed: Seed = None,
    quick: bool = flag("--quick", "A smoke test of seconds: its figures say nothing."),
) -> None:
    """All of it in minutes, on chat that is built in.

    Plans and trains a private model on 1,171 people's chat and writes the report on it.  Then
    trains small models without privacy and with it, and attacks each.  They are ordinary runs,
    which the other commands can be tried on.
    """
    began = time.monotonic()
    import torch

    from tacit.cli.plots import draw_runs
    from tacit.engines.engine import available_cores
    from tacit.report.facts import gather as facts_of_run
    from tacit.report.page import Target

    torch.set_num_threads(1)  # products this small are slower on two, and processes use the cores
    cores = 1 if quick else available_cores()  # starting a process takes seconds
    folder = _new_folder(out)
    try:
        shipped = None if quick else _train_shipped(folder, seed, cores)
        models = _train_all(folder, seed, cores, quick=quick)
        findings = _audit_all(models, cores, quick=quick)
    except KeyboardInterrupt:
        raise Interrupted(_clean_up(folder)) from None
    except BaseException:
        _clean_up(folder)
        raise
    best = shipped or models[PRIVATE]
    measured = _measure(best)
    run = _run_of(best)
    picture, page = folder / "curves.png", run.path / "report.html"
    draw_runs(picture, {"private": run.metrics()})
    Target(page).write(facts_of_run(run))
    # By its path, if the shell would not find it.
    called = sys.argv[0] if Path(sys.argv[0]).name == "tacit" else "tacit"
    tacit = "tacit" if shutil.which("tacit") else called

    def render(console: Console) -> None:
        if quick:
            console.print("A smoke test: these figures show that it runs, not what it can do.\n")
        _print_figures(console, best, measured)
        _print_privacy(console, run)
        _print_memorized(console, findings)
        _print_suggestions(console, best)
        minutes, seconds = divmod(round(time.monotonic() - began), 60)
        for line in (
            f"Took {minutes} min {seconds} s.  Held-out curves are in {picture}, and the report on"
            f" the private model in {page}.  Next:",
            f'  {tacit} predict {run.path} "see you"',
            f"  {tacit} verify {run.path}",
            f"  {tacit} ingest messages.jsonl --out corpora/mine",
            f"  {tacit} train --corpus corpora/mine --run runs/mine --epsilon 8 --minutes 30",
            f"The runs are in {folder}",
        ):
            console.print(line, soft_wrap=True)

    emit(None, False, render)


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


def _clean_up(folder: Path) -> str:
    """Remove a folder without a run; one with a run stays, because its ledger counts."""
    if any((folder / name).exists() for name in (SHIPPED, *LABELS)):
        return (
            f"interrupted; what was trained so far is in {folder}, and another demo starts afresh"
        )
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # it holds other demos
        folder.parent.rmdir()
    return "interrupted before the first round; nothing is left behind"


def _train_shipped(folder: Path, seed: int | None, cores: int) -> StoredModel:
    """The model that tacit plans by itself for these people, an epsilon and a time."""
    from tacit.cli import proposal
    from tacit.cli.requests import Request
    from tacit.cli.train import train_one
    from tacit.engines.engine import choose_engine
    from tacit.planner.proposal import Wish
    from tacit.runs.stored_model import StoredModel

    made = proposal.make(Wish("chitchat", epsilon=EPSILON, minutes=MINUTES, workers=cores))
    proposal.announce(made)
    experiment = made.experiment.changed(seed=seed)
    train_one(Request(folder / SHIPPED, experiment), choose_engine("", cores, "cpu"))
    return StoredModel.open(folder / SHIPPED)


def _train_all(
    folder: Path, seed: int | None, cores: int, *, quick: bool
) -> dict[str, StoredModel]:
    """All models by name: the variants of the recipe, their common start, and the pooled one."""
    from tacit.cli.requests import all_settings, requests
    from tacit.cli.train import train_one
    from tacit.engines.engine import choose_engine
    from tacit.runs.stored_model import StoredModel

    recipe = "_demo-quick" if quick else "_demo-canaries"
    for request in requests(recipe, folder, all_settings((), {"seed": seed})):
        train_one(request, choose_engine("", cores, "cpu"))
    start = StoredModel.open(folder / PRIVATE, 0)
    runs = {name: StoredModel.open(folder / name) for name in (FEDAVG, CLIPPED, PRIVATE)}
    epochs = 0.2 if quick else POOLED_EPOCHS
    pooled = _train_pooled(_run_of(runs[FEDAVG]), start.model, epochs)
    return {
        "start": start,
        POOLED: StoredModel(folder, pooled, start.tokenizer, ()),
        **runs,
    }


def _train_pooled(run: Run, start: LanguageModel, epochs: float) -> LanguageModel:
    """Plain SGD on all records of all users, with the same sentences planted among them."""
    from tacit.tasks.language.people import People
    from tacit_papers.thakkar2020.planted_tokens import planted_tokens
    from tacit_papers.thakkar2020.pooled_sgd import Records, RecordTraining

    model, bos = copy.deepcopy(start), run.tokenizer.bos
    people = People.of(run.experiment)
    cache = planted_tokens(people, run.experiment, run.tokenizer, run.directory.private)
    records = Records.of((cache.tokens(user) for user in range(len(cache))), bos)
    title = "training on pooled records"
    with bar(title) as show:
        RecordTraining("sgd", "iid", POOLED_RATE, epochs=epochs).train(
            model,
            records,
            bos=bos,
            progress=lambda now: show(title, now.step, now.steps, f"{now.step} of {now.steps}"),
        )
    return model


def _audit_all(
    models: Mapping[str, StoredModel], cores: int, *, quick: bool
) -> dict[str, PublicAudit]:
    """What each trained model gives away; findings about runs are kept with the runs."""
    from tacit.audit.extraction import Extraction
    from tacit.audit.language import AuditSettings, audit_canaries, audit_run, save
    from tacit.tasks.language.canaries import read_planted

    settings = AuditSettings()
    if quick:
        settings = AuditSettings(Extraction(samples=2000), controls=5)
    planted = read_planted(_run_of(models[FEDAVG]).path)

    def look(name: str) -> PublicAudit:
        stored = models[name]
        if stored.run is None:
            return audit_canaries(stored.model, stored.tokenizer, planted, settings)
        findings = audit_run(stored.run, settings)
        save(stored.run, findings)
        return findings.public

    with ThreadPoolExecutor(cores) as pool:
        jobs = [(name, pool.submit(look, name)) for name in LABELS]
        return {name: job.result() for name, job in tracked(jobs, "looking for canaries")}


def _measure(stored: StoredModel) -> dict[tuple[str, str], Metrics]:
    """The model and what it has to beat, on the same text of test users."""
    from tacit.cli.evaluate import measure
    from tacit.evaluation.held_out import held_out_texts
    from tacit.runs.baselines import fit_baselines
    from tacit.runs.stored_model import StoredModel

    run, tokenizer = _run_of(stored), stored.tokenizer
    users = stored.corpus(None)
    sequences = held_out_texts(
        users.test, tokenizer, run.experiment.evaluation.max_tokens
    ).sequences
    baselines = fit_baselines(stored, users, is_own=True)
    predictors: dict[tuple[str, str], LanguageModel | Predictor] = {
        ("unigram", "users, no privacy"): baselines["unigram"],
        ("bigram", "users, no privacy"): baselines["bigram"],
        ("the start", "public text"): StoredModel.open(run.path, 0).model,
        ("private", "users, with privacy"): stored.model,
    }
    return {
        key: measure(predictor, sequences, tokenizer, key[0])
        for key, predictor in predictors.items()
    }


def _run_of(stored: StoredModel) -> Run:
    assert stored.run is not None
    return stored.run


def _print_figures(
    console: Console, stored: StoredModel, measured: Mapping[tuple[str, str], Metrics]
) -> None:
    """How well the private model predicts, and whether it is worth having."""
    from tacit.models.base import parameter_count

    size, users = parameter_count(stored.model), len(stored.corpus(None).test)
    shown = table(
        "next-word model",
        "trained on",
        ">top-1",
        f">top-1 {UNK_COMPETES}",
        ">perplexity",
        title=f"An LSTM of {size:,} parameters on the chat of {users} test users",
        compact=True,
    )
    for (name, trained_on), metrics in measured.items():
        accuracies = metrics.accuracy_top1, metrics.accuracy_top1_unk_competes
        figures = *(f"{share:.1%}" for share in accuracies), f"{metrics.perplexity:,.0f}"
        shown.add_row(name, trained_on, *figures, style="bold" if name == "private" else None)
    console.print(shown)
    _, bigram, *_, last = measured.values()
    wins = last.accuracy_top1 > bigram.accuracy_top1
    console.print(
        f"The private model {'beats' if wins else 'does not beat'} the bigram model, which has no"
        f" privacy: its first suggestion is right {last.accuracy_top1:.1%} of the time, the"
        f" other's {bigram.accuracy_top1:.1%}.  Unknown words, {last.unknown_rate:.0%} of all,"
        " are missed.  If UNK competes, it may be the first suggestion, which is wrong: so"
        " McMahan et al. count.\n"
    )


def _print_memorized(console: Console, findings: Mapping[str, PublicAudit]) -> None:
    """How many canaries come out of each model, one line for each."""
    rows = findings[POOLED].rows
    few = [row for row in rows if row.expected_sharers != WIDELY]
    shown = table(
        *("trained by", ">random sampling", ">beam search", f">shared by {WIDELY:g}", ">controls"),
        title=f"Small models, with sentences planted in few people's text: how many of {len(few)}"
        " come out",
        compact=True,
    )
    for name, audit in findings.items():
        own = [row for row in audit.rows if row.expected_sharers != WIDELY]
        shared = [row for row in audit.rows if row.expected_sharers == WIDELY]
        controls = audit.controls
        assert controls is not None
        shown.add_row(
            LABELS[name],
            str(sum(row.memorized_rs for row in own)),
            str(sum(row.memorized_bs for row in own)),
            f"{sum(row.memorized_rs for row in shared)} of {len(shared)}",
            f"{controls.memorized_rs} of {controls.count}",
            style="bold" if name == PRIVATE else None,
        )
    console.print(shown)
    console.print(
        f"Planted: {sum(row.copies for row in rows):,} copies of {len(rows)} sentences of five"
        " random words.  What clipping does is not credited to noise: it has its own row.  A"
        f" guarantee for one user is none for {WIDELY:g} who share a sentence.  Controls were not"
        " planted.\n"
    )


def _print_privacy(console: Console, run: Run) -> None:
    """The claim, and what else was trained on the same people."""
    guarantee = run.guarantee()
    console.print("What the private model may claim", style="bold")
    console.print(guarantee.claim)
    if guarantee.others:
        console.print(f"Every demo is a training on the same people.  {guarantee.others}")
    console.print()


def _print_suggestions(console: Console, stored: StoredModel) -> None:
    """What the start and the private model would suggest after the same few words."""
    from tacit.evaluation.suggestions import Suggester
    from tacit.runs.stored_model import StoredModel

    models = {"the start": StoredModel.open(_run_of(stored).path, 0), "private": stored}
    suggesters = [Suggester(model.model, model.tokenizer) for model in models.values()]
    rows = []
    for prefix in PREFIXES:
        words = (suggester.suggest(f"{prefix} ", 3) for suggester in suggesters)
        rows.append((prefix, *("  ".join(each.word for each in three) for three in words)))
    console.print(table("typed", *models, title="Suggestions", compact=True, rows=rows))
