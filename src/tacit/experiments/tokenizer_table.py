"""What a tokenizer does for a model: the rows of Bagdasaryan et al. 2022, Tables 1 and 2.

All figures are of the same texts, of test users, who are unprotected: nothing here reads a training
user.  So the reference of the KLD, too, is the words of those texts unless others are given; the
paper's is the training users' words.  Hence an oracle is near 0 and not at it.

Few words are a poor reference.  On court transcripts, the training users' words were at 0.32 from
34,000 words of test users and at 0.03 from 1.7 million: take all that test users say (`words_of`).

Epsilon is that of the whole run, with what its tokenizer has cost, also where the model is one from
before the run's end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from tacit import run_tokenizers
from tacit.assembly import has_synthetic_users
from tacit.corpus.source import UserSource
from tacit.debts import debt_to, spent
from tacit.evaluation.words import WordMetrics, evaluate_words
from tacit.experiments.grid import Projection
from tacit.experiments.projected import projected
from tacit.models.base import LanguageModel
from tacit.privacy.claims import PROJECTED, format_delta, format_epsilon
from tacit.privacy.events import Composition, Event, Gaussian, Lapse, PoissonGaussian, PureDP
from tacit.privacy.ledger import Ledger
from tacit.run import Run
from tacit.stored_model import StoredModel
from tacit.tokenizers import stats
from tacit.tokenizers.divergence import kl_divergence
from tacit.tokenizers.normalisation import count_words
from tacit.tokenizers.tokenizer import Kind, Tokenizer

if TYPE_CHECKING:
    from rich.table import Table

HEADERS = (
    "Tokenizer",
    "Type",
    "Learnt from",
    "OOV %",
    "Tokens per word",
    "KLD",
    "Word acc. %",
    "Perp. per word",
    "Epsilon",
    "Projected epsilon",
)
TYPES: dict[Kind, str] = {
    "word": "Word-level",
    "bpe": "BPE",
    "wordpiece": "WordPiece",
    "char": "Characters",
}


@dataclass(frozen=True)
class Row:
    """One model with its tokenizer, under the names that files and scripts rely on."""

    name: str
    kind: Kind
    data: str  # what the tokenizer was learnt from
    oov: float  # the share of words with UNK in them
    tokens_per_word: float
    kld: float | None  # None: nobody knows the words that it was learnt from
    word_accuracy: float
    perplexity_per_word: float
    epsilon: float | None  # None: infinite, or nothing is known if delta is None as well
    delta: float | None
    projected_epsilon: float | None = None  # of a larger cohort; None: none was asked for or exists
    projected_delta: float | None = None
    synthetic_users: bool = False  # then epsilon says nothing about people
    round: int | None = None
    words: int = 0  # how many were measured on
    claim: str = ""
    projected_claim: str = ""


@dataclass(frozen=True)
class Measured:
    """How a tokenizer fits texts, and how a model with it predicts them."""

    fit: stats.Fit
    words: WordMetrics


def measured(model: LanguageModel, tokenizer: Tokenizer, texts: Sequence[str]) -> Measured:
    """The figures of whole texts."""
    if model.config.vocab_size != tokenizer.vocab_size:
        raise ValueError(
            f"the model has a vocabulary of {model.config.vocab_size} tokens and the tokenizer one"
            f" of {tokenizer.vocab_size}: use the tokenizer that it was trained with"
        )
    fit = stats.fit(tokenizer, texts)
    if not fit.words:
        raise ValueError("the texts have no words to measure on")
    return Measured(fit, evaluate_words(model, tokenizer, texts))


def words_of(users: UserSource) -> Counter[str]:
    """How often each word occurs in all texts of users: a reference for the KLD."""
    texts = (text for user in range(len(users)) for text in users.texts(user))
    return count_words(texts, "papers")


def row_of(
    found: Run | StoredModel,
    texts: Sequence[str],
    *,
    name: str | None = None,
    data: str | None = None,
    learnt_from: Mapping[str, float] | None = None,
    reference: Mapping[str, float] | None = None,
    projection: Projection | None = None,
) -> Row:
    """The row of a model, measured on test users' texts: the same ones for every row of a table.

    The counts of words in what the tokenizer was `learnt_from` are looked for in the run, and those
    of the `reference` are of the texts; if given, their words are normalised as for "papers".
    """
    stored = StoredModel.open(found.path) if isinstance(found, Run) else found
    figures = measured(stored.model, stored.tokenizer, texts)
    if learnt_from is None:
        learnt_from = _words_behind(stored)
    if reference is None:
        reference = count_words(texts, "papers")
    row = Row(
        name=name or stored.path.resolve().name,
        kind=stored.tokenizer.kind,
        data=data or stored.tokenizer.provenance,
        oov=figures.fit.oov_share,
        tokens_per_word=figures.fit.tokens_per_word,
        kld=None if learnt_from is None else kl_divergence(reference, learnt_from),
        word_accuracy=figures.words.word_accuracy,
        perplexity_per_word=figures.words.perplexity_per_word,
        epsilon=None,
        delta=None,
        round=stored.round,
        words=figures.words.words,
    )
    return row if stored.run is None else _with_guarantee(row, stored.run, projection)


def _words_behind(stored: StoredModel) -> Mapping[str, float] | None:
    if stored.run is None:
        return None
    return run_tokenizers.words_behind(stored.run.directory, stored.tokenizer.fingerprint)


def _with_guarantee(row: Row, run: Run, to: Projection | None) -> Row:
    """What the run may claim, and what it could with more people if that is asked for."""
    found = run.guarantee()
    epsilon = _finite(found.epsilon[found.accountant])
    synthetic = has_synthetic_users(run.experiment)
    row = replace(
        row, epsilon=epsilon, delta=found.delta, claim=found.claim, synthetic_users=synthetic
    )
    if to is None or epsilon is None or not found.rounds or synthetic:
        return row
    debt = debt_to(
        run.experiment, run.experiment.corpus.identity, run_tokenizers.history(run.directory)
    )
    if debt.inherited is not None:
        return row  # its cost adds up with that of other rounds, which `projected` does not know
    there = projected(run, to)
    own = there["epsilon"]
    theirs = 0.0 if debt.beside is None else _beside(debt.beside, to, there["accountant"])
    if own is None or not math.isfinite(theirs):
        return row
    claim = str(there["claim"])
    if theirs > own:
        claim += (
            f"  Those whose text the tokenizer was learnt from have epsilon"
            f" {format_epsilon(theirs)} ({PROJECTED}), which is what the table states."
        )
    return replace(
        row,
        projected_epsilon=max(own, theirs),
        projected_delta=there["delta"],
        projected_claim=claim,
    )


def _beside(ledger: Ledger, to: Projection, accountant: str) -> float:
    """What the people whom a tokenizer was learnt from would pay where more of them take part.

    The same noise on the average of a larger cohort is a larger multiplier, z C'/C; a release from
    everybody costs what it costs.  Other ways of sampling are not projected: infinity.
    """
    events: list[tuple[Event, int]] = []
    for event, count in ledger.composition().costly():
        if isinstance(event, PoissonGaussian) and to.sampling == "poisson":
            times = to.cohort / (event.sampling_prob * ledger.header.population)
            larger = PoissonGaussian(
                sampling_prob=to.cohort / to.population,
                noise_multiplier=event.noise_multiplier * times,
            )
            events.append((larger, to.rounds or count))
        elif isinstance(event, PureDP | Gaussian | Lapse):
            events.append((event, count))
        else:
            return math.inf
    return spent(Composition.of(events), accountant, to.delta)


def gap_closed(rows: Sequence[Row], worst: str, best: str) -> dict[str, float]:
    """(worst - x) / (worst - best) in perplexity per word, for each row x: 0 and 1 are those two.

    Rows that leave words out are left out: their perplexity is of an easier task.
    """
    complete = {row.name: row.perplexity_per_word for row in rows if not row.oov}
    for end in (worst, best):
        if not math.isfinite(complete.get(end, math.inf)):
            raise ValueError(
                f"there is no row {end!r} with a perplexity of all words, but"
                f" {', '.join(map(repr, complete)) or 'none at all'}"
            )
    gap = complete[worst] - complete[best]
    if not gap > 0:
        raise ValueError(
            f"there is no gap to close: {worst!r} has a perplexity per word of"
            f" {complete[worst]:.2f} and {best!r} one of {complete[best]:.2f}"
        )
    return {name: (complete[worst] - value) / gap for name, value in complete.items()}


def cells(row: Row) -> list[str]:
    """A row as text, in the order of HEADERS."""
    return [
        row.name,
        TYPES[row.kind],
        row.data,
        f"{100 * row.oov:.1f}",
        f"{row.tokens_per_word:.2f}",
        "-" if row.kld is None else f"{row.kld:.3f}",
        f"{100 * row.word_accuracy:.2f}",
        f"{row.perplexity_per_word:,.1f}{'*' if row.oov else ''}",
        _actual(row),
        "-" if row.projected_epsilon is None else _at(row.projected_epsilon, row.projected_delta),
    ]


def _actual(row: Row) -> str:
    if row.synthetic_users:
        return "no claim"
    return "unknown" if row.delta is None else _at(row.epsilon, row.delta)


def _at(epsilon: float | None, delta: float | None) -> str:
    if epsilon is None or delta is None:
        return "infinity"
    return f"{format_epsilon(epsilon)} at {format_delta(delta)}"


def table(rows: Sequence[Row]) -> Table:
    """The rows for a terminal; `notes` say what the figures mean."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    for place, header in enumerate(HEADERS):
        made.add_column(header, justify="left" if place < 3 else "right")
    for row in rows:
        made.add_row(*map(Text, cells(row)))  # a name may have brackets, which are no markup
    return made


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows for scripts; what is not a number is null."""
    return [
        {
            key: _finite(value) if isinstance(value, float) else value
            for key, value in asdict(row).items()
        }
        for row in rows
    ]


def markdown(rows: Sequence[Row]) -> str:
    """The table and what its figures mean, as a file to keep."""
    lines = [_line(HEADERS), _line(["---"] * 3 + ["---:"] * (len(HEADERS) - 3))]
    lines += [_line(cells(row)) for row in rows]
    return "\n".join([*lines, "", "\n\n".join(notes(rows)), ""])


def notes(rows: Sequence[Row]) -> list[str]:
    """What the figures mean, and the whole claim behind each epsilon."""
    counts = sorted({row.words for row in rows})
    said = [
        f"Measured on {' or '.join(f'{count:,}' for count in counts)} words of test users, whom no"
        " training has seen.  A word is right if each of its tokens is the first choice in turn."
        "  KLD: from the reference's words to those that the tokenizer was learnt from, in nats.",
    ]
    if len(counts) > 1:
        said.append("The rows were not measured on the same words, so they do not compare.")
    if any(row.oov for row in rows):
        said.append(
            "* Predicts UNK for the words that it does not have, which is easier than to spell"
            " them: this perplexity compares with none of a tokenizer that has them all."
        )
    if any(row.projected_epsilon is not None for row in rows):
        said.append(f"Projected epsilon: {PROJECTED}.")
    claims: dict[str, list[str]] = {}
    for row in rows:
        for claim in filter(None, (row.claim, row.projected_claim)):
            claims.setdefault(claim, []).append(row.name)
    return said + [f"{', '.join(names)}: {claim}" for claim, names in claims.items()]


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
