"""Ingest in a few lines: all in memory, one user at a time, straight from the description."""

import hashlib
import hmac


def sha(label, *parts):
    return hashlib.sha256(b"tacit corpus " + label + b"\0" + b"".join(parts)).digest()


def grouped(records, salt, *, max_texts=None, min_texts=1, min_words=0, held_out=0.1, test=0.1):
    """[(hashed id, [(text, is held out)], is test user)] of (user, texts, order number) records."""
    users = {}
    for user, texts, order in records:
        key = sha(b"user", user.encode())[:16]
        sized = (len(t.encode()).to_bytes(8, "big") + t.encode() for t in texts)
        place = sha(b"texts", key, *sized)[:8]
        rows = [(order, place, position, text) for position, text in enumerate(texts)]
        users.setdefault((key, user), []).extend(rows)
    out = []
    for (key, user), rows in sorted(users.items()):
        texts = [text for *_, text in sorted(rows)]
        if len(texts) >= min_texts and sum(len(t.split()) for t in texts) >= min_words:
            marks = [draw(sha(b"held-out", key, t.encode())) < held_out for t in texts]
            hashed = hmac.new(salt, user.encode(), "sha256").hexdigest()[:32]
            kept = list(zip(texts, marks, strict=True))[:max_texts]
            out.append((hashed, kept, draw(key) < test))
    return out


def draw(digest):
    return int.from_bytes(digest[:8], "big") / 2**64
