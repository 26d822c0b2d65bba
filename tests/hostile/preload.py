"""What is imported late, read while this process may still read where Python lies."""

import codecs
import encodings.idna  # noqa: F401

import tacit.runs.card
import tacit.tasks.language.trainer
import tests.hostile.acts  # noqa: F401

for _codec in ("unicode-escape", "raw-unicode-escape", "latin-1", "ascii", "utf-16", "cp437"):
    codecs.lookup(_codec)
tacit.runs.card.templates().get_template("card-language.md.j2")
