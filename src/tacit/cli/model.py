"""`tacit model`: what is done to a model before and after private training.

`pretrain` makes a starting point of public text and `suggest-clip` finds a clip norm there, both
before anything private is touched.  `personalize` adapts a released model to one person, on that
person's side.
"""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from tacit.cli import pretrain
from tacit.cli.options import AsJson, ModelArgument, Round, Settings, argument, count, real, text
from tacit.cli.output import check_new_directory, emit, table
from tacit.runs.figures import UNK_COMPETES, percent, perplexity
from tacit.runs.progress import bar

if TYPE_CHECKING:
    from tacit.config.experiment import Experiment
    from tacit.public.pretrain import StepReport
    from tacit.runs.personalization import Personalized

DEFAULT_TEXT = "sotu+chatterbot"

app = typer.Typer(
    help="Pre-train on public text, choose a clip norm, personalize.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.command("pretrain")(pretrain.pretrain)


@app.command("suggest-clip")
def _suggest_clip(
    recipe: str = argument(..., "RECIPE", "A recipe's name or file."),
    public: list[str] | None = text(
        None, "TEXT", f"Public text: sotu, chatterbot, or a file. [default: {DEFAULT_TEXT}]"
    ),
    variant: str | None = text(None, "NAME", "Which of the recipe's variants."),
    settings: Settings = None,
    users: int = count(30, "N", "Users to measure."),
    rounds: int = count(5, "N", "Rounds before measuring again."),
    as_json: AsJson = False,
) -> None:
    """Propose the clip norm S, and S_j by layer, from public text.

    The text is cut into made-up users, who compute the recipe's own update without clipping; the
    median of its norm is proposed.  The corpus of the recipe is not read: a clip norm chosen on
    people's text would tell something about them.

    Examples:

    `tacit model suggest-clip mcmahan2018-small`

    `tacit model suggest-clip my-recipe.toml --public forum.txt --set update.learning_rate=1`
    """
    from tacit.config import recipes
    from tacit.tasks.language.clip_suggestion import measure_norms

    if users < 3:
        raise ValueError(f"--users must be at least 3, got {users}")
    if rounds < 0:
        raise ValueError(f"--rounds must be at least 0, got {rounds}")
    sources = public or [DEFAULT_TEXT]
    experiment = recipes.load(recipe, settings or ()).only(variant)
    _refuse_people(sources, experiment)
    with bar("reading public text") as show:
        norms = measure_norms(
            experiment, sources, users, rounds, lambda what, done, of: show(what, done, of, "")
        )
    last = norms[-1]
    if not last.suggested > 0:
        raise ValueError("no update moved anything: the recipe's learning rate is too small")
    row = {
        "recipe": recipe,
        "public": sources,
        "users": users,
        "clip_norm": last.suggested,
        "layer_clip_norms": last.suggested_by_layer,
        "layers": list(last.layers),
        "measured": [each.as_row() for each in norms],
    }
    emit(row, as_json, lambda console: _print_norms(console, row, experiment))


def _refuse_people(sources: list[str], experiment: Experiment) -> None:
    """Refuse whatever would read people's text: as public text, or for an oracle's tokenizer."""
    from tacit.corpus.builtin import is_builtin

    for source in sources:
        if is_builtin(source) or Path(source).is_dir():
            raise ValueError(
                f"--public {source!r} is a corpus of people's text, and a clip norm found there"
                f" would tell about them; give public text: {DEFAULT_TEXT}, or a file"
            )
    if experiment.tokenizer.source == "oracle":
        raise ValueError(
            f"{experiment.name} learns its tokenizer from people's text, which is not read here;"
            " add --set tokenizer.source=sotu+chatterbot"
        )


def _print_norms(console: Console, row: dict[str, Any], experiment: Experiment) -> None:
    """Both tables, and the --set words that put the suggestion into a recipe."""
    measured = row["measured"]
    when = [f"after {each['round']} rounds" if each["round"] else "start" for each in measured]
    quantiles = measured[0]["quantiles"]
    shares = [">median" if q == "0.5" else f">{float(q):.0%}" for q in quantiles]
    norms = [
        (name, *(f"{value:.3g}" for value in each["quantiles"].values()))
        for name, each in zip(when, measured, strict=True)
    ]
    title = f"norms of the updates of {row['users']} made-up users of {', '.join(row['public'])}"
    console.print(table("model", *shares, title=title, rows=norms))
    medians = [
        (layer, *(f"{each['layer_medians'][layer]:.3g}" for each in measured))
        for layer in row["layers"]
    ]
    headings = (f">{name}" for name in when)
    console.print(table("layer", *headings, title="median by layer", rows=medians))
    source = shlex.quote(f"plan.clip_norm_from={json.dumps(row['public'])}")
    flat = f"Suggested: --set plan.clip_norm={row['clip_norm']:g} --set {source}"
    console.print(flat, style="bold", soft_wrap=True)  # one line each, to be copied
    by_layer = row["layer_clip_norms"]
    console.print(
        f"or, by layer (together {math.hypot(*by_layer):.3g}): --set plan.clipping=per-layer"
        f" --set plan.layer_clip_norms={json.dumps(by_layer, separators=(',', ':'))}"
        f" --set {source}",
        soft_wrap=True,
    )
    if experiment.model.pretrain is not None:
        console.print(
            "The recipe pre-trains on public text: on text that it has seen, updates are smaller"
            " than people's will be."
        )
    plan = experiment.plan
    norm = plan.layer_clip_norms if plan.clip_norm is None else f"{plan.clip_norm:g}"
    console.print(
        "The claim then lists the text as declared public.  People write differently from public"
        " text, so this is a starting point.  The people's corpus was not read.  The recipe says"
        f" clip_norm = {'none' if plan.clipping == 'none' else norm}."
    )


@app.command("personalize")
def _personalize(
    run: ModelArgument,
    user_text: Path = text(..., "FILE", "One person's text: a line each, or JSON Lines."),
    out: Path = text(..., "DIR", "The directory to make, for its owner only."),
    epochs: float = real(3.0, "X", "Passes over the text."),
    lr: float = real(1e-3, "X", "The learning rate (Adam)."),
    round: Round = None,
    as_json: AsJson = False,
) -> None:
    """Train a model further on one person's text, and keep the result for that person.

    The last fifth of the texts is held out to measure on.  The result may repeat what the person
    wrote: it is their private data, is never exported, and belongs on their side.

    Examples:

    `tacit model personalize shared/first --user-text my-messages.txt --out my-model`

    `tacit predict my-model "see you "`
    """
    from tacit.runs import personalization
    from tacit.runs.stored_model import StoredModel

    check_new_directory(out)
    texts = personalization.read_texts(user_text)
    model = StoredModel.open(run, round)
    with bar("personalizing") as show:

        def advance(now: StepReport) -> None:
            show("personalizing", now.share, 1.0, f"step {now.step:,}  loss {now.loss:.3f}")

        personal = personalization.personalize(
            model, texts, epochs=epochs, learning_rate=lr, progress=advance
        )
    personal.save(model, out)
    row: dict[str, Any] = {"out": str(out), "run": str(run), "round": model.round}
    emit(row | personal.as_row(), as_json, lambda console: _print_personal(console, personal, out))


def _print_personal(console: Console, personal: Personalized, out: Path) -> None:
    """Whether the person's own model predicts their later text better than the released one."""
    console.print(
        table(
            "model",
            ">perplexity",
            ">top 1",
            f">top 1 {UNK_COMPETES}",
            title=f"{personal.before.targets:,} tokens of the person's last"
            f" {personal.held_out_texts:,} texts",
            rows=[
                (
                    name,
                    perplexity(metrics.perplexity),
                    percent(metrics.accuracy_top1),
                    percent(metrics.accuracy_top1_unk_competes),
                )
                for name, metrics in (
                    ("as released", personal.before),
                    ("personalized", personal.after),
                )
            ],
        )
    )
    if not personal.after.log_prob > personal.before.log_prob:
        console.print("It did not get better on this person's later text; try a lower --lr.")
    console.print(
        f"In {out}: the person's own model.  It is as private as their text and is never exported."
    )
