"""Pre-training BERT on public text as a masked language model, before anything private is touched.

Dupuy et al. 2021, section 4.2: the paper's BERT is "pretrained on a combination of Wikipedia
articles dataset and One Billion Word corpus using the masked language modeling task".

A pre-trained model is a folder in HuggingFace's layout: config.json, model.safetensors,
tokenizer.json, tokenizer_config.json and vocab.txt are as HuggingFace's own tools read them.
origin.json says on which public text weights and vocabulary were learnt (design rule 9), with a
digest of each of these files, so that it cannot end up beside others by accident.  A folder without
it is of unknown origin, which voids a guarantee unless somebody declares where it is from.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from torch import Tensor
from torch.nn import functional
from transformers import BertForMaskedLM, BertTokenizer

from tacit.corpus.files import sha256_of
from tacit.models.bert import BertSizes, states
from tacit.privacy.guarantee import finite
from tacit.privacy.records import Count, OpenUnit, Positive, at_least, one_of
from tacit.public.pretrain import Settings, StepReport, own_randomness, run_steps
from tacit.tokenizers.wordpiece import DIGESTED_FILES, ORIGIN_FILE, PieceVocabulary
from tacit_papers.dupuy2021.masking import MaskedBatch, Masking, Sequences


@dataclass(frozen=True)
class MaskedSettings(Settings):
    """How to train; `unroll` is the longest sequence, [CLS] and [SEP] among its pieces.

    `bfloat16` multiplies in half the precision: about twice as fast where the processor knows it.
    """

    optimizer: Annotated[str, one_of("adam")] = "adam"
    learning_rate: Positive = 1e-3
    warmup_steps: Count = 200
    unroll: Annotated[int, at_least(3)] = 48
    masked_share: OpenUnit = 0.15
    bfloat16: bool = False


@dataclass(frozen=True)
class MaskedScore:
    """How well masked pieces are guessed."""

    perplexity: float
    accuracy: float  # share of them that are the first choice
    targets: int

    def as_row(self) -> dict[str, Any]:
        """As JSON, which has no infinity."""
        return {**vars(self), "perplexity": finite(self.perplexity)}


@dataclass(frozen=True)
class MaskedModel:
    """A BERT that guesses masked pieces, its vocabulary, and each piece's count in its text."""

    network: BertForMaskedLM
    vocabulary: PieceVocabulary
    counts: npt.NDArray[np.int64]

    @classmethod
    def new(
        cls,
        sizes: BertSizes,
        vocabulary: PieceVocabulary,
        counts: npt.NDArray[np.int64],
        seed: int,
        vectors: Tensor | None = None,
    ) -> MaskedModel:
        """A network that knows how frequent pieces are, by the bias of its last layer.

        Without that it would spend its first hundreds of steps on learning it.  `vectors` are its
        first word vectors; rows of zeros stay random.
        """
        if len(counts) != sizes.pieces:
            raise ValueError(f"counts must be of all {sizes.pieces} pieces, got {len(counts)}")
        with own_randomness(seed, 0):
            network = BertForMaskedLM(sizes.hugging_face())  # type: ignore[no-untyped-call]
        model = cls(network, vocabulary, counts)
        with torch.no_grad():
            network.cls.predictions.decoder.bias.copy_(model._log_shares())
            if vectors is not None:
                words = network.bert.embeddings.word_embeddings.weight
                words.copy_(torch.where(vectors.any(dim=1, keepdim=True), vectors, words))
        return model

    def train(
        self,
        sequences: Sequences,
        settings: MaskedSettings,
        progress: Callable[[StepReport], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> StepReport:
        """Train in place; the network is left in training mode.  Tokens are pieces of text read.

        `progress` and `clock` are as for `tacit.public.pretrain.pretrain`; returns the last step.
        """
        if not len(sequences):
            raise ValueError("there is no text to train on: give at least one sequence")
        masking = Masking(self.vocabulary, settings.masked_share)
        parameters = self.network.parameters()
        self.network.train()

        def loss(pieces: Tensor) -> tuple[Tensor, int]:
            batch = masking.hide(pieces)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=settings.bfloat16):
                logits = self._logits(batch)
            mean = functional.cross_entropy(logits, batch.targets)
            return mean, int(batch.mask.sum()) - 2 * len(pieces)

        epochs = range(math.ceil(settings.epochs))
        return run_steps(
            (each for n in epochs for each in sequences.epoch(settings.batch, settings.seed, n)),
            loss,
            torch.optim.Adam(parameters, lr=settings.learning_rate, betas=(0.9, 0.98)),
            settings,
            math.ceil(settings.epochs * sequences.pieces),
            progress=progress,
            clock=clock,
        )

    @torch.no_grad()
    def score(self, batches: list[MaskedBatch]) -> MaskedScore:
        """The model on held-out text; it is left in the mode it was in."""
        training = self.network.training
        self.network.train(False)
        try:
            return _score(lambda batch: functional.log_softmax(self._logits(batch), 1), batches)
        finally:
            self.network.train(training)

    def score_unigram(self, batches: list[MaskedBatch]) -> MaskedScore:
        """The baseline that knows the pieces' frequencies in the training text and no context.

        A new network is as good as this, since the frequencies are its last layer's bias.
        """
        shares = self._log_shares()
        return _score(lambda batch: shares.expand(len(batch.targets), -1), batches)

    def save(self, folder: Path, facts: Mapping[str, Any] | None = None) -> None:
        """Fill a folder, which the caller renames when it is whole.

        `facts` are what origin.json should say besides: texts, settings, figures.
        """
        config, vocabulary = self.network.config, self.vocabulary
        config.architectures = [type(self.network).__name__]
        config.save_pretrained(folder)
        (folder / "model.safetensors").write_bytes(self._weights())
        (folder / "vocab.txt").write_text("\n".join(vocabulary.pieces) + "\n", encoding="utf-8")
        tokenizer = BertTokenizer(
            vocab={piece: id for id, piece in enumerate(vocabulary.pieces)},
            do_lower_case=vocabulary.lower_case,
            model_max_length=config.max_position_embeddings,
        )
        tokenizer.save_pretrained(folder)
        origin = {
            "provenance": vocabulary.provenance,
            **(facts or {}),
            "sha256": {name: sha256_of(folder / name) for name in DIGESTED_FILES},
        }
        text = json.dumps(origin, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        (folder / ORIGIN_FILE).write_text(text, encoding="utf-8")

    def _logits(self, batch: MaskedBatch) -> Tensor:
        """The logits of the chosen pieces only: the vocabulary is the widest layer."""
        hidden = states(self.network.bert, batch.inputs, batch.mask)[batch.chosen]
        logits: Tensor = self.network.cls(hidden)
        return logits.float()

    def _log_shares(self) -> Tensor:
        """The log of each piece's share of the text, with one added to each count."""
        shares = (self.counts + 1.0) / (self.counts + 1.0).sum()
        return torch.from_numpy(np.log(shares).astype(np.float32))

    def _weights(self) -> bytes:
        """As the network's own `save_pretrained` writes them, which would draw progress bars."""
        tensors: dict[str, Tensor] = {}
        seen: set[int] = set()
        for name, value in self.network.state_dict().items():
            # The last layer's weights are the word vectors again, and safetensors wants them once.
            if value.data_ptr() not in seen:
                tensors[name] = value.contiguous()
            seen.add(value.data_ptr())
        return safetensors.torch.save(tensors, {"format": "pt"})


def _score(
    log_probabilities: Callable[[MaskedBatch], Tensor], batches: list[MaskedBatch]
) -> MaskedScore:
    """Perplexity and accuracy over all hidden pieces of the batches, summed in float64."""
    loss, right, targets = 0.0, 0, 0
    for batch in batches:
        logs = log_probabilities(batch)
        loss += float(functional.nll_loss(logs.double(), batch.targets, reduction="sum"))
        right += int((logs.argmax(dim=1) == batch.targets).sum())
        targets += len(batch.targets)
    mean = loss / targets
    return MaskedScore(math.exp(mean) if mean < 700 else math.inf, right / targets, targets)
