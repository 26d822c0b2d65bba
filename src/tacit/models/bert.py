"""BERT as it is used here (Devlin et al. 2019): its sizes, its states, a tagger, and its weights.

The network itself is HuggingFace's.  Nothing is ever fetched: a model is made from sizes, and
weights come from a local folder with config.json and model.safetensors, of a BertModel or of one
with heads, which are passed over.  No pickle is opened.  Whether the weights are public is not
known here: see `tacit.tokenizers.wordpiece`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Generator, Tensor, nn
from transformers import BertConfig, BertModel

from tacit.models.base import check_sizes
from tacit.models.layers import seeded
from tacit.models.understanding import LinearChainCrf, UnderstandingModel, UtteranceScores
from tacit.models.weights import check_tensors


@dataclass(frozen=True)
class BertSizes:
    """Sizes of a BERT; the defaults are those of Dupuy et al. 2021, section 4.2 (a TinyBERT).

    `pieces` counts the ids of the word-piece vocabulary, `positions` the pieces of the longest
    text.  `width` is that of the stream, split among `heads`, and `intermediate` that of the inner
    layer of each block.
    """

    pieces: int
    width: int = 312
    layers: int = 4
    heads: int = 12
    intermediate: int = 1200
    positions: int = 128
    dropout: float = 0.1

    def __post_init__(self) -> None:
        limits = dict.fromkeys(("width", "intermediate", "positions"), (1, 100_000))
        check_sizes(self, limits | dict.fromkeys(("layers", "heads"), (1, 1000)))
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, {self.heads}, got {self.width}")

    def hugging_face(self) -> BertConfig:
        """The same sizes in HuggingFace's names."""
        return BertConfig(  # type: ignore[call-arg]
            vocab_size=self.pieces,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=self.intermediate,
            max_position_embeddings=self.positions,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            attn_implementation="sdpa",  # the one that takes a mask of booleans
        )


def states(bert: BertModel, pieces: Tensor, mask: Tensor) -> Tensor:
    """The last layer's state of each piece: [B, P, width]; it means nothing where `mask` is False.

    Positions and types are given for every example, though they are the same for all: left to the
    network they are looked up once for the batch, and gradients of each example would be wrong.
    """
    batch, length = pieces.shape
    limit = bert.config.max_position_embeddings
    if length > limit:
        raise ValueError(f"the model has positions for {limit} pieces, got {length}")
    positions = torch.arange(length, device=pieces.device).expand(batch, length)
    # With four dimensions the mask is used as it is, and nothing looks at its values.
    last: Tensor = bert(
        input_ids=pieces,
        attention_mask=mask[:, None, None, :],
        position_ids=positions,
        token_type_ids=torch.zeros_like(pieces),
    ).last_hidden_state
    return last


@dataclass(frozen=True)
class BertTaggerConfig(BertSizes):
    """BERT's sizes, and how many intents and tags there are."""

    intents: int = field(kw_only=True)
    tags: int = field(kw_only=True)

    kind: ClassVar[str] = "bert"


class BertTagger(UnderstandingModel):
    """BERT with an intent layer and a CRF over tags (Dupuy et al. 2021, section 4.2).

        h_p = BERT's state of piece p, of [CLS] w_1 ... w_T [SEP] cut into pieces
        intent logits = W_i h_[CLS] + b_i,   emissions_t = W_e h_(first piece of w_t) + b_e

    as Devlin et al. 2019 classify texts (section 4.1) and tag words (section 5.3).  All layers are
    of kinds that Opacus knows (linear, normalisation, embedding), except for the CRF.

    It reads "pieces" and "piece_mask" [B, P], and "first" [B, T]: where each token begins.  Every
    draw of dropout is torch's.
    """

    def __init__(self, config: BertTaggerConfig, seed: int | Generator = 0) -> None:
        super().__init__()
        self.config = config
        draws = seeded(seed)
        with torch.random.fork_rng(devices=[]):  # HuggingFace draws from torch's own generator
            # On the CPU, whatever the default device: a number has no value on "meta".
            torch.manual_seed(int(torch.randint(2**62, (), generator=draws, device="cpu")))
            self.bert = BertModel(  # type: ignore[no-untyped-call]
                config.hugging_face(), add_pooling_layer=False
            )
            self.dropout = nn.Dropout(config.dropout)
            self.intent = nn.Linear(config.width, config.intents)
            self.emission = nn.Linear(config.width, config.tags)
            for layer in (self.intent, self.emission):
                nn.init.normal_(layer.weight, std=self.bert.config.initializer_range)
                nn.init.zeros_(layer.bias)
        # Constants that `states` gives for each example; they are in no file, and would be left
        # without values in a model that is made on "meta" and filled from one.
        del self.bert.embeddings.position_ids, self.bert.embeddings.token_type_ids
        self.crf = LinearChainCrf(config.tags)

    def scores(self, inputs: dict[str, Tensor], mask: Tensor) -> UtteranceScores:
        """Intent logits from [CLS], emissions from the first piece of each token."""
        vectors = self.dropout(states(self.bert, inputs["pieces"], inputs["piece_mask"]))
        # Where there is no token, `first` is 0; what that emits is masked in the CRF.
        first = inputs["first"].unsqueeze(2).expand(-1, -1, self.config.width)
        return UtteranceScores(self.intent(vectors[:, 0]), self.emission(vectors.gather(1, first)))


