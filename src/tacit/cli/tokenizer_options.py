"""What the commands of `tacit tokenizer` share: options, places, and a bar for tokens."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from tacit.cli.options import number, whole_number
from tacit.cli.progress import bar

if TYPE_CHECKING:
    from tacit.evaluation.sampling import Sampling
    from tacit.runs.run import LanguageRun
    from tacit.tokenizers.normalisation import Normalisation
    from tacit.tokenizers.tokenizer import Tokenizer

Tokens = Annotated[
    int, typer.Option(parser=whole_number, metavar="N", help="Tokens to sample from the model.")
]
Temperature = Annotated[
    float, typer.Option(parser=number, metavar="T", help="Below 1: likelier words more often.")
]
TopK = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(parser=whole_number, metavar="K", help="Sample from the K likeliest tokens only."),
]
MaxLength = Annotated[
    int, typer.Option(parser=whole_number, metavar="N", help="Tokens after which a text is cut.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Model = Annotated[
    str, typer.Argument(metavar="RUN[@ROUND]", help="A run; after its last round unless said.")
]

# Names of the options that only mean something where text is sampled.
SAMPLING = ("--tokens", "--temperature", "--top-k", "--max-length")


def given_options(context: typer.Context) -> list[str]:
    """The options that the command line has, as they are written there."""
    from_user = {
        name
        for name in context.params
        if (source := context.get_parameter_source(name)) is not None
        and source.name == "COMMANDLINE"
    }
    return [
        option.opts[0]
        for option in context.command.params
        if option.name in from_user and option.opts[0].startswith("--")
    ]


def check_counts(**counts: int | None) -> None:
    """What is counted has at least one; options are named by their parameters."""
    for name, value in counts.items():
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")


def trial_of(kind: str, size: int, normalisation: Normalisation = "papers") -> Tokenizer:
    """A tokenizer of next to nothing; refuses a kind or a size before anything is spent on it."""
    from tacit.tokenizers import build

    return build.learn(kind, ["a"], size, normalisation=normalisation)  # type: ignore[arg-type]


def check_new(out: Path, what: str) -> None:
    """Before any work: can `out` be made?"""
    if out.exists():
        raise ValueError(f"{out} exists already; name a new {what}")
    above = next(folder for folder in out.absolute().parents if folder.exists())
    if not above.is_dir():
        raise ValueError(f"{out} cannot be made, because {above} is a file")


@contextmanager
def telling(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar for sampled tokens, with their rate."""
    with bar(what) as show:
        began = time.monotonic()

        def tell(done: int, of: int) -> None:
            rate = done / max(time.monotonic() - began, 1e-9)
            show("sampling", done, of, f"{rate:,.0f} tokens/s")

        yield tell


def sampling_of(temperature: float, top_k: int | None, max_length: int) -> Sampling:
    """How text is drawn."""
    from tacit.evaluation.sampling import Sampling

    check_counts(top_k=top_k, max_length=max_length)
    return Sampling(temperature, top_k, max_length)


def key_of(seed: int | None) -> bytes:
    """What decides about the samples; it protects nobody."""
    return secrets.token_bytes(32) if seed is None else sha256(f"samples {seed}".encode()).digest()


def place_of(text: str) -> tuple[Path, int | None]:
    """PLACE or PLACE@ROUND."""
    path, at, round = text.rpartition("@")
    if at and path and round.isdecimal() and not Path(text).exists():
        return Path(path), int(round)
    return Path(text), None


def run_at(text: str) -> tuple[LanguageRun, int | None]:
    """A run and the round that is meant, if one is named."""
    from tacit.runs.run import LanguageRun

    path, round = place_of(text)
    return LanguageRun.open(path), round
