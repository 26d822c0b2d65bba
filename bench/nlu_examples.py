"""What clipping every utterance's gradient costs, as a multiple of the mean gradient of a batch.

The models of Dupuy et al. 2021 at their sizes (CLC: two bi-LSTM layers of 384; BERT: four layers,
312 wide), on generated utterances, with as many intents and tags as ATIS has.  All ways run in turn
in one process on one thread, and what is counted is the processor's time, so that a busy machine
slows each alike; a ratio is the median over rounds.  The first argument is the seconds for each
model (45), the second the utterances of a batch (32).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import islice

import numpy as np
import torch

from tacit.models.understanding import UnderstandingModel
from tacit.tasks.nlu.encoding import (
    EncodedUtterances,
    Encoder,
    Labels,
    PieceEncoder,
    WordEncoder,
    encode,
)
from tacit.tasks.nlu.generated import generate
from tacit.tasks.nlu.ghost_clipping import GhostClipping
from tacit.tasks.nlu.gradients import FlatModel, UtteranceGradients
from tacit.tasks.nlu.models import build
from tacit.tokenizers.wordpiece import PieceVocabulary
from tacit_papers.dupuy2021.opacus_gradients import OpacusGradients

INTENTS, TAGS = 26, 127  # of ATIS
WORDS, PIECES = 10_000, 30_522
LEAST_ROUNDS = 3
WAYS: dict[str, Callable[[FlatModel], GhostClipping]] = {
    "ghost": GhostClipping,
    "Opacus": OpacusGradients,
    "one by one": lambda flat: GhostClipping(flat, 1),
}


def filled(names: set[str], count: int) -> tuple[str, ...]:
    """The names, and others that nothing has, so many in all."""
    return tuple(sorted(names)) + tuple(f"unused{place}" for place in range(count - len(names)))


def models(count: int) -> dict[str, tuple[UnderstandingModel, EncodedUtterances]]:
    """Both, each with the same utterances."""
    said = list(islice(generate(count), count))
    labels = Labels(
        filled({each.intent for each in said}, INTENTS),
        filled({tag for each in said for tag in each.tags}, TAGS),
    )
    learnt = PieceVocabulary.learn((" ".join(each.tokens) for each in said), 2_000).pieces
    pieces = (*learnt, *(f"unused{place}" for place in range(PIECES - len(learnt))))
    encoders: dict[str, Encoder] = {
        "clc": WordEncoder.from_public(size=WORDS),
        "bert": PieceEncoder(PieceVocabulary(pieces)),
    }
    return {
        kind: (build(kind, labels, encoder).train(), encode(encoder, labels, said))
        for kind, encoder in encoders.items()
    }


def timed(actions: dict[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Seconds of each in turn, over and over; the first time is for the caches."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(taken["mean gradient"]) <= LEAST_ROUNDS:
        for name, action in actions.items():
            began = time.process_time()
            action()
            taken[name].append(time.process_time() - began)
    return {name: times[1:] for name, times in taken.items()}


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 45.0
    batch = int(sys.argv[2]) if len(sys.argv) > 2 else 32
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for kind, (model, utterances) in models(batch).items():
        flat, units = FlatModel(model), np.arange(batch)
        ways = {
            way: UtteranceGradients(flat, utterances, clipping=clipping(flat))
            for way, clipping in WAYS.items()
        }
        actions: dict[str, Callable[[], object]] = {
            "mean gradient": partial(ways["ghost"].mean, units)
        }
        actions |= {name: partial(way.clipped_sum, units, 1.0) for name, way in ways.items()}
        times = timed(actions, seconds)
        lengths = utterances.lengths
        print(
            f"{kind}, {len(flat):,} parameters, {batch} utterances of {lengths.mean():.1f} tokens"
            f" (at most {lengths.max()}), {len(times['mean gradient'])} rounds"
        )
        print(f"{'':15} {'ms/utterance':>12} {'x mean gradient':>16} {'quartiles':>12}")
        for name, taken in times.items():
            pairs = zip(taken, times["mean gradient"], strict=True)
            low, middle, high = statistics.quantiles([mine / mean for mine, mean in pairs], n=4)
            each = 1000 * statistics.median(taken) / batch
            print(f"{name:15} {each:12.1f} {middle:16.2f} {low:6.2f}-{high:5.2f}")


if __name__ == "__main__":
    main()