# Weights from a local folder in HuggingFace's layout.

_WEIGHTS, _CONFIG = "model.safetensors", "config.json"

_FIELDS = {
    "pieces": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "positions": "max_position_embeddings",
}
# What else decides about a BERT's output; the values are the ones that are built here.
_FIXED = {"model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2}
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def pretrained_sizes(folder: str | Path) -> BertSizes:
    """The sizes of the model in a folder, for a model that is to begin with its weights."""
    folder = Path(folder)
    content = _config(folder)
    try:
        return BertSizes(**{name: content[key] for name, key in _FIELDS.items()})
    except KeyError as missing:
        raise ValueError(f"{folder / _CONFIG} has no {missing}, which a BERT's has") from None
    except ValueError as mistake:
        raise ValueError(f"{folder / _CONFIG} is not valid: {mistake}") from None


def load_pretrained(model: BertTagger, folder: str | Path) -> None:
    """Give the model the folder's weights, in place; its intent layer, tags and CRF stay.

    Raises `ValueError` for a folder of another size or layout, or with weights that are not
    finite.  Nothing is changed if anything is refused.
    """
    folder = Path(folder)
    stored = pretrained_sizes(folder)
    for name, key in _FIELDS.items():
        needed, value = getattr(model.config, name), getattr(stored, name)
        if needed != value:
            raise ValueError(
                f"{folder / _CONFIG} has {key} {value}, and the model wants {needed}: set its"
                f" {name} to {value}, or use another folder"
            )
    parameters = model.bert.state_dict()
    tensors = _read(folder / _WEIGHTS, parameters)
    with torch.no_grad():
        for name, value in parameters.items():
            value.copy_(tensors[name])


def _config(folder: Path) -> dict[str, Any]:
    """The content of the folder's config.json, if it is of a BERT that can be built here.

    Raises `ValueError` for a folder in another layout, with pickled weights only, or of another
    architecture.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; expected one with {_CONFIG} and {_WEIGHTS}")
    if not (folder / _WEIGHTS).is_file() and (folder / "pytorch_model.bin").exists():
        raise ValueError(
            f"{folder} has pytorch_model.bin, a pickle, which can run any code and is not opened;"
            f" convert it to {_WEIGHTS}"
        )
    for name in (_CONFIG, _WEIGHTS):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} has no {name}; expected a BERT in HuggingFace's layout")
    try:
        content = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise ValueError(f"{folder / _CONFIG} is cut off or not valid JSON") from None
    if not isinstance(content, dict):
        raise ValueError(f"{folder / _CONFIG} is no table of settings")
    for name, only in _FIXED.items():
        if content.get(name, only) != only:
            raise ValueError(
                f"{folder / _CONFIG} has {name} {content[name]!r}; only {only!r} can be used"
            )
    return content


def _read(path: Path, expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the names in `expected`, if they have its sizes and are finite."""
    if not path.is_file():  # a pipe would be waited for
        raise ValueError(f"{path} is not a file; expected a model's weights (*.safetensors)")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            stored = {_plain(name): name for name in file.keys()}  # noqa: SIM118
            if missing := sorted(expected.keys() - stored.keys()):
                raise ValueError(f"{path} has no {missing[0]}, which config.json promises")
            tensors = {
                name: file.get_tensor(stored[name]).to(like.dtype)
                for name, like in expected.items()
            }
    except SafetensorError as mistake:
        raise ValueError(f"{path} is truncated, or no safetensors file: {mistake}") from mistake
    check_tensors(path, expected, tensors)
    return tensors


def _plain(name: str) -> str:
    """A tensor's name in a bare BertModel of today."""
    name = name.removeprefix("bert.")
    for old, new in _OLD_NAMES.items():
        name = name.replace(old, new)
    return name
