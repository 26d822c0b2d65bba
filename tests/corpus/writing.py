"""The same rows in every format that is read."""

import csv
import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq

FORMATS = ["csv", "tsv", "jsonl", "parquet"]
COMPRESSION = ["", ".gz", ".zst"]


def packed(data, suffix):
    if suffix == ".gz":
        return gzip.compress(data, mtime=0)
    if suffix == ".zst":
        return pa.compress(data, codec="zstd", asbytes=True)
    return data


def as_bytes(rows, columns, format):
    """Rows (tuples in the order of the columns) as a file of the format."""
    if format in ("csv", "tsv"):
        text = io.StringIO()
        delimiter = "," if format == "csv" else "\t"
        writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
        return text.getvalue().encode()
    if format == "jsonl":
        lines = (json.dumps(dict(zip(columns, row, strict=True))) for row in rows)
        return "".join(line + "\n" for line in lines).encode()
    sink = pa.BufferOutputStream()
    values = list(zip(*rows, strict=True)) or [[] for _ in columns]
    pq.write_table(
        pa.table({name: list(column) for name, column in zip(columns, values, strict=True)}), sink
    )
    return sink.getvalue().to_pybytes()


def write(folder, name, rows, columns=("user", "text"), compression=""):
    """Write rows under a name that says the format; returns the path."""
    path = folder / f"{name}{compression}"
    data = as_bytes(rows, columns, name.rpartition(".")[2])
    path.write_bytes(packed(data, compression))
    return path


def content(corpus):
    """All that the oracle says, read back from a corpus."""
    tests = len(corpus.test)
    return [
        (
            corpus.user_id(i),
            list(zip(corpus.texts(i), corpus.held_out_mask(i).tolist(), strict=True)),
            i < tests,
        )
        for i in range(len(corpus))
    ]
