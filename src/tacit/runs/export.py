"""The bundle meant for sharing: a model, its ledger, and a card that says it all.

    model.safetensors   the weights after a leg; of an intent and slot model its vocabulary too
    tokenizer.json      of a language model
    use.py              plain torch that loads and runs the model without tacit
    README.md           the model card
    experiment.toml     every value that decided about the run
    ledger.jsonl        every release that was made from people's text; its last line holds the
                        digests of all other files (`runs.bundle`)

Guarantee: a bundle is written from the run's public files alone.  Nothing of `private/` is read:
no key, no HMAC, no diagnostics.  The claim is that of the whole run so far, whichever leg's model
is in the bundle: it holds for all of its models together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tacit.models import weights
from tacit.privacy import durable
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Head
from tacit.runs.bundle import LEDGER_FILE, sealed_ledger
from tacit.runs.card import CardFacts, card
from tacit.runs.comparison import published_baselines
from tacit.runs.file_names import without_folders
from tacit.runs.personalization import refuse_personal
from tacit.runs.run import LanguageRun, NluRun, Run
from tacit.runs.use_script import USE_FILE, use_script
from tacit.tasks.nlu.encoding import Encoder
from tacit.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Exported:
    """What was written."""

    out: str
    run: str
    leg: int
    leg_name: str
    files: list[str]
    not_for_release: str | None
    complete: bool
    claim: str
    head: Head  # of the bundle's ledger

    def as_row(self) -> dict[str, Any]:
        """As JSON, with the leg under its name in the task."""
        row = asdict(self)
        return {row.pop("leg_name"): row.pop("leg"), **row}


def export_run(
    run: Path, out: Path, leg: int | None = None, *, not_for_release: bool = False
) -> Exported:
    """Write the bundle of a run's model after a leg, by default the last, into a new folder.

    Args:
        run: a run directory of any task, finished or not.
        out: a folder that does not exist; it is made whole or not at all.
        leg: after which round or epoch, of which there must be a checkpoint.
        not_for_release: export a simulation, or a run without a guarantee, all the same.  The card
            then begins with why it is not for release.

    Raises:
        ValueError: if the run is not for release, or is one person's own.
    """
    refuse_personal(run)
    opened = Run.open(run)
    guarantee = opened.guarantee()
    why_not = guarantee.why_not_for_release
    if why_not and not not_for_release:
        raise ValueError(
            f"{run} is not for release: {why_not}; to export it all the same, marked as such, add"
            " --not-for-release"
        )
    if not why_not and not_for_release:
        why_not = "the person who exported it says so"
    facts, own_files = _facts(opened, guarantee, leg)
    contents = _contents(opened, facts, own_files, why_not)
    with durable.whole_folder(out, mode=durable.SHARED_FOLDER) as folder:
        for name, data in contents.items():
            durable.write_whole(folder / name, data)
    ledger = Ledger(out / LEDGER_FILE, contents[LEDGER_FILE])
    return Exported(
        out=str(out),
        run=str(run),
        leg=facts.leg,
        leg_name=opened.experiment.leg_name,
        files=list(contents),
        not_for_release=why_not,
        complete=facts.is_complete,
        claim=guarantee.claim,
        head=ledger.head,
    )


def _contents(
    run: Run, facts: CardFacts, own_files: Mapping[str, bytes], why_not: str | None
) -> dict[str, bytes]:
    """All files of the bundle; the ledger comes last, since it names the digests of the others."""
    directory, experiment = run.directory, without_folders(run.experiment)
    ledger = directory.ledger_file.read_bytes()
    lines = Ledger(directory.ledger_file, ledger, facts.head)
    if len(lines.entries) != facts.head.entries:
        raise ValueError(f"the run {directory.path} has just gone on training; export it again")
    model_file = directory.checkpoints.read(facts.leg).model_file
    contents = {
        "model.safetensors": model_file.read_bytes(),
        USE_FILE: use_script(model_file).encode(),
        "experiment.toml": experiment.to_toml().encode(),
        "README.md": card(experiment, facts, why_not).encode(),
        **own_files,
    }
    contents[LEDGER_FILE] = sealed_ledger(ledger, lines, contents, facts.leg)
    return contents


def _facts(run: Run, guarantee: Guarantee, leg: int | None) -> tuple[CardFacts, dict[str, bytes]]:
    """What the card says, and the files that only bundles of this task have."""
    checkpoint = run.directory.checkpoints.read(leg)
    name = run.experiment.leg_name
    measured = [row for row in run.metrics() if row[name] == checkpoint.leg]
    own_files: dict[str, bytes] = {}
    baselines: dict[str, dict[str, Any]] = {}
    if isinstance(run, LanguageRun):
        refuse_personal(run.path, weights.trained_on(checkpoint.model_file))
        parameters = sum(each.numel() for each in run.model(checkpoint.leg).parameters())
        if checkpoint.facts["tokenizer"] == run.tokenizer.fingerprint:
            baselines = published_baselines(run)
        if checkpoint.leg == run.first_leg:
            baselines.pop("start", None)
        words: Tokenizer | Encoder = (tokenizer := run.tokenizer_at(checkpoint.leg))
        own_files["tokenizer.json"] = tokenizer.to_json().encode()
        # What the tokenizer has cost other people, if it was learnt from theirs.
        if (history := run.path / "tokenizer.ledger.jsonl").is_file():
            own_files[history.name] = history.read_bytes()
    else:
        assert isinstance(run, NluRun)
        stored = run.stored(checkpoint.leg)
        parameters = sum(each.numel() for each in stored.model.parameters())
        words = stored.encoder
    facts = CardFacts(
        leg=checkpoint.leg,
        is_complete=run.is_complete,
        key_exists=run.directory.key_file.exists(),
        guarantee=guarantee,
        head=run.ledger.head,
        parameters=parameters,
        words=words,
        metrics=measured[-1] if measured else None,
        baselines=baselines,
    )
    return facts, own_files
