"""The audit of a language model: what it memorized of what was planted, what its users give away.

No model is trained for it, unless reference models are asked for.  The findings about canaries
and canary clients come from made-up text and the released model, and are free to publish.  Phrases
are their owner's secrets, and whatever is computed from people's text is internal (design rule 5):
both are kept apart (`tacit.audit.results`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.audit.empirical_epsilon import AUDIT_FILE, Tell, audit_canary_clients
from tacit.audit.extraction import CanaryResult, Extraction
from tacit.audit.membership import ATTACKS, MembershipResult
from tacit.audit.results import (
    CanaryFigures,
    ControlCounts,
    PhraseFigures,
    PrivateAudit,
    PublicAudit,
    Verdict,
    read,
)
from tacit.audit.users import (
    FRESH,
    Reference,
    UserTexts,
    attack_users,
    check_texts,
    gather,
    reference_model,
)
from tacit.corpus.source import Subset, UserSource
from tacit.models.base import LanguageModel
from tacit.privacy import checks, durable, trusted
from tacit.privacy.guarantee import finite
from tacit.public.pretrain import Settings
from tacit.runs.run import LanguageRun
from tacit.runs.stored_model import StoredModel
from tacit.tasks.language.canaries import (
    Frequencies,
    Planted,
    draw_phrases,
    parse_phrase,
    read_planted,
    word_tokens,
)
from tacit.tasks.language.people import People, public_frequencies
from tacit.tokenizers.tokenizer import Tokenizer

_LONGEST_PHRASE = 20  # tokens: millions of random suffixes of that length are held in memory
_REFERENCE_EPOCHS = 3.0


def _silent(what: str, done: int, of: int) -> None:
    """Progress that is not shown."""


@dataclass(frozen=True)
class AuditSettings:
    """What an audit looks for, and how thoroughly."""

    extraction: Extraction = field(default_factory=Extraction)
    controls: int = 100  # phrases that were never planted: none of them should be found
    phrases: tuple[str, ...] = ()
    membership: bool = False
    references: int = 0  # models to train for the membership attacks
    texts: str = FRESH  # of the members: fresh ones, those trained on, or all
    max_users: int = 1000  # on either side of a membership attack
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("controls", "references", "seed"):
            checks.whole(name, getattr(self, name))
        checks.whole("max_users", self.max_users, at_least=1)
        checks.open_unit("confidence", self.confidence)
        check_texts(self.texts)


@dataclass(frozen=True)
class AuditFindings:
    """What an audit found: `public` may be published, `internal` comes from people's text."""

    public: PublicAudit
    internal: PrivateAudit

    def figures(self, *, with_phrases: bool = True) -> dict[str, Any]:
        """All of it under the names that scripts rely on, with the figures that gates look at.

        Without phrases, only the verdicts on them are in it.
        """
        figures = self.public.as_row()
        if with_phrases and self.internal.phrases:
            figures["phrases"] = [asdict(phrase) for phrase in self.internal.phrases]
        if membership := self.internal.membership:
            figures |= membership.gate_figures() | {"membership": membership.as_row()}
        return figures


def audit_run(run: LanguageRun, settings: AuditSettings, tell: Tell = _silent) -> AuditFindings:
    """Audit everything that fits the run; `ValueError` if there is nothing to look for.

    Canaries and canary clients are looked for if the run has any, phrases and members if the
    settings ask for it.  Looking at canary clients is a try that is recorded first
    (`tacit.audit.tries`); nothing else is written: see `save`.
    """
    planned = run.experiment.audit
    _parsed(settings.phrases, run.tokenizer)  # a mistake in them is found before any work
    if planned.canary_clients is not None and run.round == run.first_leg:
        raise ValueError(f"no round of {run.path} has been run, so there is nothing to look at")
    claimed, public = run.guarantee(), PublicAudit(round=None)
    if _was_planted(run):
        planted = read_planted(run.path)
        frequencies = None
        if planned.canaries is not None and planned.canaries.draw == "unigram":
            frequencies = public_frequencies(run.tokenizer, run.experiment.tokenizer.source)
        public = audit_canaries(run.model(), run.tokenizer, planted, settings, tell, frequencies)
    elif not (settings.phrases or settings.membership or planned.canary_clients is not None):
        read_planted(run.path)  # says what is missing, and what to do
    phrases = _audit_phrases(run.model(), run.tokenizer, settings, tell)
    shown = None
    if planned.canary_clients is not None:
        shown = audit_canary_clients(run, settings.confidence, tell)
    membership = _audit_membership(run, settings, tell) if settings.membership else None
    return AuditFindings(
        replace(
            public,
            round=run.round,
            accounted_epsilon=finite(claimed.value),
            delta=claimed.delta,
            accountant=claimed.accountant,
            synthetic_users=not run.ledger.header.about_people,
            phrases=_verdicts(phrases),
            empirical_epsilon=shown,
        ),
        PrivateAudit(round=run.round, membership=membership, phrases=phrases),
    )


