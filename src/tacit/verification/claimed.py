"""Every epsilon and every word of the claim in the files that say them to people.

result.json and audit.json are compared with what follows from the ledger.  A report's facts are
made again from the ledger, and its page from its facts; what it says besides (metrics, audits,
other runs on the day that it was written) has to stand on the page as it stands in report.json.  A
bundle's model card is made again, as far as ledger and files tell: they do not tell what was
measured, what was known of other runs, and whether the training was finished and its key destroyed
when the bundle was made.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit import __version__
from tacit.audit.results import read_object
from tacit.config.experiment import Experiment
from tacit.privacy.guarantee import finite
from tacit.privacy.ledger_lines import Head
from tacit.privacy.projection import Projection
from tacit.privacy.visible import markdown
from tacit.report.claim import claim_facts, epsilon_over_releases, ledger_facts, projected_facts
from tacit.report.facts import KIND
from tacit.report.page import render
from tacit.report.warnings import claim_warnings
from tacit.runs.card import CardFacts, card
from tacit.runs.directory import digest_of_result
from tacit.runs.file_names import without_folders
from tacit.runs.run import projection_of
from tacit.tasks import AnyExperiment
from tacit.tasks.nlu.encoding import Encoder
from tacit.tasks.nlu.experiment import NluExperiment
from tacit.tasks.nlu.models import NluModel
from tacit.tokenizers.tokenizer import Tokenizer
from tacit.verification.evidence import Check, Evidence, Remark

_TOLERANCE = 1e-9  # of epsilons: another machine's arithmetic may differ in the last digits
_TITLE, _PRIVACY, _FIGURES = "", "Privacy", "Figures"  # sections of a card
_WARNING = "**Not for release: "  # how a card begins that has one


def _figures(evidence: Evidence) -> Iterator[str]:
    """Every sound accountant gives a figure, which is never below 0 or undefined.

    The claim is by the accountant that was asked for, or by the one with the least epsilon.
    """
    if any(math.isnan(value) or value < 0 for value in evidence.guarantee.epsilon.values()):
        yield f"{evidence.ledger.path}: an accountant gives no epsilon for what it has charged"


def _result(evidence: Evidence) -> Iterator[str]:
    """result.json: its own digest, the claim and its figures, and how far the run got.

    The file is written after the last entry of the ledger, so nothing in the chain can hold its
    digest; it carries its own, and every value in it that follows from the ledger is compared
    besides.
    """
    if (stated := evidence.result) is None:
        return
    file = evidence.directory.result_file
    if stated.get("sha256") != digest_of_result(stated):
        yield f"{file} was changed: it does not have the digest that it was written with"
    row = evidence.guarantee.as_row()
    del row["other_runs"]  # about others, as of the day that the run ended
    row["simulation"] = evidence.header.simulation
    experiment, done = evidence.experiment, evidence.last.leg
    row |= {"charged_rounds": row["rounds"], f"{experiment.leg_name}s": done}
    if isinstance(experiment, NluExperiment):
        row["method"] = experiment.training.method
    elif (to := projection_of(experiment, evidence.guarantee)) is not None:
        row["projected_claim"] = evidence.guarantee.projected(to).claim
    yield from _compare(file, stated, row)
    if stated.get("ending") == "complete" and done < experiment.legs:
        yield f"{file} says that the run is complete, after {done} of {experiment.legs}"
    if not isinstance(stated.get("key_kept"), bool):
        yield f"{file} does not say whether the run's key was kept"


def _audit(evidence: Evidence) -> Iterator[str]:
    """What audit.json says was accounted, if it is about the last model."""
    file, guarantee = evidence.path / "audit.json", evidence.guarantee
    if evidence.is_bundle or (stated := read_object(file)) is None:
        return
    if stated.get("round") != evidence.last.leg:
        yield Remark(f"{file} is about round {stated.get('round')}: run tacit audit again")
        return
    expected = {"accounted_epsilon": finite(guarantee.value), "delta": guarantee.delta}
    yield from _compare(file, stated, expected)


def _report(evidence: Evidence) -> Iterator[str]:
    """report.json against the ledger and the files that it lists, report.html against that.

    The page is a function of the facts, so a page that was edited by hand differs from the one that
    the facts make.
    """
    page, file = evidence.path / "report.html", evidence.path / "report.json"
    if (facts := read_object(file)) is None:
        if page.is_file():
            yield f"{file} is missing, so that nothing says what {page} was made of"
        return
    if facts.get("kind") != KIND:
        yield f"{file} is not a report"
        return
    for difference in _report_facts(evidence, file, facts):
        yield f"{difference}; write it again with tacit report"
    if not page.is_file():
        yield f"{page} is missing"
    elif facts["versions"]["tacit"] != __version__:
        yield Remark(f"{page} was written by another version of tacit, and is not drawn again")
    elif page.read_bytes() != render(facts).encode():
        yield f"{page} is not the page that {file.name} makes"


def _report_facts(evidence: Evidence, file: Path, facts: Mapping[str, Any]) -> Iterator[str]:
    """The facts that follow from the ledger, the experiment and the files of the run."""
    guarantee, ledger, experiment = evidence.guarantee, evidence.ledger, evidence.experiment
    expected: dict[str, Any] = {
        "claim": claim_facts(guarantee),
        "ledger": ledger_facts(ledger),
        "epsilon": epsilon_over_releases(guarantee, ledger),
        "experiment": without_folders(experiment).to_toml(),
    }
    yield from _compare(file, facts, expected)
    if (projected := facts.get("projected")) is not None:
        to = Projection(projected["cohort"], projected["population"], projected["delta"])
        expected = projected_facts(guarantee, to)
        yield from _compare(file, projected, expected, "projected.")
    said = {(one["name"], one["severity"]) for one in facts["warnings"]}
    for warning in claim_warnings(guarantee):
        if (warning.name, warning.severity) not in said:
            yield f"{file} does not have the warning {warning.name!r}"
    for row in facts["files"]:
        listed = evidence.path / row["name"]
        if not listed.resolve().is_relative_to(evidence.path.resolve()):
            yield f"{file} lists {row['name']!r}, which is not in the run"
        elif not listed.is_file():
            yield f"{file} lists {listed}, which is missing"
        elif hashlib.sha256(listed.read_bytes()).hexdigest() != row["sha256"]:
            yield f"{file} is about another {row['name']} than the one that is there"


def _compare(
    file: Path, stated: Mapping[str, Any], expected: Mapping[str, Any], prefix: str = ""
) -> Iterator[str]:
    """A sentence for each expected value that a file does not state, or states differently.

    Values are compared as JSON has them, floats up to their last digits.  What else a file says on
    top is left alone; inside of a section it must not say more than is expected.
    """
    for name, value in json.loads(json.dumps(expected)).items():
        where, says = f"{prefix}{name}", stated.get(name)
        if name not in stated:
            yield f"{file} does not say {where}"
        elif isinstance(says, dict) and isinstance(value, dict):
            yield from _compare(file, says, value, f"{where}.")
            for other in says.keys() - value.keys():
                yield f"{file} says something of {where}.{other}, and the ledger nothing"
        elif not _is_same(says, value):
            yield (
                f"{file} says of {where} what does not follow from the ledger: {_short(says, 60)}"
                f" instead of {_short(value, 60)}"
            )


def _is_same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal, but for the last digits of a float."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if type(one) is float and type(other) is float:
        return math.isclose(one, other, rel_tol=_TOLERANCE)
    return type(one) is type(other) and bool(one == other)


def _short(value: object, length: int) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _card(evidence: Evidence) -> Iterator[str]:
    """The model card, section by section.

    The card is made again from the ledger and the experiment.  Figures that were measured are left
    out. Where the claim is not for release, the card has to begin with why.
    """
    file = evidence.path / "README.md"
    if not evidence.is_bundle or not file.is_file():
        return  # the digests of the bundle's files report one that is missing
    experiment, facts = evidence.experiment, _card_facts(evidence)
    text = file.read_text(encoding="utf-8")
    why_not = evidence.guarantee.why_not_for_release
    if why_not and not text.startswith(f"{_WARNING}{markdown(why_not)}.**\n"):
        yield f"{file} does not begin with why it is not for release: {why_not}"
    marked = why_not or ("marked by hand" if text.startswith(_WARNING) else None)
    stated, expected = _sections(text), _sections(card(experiment, facts, marked))
    if evidence.is_own_model:  # only its own code knows how many parameters it has
        for sections in (stated, expected):
            sections[_TITLE] = sections[_TITLE].partition("\n")[0]
    for name, words in expected.items():
        if name not in (_PRIVACY, _FIGURES) and stated.get(name) != words:
            section = f"the section {name!r}" if name else "its beginning"
            yield f"{file}: {section} is not what follows from the ledger and the experiment"
    yield from _card_privacy(file, stated.get(_PRIVACY, ""), experiment, facts)
    for name in stated.keys() - expected.keys():
        yield f"{file} has a section {name!r} that no card has"


def _card_privacy(
    file: Path, text: str, experiment: AnyExperiment, facts: CardFacts
) -> Iterator[str]:
    """The claim, its figures and what was declared public, word for word; then known remarks.

    Remarks that depend on the day of the export may follow: that training was not finished, that a
    key exists, and one on other runs with the same people.
    """

    def paragraphs(of: CardFacts) -> list[str]:
        return _sections(card(experiment, of, None))[_PRIVACY].split("\n\n")

    stated, expected = text.split("\n\n"), paragraphs(facts)
    for index, words in enumerate(expected):
        if stated[index : index + 1] != [words]:
            line = _short(words.strip().partition("\n")[0], 80)
            yield f"{file} does not say what follows from the ledger: {line}"
            return
    known = [
        paragraphs(replace(facts, is_complete=False))[-1],
        paragraphs(replace(facts, key_exists=True))[-1],
    ]
    others = [words for words in stated[len(expected) :] if words not in known]
    if len(others) > 1:  # one may be about other runs
        line = _short(others[-1].strip().partition("\n")[0], 80)
        yield f"{file} says more about privacy than a card does: {line}"


def _card_facts(evidence: Evidence) -> CardFacts:
    """What the card is made of, with nothing measured, nothing left to do and no key."""
    ledger, experiment = evidence.ledger, evidence.experiment
    if isinstance(experiment, Experiment):
        words: Tokenizer | Encoder = Tokenizer.load(evidence.directory.tokenizer_file)
        parameters = evidence.parameters
    else:
        stored = NluModel.load(evidence.model_file)
        parameters = sum(each.numel() for each in stored.model.parameters())
        words = stored.encoder
    return CardFacts(
        leg=evidence.bundle.round,
        is_complete=True,
        key_exists=False,
        guarantee=evidence.guarantee,
        head=Head(len(ledger.entries) - 1, ledger.hashes[-2]),
        parameters=parameters,
        words=words,
        metrics=None,
    )


def _sections(text: str) -> dict[str, str]:
    """A card's text by the titles of its sections; the beginning has none, nor its warning."""
    first, *rest = f"\n{text}".split("\n## ")
    warning, _, beginning = first.strip().partition("\n\n")
    sections = {_TITLE: beginning if warning.startswith(_WARNING) else first.strip()}
    for section in rest:
        name, _, words = section.partition("\n")
        sections[name] = words.strip()
    return sections


CLAIM = Check(
    "claim",
    "epsilon by every sound accountant, and every word of it in other files",
    (_figures, _result, _report, _audit, _card),
)
