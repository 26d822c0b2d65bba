"""A released model, made one person's own: trained further on that person's text, on their side.

Guarantee: there is none, and none is needed as long as the result stays where it is.  It is that
person's private data, as the text itself is.  Its folder is for its owner only, holds a file called
PRIVATE, and its weights say what they were trained on; `tacit export` refuses both.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.corpus.files import opened
from tacit.evaluation.accuracy import Metrics, evaluate
from tacit.models import weights
from tacit.models.base import LanguageModel
from tacit.privacy import durable
from tacit.public.pretrain import Settings, StepReport, pretrain
from tacit.runs.stored_model import MODEL_FILE, PRIVATE_MARKER, TOKENIZER_FILE, StoredModel

HELD_OUT = 0.2
PERSONAL = "one person's own text"  # stands among the corpora that weights were trained on
_NOTICE = (
    "This model was trained on one person's text and is that person's private data.\n"
    "It may repeat what they wrote.  Do not share it; tacit export refuses it.\n"
)
_JSON_LINES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True)
class Personalized:
    """The new model, and how well both predict the person's own later text."""

    model: LanguageModel
    texts: int
    held_out_texts: int
    before: Metrics
    after: Metrics

    def as_row(self) -> dict[str, Any]:
        """As JSON: how many texts, and the metrics before and after."""
        rows = {"before": self.before.as_row(), "after": self.after.as_row()}
        for row in rows.values():
            row["tokens"] = row.pop("targets")
        return {"texts": self.texts, "held_out_texts": self.held_out_texts, **rows}

    def save(self, stored: StoredModel, out: Path) -> None:
        """Write a folder that only its owner can read, whole or not at all.

        `stored` is the released model that this one was made from.
        """
        origins = tuple(sorted({*stored.trained_on, PERSONAL}))
        contents = {
            PRIVATE_MARKER: _NOTICE.encode(),
            MODEL_FILE: weights.to_bytes(self.model, trained_on=origins),
            TOKENIZER_FILE: stored.tokenizer.to_json().encode(),
            "personalization.json": json.dumps(self.as_row(), indent=2).encode(),
        }
        with durable.whole_folder(out) as folder:
            for name, data in contents.items():
                durable.write_whole(folder / name, data)


def read_texts(path: Path) -> list[str]:
    """A person's texts in their order: lines of text, or JSON Lines with "text" or "texts"."""
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r} with the user's text")
    texts, users = [], set()
    with opened(path) as stream:
        for number, line in enumerate(stream.lines(), 1):
            if path.suffix.lower() not in _JSON_LINES:
                texts.append(line.strip())
            elif line.strip():
                more, user = _record(line, f"line {number} of {str(path)!r}")
                texts += more
                users |= {user} - {None}
    if len(users) > 1:
        raise ValueError(
            f"{str(path)!r} has the text of {len(users)} users; a model is made one person's own,"
            " so give the text of one"
        )
    return [text for text in texts if text.strip()]


def _record(line: str, where: str) -> tuple[list[str], str | None]:
    """The texts of a line, which may be a string or an object, and whose they are if it says so."""
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"{where} is not JSON") from None  # and must not be quoted
    record = {"text": record} if isinstance(record, str) else record
    texts = record.get("texts", [record.get("text")]) if isinstance(record, dict) else None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f'{where} has neither a string "text" nor a list of strings "texts"')
    return texts, None if record.get("user") is None else str(record["user"])


def personalize(
    stored: StoredModel,
    texts: Sequence[str],
    *,
    epochs: float = 3.0,
    learning_rate: float = 1e-3,
    progress: Callable[[StepReport], None] | None = None,
) -> Personalized:
    """Train a copy of the model on the first four fifths of the texts; measure on the rest."""
    settings = Settings(
        learning_rate=learning_rate,
        schedule="constant",
        warmup_steps=0,
        batch=8,
        epochs=epochs,
    )
    held = max(1, round(HELD_OUT * len(texts)))
    if len(texts) <= held:
        raise ValueError(
            f"the user's text has {len(texts)} texts (lines); at least 2 are needed, because the"
            " last fifth is held out to measure on"
        )
    words = stored.tokenizer
    encoded = words.encode_batch(list(texts))
    train, later = encoded[:-held], encoded[-held:]
    model = copy.deepcopy(stored.model)
    before = evaluate(stored.model, later, bos=words.bos, unk=words.unk)
    pretrain(model, train, settings, bos=words.bos, progress=progress)
    model.eval()
    after = evaluate(model, later, bos=words.bos, unk=words.unk)
    return Personalized(model, len(train), len(later), before, after)


def refuse_personal(path: Path, trained_on: Sequence[str] = ()) -> None:
    """Refuse to export a personalised model, or weights that started from one."""
    if (path / PRIVATE_MARKER).exists():
        raise ValueError(
            f"{path} holds a personalised model, which is one person's private data and is never"
            " exported"
        )
    if PERSONAL in trained_on:
        raise ValueError(
            f"the weights of {path} started from a personalised model, which is one person's"
            " private data, so they are never exported"
        )