def audit_model(
    stored: StoredModel, settings: AuditSettings, tell: Tell = _silent
) -> AuditFindings:
    """The audit of a run, or of a model without one, in which only phrases can be looked for."""
    if stored.run is not None:
        return audit_run(stored.run, settings, tell)
    if not settings.phrases:
        raise ValueError(
            f"{stored.path} is a model and not a run, so nothing was planted in it; name what to"
            " look for with --phrases FILE"
        )
    phrases = _audit_phrases(stored.model, stored.tokenizer, settings, tell)
    public = PublicAudit(round=None, phrases=_verdicts(phrases))
    return AuditFindings(public, PrivateAudit(phrases=phrases))


def save(run: LanguageRun, findings: AuditFindings) -> None:
    """Write the public findings beside the run, and the internal ones into its private folder."""
    internal, path = findings.internal, run.directory.private / AUDIT_FILE
    if internal.membership is None:  # an earlier one is of the same model, and hours of work
        internal = replace(internal, membership=_earlier_membership(path, run.round))
    durable.write_whole(run.path / AUDIT_FILE, _json(findings.public.as_row()))
    if internal.membership or internal.phrases:
        durable.write_whole(path, _json(asdict(internal)))
    else:
        path.unlink(missing_ok=True)


def read_phrases(path: Path) -> tuple[str, ...]:
    """The phrases of a file, one to a line; blank lines are passed over."""
    try:
        lines = trusted.read_text(path).splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from None
    phrases = tuple(line.strip() for line in lines if line.strip())
    if not phrases:
        raise ValueError(f"{path} holds no phrases; write one to a line")
    return phrases


# Canaries and phrases.


def audit_canaries(
    model: LanguageModel,
    tokenizer: Tokenizer,
    planted: Sequence[Planted],
    settings: AuditSettings,
    tell: Tell = _silent,
    frequencies: Frequencies | None = None,
) -> PublicAudit:
    """What was planted and what came out, canary by canary, and how many controls did.

    Controls are phrases that were never planted; a method that "finds" some of them is no evidence.
    `frequencies` are those that the canaries' words were drawn by: controls are drawn alike.
    Canaries are made up, so nothing in the result is secret.
    """
    rng = np.random.default_rng(settings.seed)
    tokens = [one.canary.tokens for one in planted]

    def extract(phrases: Sequence[Sequence[int]], what: str) -> list[CanaryResult]:
        return _extract(model, tokenizer, phrases, settings.extraction, rng, what, tell)

    results = extract(tokens, "looking for canaries")
    controls = None
    if settings.controls:
        drawn = draw_controls(settings.controls, tokens, tokenizer, settings.seed, frequencies)
        others = extract(drawn, "looking for controls, which were never planted")
        controls = ControlCounts(
            count=len(others),
            memorized_rs=sum(one.memorized_rs for one in others),
            memorized_bs=sum(one.memorized_bs for one in others),
        )
    return PublicAudit(
        round=None,
        settings=asdict(settings.extraction)
        | {"controls": settings.controls, "seed": settings.seed},
        controls=controls,
        rows=tuple(
            CanaryFigures(
                text=one.canary.text,
                expected_sharers=one.canary.cell.sharers,
                example_prob=one.canary.cell.example_prob,
                sharers=one.sharers,
                copies=one.copies,
                **result.figures(),
            )
            for one, result in zip(planted, results, strict=True)
        ),
    )


def draw_controls(
    count: int,
    canaries: Sequence[tuple[int, ...]],
    tokenizer: Tokenizer,
    seed: int,
    frequencies: Frequencies | None = None,
) -> list[tuple[int, ...]]:
    """Phrases drawn like the canaries, none of which was planted: at most `count` of them.

    A method that calls a control memorized would call anything memorized.
    """
    words = len(canaries[0])
    drawn = draw_phrases(count, words, tokenizer, seed, frequencies, purpose="controls")
    planted = set(canaries)
    return [phrase for phrase in drawn if phrase not in planted]


def _was_planted(run: LanguageRun) -> bool:
    """Whether there are canaries to look for.

    The experiment alone does not decide it: a run whose ledger or folder speaks of canaries has
    some, and `read_planted` says which.
    """
    return (
        run.experiment.audit.canaries is not None
        or run.directory.canaries_file.exists()
        or any(entry.kind == "canaries" for entry in run.ledger.entries)
    )


