"""Small sources and tokenizers that the tests of this folder share."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache

from hypothesis import strategies as st

from tacit.corpus.source import UserSource
from tacit.tokenizers import build
from tacit.tokenizers.remapping import _Spelling
from tacit.tokenizers.tokenizer import BOS, EOS, UNK, Kind, Tokenizer

KINDS: tuple[Kind, ...] = ("word", "bpe", "wordpiece", "char")
NORMALISATIONS = ("papers", "cased", "none")

PUBLIC = [
    "It was the best of times, it was the worst of times.",
    "The times are changing; isn't that the worst?",
    "A naïve café in Zürich — it’s “open” till 10.",
    "the theatre, the thesis, the therapy: the best of them",
]


@dataclass(frozen=True)
class FakeSource(UserSource):
    """Users' texts from a list."""

    users: tuple[tuple[str, ...], ...]
    is_synthetic_users: bool = False

    def __len__(self) -> int:
        return len(self.users)

    def user_id(self, index: int) -> str:
        return f"{index:032x}"

    def texts(self, index: int) -> list[str]:
        return list(self.users[index])

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.users).encode()).hexdigest()


@dataclass(frozen=True)
class Named(FakeSource):
    """A source whose users carry names of their own."""

    names: tuple[str, ...] = ()

    def user_id(self, index: int) -> str:
        return self.names[index]


@cache
def tokenizer(kind: Kind = "word", normalisation: str = "papers", size: int = 300) -> Tokenizer:
    """A tokenizer learnt from `PUBLIC`."""
    return build.learn(
        kind,
        PUBLIC,
        size,
        normalisation=normalisation,  # type: ignore[arg-type]
        provenance="public: a few sentences",
    )


def token_bytes(tokenizer: Tokenizer) -> list[bytes | None]:
    """The bytes of each token by id; None for BOS, EOS and UNK."""
    return _Spelling.of(tokenizer).tokens


def spelled(tokenizer: Tokenizer, text: bytes) -> list[int]:
    """The ids that spell these bytes."""
    return _Spelling.of(tokenizer).spell(text)


# Text as it is typed, text that spells special tokens, and any Unicode there is.
texts = st.one_of(
    st.text(max_size=40),
    st.lists(
        st.one_of(
            st.sampled_from(
                [
                    *" ".join(PUBLIC).split(),
                    BOS,
                    EOS,
                    UNK,
                    "##he",
                    "don't",
                    "rock’n’roll",
                    "''",
                    "é",
                ]
            ),
            st.text(max_size=6),
            st.sampled_from([" ", "  ", "\n", "\t ", "\u3000", "\x1c", "\u0301", "\u200d", ""]),
        ),
        max_size=12,
    ).map("".join),
    st.lists(st.sampled_from(" ".join(PUBLIC).split()), max_size=12).map(" ".join),
)
