"""A pre-trained BERT as a folder: HuggingFace's layout, and where it comes from.

config.json, model.safetensors, tokenizer.json, tokenizer_config.json and vocab.txt are as
HuggingFace's own tools read them.  origin.json says on which public text weights and vocabulary
were learnt (design rule 9), with a digest of each of these files, so that it cannot end up beside
others by accident.  A folder without it is of unknown origin, which voids a guarantee unless
somebody declares where it is from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor
from transformers import BertForMaskedLM, BertTokenizer

from tacit.tokenizers import provenance as origins
from tacit.tokenizers.piece_vocabulary import PieceVocabulary

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
