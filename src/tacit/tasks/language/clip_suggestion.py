"""A clip norm from public text alone: the norms of the updates that made-up users would send.

A clip norm chosen on people's text would tell something about them, so the corpus of the experiment
is never opened here.  Public text is cut into users who compute the experiment's own update without
clipping; the median of its norm is what `tacit model suggest-clip` proposes.
"""

from __future__ import annotations

from pathlib import Path

from tacit.config.experiment import Experiment
from tacit.corpus.builtin import load_corpus
from tacit.federated.clip_norms import Norms, measured, pseudo_users
from tacit.kernels.local_sgd import local_sgd_for
from tacit.public.text import read_public_text
from tacit.tasks.language import assembly
from tacit.tasks.task import Announce
from tacit.tokenizers.public import PublicSource


def measure_norms(
    experiment: Experiment, sources: list[str], users: int, rounds: int, announce: Announce
) -> list[Norms]:
    """Norms of made-up users' updates, at the start and after some rounds of averaging them.

    Args:
        experiment: whose model, tokenizer and update are used, and whose corpus is not.
        sources: public texts: files, or names of texts that come with tacit.
        users: how many made-up users are measured.
        rounds: rounds of averaging, by a third as many users each, before measuring again.
        announce: told what is being prepared, how much is done, of how much.
    """
    nobody = load_corpus("synthetic:users=20,words=1")
    tokenizer = assembly.tokenizer_of(experiment, nobody).tokenizer
    start = assembly.StartingModel.of(experiment, tokenizer, nobody, announce)
    cohort = max(2, users // 3)
    announce("cutting public text into users", 0, 1)
    texts = tokenizer.encode_batch([text for source in sources for text in _read_texts(source)])
    people = pseudo_users(texts, experiment.corpus.max_tokens_per_user, users + rounds * cohort)
    return measured(
        start.model,
        assembly.user_update(experiment),
        assembly.server_optimizer(experiment),
        local_sgd_for(start.model),
        people,
        bos=tokenizer.bos,
        rounds=rounds,
        cohort=cohort,
        progress=lambda done, of: announce("users' updates on public text", done, of),
    )


def _read_texts(source: str) -> list[str]:
    """The texts of a file, or of a public text that comes with tacit."""
    if not Path(source).is_file():
        return PublicSource(source).texts()
    public = read_public_text([source])
    return public.train + public.held_out
