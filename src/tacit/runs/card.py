"""The model card of a bundle: the claim first, then everything that qualifies it.

The text is in `card.md.j2`; here is what each task fills in.  `tacit verify` makes the card again
from the ledger and the experiment, so it must follow from them and from `CardFacts` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2

from tacit.config.experiment import Experiment
from tacit.privacy.claims import format_delta, format_epsilon
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger_lines import Head
from tacit.tasks import AnyExperiment
from tacit.tasks.nlu.experiment import NluExperiment

Rows = list[tuple[str, str]]


@dataclass(frozen=True)
class CardFacts:
    """What a card says besides the experiment."""

    leg: int  # after which the model was taken
    is_complete: bool
    key_exists: bool  # so that noise could be subtracted by somebody with the run directory
    guarantee: Guarantee
    head: Head  # of the run's ledger
    model: str  # in words
    vocabulary: str  # in words
    metrics: Mapping[str, Any] | None  # of that leg


def card(experiment: AnyExperiment, facts: CardFacts, why_not: str | None) -> str:
    """README.md of a bundle; `why_not` is why it is not for release, or None."""
    task = _NluCard() if isinstance(experiment, NluExperiment) else _LanguageCard()
    return _template().render(
        experiment=experiment, facts=facts, guarantee=facts.guarantee, task=task, why_not=why_not
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tacit.runs", ""),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # Markdown, not HTML
    )
    environment.filters |= {"epsilon": format_epsilon, "delta": format_delta}
    return environment.get_template("card.md.j2")


class _LanguageCard:
    measured_on = "On the text of test users, disjoint from the training users"
    use = "For suggesting words while somebody types, and for further training."
    in_the_weights = "), `tokenizer.json` (vocabulary"
    loading = """With tacit, in this folder:

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

    def what(self, facts: CardFacts) -> str:
        return (
            f"A next-word model ({facts.model}; {facts.vocabulary}), trained in rounds of federated"
            " learning on people's text."
        )

    def figures(self, metrics: Mapping[str, Any]) -> Rows:
        return [
            ("top-1 accuracy", _share(metrics.get("accuracy_top1"))),
            ("top-3 accuracy", _share(metrics.get("accuracy_top3"))),
            ("top-5 accuracy", _share(metrics.get("accuracy_top5"))),
            ("perplexity", _number(metrics.get("perplexity"))),
            ("tokens measured on", _number(metrics.get("targets"))),
            ("of them unknown", _share(metrics.get("unknown_rate"))),
        ]

    def settings(self, experiment: Experiment) -> Rows:
        plan, update, server = experiment.plan, experiment.update, experiment.server
        norm = plan.clip_norm if plan.clip_norm is not None else list(plan.layer_clip_norms or ())
        noise = (
            f"sigma {plan.noise_stddev:g} on the average"
            if plan.noise_stddev is not None
            else f"{plan.noise_multiplier or 0:g} times the sensitivity"
        )
        cohort = f"{plan.cohort:g}, {plan.sampling} sampling, of {plan.population or 0:,}"
        phases = [("phases", f"{len(experiment.phases)}")] if experiment.phases else []
        return [
            ("stands for", _stands_for(experiment)),
            ("corpus", f"{experiment.corpus.source} ({experiment.corpus.view})"),
            ("tokens per user", f"at most {experiment.corpus.max_tokens_per_user:,}"),
            ("rounds planned", f"{experiment.rounds:,}"),
            *phases,
            ("users a round", cohort),
            ("clipping", "none" if plan.clipping == "none" else f"{plan.clipping}, S = {norm}"),
            ("noise", noise),
            ("estimator", plan.estimator),
            (
                "user update",
                f"{update.algorithm}, local epochs: {update.local_epochs}, batches of"
                f" {update.batch_size} x {update.unroll}, rate {update.learning_rate:g}",
            ),
            ("server", f"{server.optimizer}, rate {server.learning_rate:g}"),
        ]


class _NluCard:
    measured_on = "On the utterances of valid"
    use = "For understanding what people ask of an assistant with the intents and slots it knows."
    in_the_weights = ", vocabulary and labels"
    loading = """With tacit, in this folder:

```python
from tacit.tasks.nlu.models import NluModel
from tacit.tasks.nlu.predictions import understand

model = NluModel.load("model.safetensors")
print(understand(model, "wake me up at seven"))
```

Without it, as plain tensors:

```python
import safetensors.torch

tensors = safetensors.torch.load_file("model.safetensors")
print({name: list(tensor.shape) for name, tensor in tensors.items()})
```"""

    def what(self, facts: CardFacts) -> str:
        return (
            f"An intent and slot model ({facts.model}; {facts.vocabulary}), trained on people's"
            " utterances."
        )

    def figures(self, metrics: Mapping[str, Any]) -> Rows:
        return [
            ("semantic error rate", _share(metrics.get("semantic_error_rate"))),
            ("intent accuracy", _share(metrics.get("intent_accuracy"))),
            ("slot F1", _share(metrics.get("slot_f1"))),
            ("utterances measured on", _number(metrics.get("utterances"))),
        ]

    def settings(self, experiment: NluExperiment) -> Rows:
        training, noise = experiment.training, experiment.noise
        return [
            ("stands for", _stands_for(experiment)),
            ("utterances", experiment.data.source),
            ("intents and tags", f"{len(experiment.data.intents)}, {len(experiment.data.tags)}"),
            ("epochs planned", f"{training.epochs:,}"),
            ("method", training.method),
            (
                "batches",
                f"{training.batch_size} {training.unit}s of {noise.population or 0:,}, over"
                f" {training.workers} workers",
            ),
            ("clip norm", f"{noise.clip_norm:g}"),
            ("noise", f"{noise.noise_multiplier or 0:g}, decay: {noise.decay}"),
            ("optimizer", f"{training.optimizer}, rate {training.learning_rate:g}"),
        ]


def _stands_for(experiment: AnyExperiment) -> str:
    about = experiment.about
    return "; ".join(part for part in (about.paper, about.section) if part) or "-"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.6g}"
