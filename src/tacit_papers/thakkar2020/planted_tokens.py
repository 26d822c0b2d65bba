"""The tokens that an arm trains on, with the canaries in them, in a cache that all arms share.

A view of planted text reads a whole user for each single text, which is slow under the IID view's
random order.  So the text is held in memory while its cache is built.  The cache is the same as
the one that a run would build for itself, and a run that finds it beside its corpus takes it.
"""

from __future__ import annotations

from pathlib import Path

from tacit.config.experiment import Experiment
from tacit.corpus.source import IID, UserSource, View
from tacit.tasks.language.people import People
from tacit.tokenizers.cache import Progress, TokenCache
from tacit.tokenizers.tokenizer import Tokenizer


class InMemory(View):
    """A source with all of its texts read; it has the same fingerprint."""

    def __init__(self, source: UserSource) -> None:
        super().__init__(source)
        self._texts = [source.texts(user) for user in range(len(source))]

    def texts(self, index: int) -> list[str]:
        return self._texts[index]


def planted_tokens(
    people: People,
    experiment: Experiment,
    tokenizer: Tokenizer,
    otherwise: Path,
    progress: Progress | None = None,
) -> TokenCache:
    """The cache beside the corpus, or in the folder `otherwise` where that cannot be."""
    as_written = experiment.changed(corpus={"view": "users"})
    source = people.view(as_written, tokenizer)
    if experiment.corpus.view == "iid":
        source = IID(InMemory(source))
    return TokenCache.open_or_build(
        source,
        tokenizer,
        people.cache_folder(otherwise),
        max_tokens_per_user=experiment.corpus.max_tokens_per_user,
        progress=progress,
    )
