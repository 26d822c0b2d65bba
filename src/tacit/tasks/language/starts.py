"""Where a model starts: weights, sizes and tokenizer from one folder.

`tacit model pretrain` writes such a folder, an exported bundle is one, and one comes with tacit
(`tacit.tokenizers.base`).  Naming it in `model.start` is enough: what an experiment leaves out of
[model] and [tokenizer] is filled in from there.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from tacit.config.experiment import Experiment
from tacit.models import weights
from tacit.models.registry import OwnConfig
from tacit.tokenizers.base import base_name, path_of
from tacit.tokenizers.tokenizer import FILE_NAME, Tokenizer

WEIGHTS = "model.safetensors"
_UNSET = Experiment()


def with_start(experiment: Experiment, start: str) -> Experiment:
    """The experiment with another start, whose sizes and tokenizer replace its own.

    Args:
        experiment: of which only the rest is kept.
        start: a folder as `tacit model pretrain` writes it, or the name of a base model.

    Raises:
        ValueError: if the folder has no weights or no tokenizer that can be used.
    """
    folder = path_of(start)
    if not folder.is_dir():
        raise ValueError(
            f"--start must be a folder that `tacit model pretrain` wrote, or base, got {start!r}"
        )
    if not (folder / FILE_NAME).is_file():
        raise ValueError(f"{folder} has no {FILE_NAME}: weights are of no use without theirs")
    kept = {"name": experiment.model.own_factory} if experiment.model.own_factory else {}
    tables = experiment.model_dump() | {
        "model": {"start": start, "seed": experiment.model.seed, **kept},
        "tokenizer": {"accept_oracle": experiment.tokenizer.accept_oracle},
    }
    return fill_in_start(Experiment.from_data(tables, "the experiment with --start"))


def fill_in_start(experiment: Experiment) -> Experiment:
    """The experiment with what it leaves to the folder in `model.start` filled in.

    That is the kind and sizes of the model where [model] has neither, and the tokenizer where
    [tokenizer] names none.  A file of weights, or no start, changes nothing.
    """
    start = experiment.model.start
    if not start or not (folder := path_of(start)).is_dir():
        return experiment
    start = base_name(start) or start
    filled = experiment.changed(model=_sizes(experiment, folder) | {"start": start})
    asked = experiment.tokenizer.model_copy(update={"accept_oracle": False})
    if asked != _UNSET.tokenizer or not (folder / FILE_NAME).is_file():
        return filled
    tokenizer = Tokenizer.load(folder)
    words = {"source": start, "kind": tokenizer.kind, "size": tokenizer.vocab_size}
    return filled.changed(tokenizer=words)


def refuse_other_tokenizer(start: str, tokenizer: Tokenizer) -> None:
    """Raise if a start was trained with another tokenizer: its weights would mean nothing.

    Only sizes could be compared otherwise, and many dictionaries have 10,000 words.  Weights that
    no tokenizer lies beside are trusted.
    """
    folder = path_of(start)
    if folder.is_dir() and (folder / FILE_NAME).is_file() and Tokenizer.load(folder) != tokenizer:
        raise ValueError(
            f"model.start: {start} was trained with the {FILE_NAME} in it, and [tokenizer] asks for"
            " another one; leave [tokenizer] out, or say --start"
        )


def weights_file(start: str) -> Path:
    """The file with the weights of a start, which may be a folder or the name of a base model."""
    path = path_of(start)
    return path / WEIGHTS if path.is_dir() else path


def _sizes(experiment: Experiment, folder: Path) -> dict[str, object]:
    """The name and options of the folder's model, unless the experiment has its own."""
    choice = experiment.model
    is_unset = choice.name in (_UNSET.model.name, choice.own_factory) and not choice.options
    if not is_unset:
        return {}
    config = weights.load_config(folder / WEIGHTS, own_factory=choice.own_factory)
    if isinstance(config, OwnConfig):
        return {"options": dict(config.options)}
    options = asdict(config)
    del options["vocab_size"]
    return {"name": config.kind, "options": options}
