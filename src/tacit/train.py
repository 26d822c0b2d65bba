"""THE loop: an experiment in, a run directory out, for every task.

    from tacit.train import Experiment, train

    run = train(Experiment(...), "runs/first")
    print(run.guarantee().claim)

A run is a list of *legs*: a round of a language model (McMahan et al. 2018, Algorithm 1), or an
epoch of steps of an intent and slot model (Dupuy et al. 2021).  A leg is charged to the ledger as a
whole, computed, and checkpointed.  A run that was killed at any point of this goes on with
`resume=True` and ends with the same bits.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tacit.config.experiment import Experiment
from tacit.engines.engine import engine_for
from tacit.engines.launch import Launch
from tacit.engines.teams import serve_rank_0
from tacit.privacy.budget import BudgetExceeded
from tacit.runs import start
from tacit.runs.progress import watched
from tacit.runs.run import Run
from tacit.runs.session import Observer, Session
from tacit.tasks import AnyExperiment
from tacit.tasks.task import Announce, MakeEngine

__all__ = ["Experiment", "Run", "train"]


def train(
    experiment: AnyExperiment | None,
    run: str | Path,
    *,
    resume: bool = False,
    branch_from: tuple[str | Path, int] | None = None,
    workers: int = 1,
    engine: MakeEngine | None = None,
    observer: Observer | None = None,
    announce: Announce | None = None,
    keep_key: bool = False,
    progress: bool | None = None,
) -> Run:
    """Train to the end, and return the run.

    `resume` goes on with the run that is there; `branch_from` starts from the model of another
    run after a leg, and inherits what that has cost.  With these, `experiment` may be None for the
    one that the run directory holds.

    `workers` is how many processes compute a cohort; the result is the same for any number.  Under
    torchrun all of its processes do: rank 0 trains, and on the others this call does not return.

    `progress` shows how far it is on standard error: a bar on a terminal, elsewhere a line every
    few seconds, in which nothing is private.  By default it does at a terminal and in a notebook,
    unless there is an `observer` or an `announce` of your own.
    """
    launch = Launch.of_this_process()
    if launch.rank > 0:
        serve_rank_0()
    if launch.restarts and (Path(run) / "experiment.toml").is_file():
        resume = True  # torchrun repeats its command as it was
    if engine is None or launch.size > 1:
        engine = partial(engine_for, workers=workers)
    if resume and (ending := start.ending_without_result(experiment, run)):
        return Run.finish(run, ending, keep_key=False)
    folder = branch_from[0] if branch_from else run
    with watched(progress, experiment, folder, observer, announce) as (show, tell):
        if resume:
            session = start.resume(experiment, run, engine, tell)
        elif branch_from is not None:
            session = start.branch(experiment, run, *branch_from, engine, tell)
        else:
            session = start.create(experiment or Experiment(), run, engine, tell)
        session.observer = show
        try:
            ending = loop(session)
        finally:
            session.close()
    return Run.finish(run, ending, keep_key=keep_key)


def loop(session: Session) -> str:
    """All legs that are left; says why it ended."""
    for _ in session.legs():
        session.evaluate_if_due()
        try:
            step(session)
        except BudgetExceeded as stop:
            session.evaluate_if_due(now=True)
            return str(stop)
    session.evaluate_if_due()
    return "complete"


def step(session: Session) -> None:
    """One leg, in the order of design rule 6: sum, proof and ledger, noise, checkpoint.

    An attempt that was charged for something else, or came out otherwise than is on record, is
    void: something changed since.  Then all is drawn afresh, and charged again.
    """
    trainer, attempt = session.trainer, session.last_attempt()
    while True:
        pending = trainer.prepare(session.leg, attempt, session.tell)
        if session.charge(pending):
            outcome = trainer.run(pending, session.tell)
            if session.accept(pending, outcome):
                break
            trainer.go_back()
        attempt += 1
    session.save(attempt)
