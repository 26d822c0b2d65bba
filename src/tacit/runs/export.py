"""The bundle meant for sharing: a model, its tokenizer, its ledger, and a card that says it all.

    model.safetensors   the weights after a round
    tokenizer.json
    README.md           the model card
    experiment.toml     every value that decided about the run
    ledger.jsonl        every release that was made from people's text; its last line holds the
                        digests of all other files (`runs.bundle`)

Guarantee: a bundle is written from the run's public files alone.  Nothing of `private/` is read:
no key, no HMAC, no diagnostics.  The claim is that of the whole run so far, whichever round's
model is in the bundle: it holds for all of its models together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, TypeVar

from tacit.config.experiment import Experiment
from tacit.config.sections import Complete
from tacit.privacy import durable
from tacit.privacy.claims import format_delta, format_epsilon
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger_lines import Head, verify
from tacit.runs.bundle import LEDGER_FILE, sealed_ledger
from tacit.runs.directory import RunDirectory

_Experiment = TypeVar("_Experiment", bound=Complete)
_PATHS = ("source", "start", "vocabulary", "vectors", "pretrained")  # settings that may be paths
FILES = ("model.safetensors", "tokenizer.json", "README.md", "experiment.toml", "ledger.jsonl")


@dataclass(frozen=True)
class Facts:
    """What the card says besides the experiment."""

    round: int  # of the model
    is_complete: bool
    key_exists: bool  # so that noise could be subtracted by whoever holds the run directory
    guarantee: Guarantee
    head: Head  # of the run's ledger
    model: str  # in words
    tokenizer: str  # in words
    metrics: Mapping[str, Any] | None  # of that round, on test users


def write(
    folder: Path, directory: RunDirectory, facts: Facts, tokenizer: str, why_not: str | None
) -> None:
    """Fill an empty folder with the bundle; `tokenizer` is the text of tokenizer.json."""
    whole = directory.experiment()
    assert isinstance(whole, Experiment)
    experiment = without_folders(whole)
    ledger = directory.ledger_file.read_bytes()
    lines = verify(ledger, directory.ledger_file, facts.head)
    if len(lines.entries) != facts.head.entries:
        raise ValueError(f"the run {directory.path} has just gone on training; export it again")
    model = directory.checkpoints.read(facts.round).model_file.read_bytes()
    contents = {
        "model.safetensors": model,
        "tokenizer.json": tokenizer.encode(),
        "experiment.toml": experiment.to_toml().encode(),
        "README.md": card(experiment, facts, why_not).encode(),
    }
    # What the tokenizer has cost other people, if it was learnt from theirs.
    if (history := directory.path / "tokenizer.ledger.jsonl").is_file():
        contents[history.name] = history.read_bytes()
    contents[LEDGER_FILE] = sealed_ledger(ledger, lines, contents, facts.round)
    for name, data in contents.items():
        durable.write_whole(folder / name, data)


def without_folders(experiment: _Experiment) -> _Experiment:
    """The experiment with whole paths shortened to the names at their ends.

    Whole paths tell about a machine and its owner.
    """

    def shortened(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: shortened(one, name) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [shortened(one, key) for one in value]
        return without_folder(value) if key in _PATHS and isinstance(value, str) else value

    return experiment.changed(**shortened(experiment.model_dump()))


def without_folder(source: str) -> str:
    """A file by its name alone, unless its path says no more than where it is from here.

    A provenance such as "public: a path" keeps its first word.
    """
    kind, colon, name = source.partition(": ")
    if colon:
        return f"{kind}: {without_folder(name)}"
    path = PurePath(source)
    is_outside = path.is_absolute() or ".." in path.parts or source.startswith("~")
    return path.name if is_outside else source


def card(experiment: Experiment, facts: Facts, why_not: str | None) -> str:
    """README.md: the claim first, then everything that qualifies it."""
    warning = f"**Not for release: {why_not}.**\n\n" if why_not else ""
    return warning + "\n\n".join(
        [
            f"# {experiment.name}",
            f"A next-word model ({facts.model}; {facts.tokenizer}), trained in rounds of federated"
            f" learning on people's text. This is the model after round {facts.round:,}.",
            "## Privacy",
            _privacy(facts),
            "## Figures",
            _figures(facts),
            "## How it was trained",
            _settings(experiment),
            "## What it is for, and its limits",
            _limits(why_not),
            "## Loading it",
            LOADING,
            "## Files",
            "`model.safetensors` (weights), `tokenizer.json`, `experiment.toml` (all settings),"
            f" `ledger.jsonl` (all releases: {facts.head.entries:,} entries up to the hash"
            f" `{facts.head.hash}`, and a last one with the digests of all other files here)."
            " `tacit verify` holds all of it against the ledger. There are no pickles, and nothing"
            " from the run's private folder.\n",
        ]
    )


def _privacy(facts: Facts) -> str:
    found = facts.guarantee
    said = [f"> {found.claim}"]
    figures = [
        f"| {name} | {format_epsilon(value)} |" for name, value in sorted(found.epsilon.items())
    ]
    head = f"| accountant | epsilon at delta {format_delta(found.delta)} |\n|---|---|\n"
    said.append(head + "\n".join(figures))
    said.append(
        f"The claim is by {found.accountant} and covers all {found.rounds:,} rounds charged so far,"
        " not only those before this model. It does not cover what it names as excluded, nor"
        " whatever is learnt from the text elsewhere."
    )
    public = found.header.public_inputs
    if public:
        rows = [(one.what, f"{one.name} | `{one.sha256}`") for one in public]
        said.append(
            "Declared public by whoever trained it, and not protected:\n\n"
            "| what | name | sha256 |\n|---|---|---|\n" + _table(rows)
        )
    if found.others:
        said.append(found.others)
    if not facts.is_complete:
        said.append(
            "**The training was not finished when this was exported and may go on. Every further"
            " round that is released costs more than is stated here.**"
        )
    if facts.key_exists:
        said.append(
            "The run's key still existed when this was exported. Whoever has it can subtract the"
            " noise; the claim is against everybody else."
        )
    return "\n\n".join(said)


def _figures(facts: Facts) -> str:
    if facts.metrics is None:
        return "Nothing was measured after this round."
    rows = [
        ("top-1 accuracy", _share(facts.metrics.get("accuracy_top1"))),
        ("top-3 accuracy", _share(facts.metrics.get("accuracy_top3"))),
        ("top-5 accuracy", _share(facts.metrics.get("accuracy_top5"))),
        ("perplexity", _number(facts.metrics.get("perplexity"))),
        ("tokens measured on", _number(facts.metrics.get("targets"))),
        ("of them unknown", _share(facts.metrics.get("unknown_rate"))),
    ]
    return (
        "On the text of test users, who are disjoint from the training users and not protected:\n\n"
        "| figure | value |\n|---|---|\n" + _table(rows)
    )


def _settings(experiment: Experiment) -> str:
    plan, update, server = experiment.plan, experiment.update, experiment.server
    noise = (
        f"sigma {plan.noise_stddev:g} on the average"
        if plan.noise_stddev is not None
        else f"{plan.noise_multiplier or 0:g} times the sensitivity"
    )
    norm = plan.clip_norm if plan.clip_norm is not None else list(plan.layer_clip_norms or ())
    clipping = "none" if plan.clipping == "none" else f"{plan.clipping}, S = {norm}"
    about = experiment.about
    stands_for = "; ".join(part for part in (about.paper, about.section) if part)
    rows = [
        ("stands for", stands_for or "-"),
        ("corpus", f"{experiment.corpus.source} ({experiment.corpus.view})"),
        ("tokens per user", f"at most {experiment.corpus.max_tokens_per_user:,}"),
        ("rounds planned", f"{experiment.rounds:,}"),
        (
            "users a round",
            f"{plan.cohort:g}, {plan.sampling} sampling, of {plan.population or 0:,}",
        ),
        ("clipping", clipping),
        ("noise", noise),
        ("estimator", plan.estimator),
        (
            "user update",
            f"{update.algorithm}, local epochs: {update.local_epochs}, batches of"
            f" {update.batch_size} x {update.unroll}, rate {update.learning_rate:g}",
        ),
        ("server", f"{server.optimizer}, rate {server.learning_rate:g}"),
    ]
    phases = ""
    if experiment.phases:
        phases = f"\n\nIn {len(experiment.phases)} phases: see `experiment.toml`."
    return "| setting | value |\n|---|---|\n" + _table(rows) + phases


def _limits(why_not: str | None) -> str:
    use = (
        "For research only; see the first line."
        if why_not
        else "For suggesting words while somebody types, and for further training."
    )
    return (
        f"{use} It repeats what the training users commonly write, with their errors and their"
        " prejudices, and knows nothing of facts. Do not use it to judge people or to find out who"
        " wrote something. The guarantee is about the users of the training: a model that is"
        " trained further on somebody's text, such as a personalised one, is not covered by it."
    )


LOADING = """With tacit, in this folder:

```python
from tacit.evaluation.suggestions import Suggester
from tacit.models import weights
from tacit.tokenizers.tokenizer import Tokenizer

tokenizer = Tokenizer.load("tokenizer.json")
model = weights.load("model.safetensors", vocab_size=tokenizer.vocab_size)
print(Suggester(model, tokenizer).suggest("see you "))
```

Without it, as plain tensors and a HuggingFace tokenizer:

```python
import safetensors.torch
import tokenizers

tensors = safetensors.torch.load_file("model.safetensors")
tokenizer = tokenizers.Tokenizer.from_file("tokenizer.json")
print({name: list(tensor.shape) for name, tensor in tensors.items()})
```"""


def _table(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"| {name} | {value} |" for name, value in rows)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.6g}"