def _audit_phrases(
    model: LanguageModel, tokenizer: Tokenizer, settings: AuditSettings, tell: Tell
) -> tuple[PhraseFigures, ...] | None:
    """The figures of each phrase, in their order; None if there are no phrases.  Internal."""
    if not settings.phrases:
        return None
    tokens = _parsed(settings.phrases, tokenizer)
    extraction = replace(settings.extraction, shorten_prefix=True)
    rng = np.random.default_rng(settings.seed)
    results = _extract(model, tokenizer, tokens, extraction, rng, "looking for phrases", tell)
    return tuple(
        PhraseFigures(text=text, **result.figures())
        for text, result in zip(settings.phrases, results, strict=True)
    )


def _parsed(phrases: Sequence[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """The phrases as tokens; `ValueError` if one is too short or too long."""
    parsed = [parse_phrase(phrase, tokenizer) for phrase in phrases]
    for phrase, tokens in zip(phrases, parsed, strict=True):
        if not 2 <= len(tokens) <= _LONGEST_PHRASE:
            raise ValueError(
                f"the phrase {phrase!r} has {len(tokens)} tokens, and only phrases of 2 to"
                f" {_LONGEST_PHRASE} can be looked for; name a part of it that must not come out"
            )
    return parsed


def _verdicts(phrases: Sequence[PhraseFigures] | None) -> tuple[Verdict, ...] | None:
    """What may be published of phrases: a number for each, and whether it came out."""
    if phrases is None:
        return None
    return tuple(
        Verdict(
            text=f"phrase {number}", memorized_rs=one.memorized_rs, memorized_bs=one.memorized_bs
        )
        for number, one in enumerate(phrases, start=1)
    )


def _extract(
    model: LanguageModel,
    tokenizer: Tokenizer,
    phrases: Sequence[Sequence[int]],
    extraction: Extraction,
    rng: np.random.Generator,
    what: str,
    tell: Tell,
) -> list[CanaryResult]:
    """Look for phrases among random suffixes of words, or of tokens where words have several."""
    special = {tokenizer.bos, tokenizer.eos, tokenizer.unk}
    candidates: Sequence[int] | NDArray[np.int64]
    if tokenizer.kind == "word":
        candidates = word_tokens(tokenizer)
    else:
        candidates = [id for id in range(tokenizer.vocab_size) if id not in special]
    return extraction.extract(
        model,
        phrases,
        bos=tokenizer.bos,
        candidates=candidates,
        rng=rng,
        progress=functools.partial(tell, what),
    )


# Membership of the training users; all of it is internal.


def _audit_membership(run: LanguageRun, settings: AuditSettings, tell: Tell) -> MembershipResult:
    """Attack training users as members, against test users as strangers.

    With references, half of the test users train them and the other half are the strangers.
    """
    if settings.references and run.first_leg:
        raise ValueError(
            f"{run.path} is a branch, and began with a model that had met its users, so reference"
            " models cannot start from it; leave out --references"
        )
    StoredModel.open(run.path).corpus(None)  # refuses a corpus that was put in the run's own place
    people = People.of(run.experiment)
    groups = gather(
        _members_without_canaries(run, people),
        people.corpus.test,
        run.tokenizer,
        settings.texts,
        references=settings.references,
        max_users=settings.max_users,
        max_tokens=run.experiment.corpus.max_tokens_per_user,
        seed=settings.seed,
    )
    references = [
        _reference(run, number, texts, tell) for number, texts in enumerate(groups.references)
    ]
    tell("scoring members and strangers", 0, 1)
    return attack_users(
        run.model(),
        groups.members,
        groups.non_members,
        references,
        bos=run.tokenizer.bos,
        attacks=[attack for attack in ATTACKS if references or not attack.needs_references],
        texts=settings.texts,
        confidence=settings.confidence,
    )


def _members_without_canaries(run: LanguageRun, people: People) -> UserSource:
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


def _reference(run: LanguageRun, number: int, texts: UserTexts, tell: Tell) -> Reference:
    """A model trained plainly from where the run began, on test users of its own."""
    what = f"training reference model {number + 1}"
    return reference_model(
        run.model(run.first_leg),
        texts,
        Settings(epochs=_REFERENCE_EPOCHS),
        bos=run.tokenizer.bos,
        seed=number,
        progress=lambda now: tell(what, round(1000 * now.share), 1000),
    )


def _earlier_membership(path: Path, round: int) -> MembershipResult | None:
    """What an audit of the model after the same round found, if there was one that can be read."""
    try:
        earlier = read(PrivateAudit, path)
    except (OSError, ValueError):
        return None
    return earlier.membership if earlier and earlier.round == round else None


def _json(data: dict[str, Any]) -> bytes:
    return (json.dumps(data, indent=1, allow_nan=False) + "\n").encode()
