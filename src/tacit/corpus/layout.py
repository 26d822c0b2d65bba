"""The files of a corpus directory, and what is in them.

    corpus.json     format, counts, options, salt, fingerprint, whose text it is, and the sizes
                    and digests of the other files
    users.arrow     one row per user, in order: id, offset, texts, words
    texts.arrow     one row per text, a user's texts next to each other: text, held_out
    lines.json      a sample of lines, hashed with the salt, to find them again elsewhere

A user's texts are the rows offset .. offset + texts of texts.arrow.  Both tables are Arrow IPC
files of one record batch each, without compression: mapped into memory, one batch costs the same
to open whatever its size, and a user is read from where the user is.
"""

from __future__ import annotations

import pyarrow as pa

FORMAT = "tacit corpus"
VERSION = 2
META = "corpus.json"
USERS = "users.arrow"
TEXTS = "texts.arrow"
LINES = "lines.json"

USERS_SCHEMA = pa.schema(
    [
        ("id", pa.binary(16)),
        ("offset", pa.uint64()),
        ("texts", pa.uint32()),
        ("words", pa.uint64()),
    ]
)
TEXTS_SCHEMA = pa.schema([("text", pa.large_string()), ("held_out", pa.bool_())])
SCHEMAS = {USERS: USERS_SCHEMA, TEXTS: TEXTS_SCHEMA}
