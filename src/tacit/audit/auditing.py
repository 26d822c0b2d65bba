"""An audit of a run: what its model memorized of what was planted, and what gives its users away.

No model is trained for it, unless reference models are asked for.  The findings about canaries
and canary clients come from made-up text and the released model, and are free to publish.  Phrases
are their owner's secrets, and whatever is computed from people's text is internal (design rule 5):
both are kept apart.  Of a phrase only the verdicts are public.  Its log-perplexity would be enough
to find it: whoever has the model can try millions of phrases until one has that very figure.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.audit.empirical_epsilon import empirical_epsilon
from tacit.audit.extraction import CanaryResult, Extraction
from tacit.audit.membership_attack import Tell, audit_membership
from tacit.audit.one_run import ceiling, planned_guesses
from tacit.audit.tries import TRIES_FILE, Tries
from tacit.audit.user_scores import FRESH, TEXTS
from tacit.models.base import LanguageModel, to_vector
from tacit.privacy import checks, durable
from tacit.runs.run import LanguageRun
from tacit.runs.stored_model import StoredModel
from tacit.tasks.language import assembly, coins
from tacit.tasks.language.canaries import Frequencies, draw_phrases, parse_phrase, word_tokens
from tacit.tasks.language.people import public_frequencies
from tacit.tasks.language.planting import Planted, read_planted
from tacit.tokenizers.tokenizer import Tokenizer

NO_CLAIM = 10.0  # the epsilon that guesses are planned for where none, or a larger one, is claimed
# The confidence that guesses are planned for, whatever is asked for: with other numbers of guesses,
# asking for another confidence would be another look at the coins.
PLANNED_FOR = 0.99

LONGEST_PHRASE = 20  # tokens: millions of random suffixes of that length are held in memory
AUDIT_FILE = "audit.json"  # in a run directory, and in its private folder


@dataclass(frozen=True)
class Audit:
    """What is to be done."""

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
        if self.texts not in TEXTS:
            raise ValueError(f"texts must be one of {', '.join(TEXTS)}, got {self.texts!r}")


@dataclass(frozen=True)
class Findings:
    """What an audit found: `public` may be published, `internal` comes from people's text."""

    public: dict[str, Any]
    internal: dict[str, Any]

    def figures(self, *, with_phrases: bool = True) -> dict[str, Any]:
        """All of it under the names that scripts rely on, with the figures that gates look at.

        Without phrases, only the verdicts on them are in it.
        """
        found = dict(self.public)
        if with_phrases and "phrases" in self.internal:
            found["phrases"] = self.internal["phrases"]
        if membership := self.internal.get("membership"):
            # One attack, named in advance: the best of several would be no honest figure.
            first = membership["attacks"][0]
            found["membership_auc"] = {
                "attack": first["name"],
                "value": first["auc"],
                "interval": first["auc_interval"],
            }
            found["membership"] = membership
        return found


def audit_run(run: LanguageRun, wanted: Audit, tell: Tell | None = None) -> Findings:
    """Everything that fits the run; refused if there is nothing to look for."""
    planned = run.experiment.audit
    _parsed(wanted.phrases, run.tokenizer)  # a mistake in them is found before any work
    if planned.canary_clients is not None and run.round == run.first_leg:
        raise ValueError(f"no round of {run.path} has been run, so there is nothing to look at")
    public = _header(run)
    rng = np.random.default_rng(wanted.seed)
    looked = False
    if _was_planted(run):
        planted = read_planted(run.path)
        frequencies = None
        if planned.canaries is not None and planned.canaries.draw == "unigram":
            frequencies = public_frequencies(run.tokenizer, run.experiment.tokenizer.source)
        public |= audit_canaries(run.model(), run.tokenizer, planted, wanted, tell, frequencies)
        looked = True
    internal: dict[str, Any] = {}
    if wanted.phrases:
        internal["phrases"] = audit_phrases(run.model(), run.tokenizer, wanted, rng, tell)
        public["phrases"] = verdicts(internal["phrases"])
        looked = True
    if planned.canary_clients is not None:
        public["empirical_epsilon"] = _empirical(run, wanted, tell)
        looked = True
    if wanted.membership:
        internal["membership"] = audit_membership(
            run,
            texts=wanted.texts,
            references=wanted.references,
            max_users=wanted.max_users,
            seed=wanted.seed,
            confidence=wanted.confidence,
            tell=tell,
        )
        looked = True
    if not looked:
        read_planted(run.path)  # says what is missing, and what to do
    return Findings(public, internal)


