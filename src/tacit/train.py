"""THE loop: an experiment in, a run directory out (McMahan et al. 2018, Algorithm 1).

    from tacit.train import Experiment, Run, train

    run = train(Experiment(...), "runs/first")
    print(run.guarantee().claim)

A round is: draw the cohort; let each user train, clip and quantise; sum the integers; charge the
ledger; add noise; take the server's step; save.  A run that was killed at any point of this goes
on with `resume=True` and ends with the same bits.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tacit.config.experiment import Experiment
from tacit.engines.place import Place
from tacit.engines.processes import engine_for
from tacit.engines.torchrun import serve_rank_0
from tacit.privacy.budget import BudgetExceeded
from tacit.runs.directory import RunDirectory
from tacit.runs.going_on import EngineChoice
from tacit.runs.opening import branched, created, ended_without_result, resumed
from tacit.runs.run import Run
from tacit.runs.session import Observer, Session
from tacit.tasks.language.assembly import Tell

__all__ = ["Experiment", "Run", "train"]

SWITCH = "the tokenizer is switched"


def train(
    experiment: Experiment | None,
    run: str | Path,
    *,
    resume: bool = False,
    branch_from: tuple[str | Path, int] | None = None,
    workers: int = 1,
    engine: EngineChoice | None = None,
    observer: Observer | None = None,
    tell: Tell | None = None,
    keep_key: bool = False,
) -> Run:
    """Train to the end, and return the run.

    `resume` goes on with the run that is there; `branch_from` starts from the model of another
    run after a round, and inherits what that has cost.  With these, `experiment` may be None for
    the one that the run directory holds.

    `workers` is how many processes compute a cohort; the result is the same for any number.  Under
    torchrun all of its processes do: rank 0 trains, and on the others this call does not return.
    """
    place = Place.of_this_process()
    if place.rank > 0:
        serve_rank_0()
    if place.restarts and (Path(run) / "experiment.toml").is_file():
        resume = True  # torchrun repeats its command as it was
    if engine is None or place.size > 1:
        engine = partial(engine_for, workers=workers)
    if resume and (ending := ended_without_result(experiment, run)):
        return _finished(run, ending, keep_key=False)
    if resume:
        session = resumed(experiment, run, engine, tell)
    elif branch_from is not None:
        session = branched(experiment, run, *branch_from, engine, tell)
    else:
        session = created(experiment or Experiment(), run, engine, tell)
    ending = _to_the_end(session, observer)
    while ending == SWITCH:  # what is next is in another tokenizer, so that all is opened anew
        ending = _to_the_end(resumed(None, run, engine, tell), observer)
    return _finished(run, ending, keep_key=keep_key)


def _finished(run: str | Path, ending: str, *, keep_key: bool) -> Run:
    """The end of a run: first the key goes, then what may fail is written."""
    directory = RunDirectory.open(run)
    if not keep_key:
        directory.destroy_key()
    done = Run.open(run)
    directory.finish(done.summary(ending) | {"key_kept": keep_key})
    return done


def _to_the_end(session: Session, observer: Observer | None) -> str:
    session.observer = observer
    try:
        return loop(session)
    finally:
        session.close()


def loop(session: Session) -> str:
    """All rounds of a tokenizer; says why it ended."""
    while True:
        session.evaluate_if_due()
        session.tell(0, 0)
        if session.is_done:
            return "complete" if session.is_complete else SWITCH
        try:
            step(session)
        except BudgetExceeded as stop:
            session.evaluate_if_due(now=True)
            return str(stop)


def step(session: Session) -> None:
    """One round.  The order is design rule 6: sum, HMAC and ledger, noise, checkpoint."""
    plan = session.task.plan
    attempt = session.last_attempt()
    while True:
        cohort = session.cohort(attempt)
        tell = partial(session.tell, len(cohort))
        summed = session.engine.sum(session.task, session.job(attempt), cohort, tell)
        proof = session.proof(attempt, summed.total)
        if session.may_release(attempt, proof):
            break
        attempt += 1  # something changed since that attempt was charged: all is drawn afresh
    release = plan.release(summed.total, session.clip_state, partial(session.noise, proof))
    session.apply(release)
    session.save()
    session.note(attempt, cohort, summed.diagnostics)
