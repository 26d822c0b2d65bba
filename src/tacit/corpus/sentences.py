"""Texts cut into sentences: for corpora whose records are to be short.

Whoever trains on records, or counts by them, takes each text for one.  A text of a transcript may
have hundreds of words, where the records of Thakkar et al. 2020 are single sentences.

A sentence ends at a line's end, and behind `.`, `!`, `?` and what closes a quotation, where a blank
follows (in Chinese and Japanese none has to).  A full stop behind a title or an initial ends
nothing.  Nothing is lost but the blanks between sentences, and no sentence is empty.
"""

from __future__ import annotations

import re

_END = re.compile(r"[.!?\u2026]+[\"'\u2019\u201d)\]]*(?=\s)|[\u3002\uff01\uff1f]+|\n")
_NO_END = re.compile(r"(?:^|[\s(\"'])(?:[^\W\d_]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs)\.$")


def sentences(text: str) -> list[str]:
    """The sentences of a text, in their order."""
    pieces, start = [], 0
    for end in _END.finditer(text):
        if not _NO_END.search(text, start, end.end()):
            pieces.append(text[start : end.end()])
            start = end.end()
    pieces.append(text[start:])
    return [piece.strip() for piece in pieces if not piece.isspace() and piece]
