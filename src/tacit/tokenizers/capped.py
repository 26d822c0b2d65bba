"""Users' tokens up to a cap, without tokenizing much of what the cap cuts off.

A user may have written a hundred times more than the cap keeps.  So texts are tokenized until there
are enough tokens: as many texts at a time as will do by the characters that a token takes, which is
known from the texts before, and of a long text only its beginning.  The result is the same as if
all of it had been tokenized and then cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tacit.tokenizers.normalisation import WHITE_SPACE
from tacit.tokenizers.tokenizer import Tokenizer

_SEEN_TEXTS, _SEEN_CHARACTERS = 20, 200  # at first, to learn the characters per token
_MARGIN = 1.1  # of characters beyond the expected ones: a second try costs more
_SPACE = re.compile(f"[{WHITE_SPACE}]")


@dataclass
class _User:
    """A user whose tokens are not all known yet."""

    texts: Sequence[str]
    ids: list[int] = field(default_factory=list)
    done: int = 0  # texts
    characters: int = 0  # of these texts
    patience: float = 1.0  # more characters are taken after each try that was too short


@dataclass
class CappedEncoder:
    """Tokenizes users up to a cap; None is no cap.

    What it remembers of users is how many characters a token took: that decides about the work and
    never about the tokens.
    """

    tokenizer: Tokenizer
    cap: int | None
    _characters: int = 0
    _tokens: int = 0

    def encode(self, users: Sequence[Sequence[str]]) -> list[list[int]]:
        """For each user the tokens of the texts, BOS to EOS, one after the other, up to the cap."""
        if self.cap is None:
            encoded = iter(self.tokenizer.encode_batch([text for own in users for text in own]))
            return [[id for _ in own for id in next(encoded)] for own in users]
        if not self._tokens:
            self._look_at(users)
        everybody = [_User(own) for own in users]
        while pending := [user for user in everybody if self._lacks_tokens(user)]:
            chosen = [(user, *part) for user in pending for part in self._next_parts(user)]
            encoded = iter(self.tokenizer.encode_batch([part for _, part, _ in chosen]))
            for (user, part, is_whole), ids in zip(chosen, encoded, strict=True):
                self._take(user, part, is_whole, ids)
        for user in everybody:
            self._characters += user.characters
            self._tokens += len(user.ids)
        return [user.ids[: self.cap] for user in everybody]

    def _look_at(self, users: Sequence[Sequence[str]]) -> None:
        """Learn from the beginnings of some texts how many characters a token takes."""
        starts = [text[:_SEEN_CHARACTERS] for own in users[:_SEEN_TEXTS] for text in own[:1]]
        self._characters = sum(map(len, starts)) + 1
        self._tokens = sum(map(len, self.tokenizer.encode_batch(starts))) + 1

    def _lacks_tokens(self, user: _User) -> bool:
        assert self.cap is not None
        return len(user.ids) < self.cap and user.done < len(user.texts)

    def _next_parts(self, user: _User) -> list[tuple[str, bool]]:
        """As many of the next texts as will probably do, and whether each is a whole text."""
        assert self.cap is not None
        rate = self._rate(user)
        room = (self.cap - len(user.ids)) * rate * user.patience
        parts: list[tuple[str, bool]] = []
        for text in user.texts[user.done :]:
            part = self._beginning(text, round(room * _MARGIN))
            parts.append((part, len(part) == len(text)))
            room -= len(part) + 2 * rate  # with BOS and EOS
            if room <= 0:
                break
        return parts

    def _rate(self, user: _User) -> float:
        """The characters per token of this user, or of those before."""
        if len(user.ids) > 100:
            return user.characters / len(user.ids)
        return self._characters / self._tokens

    def _beginning(self, text: str, characters: int) -> str:
        """At least so many characters of a text, up to a space; the text if it has no more."""
        if len(text) <= characters or not self.tokenizer.splits_at_spaces:
            return text
        space = _SPACE.search(text, characters)
        return text[: space.start()].rstrip(WHITE_SPACE) or text if space else text

    def _take(self, user: _User, part: str, is_whole: bool, ids: list[int]) -> None:
        """Add the tokens of a text, or of its beginning if they are enough; else try again."""
        assert self.cap is not None
        if not is_whole:
            ids = ids[:-1]  # the text does not end there
            if len(user.ids) + len(ids) < self.cap:
                user.patience *= 1.25
                return
        user.ids += ids
        user.done += 1
        user.characters += len(part)
