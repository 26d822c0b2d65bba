"""A bundle's model card: made again from the ledger and the other files, as far as they tell.

What they do not tell is what was measured, what was known of other runs, and whether the training
was finished and its key destroyed when the bundle was made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tacit.config.experiment import Experiment
from tacit.privacy.ledger_lines import Head
from tacit.runs.export import Facts, card
from tacit.tokenizers.tokenizer import Tokenizer
from tacit.verification.evidence import Evidence

TITLE, PRIVACY, FIGURES = "", "Privacy", "Figures"


def says_the_claim(evidence: Evidence) -> Iterator[str]:
    """Section by section; in the one on privacy all that follows from the ledger comes first."""
    if not evidence.is_bundle:
        return
    file = evidence.path / "README.md"
    if not file.is_file():
        return  # which the digests of the bundle's files report
    text = file.read_text(encoding="utf-8")
    why_not = evidence.guarantee.why_not_for_release
    if why_not and not text.startswith(f"**Not for release: {why_not}.**\n"):
        yield f"{file} does not begin with why it is not for release: {why_not}"
    is_marked = text.startswith("**Not for release: ")
    facts = _facts(evidence)
    assert isinstance(evidence.experiment, Experiment)
    made = card(evidence.experiment, facts, why_not or ("said so" if is_marked else None))
    there, expected = _sections(text), _sections(made)
    if evidence.is_own_model:  # only its own code knows how many parameters it has
        there[TITLE], expected[TITLE] = _first_line(there[TITLE]), _first_line(expected[TITLE])
    for name, words in expected.items():
        if name not in (PRIVACY, FIGURES) and there.get(name) != words:
            yield f"{file}: {_named(name)} is not what follows from the ledger and the experiment"
    yield from _privacy(evidence, there.get(PRIVACY, ""), facts)
    for name in there.keys() - expected.keys():
        yield f"{file} has a section {name!r} that no card has"


def _privacy(evidence: Evidence, text: str, facts: Facts) -> Iterator[str]:
    """The claim, its figures and what was declared public, word for word; then known remarks."""
    file = evidence.path / "README.md"
    assert isinstance(evidence.experiment, Experiment)
    there, expected = text.split("\n\n"), _paragraphs(evidence.experiment, facts)
    for place, words in enumerate(expected):
        if there[place : place + 1] != [words]:
            yield f"{file} does not say what follows from the ledger: {_start(words)}"
            return
    known = [
        _paragraphs(evidence.experiment, replace(facts, is_complete=False))[-1],
        _paragraphs(evidence.experiment, replace(facts, key_exists=True))[-1],
    ]
    others = [words for words in there[len(expected) :] if words not in known]
    if len(others) > 1:
        yield f"{file} says more about privacy than a card does: {_start(others[-1])}"


def _facts(evidence: Evidence) -> Facts:
    """What the card is made of, with nothing measured, nothing left to do and no key."""
    ledger, experiment = evidence.ledger, evidence.experiment
    words = Tokenizer.load(evidence.directory.tokenizer_file)
    count = 0 if evidence.is_own_model else sum(evidence.layers())
    assert isinstance(experiment, Experiment)
    return Facts(
        round=evidence.bundle.round,
        is_complete=True,
        key_exists=False,
        guarantee=evidence.guarantee,
        head=Head(len(ledger.entries) - 1, ledger.hashes[-2]),
        model=f"{experiment.model.name} with {count:,} parameters",
        tokenizer=f"{words.kind} tokenizer of {words.vocab_size:,} tokens, {words.provenance}",
        metrics=None,
    )


def _paragraphs(experiment: Experiment, facts: Facts) -> list[str]:
    return _sections(card(experiment, facts, None))[PRIVACY].split("\n\n")


def _sections(text: str) -> dict[str, str]:
    """The card's text by the titles of its sections; what is above the first has none.

    A warning in its first line was looked at already.
    """
    first, *rest = f"\n{text}".split("\n## ")
    found = {TITLE: _unmarked(first.strip())}
    for section in rest:
        name, _, words = section.partition("\n")
        found[name] = words.strip()
    return found


def _unmarked(text: str) -> str:
    warning, _, rest = text.partition("\n\n")
    return rest if warning.startswith("**Not for release: ") else text


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _named(section: str) -> str:
    return f"the section {section!r}" if section else "its beginning"


def _start(words: str) -> str:
    line = _first_line(words.strip())
    return line if len(line) <= 80 else f"{line[:77]}..."