def audit_model(stored: StoredModel, wanted: Audit, tell: Tell | None = None) -> Findings:
    """A model without a run: only phrases can be looked for."""
    if stored.run is not None:
        return audit_run(stored.run, wanted, tell)
    if not wanted.phrases:
        raise ValueError(
            f"{stored.path} is a model and not a run, so nothing was planted in it; name what to"
            " look for with --phrases FILE"
        )
    rng = np.random.default_rng(wanted.seed)
    rows = audit_phrases(stored.model, stored.tokenizer, wanted, rng, tell)
    return Findings(_empty() | {"phrases": verdicts(rows)}, {"phrases": rows})


def audit_phrases(
    model: LanguageModel,
    tokenizer: Tokenizer,
    wanted: Audit,
    rng: np.random.Generator,
    tell: Tell | None = None,
) -> list[dict[str, Any]]:
    """One row for each phrase, in their order."""
    tokens = _parsed(wanted.phrases, tokenizer)
    settings = Extraction(**{**asdict(wanted.extraction), "shorten_prefix": True})
    found = _extracted(model, tokenizer, tokens, settings, rng, "looking for phrases", tell)
    return [
        {"text": text} | _result_row(result)
        for text, result in zip(wanted.phrases, found, strict=True)
    ]


def _parsed(phrases: Sequence[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    found = [parse_phrase(phrase, tokenizer) for phrase in phrases]
    for phrase, tokens in zip(phrases, found, strict=True):
        if not 2 <= len(tokens) <= LONGEST_PHRASE:
            raise ValueError(
                f"the phrase {phrase!r} has {len(tokens)} tokens, and only phrases of 2 to"
                f" {LONGEST_PHRASE} can be looked for; name a part of it that must not come out"
            )
    return found


def save(run: LanguageRun, findings: Findings) -> None:
    """Beside the run for everybody, and in its private folder for its owner."""
    internal, path = dict(findings.internal), run.directory.private / AUDIT_FILE
    if "membership" not in internal and (earlier := _earlier_membership(path, run.round)):
        internal["membership"] = earlier  # of the same model, and perhaps hours of work
    durable.write_whole(run.path / AUDIT_FILE, _json(findings.public))
    if internal:
        durable.write_whole(path, _json(internal | {"round": run.round}), mode=0o600)
    else:
        path.unlink(missing_ok=True)


def _earlier_membership(path: Path, round: int) -> dict[str, Any] | None:
    """What an audit of the model after the same round found, if there was one."""
    try:
        found = json.loads(path.read_bytes())
        return found.get("membership") if found.get("round") == round else None
    except (OSError, ValueError, AttributeError):
        return None


def verdicts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What may be published of phrases: a number for each, and whether it came out."""
    return [
        {"text": f"phrase {number}"}
        | {name: row[name] for name in ("memorized_rs", "memorized_bs")}
        for number, row in enumerate(rows, start=1)
    ]


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


def _header(run: LanguageRun) -> dict[str, Any]:
    claimed = run.guarantee()
    epsilon = claimed.epsilon[claimed.accountant]
    return _empty() | {
        "round": run.round,
        "accounted_epsilon": _finite(epsilon),
        "delta": claimed.delta,
        "accountant": claimed.accountant,
        "synthetic_users": not run.ledger.header.about_people,
    }


def _empty() -> dict[str, Any]:
    nothing = {"canaries": 0, "memorized_rs": 0, "memorized_bs": 0, "memorized": 0}
    return nothing | {"controls": None, "rows": [], "phrases": None, "empirical_epsilon": None}


def audit_canaries(
    model: LanguageModel,
    words: Tokenizer,
    planted: Sequence[Planted],
    wanted: Audit,
    tell: Tell | None = None,
    frequencies: Frequencies | None = None,
) -> dict[str, Any]:
    """What was planted and what came out, canary by canary, and how many controls did.

    `frequencies` are those that the canaries' words were drawn by: controls are drawn alike.
    """
    rng = np.random.default_rng(wanted.seed)
    tokens = [one.canary.tokens for one in planted]
    what = "looking for canaries"
    found = _extracted(model, words, tokens, wanted.extraction, rng, what, tell)
    rows = [one.as_row() | _result_row(result) for one, result in zip(planted, found, strict=True)]
    controls = None
    if wanted.controls:
        drawn = draw_phrases(
            wanted.controls, len(tokens[0]), words, wanted.seed, frequencies, purpose="controls"
        )
        drawn = [phrase for phrase in drawn if phrase not in set(tokens)]
        what = "looking for controls, which were never planted"
        others = _extracted(model, words, drawn, wanted.extraction, rng, what, tell)
        controls = {"count": len(others)} | _counts(others)
    settings = asdict(wanted.extraction) | {"controls": wanted.controls, "seed": wanted.seed}
    return {
        "settings": settings,
        "canaries": len(rows),
        **_counts(found),
        "controls": controls,
        "rows": rows,
    }


def _extracted(
    model: LanguageModel,
    tokenizer: Tokenizer,
    phrases: Sequence[Sequence[int]],
    settings: Extraction,
    rng: np.random.Generator,
    what: str,
    tell: Tell | None,
) -> list[CanaryResult]:
    return settings.extract(
        model,
        phrases,
        bos=tokenizer.bos,
        candidates=_candidates(tokenizer),
        rng=rng,
        progress=None if tell is None else lambda done, of: tell(what, done, of),
    )


def _candidates(tokenizer: Tokenizer) -> Sequence[int] | NDArray[np.int64]:
    """What random suffixes are made of: words, or all tokens where words are made of several."""
    if tokenizer.kind == "word":
        return word_tokens(tokenizer)
    special = {tokenizer.bos, tokenizer.eos, tokenizer.unk}
    return [id for id in range(tokenizer.vocab_size) if id not in special]


def _counts(found: Sequence[CanaryResult]) -> dict[str, int]:
    return {
        "memorized_rs": sum(one.memorized_rs for one in found),
        "memorized_bs": sum(one.memorized_bs for one in found),
        "memorized": sum(one.memorized_rs or one.memorized_bs for one in found),
    }


def _result_row(found: CanaryResult) -> dict[str, Any]:
    return {
        "log_perplexity": found.log_perplexity,
        "memorized_rs": found.memorized_rs,
        "memorized_bs": found.memorized_bs,
        "rank": found.rank,
        "rank_standard_error": found.rank_standard_error,
        "exposure": found.exposure,
    }


def _empirical(run: LanguageRun, wanted: Audit, tell: Tell | None) -> dict[str, Any]:
    """The canary clients' trace in what the whole training changed, as one more try at this run."""
    key = coins.of_run(run.path, run.ledger)
    clients = assembly.canary_clients(run.experiment, run.model(), key)
    assert clients is not None
    claimed = run.guarantee()
    epsilon = claimed.epsilon[claimed.accountant]
    # How many guesses there are follows from the claim alone, before anything is looked at.
    guesses = planned_guesses(clients.count, min(epsilon, NO_CLAIM), claimed.delta, PLANNED_FOR)
    first, last = to_vector(run.model(run.first_leg)), to_vector(run.model())
    settings = {
        "round": run.round,
        "first_round": run.first_leg,
        "model": _digest(last),
        "first_model": _digest(first),
        "coins": coins.commitment(key),
        "canaries": clients.count,
        "guesses": [guesses.guessed_in, guesses.guessed_out],
        "delta": claimed.delta,
    }
    tries = Tries(run.directory.private / TRIES_FILE, at_least=_stated_try(run))
    planned = tries.next(settings, wanted.confidence)
    if not ceiling(clients.count, guesses.total, claimed.delta, planned.confidence) > 0:
        raise ValueError(
            f"confidence must be less than {wanted.confidence:g} for {guesses.total} guesses to"
            f" show anything: as try {planned.number} at this run they must hold with"
            f" {planned.confidence:.6g}; an earlier audit can be repeated as it was"
        )
    mine = tries.begin(settings, wanted.confidence)  # synced before anything is looked at
    found = empirical_epsilon(
        clients,
        last - first,
        guesses,
        delta=claimed.delta,
        confidence=mine.confidence,
        progress=None
        if tell is None
        else lambda done: tell("looking for canary clients", done, clients.count),
    )
    tries.finish(mine, found.lower_bound)  # before anybody sees it
    highest = tries.highest()
    assert highest is not None
    row = found.as_row() | {
        "says": found.beside(epsilon),
        "try_number": mine.number,
        "confidence_asked": mine.asked,
        "highest_lower_bound": highest,
    }
    if highest > found.lower_bound:
        row["warnings"].append(
            f"Another try at this run showed more: epsilon is at least {highest:.3g}.  The tries"
            " hold together, so this one does not take it back."
        )
    return {name: _finite(value) for name, value in row.items()}


def _stated_try(run: LanguageRun) -> int:
    """The number of the try that the run's published audit speaks of; 0 if it speaks of none."""
    try:
        found = json.loads((run.path / AUDIT_FILE).read_bytes())["empirical_epsilon"]["try_number"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return found if type(found) is int else 0


def _digest(weights: NDArray[Any]) -> str:
    return hashlib.sha256(weights.tobytes()).hexdigest()


def read_phrases(path: Path) -> tuple[str, ...]:
    """One phrase to a line; blank lines are passed over."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from None
    found = tuple(line.strip() for line in lines if line.strip())
    if not found:
        raise ValueError(f"{path} holds no phrases; write one to a line")
    return found


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json(data: dict[str, Any]) -> bytes:
    return (json.dumps(data, indent=1, allow_nan=False) + "\n").encode()
