"""The membership half of an audit: can a run's users be told from strangers by what its model says?

What it finds is computed from people's text, and internal (design rule 5).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tacit.audit.attacks import ATTACKS
from tacit.audit.membership import attack
from tacit.audit.references import Groups, Reference, gather, reference_model
from tacit.audit.user_scores import UserTexts, user_texts
from tacit.corpus.source import UserSource
from tacit.corpus.views import Subset
from tacit.public.steps import Progress, Settings
from tacit.runs.run import LanguageRun
from tacit.runs.stored_model import StoredModel
from tacit.tasks.language.people import People
from tacit.tasks.language.planting import read_planted

Tell = Callable[[str, int, int], None]  # what is being done, how much is done, of how much

REFERENCE_EPOCHS = 3.0


def audit_membership(
    run: LanguageRun,
    *,
    texts: str,
    references: int,
    max_users: int,
    seed: int,
    confidence: float,
    tell: Tell | None,
) -> dict[str, Any]:
    """Training users are members, test users strangers, of whom half may train the references."""
    if references and run.first_leg:
        raise ValueError(
            f"{run.path} is a branch, and began with a model that had met its users, so reference"
            " models cannot start from it; leave out --references"
        )
    StoredModel.open(run.path).corpus(None)  # refuses a corpus that took the place of the run's own
    people = People.of(run.experiment)
    members = _who_wrote_their_texts(run, people)
    cap = run.experiment.corpus.max_tokens_per_user
    shown = partial(
        user_texts,
        tokenizer=run.tokenizer,
        which=texts,
        max_users=max_users,
        max_tokens=cap,
        seed=seed,
    )
    if references:
        groups = gather(
            members,
            people.corpus.test,
            run.tokenizer,
            texts,
            references=references,
            max_users=max_users,
            max_tokens=cap,
            seed=seed,
        )
    else:
        groups = Groups(shown(members), shown(people.corpus.test), ())
    models = [
        _reference(run, number, theirs, tell) for number, theirs in enumerate(groups.references)
    ]
    if tell is not None:
        tell("scoring members and strangers", 0, 1)
    found = attack(
        run.model(),
        groups.members,
        groups.non_members,
        models,
        bos=run.tokenizer.bos,
        attacks=[each for each in ATTACKS if models or not each.needs_references],
        texts=texts,
        confidence=confidence,
    )
    row = found.as_row()
    row["attacks"] = [_attack_row(each, found.confidence) for each in row["attacks"]]
    return row


def _who_wrote_their_texts(run: LanguageRun, people: People) -> UserSource:
    """The members without those in whose texts canaries were planted."""
    planting = people.planting(run.experiment, run.tokenizer)
    if planting is None and not run.directory.canaries_file.exists():
        return people.members
    # What was planted is what the run recorded; the experiment only says again in whose texts.
    planted = {one.canary.tokens for one in read_planted(run.path)}
    if planting is None or planted != {canary.tokens for canary in planting.canaries}:
        raise ValueError(
            f"{run.directory.canaries_file} has other canaries than {run.path} would plant, so it"
            " is not known in whose texts they are"
        )
    users = range(len(people.members))
    return Subset(
        people.members,
        [user for user in users if not planting.shared_by(people.members.user_id(user))],
    )


def _reference(run: LanguageRun, number: int, texts: UserTexts, tell: Tell | None) -> Reference:
    """Trained plainly from where the run began, on test users of its own."""

    def progress(now: Progress) -> None:
        if tell is not None:
            tell(f"training reference model {number + 1}", round(1000 * now.share), 1000)

    return reference_model(
        run.model(run.first_leg),
        texts,
        Settings(epochs=REFERENCE_EPOCHS),
        bos=run.tokenizer.bos,
        seed=number,
        progress=progress,
    )


def _attack_row(attack: dict[str, Any], confidence: float) -> dict[str, Any]:
    rates = []
    for rate, reached in attack["tpr_at"].items():
        known = reached.get("tpr") is not None
        rates.append(
            {
                "fpr": float(rate),
                "tpr": reached.get("tpr"),
                "interval": [reached["low"], reached["high"]] if known else None,
                "fpr_high": reached["fpr_high"] if known else None,
                "why_not": reached.get("reason"),
            }
        )
    return {
        "name": attack["attack"],
        "non_members": attack["non_members"],
        "auc": attack["auc"],
        "auc_interval": attack["auc_interval"],
        "confidence": confidence,
        "tpr_at": rates,
        "roc": attack["roc"],
    }
