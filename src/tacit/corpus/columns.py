"""Which columns hold the user, the text and the order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# The first of these that a file has, in any case, is taken.
USER_NAMES = (
    "user user_id userid author author_id sender sender_id speaker speaker_id nick nickname"
    " username user_name screen_name handle account participant person client_id uid from name"
).split()
TEXT_NAMES = (
    "text texts body message messages content utterance utterances comment post tweet msg"
    " sentence sentences line query document raw"
).split()


@dataclass(frozen=True)
class Columns:
    """Names of columns; None means: guess (or, for the order, none)."""

    user: str | None = None
    text: str | None = None
    order: str | None = None

    def among(self, names: Sequence[str], path: Path) -> Columns:
        """The columns of a file with these names; guesses become names."""
        user = self._find("user", self.user, USER_NAMES, names, path)
        text = self._find("text", self.text, TEXT_NAMES, names, path)
        if user == text:
            raise ValueError(f"user_column and text_column are both {user!r}")
        order = None
        if self.order is not None:
            order = self._find("order", self.order, [], names, path)
        return Columns(user, text, order)

    @staticmethod
    def _find(
        role: str, wanted: str | None, guesses: Sequence[str], names: Sequence[str], path: Path
    ) -> str:
        listed = ", ".join(map(repr, names)) or "none"
        if wanted is None:
            lower = {name.strip().lower(): name for name in reversed(names)}
            found = next((lower[guess] for guess in guesses if guess in lower), None)
            if found is None:
                raise ValueError(
                    f"{str(path)!r} has no column whose name says that it is the {role}: name one"
                    f" with {role}_column; its columns are {listed}"
                )
            wanted = found
        if wanted not in names:
            raise ValueError(
                f"{str(path)!r} has no column {wanted!r} for the {role}; its columns are {listed}"
            )
        if list(names).count(wanted) > 1:
            raise ValueError(f"{str(path)!r} has more than one column {wanted!r}")
        return wanted


def check_same(first: Sequence[str], first_path: Path, names: Sequence[str], path: Path) -> None:
    """Refuse two files with different columns."""
    if set(first) == set(names):
        return
    odd = sorted(set(first) ^ set(names))
    raise ValueError(
        f"{str(first_path)!r} and {str(path)!r} have different columns: only one of them has"
        f" {', '.join(map(repr, odd))}"
    )
