"""The model card of a bundle: the claim first, then everything that qualifies it.

The text is in `card.md.j2`, and what each task says in it in `card-language.md.j2` and
`card-nlu.md.j2`.  `tacit verify` makes the card again from the ledger and the experiment, so it
must follow from them and from `CardFacts` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jinja2

from tacit.privacy.claims import format_delta, format_epsilon
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger_lines import Head
from tacit.privacy.visible import markdown
from tacit.runs.figures import (
    BASELINES,
    better_baselines,
    describe_loss,
    percent,
    perplexity,
    written_figures,
)
from tacit.tasks import AnyExperiment
from tacit.tasks.nlu.encoding import Encoder
from tacit.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class CardFacts:
    """What a card says besides the experiment."""

    leg: int  # after which the model was taken
    is_complete: bool
    key_exists: bool  # so that noise could be subtracted by somebody with the run directory
    guarantee: Guarantee
    head: Head  # of the run's ledger
    parameters: int  # of the model
    words: Tokenizer | Encoder  # its vocabulary
    metrics: Mapping[str, Any] | None  # of that leg
    # What the model is held against, by the names in `figures.BASELINES`.
    baselines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def card(experiment: AnyExperiment, facts: CardFacts, why_not: str | None) -> str:
    """README.md of a bundle; `why_not` is why it is not for release, or None."""
    measured = facts.metrics or {}
    better = better_baselines(measured, facts.baselines)
    template = templates(_written).get_template(f"card-{experiment.task}.md.j2")
    return template.render(
        experiment=experiment,
        facts=facts,
        guarantee=facts.guarantee,
        figures=written_figures(experiment.task, measured),
        baselines=[(BASELINES[name], row) for name, row in facts.baselines.items()],
        loss=describe_loss("This model", measured, better) if better else None,
        why_not=why_not,
    )


def _written(value: Any) -> Any:
    """What a card's template puts out: text escaped, unless it is marked as safe there."""
    return markdown(value) if type(value) is str else value


@cache
def templates(write: Callable[[Any], Any] | None = None) -> jinja2.Environment:
    """The templates of a bundle's files; `write` is called with every value that they put out.

    A name that is not defined is an error.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tacit.runs", ""),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # Markdown and Python, not HTML
        finalize=write,
    )
    filters = {
        "epsilon": format_epsilon,
        "delta": format_delta,
        "percent": percent,
        "perplexity": perplexity,
    }
    environment.filters |= filters
    return environment
