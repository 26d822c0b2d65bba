"""What an ingest may be told about users and texts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class UserOptions:
    """Splits and caps; each is applied to a user by itself, so that no user affects another.

    test_fraction: this part of the users, by hash of the user id, is for testing.
    held_out_fraction: this part of each user's texts, by hash of user and text, is held out.
    min_texts, min_words: users with less than this in the input are left out.
    max_texts, max_words: only the first so many are kept; a text that goes past max_words is cut
        after the last word that fits.
    """

    test_fraction: float = 0.1
    held_out_fraction: float = 0.1
    min_texts: int = 1
    max_texts: int | None = None
    min_words: int = 0
    max_words: int | None = None

    def __post_init__(self) -> None:
        for name in ("test_fraction", "held_out_fraction"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must be at least 0 and at most 1, got {value}")
        for unit in ("texts", "words"):
            least, most = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if least < 0:
                raise ValueError(f"min_{unit} must be at least 0, got {least}")
            if most is not None and most < 1:
                raise ValueError(f"max_{unit} must be at least 1, got {most}")
            if most is not None and most < least:
                raise ValueError(f"max_{unit} must be at least min_{unit} = {least}, got {most}")
