"""Small sets on disk, for the tests of reading."""

import gzip
import json
from pathlib import Path

ROWS = [
    ("fly to new york", "O O B-to I-to", "fly"),
    ("what is rome", "O O B-city", "ask"),
    ("fly home today", "O O B-date", "fly"),
]


def write(path: Path, text: str | bytes) -> Path:
    """Plain, or gzip if the name says so."""
    data = text.encode() if isinstance(text, str) else text
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def write_folder(folder: Path, rows=ROWS, suffix: str = "", users=None) -> Path:
    for name, column in (("seq.in", 0), ("seq.out", 1), ("label", 2)):
        write(folder / f"{name}{suffix}", "".join(f"{row[column]}\n" for row in rows))
    if users is not None:
        write(folder / f"user{suffix}", "".join(f"{user}\n" for user in users))
    return folder


def json_lines(rows=ROWS, **more) -> str:
    """`more`: further columns, each a list with a value for each row."""
    records = [
        {"tokens": tokens.split(), "tags": tags.split(), "intent": intent}
        | {name: values[place] for name, values in more.items()}
        for place, (tokens, tags, intent) in enumerate(rows)
    ]
    return "".join(json.dumps(record) + "\n" for record in records)


def comma_separated(rows=ROWS, **more) -> str:
    lines = [",".join(["tokens", "tags", "intent", *more])]
    for place, row in enumerate(rows):
        lines.append(",".join([*row, *(str(values[place]) for values in more.values())]))
    return "\n".join(lines) + "\n"
