"""What a model has to beat: unigram and bigram models of the people that it was trained on.

They are fitted on the very tokens that a training reads, from its token cache where there is one.
Without noise they are for comparison only: whatever is computed from them is as private as the
text (design rule 5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from tacit.corpus.source import UserCorpus, UserSource
from tacit.evaluation.baselines import Bigram
from tacit.evaluation.scoring import Predictor
from tacit.privacy import scratch
from tacit.runs.stored_model import StoredModel
from tacit.tasks.language.people import People, cache_folder
from tacit.tokenizers.cache import PAPERS_CAP, TokenCache

Tell = Callable[[str, int, int], None]  # what is being done, how far it is, and of how much


def fit_baselines(
    stored: StoredModel, users: UserCorpus, *, is_own: bool, progress: Tell | None = None
) -> dict[str, Predictor]:
    """Unigram and bigram of the training users, unprotected.

    With `is_own` they are fitted on the very text that the model's run was trained on.
    """
    with training_tokens(stored, users, is_own=is_own, progress=progress) as cache:
        tokens = (cache.tokens(user) for user in range(len(cache)))
        bigram = Bigram.fit(tokens, stored.tokenizer.vocab_size, bos=stored.tokenizer.bos)
    return {"unigram": bigram.unigram, "bigram": bigram}


@contextmanager
def training_tokens(
    stored: StoredModel, users: UserCorpus, *, is_own: bool, progress: Tell | None = None
) -> Iterator[TokenCache]:
    """The training users' tokens, as the model's own run reads them with `is_own`.

    They are cached beside the corpus, or else with what is private in the run.
    """
    people: UserSource = users.train
    cap: int | None = PAPERS_CAP
    if stored.run is not None and is_own:
        experiment = stored.run.experiment
        people = People.of(experiment, users).view(experiment, stored.tokenizer)
        cap = experiment.corpus.max_tokens_per_user
    with scratch.folder() as folder:
        otherwise = stored.run.directory.private if stored.run is not None else folder
        yield TokenCache.open_or_build(
            people,
            stored.tokenizer,
            cache_folder(users, otherwise),
            max_tokens_per_user=cap,
            progress=partial(progress, "tokenizing") if progress else None,
        )
