"""Pre-training BERT on public text as a masked language model, before anything private is touched.

Dupuy et al. 2021, section 4.2: the paper's BERT is "pretrained on a combination of Wikipedia
articles dataset and One Billion Word corpus using the masked language modeling task".  Nothing here
protects anybody.

With the same seed, threads and machine a run gives the same model, unless it is cut by `minutes`.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from torch import Tensor
from torch.nn import functional
from transformers import BertForMaskedLM, BertTokenizer

from tacit.models.bert import BertSizes, states
from tacit.public.masking import MaskedBatch, Masking, Sequences
from tacit.public.steps import (
    Observers,
    Outcome,
    Point,
    Progress,
    Settings,
    Stepped,
    own_randomness,
    run_steps,
)
from tacit.tokenizers import provenance as origins
from tacit.tokenizers.wordpiece import PieceVocabulary

Measure = Callable[[BertForMaskedLM], Mapping[str, Any]]


@dataclass(frozen=True)
class MaskedSettings(Settings):
    """How to train; `unroll` is the longest sequence, [CLS] and [SEP] among its pieces.

    `bfloat16` multiplies in half the precision: about twice as fast where the processor knows it.
    """

    learning_rate: float = 1e-3
    warmup_steps: int = 200
    unroll: int = 48
    masked_share: float = 0.15
    bfloat16: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer != "adam":
            raise ValueError(f"optimizer must be adam for a masked model, got {self.optimizer!r}")
        if not self.unroll >= 3:
            raise ValueError(f"unroll must be at least 3 for a masked model, got {self.unroll}")
        if not 0 < self.masked_share < 1:
            raise ValueError(f"masked_share must be above 0 and below 1, got {self.masked_share}")


@dataclass(frozen=True)
class MaskedScore:
    """How well masked pieces are found."""

    perplexity: float
    accuracy: float  # share of them that are the first choice
    targets: int

    def as_row(self) -> dict[str, Any]:
        """As JSON, which has no infinity."""
        finite = self.perplexity if math.isfinite(self.perplexity) else None
        return {"perplexity": finite, "accuracy": self.accuracy, "targets": self.targets}


def new_model(
    sizes: BertSizes, counts: npt.NDArray[np.int64], seed: int, vectors: Tensor | None = None
) -> BertForMaskedLM:
    """A network that knows how frequent pieces are, by the bias of its last layer.

    Without that it would spend its first hundreds of steps on learning it.  `vectors` are its
    first word vectors; rows of zeros stay random.
    """
    if len(counts) != sizes.pieces:
        raise ValueError(f"counts must be of all {sizes.pieces} pieces, got {len(counts)}")
    with own_randomness(seed, 0):
        model = BertForMaskedLM(sizes.hugging_face())  # type: ignore[no-untyped-call]
    with torch.no_grad():
        model.cls.predictions.decoder.bias.copy_(torch.from_numpy(_log_shares(counts)))
        if vectors is not None:
            words = model.bert.embeddings.word_embeddings.weight
            words.copy_(torch.where(vectors.any(dim=1, keepdim=True), vectors, words))
    return model


def pretrain_masked(
    model: BertForMaskedLM,
    sequences: Sequences,
    masking: Masking,
    settings: MaskedSettings,
    *,
    measure: Measure | None = None,
    progress: Callable[[Progress], None] | None = None,
    on_point: Callable[[Point], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Train the model in place.  It is left in training mode; tokens are pieces of text read.

    `measure` is called every `measure_every` steps and at the end, and its figures become points of
    the curve; its time does not count as training.
    """
    if not len(sequences):
        raise ValueError("there is no text to train on: give at least one sequence")
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98))
    model.train()

    def step(pieces: Tensor, rate: float) -> Stepped:
        batch = masking.masked(pieces)
        loss = _step(model, optimizer, rate, batch, settings)
        return Stepped(loss, 1, int(batch.mask.sum()) - 2 * len(pieces))

    return run_steps(
        _batches(sequences, settings),
        step,
        settings,
        math.ceil(settings.epochs * sequences.pieces),
        Observers(None if measure is None else lambda: measure(model), progress, on_point, clock),
    )


def held_out_batches(
    sequences: Sequences, masking: Masking, *, batch: int = 64, seed: int = 0
) -> list[MaskedBatch]:
    """The same pieces hidden in the same way every time, so that figures compare."""
    found = []
    for number, pieces in enumerate(sequences.in_order(batch)):
        with own_randomness(seed, number):
            found.append(masking.masked(pieces))
    if not found:
        raise ValueError("there is no text to measure on: give at least one sequence")
    return found


@torch.no_grad()
def score(model: BertForMaskedLM, batches: list[MaskedBatch]) -> MaskedScore:
    """The model on held-out text; it is left in the mode it was in."""
    training = model.training
    model.train(False)
    try:
        return _scored(lambda batch: functional.log_softmax(_logits(model, batch), dim=1), batches)
    finally:
        model.train(training)


