"""A tokenizer from what a private model says: Bagdasaryan et al. 2022, Algorithm 1 and section 4.2.

Guarantee: it costs no privacy.  The texts are computed from the released model, its old tokenizer
and randomness that knows no user, so all that is learnt from them is post-processing of a release.
That is as good as the release: the words of an old tokenizer that voids the guarantee come back in
the model's texts, so the new tokenizer is marked as the old one was.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, get_args

import tokenizers
from tokenizers import models

from tacit.tokenizers import build, provenance
from tacit.tokenizers import normalisation as normalisations
from tacit.tokenizers.normalisation import Normalisation
from tacit.tokenizers.tokenizer import Kind, Tokenizer


def tokenizer_from_samples(
    texts: Iterable[str], old: Tokenizer, *, kind: Kind, size: int, of: str
) -> Tokenizer:
    """A tokenizer learnt from texts that a model with the tokenizer `old` said.

    Words are what they were: the normalisation is that of `old`.  `of` names the private release
    that the model is, for the provenance.
    """
    marked = provenance.post_processing(of)
    normalisation = normalisation_of(old)
    texts = list(normalisations.strings(texts))
    if not any(normalisations.split_words(texts, normalisation)):
        raise ValueError(
            f"texts must have words to learn a tokenizer from, and these {len(texts):,} have none"
        )
    return build.learn(
        kind,
        texts,
        size,
        normalisation=normalisation,
        provenance=marked if old.why_void is None else old.provenance,
    )


def normalisation_of(tokenizer: Tokenizer) -> Normalisation:
    """Which normalisation a tokenizer was built with, from its file; `ValueError` for another's."""
    found = json.loads(tokenizer.to_json()).get("normalizer")
    for known in get_args(Normalisation):
        if found == _written(known):
            return known  # type: ignore[no-any-return]
    names = " or ".join(map(repr, get_args(Normalisation)))
    raise ValueError(
        f"the normaliser of the old tokenizer is not that of the normalisation {names}, so that the"
        " words of a new one would be other words"
    )


def _written(normalisation: Normalisation) -> Any:
    """The normaliser as tokenizer.json has it."""
    backend = tokenizers.Tokenizer(models.BPE())
    if (rule := normalisations.normalizer(normalisation)) is not None:
        backend.normalizer = rule
    return json.loads(backend.to_str())["normalizer"]
