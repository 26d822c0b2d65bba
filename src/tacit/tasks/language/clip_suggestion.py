"""A clip norm from public text alone: how large the updates of made-up users are.

The corpus of the experiment is never opened here (`public_updates` says why, and makes the users).
Updates shrink as a model learns, so they are measured at the start and again after some rounds of
plain averaging.

McMahan et al. 2018, section 2: nearly all updates should be smaller than S, but a larger S needs
more noise, so S is tuned.  The median of the norms, which `tacit model suggest-clip` proposes, is
the beginning that Abadi et al. 2016 name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.config.experiment import Experiment
from tacit.corpus.builtin import load_corpus
from tacit.federated.server import ServerOptimizer, normalised
from tacit.federated.user_update import FedAvg, FedSGD
from tacit.kernels.local_sgd import Weights
from tacit.models.base import LanguageModel, layer_sizes, to_vector
from tacit.public.text import read_public_text
from tacit.tasks.language import assembly
from tacit.tasks.language.public_updates import MadeUpCohort, MadeUpUser, made_up_users
from tacit.tasks.language.starts import fill_in_start
from tacit.tasks.task import Announce
from tacit.tokenizers.public import PublicSource

_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
_SMALLEST_SHARE = 1e-3  # of the whole: a layer that hardly moves still needs a norm above 0


@dataclass(frozen=True)
class Norms:
    """Norms of the updates of some users, over all parameters and by layer.

    `round` counts the rounds of averaging before they were measured; `by_layer` is [users, layers].
    """

    round: int
    layers: tuple[str, ...]
    by_layer: NDArray[np.float64]

    @property
    def overall(self) -> NDArray[np.float64]:
        """The norm of each user's whole update: sqrt(sum_j |update_j|^2)."""
        whole: NDArray[np.float64] = np.sqrt((self.by_layer**2).sum(1))
        return whole

    def as_row(self) -> dict[str, Any]:
        """The quantiles of the overall norm and each layer's median, by name, for scripts."""
        medians = np.median(self.by_layer, axis=0).tolist()
        quantiles = np.quantile(self.overall, _QUANTILES).tolist()
        return {
            "round": self.round,
            "quantiles": {f"{q:g}": norm for q, norm in zip(_QUANTILES, quantiles, strict=True)},
            "layer_medians": dict(zip(self.layers, medians, strict=True)),
        }

    @property
    def suggested(self) -> float:
        """S for flat clipping: the median, in two digits."""
        return float(f"{np.median(self.overall):.2g}")

    @property
    def suggested_by_layer(self) -> list[float]:
        """S_j for per-layer clipping: the layers' medians, in two digits."""
        least = _SMALLEST_SHARE * np.median(self.overall)
        return [float(f"{max(norm, least):.2g}") for norm in np.median(self.by_layer, axis=0)]


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
    experiment = fill_in_start(experiment)
    nobody = load_corpus("synthetic:users=20,words=1")
    tokenizer = assembly.tokenizer_of(experiment, nobody).tokenizer
    start = assembly.StartingModel.of(experiment, tokenizer, nobody, announce)
    cohort = max(2, users // 3)
    announce("cutting public text into users", 0, 1)
    texts = [text for source in sources for text in _read_texts(source)]
    count = users + rounds * cohort
    people = made_up_users(texts, tokenizer.encode, experiment.corpus.max_tokens_per_user, count)
    update, server = assembly.user_update(experiment), assembly.server_optimizer(experiment)
    cohorts = [cohort] * rounds
    return norms_of(start.model, update, server, people, tokenizer.bos, cohorts, announce)


def _read_texts(source: str) -> list[str]:
    """The texts of a file, or of a public text that comes with tacit."""
    if not Path(source).is_file():
        return PublicSource(source).texts()
    public = read_public_text([source])
    return public.train + public.held_out


def norms_of(
    model: LanguageModel,
    update: FedAvg | FedSGD,
    server: ServerOptimizer,
    users: Sequence[MadeUpUser],
    bos: int,
    cohorts: Sequence[int],
    announce: Announce,
) -> list[Norms]:
    """Norms at the start, and after a round of averaging over a cohort of each of these sizes.

    Users who are averaged over are not measured: the others are, both times.
    """
    # Spread: neighbours in the text go to different parts.
    order = np.random.default_rng(0).permutation(len(users))
    *trained, tested = np.split(order, np.cumsum(cohorts, dtype=int))
    total, done = len(order) + len(tested) * bool(cohorts), 0
    computing = MadeUpCohort(model, update, users, bos)

    def updates(part: Iterable[int], round: int, start: Weights) -> Iterator[Weights]:
        nonlocal done
        for each in computing.updates(part, round, start):
            done += 1
            announce("users' updates on public text", done, total)
            yield each

    weights = to_vector(model)
    results = [_norms(model, 0, updates(tested, 0, weights))]
    state = server.initial(len(weights))
    for round, part in enumerate(trained):
        average = np.mean([*updates(part, round, weights)], axis=0)
        weights, state = server.apply(weights, average.astype(np.float64), state)
        weights = normalised(model, weights)
    if cohorts:
        results.append(_norms(model, len(cohorts), updates(tested, len(cohorts), weights)))
    return results


def _norms(model: LanguageModel, round: int, updates: Iterable[Weights]) -> Norms:
    """The norm of each layer of each update, in float64."""
    cuts = np.cumsum(layer_sizes(model))[:-1]
    rows = [
        [np.linalg.norm(layer.astype(np.float64)) for layer in np.split(update, cuts)]
        for update in updates
    ]
    return Norms(round, tuple(name for name, _ in model.parameter_vectors()), np.array(rows))
