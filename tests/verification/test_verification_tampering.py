"""Whatever is changed is named: the file, and what differs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tacit.privacy.randomness import RunKey
from tacit.report.page import render
from tacit.runs.checkpoints import Checkpoints
from tacit.tokenizers import build, provenance
from tacit.train import train
from tacit.verification.verifying import verify
from tests.verification import forging
from tests.verification.forging import (
    both,
    chained_anew,
    charges,
    flipped,
    forged,
    gone,
    header,
    sealed_anew,
    text,
)
from tests.verification.kinds import tacit


@dataclass(frozen=True)
class Tampering:
    """What is done to which run or bundle, and words of the sentence that has to name it."""

    kind: str
    change: Callable[[Path], object]
    says: tuple[str, ...]
    form: str = "run"
    is_known: bool = False  # whether this installation knows the run


def without(place: int) -> Callable[[Path], None]:
    return lambda run: forged(run, lambda lines: lines.pop(place))


def repeated(run: Path) -> None:
    forged(run, lambda lines: lines.append(dict(lines[-1])))


def cut(name: str, lines: int) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        data = (run / name).read_bytes().splitlines(keepends=True)
        (run / name).write_bytes(b"".join(data[:-lines]))

    return change


def swapped(run: Path) -> None:
    lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    lines[2], lines[3] = lines[3], lines[2]
    (run / "ledger.jsonl").write_bytes(b"".join(lines))


def other_words(run: Path) -> None:
    """Another tokenizer, sound in itself."""
    made = build.word_level(["dog", "cat"], provenance=provenance.public("other words"))
    (run / "tokenizer.json").write_text(made.to_json())


def other_canary(run: Path) -> None:
    data = json.loads((run / "canaries.json").read_text())
    data["canaries"][0]["tokens"] = data["canaries"][1]["tokens"]
    (run / "canaries.json").write_text(json.dumps(data, indent=1) + "\n")


def other_coins(run: Path) -> None:
    file = run / "private" / "canary-coins"
    file.write_bytes(file.read_bytes()[:-1] + b"x")


def restored_key(run: Path) -> None:
    RunKey.from_seed(1).save(run / "private" / "key")


def earlier_checkpoint(run: Path) -> None:
    """The last model with the optimizer and the head of an earlier one."""
    there = Checkpoints(run / "checkpoints")
    first, last = there.legs()[0], there.legs()[-1]
    shutil.copy(there.state_file(first), there.state_file(last))


def shorter_for_the_last(run: Path) -> None:
    checkpoints = Checkpoints(run / "checkpoints")
    legs = checkpoints.legs()
    forging.with_head(checkpoints, legs[-1], checkpoints.read(legs[0]).head)


def report_fact(section: str, name: str, value: object) -> Callable[[Path], None]:
    """Another fact, with the page to fit."""

    def change(run: Path) -> None:
        facts = json.loads((run / "report.json").read_text())
        if name:
            assert name in facts[section]
            facts[section][name] = value
        else:
            assert facts[section] != value
            facts[section] = value
        (run / "report.json").write_text(json.dumps(facts, indent=1) + "\n")
        (run / "report.html").write_text(render(facts))

    return change


def audited(run: Path) -> None:
    audit = {"round": 3, "accounted_epsilon": 0.5, "delta": 1e-3}
    (run / "audit.json").write_text(json.dumps(audit))


def added(name: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_text("hello\n")


def at(place: int, **values: object) -> Callable[[Path], None]:
    return lambda run: forged(run, lambda lines: lines[place].update(values))


LESS_NOISE = text("experiment.toml", "noise_multiplier = 1.0", "noise_multiplier = 0.1")


def cost(**values: object) -> Callable[[Path], None]:
    return lambda run: forged(run, lambda lines: lines[0]["prior_costs"][0].update(values))


FREE = {"kind": "post-processing", "reason": "nothing"}
LEDGER, RESULT, README = "ledger.jsonl", "result.json", "README.md"

TAMPERINGS = {
    # The chain.
    "a byte of an entry": Tampering("private", flipped(LEDGER, -100), (LEDGER, "line 5")),
    "a byte of the header": Tampering("private", flipped(LEDGER, 30), (LEDGER, "line 1")),
    "the last entry": Tampering(
        "private", cut(LEDGER, 1), (LEDGER, "checkpoint of round 3", "3 entries, and that has 4")
    ),
    "the order of entries": Tampering("private", swapped, (LEDGER, "line 3", "reordered")),
    "the end of the last line": Tampering(
        "killed after a charge",
        lambda run: (run / LEDGER).write_bytes((run / LEDGER).read_bytes()[:-9]),
        (LEDGER, "cut off"),
    ),
    "all of the ledger": Tampering("private", gone(LEDGER), ("no ledger at",)),
    "less noise, chained anew": Tampering(
        "private",
        lambda run: chained_anew(
            run / LEDGER, lambda lines: lines[2]["event"].update(noise_multiplier=9.0)
        ),
        ("not the ledger of the checkpoint", "hash"),
    ),
    "a charge after the checkpoint": Tampering(
        "killed after a charge", cut(LEDGER, 1), (LEDGER, "people knows of 4"), is_known=True
    ),
    "another copy of the run": Tampering(
        "private", charges(attempt=1), (LEDGER, "another copy"), is_known=True
    ),
    "what a branch inherits": Tampering(
        "branch", at(1, event=FREE), (LEDGER, "inherits other charges"), is_known=True
    ),
    "the parent's head": Tampering(
        "branch",
        lambda run: forged(run, lambda lines: lines[0]["parent"]["head"].update(hash="ab" * 32)),
        (LEDGER, "parent"),
        is_known=True,
    ),
    "a branch under another name": Tampering(
        "private",
        lambda run: forged(run, lambda lines: [line.update(branch="other") for line in lines]),
        (LEDGER, "is of the branch"),
    ),
    "the head of the last checkpoint": Tampering(
        "private", shorter_for_the_last, ("state-000003", "shorter ledger")
    ),
    # The charges.
    "a round charged twice": Tampering("private", repeated, (LEDGER, "a second time")),
    "an attempt left out": Tampering("private", at(-1, attempt=2), (LEDGER, "not attempt 0")),
    "a round left out": Tampering("private", without(3), (LEDGER, "before round 2")),
    "the last round left out": Tampering("private", without(-1), (LEDGER, "1 too few")),
    "a round after the end": Tampering(
        "private",
        lambda run: forged(run, lambda lines: lines.append(lines[-1] | {"round": 3})),
        (LEDGER, "round 3", "plans 3"),
    ),
    "more noise than was drawn": Tampering(
        "private", charges(event={"noise_multiplier": 9.0}), (LEDGER, "configured", "round 0")
    ),
    "fewer users than were drawn": Tampering(
        "private", charges(event={"sampling_prob": 0.01}), (LEDGER, "configured")
    ),
    "rounds for nothing": Tampering("private", charges(event=FREE), (LEDGER, "configured")),
    "another estimator": Tampering(
        "private", charges(estimator="true-average"), (LEDGER, "estimator")
    ),
    "another plan": Tampering("private", charges(plan_hash="ab" * 32), (LEDGER, "plan abab")),
    "the noise of another phase": Tampering(
        "phases",
        lambda run: forged(run, lambda lines: lines[-1].update(event=lines[2]["event"])),
        (LEDGER, "round 2", "configured"),
    ),
    "a phase in another tokenizer": Tampering(
        "switched",
        lambda run: forged(run, lambda lines: lines[-1].update(plan_hash=lines[2]["plan_hash"])),
        (LEDGER, "plan"),
    ),
    "an adjacency": Tampering(
        "private",
        lambda run: chained_anew(
            run / LEDGER, lambda lines: lines[0].update(adjacency="replace-one")
        ),
        (LEDGER, "adjacency"),
    ),
    "a kind that nobody makes": Tampering("private", at(1, kind="gift"), (LEDGER, "'gift'")),
    "a steeper decay": Tampering(
        "nlu edp-sgd", charges(event={"noise_multiplier": 9.0}), (LEDGER, "configured")
    ),
    "the scaling factors' cost": Tampering("nlu edp-sgd", without(1), (LEDGER, "scaling")),
    "no scaling factors": Tampering(
        "nlu people", gone("scaling.json"), ("scaling.json", "missing")
    ),
    "other scaling factors": Tampering(
        "nlu people",
        text("scaling.json", '"factors": [', '"factors": [9'),
        ("scaling.json was changed", "state-"),
    ),
    "steps of another experiment": Tampering(
        "nlu dp-sgd", charges(plan_hash="ab" * 32), (LEDGER, "plan")
    ),
    "an oracle's vocabulary": Tampering("nlu oracle", without(1), (LEDGER, "vocabulary")),
    "SGD as if it were private": Tampering(
        "nlu sgd",
        charges(event={"kind": "poisson-gaussian", "sampling_prob": 0.1, "noise_multiplier": 1.0}),
        (LEDGER, "configured"),
    ),
    "an epoch as printed, as if it were private": Tampering(
        "nlu edp-sgd-paper",
        charges(event={"kind": "gaussian", "noise_multiplier": 1.0, "stated_for": "replace-one"}),
        (LEDGER, "configured"),
    ),
    # The header.
    "the population": Tampering("private", header(population=10**6), ("population", "1000000")),
    "delta": Tampering("private", header(delta=1e-9), ("delta", "1e-09")),
    "the budget": Tampering(
        "private",
        header(budget={"epsilon": 99.0, "delta": 1e-3, "accountant": "pld"}),
        ("budget", "99"),
    ),
    "no budget": Tampering("private", header(budget=None), ("budget is nothing",)),
    "a budget that was not kept": Tampering(
        "private",
        header(budget={"epsilon": 0.1, "delta": 1e-3, "accountant": "pld"}),
        ("has charged epsilon", "0.1"),
    ),
    "a simulation": Tampering("simulated", header(simulation=False), ("simulation is False",)),
    "an audit": Tampering("canaries", header(audit=False), ("audit is False",)),
    "the view": Tampering("iid", header(view="people"), ("view is people",)),
    "made-up people": Tampering("synthetic", header(view="people"), ("view is people",)),
    "the unit": Tampering("nlu people", header(unit="user"), ("unit is user",)),
    "the accountant": Tampering("simulated", header(accountant="moments"), ("accountant",)),
    "a counted population": Tampering(
        "private", header(population_is_counted=False), ("population_is_counted",)
    ),
    "what is excluded": Tampering("private", header(excluded=[]), ("does not exclude",)),
    "who is excluded": Tampering(
        "nlu people", header(excluded=[]), ("does not exclude people: protection is per utterance",)
    ),
    "whose text it was": Tampering("private", header(people="ab" * 8), ("people is abab",)),
    "a public input": Tampering("private", header(public_inputs=[]), ("list the dictionary",)),
    "the public text of a beginning": Tampering(
        "pretrained", header(public_inputs=[]), ("list the pre-training text",)
    ),
    "whose weights it began with": Tampering(
        "started", header(prior_costs=[]), ("safetensors", "trained on text of people")
    ),
    "an oracle": Tampering("oracle", at(1, event=FREE), (LEDGER, "tokenizer voids")),
    "the part": Tampering("beside", header(part="1/2"), ("part is 1/2",)),
    "the part, as it were of others": Tampering(
        "beside", header(part="1/2"), ("who may be the same",)
    ),
    "who paid": Tampering("same", cost(whom="elsewhere"), ("it is of this",)),
    "who paid beside": Tampering("same", cost(whom="beside"), ("who may be the same",)),
    "what others paid": Tampering("beside", cost(releases=[]), ("other releases",)),
    "a prior cost": Tampering("beside", header(prior_costs=[]), ("tokenizer", "cost")),
    # Files.
    "the experiment": Tampering(
        "private",
        LESS_NOISE,
        ("experiment.toml was changed",),
    ),
    "the experiment's name alone": Tampering(
        "private", text("experiment.toml", '"small"', '"large"'), ("experiment.toml was changed",)
    ),
    "no experiment": Tampering("private", gone("experiment.toml"), ("experiment.toml", "missing")),
    "an intent model's experiment": Tampering(
        "nlu people",
        text("experiment.toml", "epochs = 3", "epochs = 4"),
        ("experiment.toml was changed",),
    ),
    "the claim of result.json": Tampering(
        "private", text(RESULT, "User-level (", "User-level (0"), (RESULT, "digest")
    ),
    "the claim of result.json, sealed": Tampering(
        "private", forging.result(claim="Nobody can tell."), (RESULT, "claim")
    ),
    "epsilon in result.json, sealed": Tampering(
        "private", forging.result(epsilon={"pld": 0.1}), (RESULT, "epsilon")
    ),
    "rounds in result.json, sealed": Tampering(
        "private", forging.result(charged_rounds=1), (RESULT, "charged_rounds")
    ),
    "a simulation's result, sealed": Tampering(
        "simulated", forging.result(simulation=False), (RESULT, "simulation")
    ),
    "the method in result.json, sealed": Tampering(
        "nlu edp-sgd-paper", forging.result(method="edp-sgd"), (RESULT, "method")
    ),
    "half of result.json": Tampering(
        "private",
        lambda run: (run / RESULT).write_text((run / RESULT).read_text()[:200]),
        (RESULT, "not JSON"),
    ),
    "an incomplete run that says it is done": Tampering(
        "out of budget", forging.result(ending="complete"), (RESULT, "complete", "of 6")
    ),
    "a fact of report.json": Tampering(
        "private", report_fact("claim", "delta", 1e-9), ("report.json", "claim.delta"), "reported"
    ),
    "the report's sentence": Tampering(
        "private",
        report_fact("claim", "sentence", "Nobody can tell."),
        ("report.json", "claim.sentence"),
        "reported",
    ),
    "the report's ledger": Tampering(
        "private",
        report_fact("ledger", "head", "ab" * 32),
        ("report.json", "ledger.head"),
        "reported",
    ),
    "the report's curve": Tampering(
        "private", report_fact("epsilon", "delta", 1e-9), ("report.json", "epsilon"), "reported"
    ),
    "the report's warning": Tampering(
        "simulated", report_fact("warnings", "", []), ("report.json", "simulation"), "reported"
    ),
    "the report's experiment": Tampering(
        "private", report_fact("experiment", "", "seed = 5\n"), ("report.json", "exp"), "reported"
    ),
    "the report's files": Tampering(
        "private",
        flipped("metrics.jsonl"),
        ("report.json", "another metrics.jsonl"),
        "reported",
    ),
    "a word of the page": Tampering(
        "private",
        text("report.html", "-level", "-safe"),
        ("report.html", "not the page"),
        "reported",
    ),
    "no page": Tampering("private", gone("report.html"), ("report.html", "missing"), "reported"),
    "no facts": Tampering("private", gone("report.json"), ("report.json", "missing"), "reported"),
    "what an audit compares with": Tampering(
        "private", audited, ("audit.json", "accounted_epsilon")
    ),
    "a weight": Tampering(
        "private", flipped("checkpoints/model-000003.safetensors"), ("model-000003", "digest")
    ),
    "a weight of an earlier model": Tampering(
        "private", flipped("checkpoints/model-000002.safetensors"), ("model-000002", "digest")
    ),
    "a checkpoint of another round": Tampering(
        "private", earlier_checkpoint, ("model-000003", "digest")
    ),
    "no checkpoints": Tampering(
        "private", lambda run: shutil.rmtree(run / "checkpoints"), ("no bundle",)
    ),
    "a tokenizer": Tampering(
        "private", text("tokenizer.json", '"dog"', '"god"'), ("tokenizer.json", "fingerprint")
    ),
    "another tokenizer": Tampering("private", other_words, ("tokenizer.json", "not a tokenizer")),
    "a tokenizer from before a switch": Tampering(
        "switched",
        lambda run: shutil.copy(run / "tokenizer.json", run / "tokenizers/first/tokenizer.json"),
        ("state-000000", "tokenizer"),
    ),
    "whose words a tokenizer has": Tampering(
        "beside", text("tokenizer.ledger.jsonl", '"1/2"', '"2/2"'), ("tokenizer.ledger.jsonl",)
    ),
    "how a tokenizer was learnt": Tampering(
        "beside", text("tokenizer.ledger.jsonl", "heavy", "light"), ("tokenizer.ledger.jsonl",)
    ),
    "no history": Tampering(
        "same", gone("tokenizer.ledger.jsonl"), ("tokenizer.ledger.jsonl", "missing")
    ),
    "what a tokenizer has cost": Tampering(
        "beside", cut("tokenizer.ledger.jsonl", 1), ("tokenizer.ledger.jsonl",)
    ),
    "a canary": Tampering("canaries", other_canary, ("canaries.json was changed",)),
    "no canaries": Tampering("canaries", gone("canaries.json"), ("canaries.json is missing",)),
    "canaries that nobody bound": Tampering(
        "private", added("canaries.json"), ("canaries.json is not in the ledger",)
    ),
    "coins": Tampering("clients", other_coins, ("canary-coins", "committed")),
    "a key that was destroyed": Tampering("private", restored_key, ("key", "still there")),
    # Bundles.
    "a bundle's weight": Tampering(
        "private", flipped("model.safetensors"), ("model.safetensors was changed",), "bundle"
    ),
    "a word of the card": Tampering(
        "private", text(README, "User-level", "User-safe"), (README, "was changed"), "bundle"
    ),
    "another file": Tampering("private", added("notes.txt"), ("notes.txt is not of",), "bundle"),
    "a file too few": Tampering(
        "private", gone("tokenizer.json"), ("tokenizer.json is missing",), "bundle"
    ),
    "a bundle without its last line": Tampering(
        "private", cut(LEDGER, 1), ("no bundle",), "bundle"
    ),
    "the card's claim, sealed": Tampering(
        "private",
        both(text(README, "> User-level (", "> User-level (0"), sealed_anew),
        (README, "does not say"),
        "bundle",
    ),
    "the card's figures, sealed": Tampering(
        "private", both(text(README, "| pld | ", "| pld | 0"), sealed_anew), (README,), "bundle"
    ),
    "the card's public inputs, sealed": Tampering(
        "private",
        both(text(README, "| dictionary |", "| nothing |"), sealed_anew),
        (README,),
        "bundle",
    ),
    "the card's head, sealed": Tampering(
        "private",
        both(text(README, "entries up to the hash `", "entries up to the hash `0"), sealed_anew),
        (README, "Files"),
        "bundle",
    ),
    "the card's settings, sealed": Tampering(
        "private",
        both(text(README, "| noise | 1", "| noise | 9"), sealed_anew),
        (README, "How it was trained"),
        "bundle",
    ),
    "a warning, sealed": Tampering(
        "simulated",
        both(text(README, "**Not for release: ", "**For release: "), sealed_anew),
        (README, "not for release"),
        "bundle",
    ),
    "a bundle's experiment, sealed": Tampering(
        "private",
        both(LESS_NOISE, sealed_anew),
        (LEDGER, "configured"),
        "bundle",
    ),
    "a bundle's seed, sealed": Tampering(
        "simulated",
        both(text("experiment.toml", "seed = 5\n", ""), sealed_anew),
        ("simulation is True",),
        "bundle",
    ),
    "a bundle's script": Tampering(
        "private", text("use.py", "import json", "import os"), ("use.py was changed",), "bundle"
    ),
    "a bundle's script, sealed": Tampering(
        "private",
        both(text("use.py", "import json", "import evil, json"), sealed_anew),
        ("use.py is not the script that tacit writes",),
        "bundle",
    ),
    "a bundle's tokenizer, sealed": Tampering(
        "private", both(other_words, sealed_anew), ("tokenizer.json", "not a tokenizer"), "bundle"
    ),
    "a bundle of another copy": Tampering(
        "private",
        lambda run: chained_anew(run / LEDGER, lambda lines: lines[2].update(attempt=1)),
        ("another copy",),
        "bundle",
        is_known=True,
    ),
}


@pytest.mark.parametrize("what", TAMPERINGS)
def test_what_was_changed_is_named(what, copied, tmp_path, monkeypatch):
    done = TAMPERINGS[what]
    there = copied(done.kind, done.form)
    if not done.is_known:
        monkeypatch.setenv("TACIT_STATE", str(tmp_path / "nobody"))
    assert verify(there).differences == ()
    done.change(there)
    found = verify(there).differences
    assert any(all(word in one for word in done.says) for one in found), found
    assert all("\n" not in one for one in found)
    assert not any(one.startswith("the check of") for one in found), found


def test_all_differences_are_named_each_once(copied):
    run = copied("private")
    for change in (flipped("checkpoints/model-000003.safetensors"), other_words, restored_key):
        change(run)
    forging.result(claim="Nobody can tell.")(run)
    found = verify(run).differences
    assert len(found) == len(set(found))
    for word in ("model-000003", "tokenizer.json", "private/key", "result.json"):
        assert any(word in one for one in found), word


def test_what_a_report_projects_is_projected_from_the_run(copied):
    run = copied("private")
    tacit("report", run, "--projected-cohort", 1000, "--projected-population", 10**6)
    assert verify(run).differences == ()
    facts = json.loads((run / "report.json").read_text())
    facts["projected"]["epsilon"]["pld"] /= 2
    (run / "report.json").write_text(json.dumps(facts, indent=1) + "\n")
    (run / "report.html").write_text(render(facts))
    [found] = verify(run).differences
    assert "projected.epsilon" in found


def test_a_report_on_less_than_the_whole_run_is_told_to_be_written_again(
    copied, tmp_path, monkeypatch
):
    run = copied("killed after a checkpoint")
    monkeypatch.setenv("TACIT_STATE", str(tmp_path / "elsewhere"))  # where only the copy goes on
    tacit("report", run)
    assert verify(run).differences == ()
    train(None, run, resume=True)
    found = verify(run).differences
    assert found
    assert all("write it again with tacit report" in one for one in found)