def score_unigram(counts: npt.NDArray[np.int64], batches: list[MaskedBatch]) -> MaskedScore:
    """The baseline that knows the pieces' frequencies in the training text and no context."""
    shares = torch.from_numpy(_log_shares(counts))
    return _scored(lambda batch: shares.expand(len(batch.targets), -1), batches)


def _scored(
    log_probabilities: Callable[[MaskedBatch], Tensor], batches: list[MaskedBatch]
) -> MaskedScore:
    loss, right, targets = 0.0, 0, 0
    for batch in batches:
        found = log_probabilities(batch)
        loss += float(functional.nll_loss(found.double(), batch.targets, reduction="sum"))
        right += int((found.argmax(dim=1) == batch.targets).sum())
        targets += len(batch.targets)
    mean = loss / targets
    return MaskedScore(math.exp(mean) if mean < 700 else math.inf, right / targets, targets)


def _logits(model: BertForMaskedLM, batch: MaskedBatch) -> Tensor:
    """Of the chosen pieces only: the vocabulary is the widest layer, and most need no answer."""
    logits: Tensor = model.cls(states(model.bert, batch.inputs, batch.mask)[batch.chosen])
    return logits.float()


def _log_shares(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Of each piece, with one added to each count."""
    shares = (counts + 1.0) / (counts + 1.0).sum()
    logs: npt.NDArray[np.float32] = np.log(shares).astype(np.float32)
    return logs


def _batches(sequences: Sequences, settings: MaskedSettings) -> Iterator[Tensor]:
    for epoch in range(math.ceil(settings.epochs)):
        yield from sequences.epoch(settings.batch, settings.seed, epoch)


def _step(
    model: BertForMaskedLM,
    optimizer: torch.optim.Optimizer,
    rate: float,
    batch: MaskedBatch,
    settings: MaskedSettings,
) -> float:
    for group in optimizer.param_groups:
        group["lr"] = rate
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=settings.bfloat16):
        logits = _logits(model, batch)
    loss = functional.cross_entropy(logits, batch.targets)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
    optimizer.step()
    return loss.item()


# A pre-trained BERT as a folder: HuggingFace's layout, and where it comes from.
#
# config.json, model.safetensors, tokenizer.json, tokenizer_config.json and vocab.txt are as
# HuggingFace's own tools read them.  origin.json says on which public text weights and vocabulary
# were learnt (design rule 9), with a digest of each of these files, so that it cannot end up beside
# others by accident.  A folder without it is of unknown origin, which voids a guarantee unless
# somebody declares where it is from.

ORIGIN = "origin.json"
_DECIDING = ("config.json", "model.safetensors", "tokenizer.json", "vocab.txt")


def write_folder(
    folder: Path,
    model: BertForMaskedLM,
    vocabulary: PieceVocabulary,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Fill a folder, which the caller puts in its place when it is whole.

    `facts` are what origin.json should say besides: texts, settings, figures.
    """
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(_weights(model))
    (folder / "vocab.txt").write_text("\n".join(vocabulary.pieces) + "\n", encoding="utf-8")
    tokenizer = BertTokenizer(
        vocab={piece: id for id, piece in enumerate(vocabulary.pieces)},
        do_lower_case=vocabulary.lower_case,
        model_max_length=model.config.max_position_embeddings,
    )
    tokenizer.save_pretrained(folder)
    origin = {
        "provenance": vocabulary.provenance,
        **(facts or {}),
        "sha256": {name: _digest(folder / name) for name in _DECIDING},
    }
    text = json.dumps(origin, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    (folder / ORIGIN).write_text(text, encoding="utf-8")


def origin_of(folder: str | Path) -> str:
    """The provenance of a folder's weights and vocabulary; "unknown" where nothing says it.

    `ValueError` if origin.json is damaged or about other files.
    """
    folder = Path(folder)
    path = folder / ORIGIN
    if not path.is_file():
        return origins.UNKNOWN
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        stated, digests = str(content["provenance"]), dict(content["sha256"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{path} is damaged: it does not say where the model is from") from None
    for name in _DECIDING:
        if not (folder / name).is_file() or _digest(folder / name) != digests.get(name):
            raise ValueError(
                f"{path} is about another {name}: it was changed, or taken away, after"
                " `tacit model pretrain --mlm` wrote it; delete origin.json and declare the"
                " provenance"
            )
    return origins.check(stated)


def load_vocabulary(folder: str | Path, provenance: str | None = None) -> PieceVocabulary:
    """The vocabulary of a folder; to name a provenance declares it for a folder without one."""
    known = origin_of(folder)
    if provenance is not None and known not in (origins.UNKNOWN, provenance):
        raise ValueError(f"{folder} says that it is {known!r}, and cannot be {provenance!r}")
    return PieceVocabulary.load(folder, provenance=provenance or known)


def _weights(model: BertForMaskedLM) -> bytes:
    """As the model's own `save_pretrained` writes them, which would draw bars on the terminal."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in model.state_dict().items():
        # The last layer's weights are the word vectors again, and safetensors wants them once.
        if value.data_ptr() not in seen:
            tensors[name] = value.contiguous()
        seen.add(value.data_ptr())
    return safetensors.torch.save(tensors, {"format": "pt"})


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
