"""`tacit suggest-clip`: what to clip updates at, found on public text alone."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.options import AsJson, whole_number
from tacit.cli.progress import bar

if TYPE_CHECKING:
    from tacit.config.experiment import Experiment
    from tacit.federated.clip_norms import Norms

EXAMPLES = """
Examples:

`tacit suggest-clip mcmahan2018-small`

`tacit suggest-clip my-recipe.toml --public forum.txt --set update.learning_rate=1`
"""

DEFAULT_TEXT = "sotu+chatterbot"


def suggest_clip(
    recipe: Annotated[
        str,
        typer.Argument(metavar="RECIPE", help="A recipe's name or file.", show_default=False),
    ],
    public: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            metavar="TEXT",
            help=f"Public text: sotu, chatterbot, or a file.  [default: {DEFAULT_TEXT}]",
        ),
    ] = None,
    variant: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="NAME", help="Which of the recipe's variants."),
    ] = None,
    setting: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the recipe."),
    ] = None,
    users: Annotated[
        int, typer.Option(parser=whole_number, metavar="N", help="Users to measure.")
    ] = 30,
    rounds: Annotated[
        int,
        typer.Option(parser=whole_number, metavar="N", help="Rounds before measuring again."),
    ] = 5,
    as_json: AsJson = False,
) -> None:
    """Propose the clip norm S, and S_j by layer, from public text.

    The text is cut into users that do not exist, which compute the recipe's own update without
    clipping; the median of its norm is proposed.  The corpus of the recipe is not read: a clip
    norm chosen on people's text would tell something about them.
    """
    from tacit.config import recipes

    if users < 3:
        raise ValueError(f"--users must be at least 3, got {users}")
    if rounds < 0:
        raise ValueError(f"--rounds must be at least 0, got {rounds}")
    sources = public or [DEFAULT_TEXT]
    for source in sources:
        _refuse_people(source)
    experiment = recipes.load(recipe, setting or ()).only(variant)
    if experiment.tokenizer.source == "oracle":
        raise ValueError(
            f"the recipe {recipe} learns its tokenizer from people's text, which is not read here;"
            " add --set tokenizer.source=sotu+chatterbot"
        )
    with bar("reading public text") as show:

        def tell(what: str, done: int, of: int) -> None:
            show(what, done, of, "")

        norms = _measured(experiment, sources, users, rounds, tell)
    last = norms[-1]
    if not last.suggested > 0:
        raise ValueError("no update moved anything: the recipe's learning rate is too small")
    if as_json:
        json.dump(_as_row(recipe, sources, users, norms), sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        _print(recipe, sources, users, norms, experiment)


def _refuse_people(source: str) -> None:
    """Text that is not known to be public, or is known not to be."""
    from tacit.corpus.builtin import is_builtin

    if is_builtin(source) or Path(source).is_dir():
        raise ValueError(
            f"--public {source!r} is a corpus of people's text, and a clip norm found there would"
            f" tell about them; give public text: {DEFAULT_TEXT}, or a file"
        )


def _measured(
    experiment: Experiment,
    sources: list[str],
    users: int,
    rounds: int,
    tell: Callable[[str, int, int], None],
) -> list[Norms]:
    from tacit.corpus.builtin import load_corpus
    from tacit.federated.clip_norms import measured, pseudo_users
    from tacit.kernels.local_sgd import local_sgd_for
    from tacit.tasks.language import assembly

    nobody = load_corpus("synthetic:users=20,words=1")  # the recipe's own corpus stays closed
    words = assembly.tokenizer_of(experiment, nobody)
    start = assembly.starting_model(experiment, words, nobody, tell)
    cohort = max(2, users // 3)
    tell("cutting public text into users", 0, 1)
    texts = words.encode_batch([text for source in sources for text in _texts(source)])
    cap = experiment.corpus.max_tokens_per_user
    people = pseudo_users(texts, cap, users + rounds * cohort)
    return measured(
        start.model,
        assembly.user_update(experiment),
        assembly.server_optimizer(experiment),
        local_sgd_for(start.model),
        people,
        bos=words.bos,
        rounds=rounds,
        cohort=cohort,
        progress=lambda done, of: tell("users' updates on public text", done, of),
    )


def _texts(source: str) -> list[str]:
    from tacit.public.text import read_public_text
    from tacit.tokenizers.public import public_texts

    if not Path(source).is_file():
        return list(public_texts(source))
    found = read_public_text([source])
    return found.train + found.held_out


def _as_row(recipe: str, sources: list[str], users: int, norms: list[Norms]) -> dict[str, Any]:
    last = norms[-1]
    return {
        "recipe": recipe,
        "public": sources,
        "users": users,
        "clip_norm": last.suggested,
        "layer_clip_norms": list(last.suggested_by_layer),
        "layers": list(last.layers),
        "measured": [
            {
                "round": found.round,
                "quantiles": {f"{q:g}": value for q, value in found.quantiles().items()},
                "layer_medians": found.layer_medians(),
            }
            for found in norms
        ],
    }


def _print(
    recipe: str, sources: list[str], users: int, norms: list[Norms], experiment: Experiment
) -> None:
    console = Console(highlight=False)
    last = norms[-1]
    table = Table(title=f"norms of the updates of {users} made-up users of {', '.join(sources)}")
    table.add_column("model")
    for share in norms[0].quantiles():
        table.add_column("median" if share == 0.5 else f"{share:.0%}", justify="right")
    for found in norms:
        name = "start" if found.round == 0 else f"after {found.round} rounds"
        table.add_row(name, *(f"{value:.3g}" for value in found.quantiles().values()))
    console.print(table)
    by_layer = Table(title="median by layer")
    by_layer.add_column("layer")
    for found in norms:
        by_layer.add_column(
            "start" if found.round == 0 else f"after {found.round} rounds", justify="right"
        )
    for name in last.layers:
        by_layer.add_row(name, *(f"{found.layer_medians()[name]:.3g}" for found in norms))
    console.print(by_layer)
    listed = ",".join(f"{value:g}" for value in last.suggested_by_layer)
    together = math.sqrt(sum(value**2 for value in last.suggested_by_layer))
    told = shlex.quote(f"plan.clip_norm_from={json.dumps(sources)}")
    console.print(
        f"Suggested: --set plan.clip_norm={last.suggested:g} --set {told}",
        style="bold",
        markup=False,
        soft_wrap=True,
    )
    console.print(
        f"or, by layer (together {together:.3g}): --set plan.clipping=per-layer"
        f" --set plan.layer_clip_norms=[{listed}] --set {told}",
        markup=False,
        soft_wrap=True,  # one line, so that it can be copied
    )
    if experiment.model.pretrain is not None:
        console.print(
            "The recipe pre-trains on public text: on text that it has seen, updates are smaller"
            " than people's will be."
        )
    console.print(
        "The claim then lists the text as declared public.  People write otherwise than public"
        " text, so take this as a beginning.  The people's corpus was not read.  The recipe says"
        f" clip_norm = {_said(experiment)}."
    )


def _said(experiment: Experiment) -> str:
    plan = experiment.plan
    if plan.clipping == "none":
        return "none"
    return f"{plan.clip_norm:g}" if plan.clip_norm is not None else str(plan.layer_clip_norms)
