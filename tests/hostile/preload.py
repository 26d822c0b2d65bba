"""What commands import late, read while this process may still read where Python lies."""

import codecs
import encodings.idna  # noqa: F401
import importlib
import pkgutil

import tacit
import tacit.runs.card

for _module in pkgutil.walk_packages(tacit.__path__, "tacit."):
    if "own_models" not in _module.name:
        importlib.import_module(_module.name)
for _codec in ("unicode-escape", "raw-unicode-escape", "latin-1", "ascii", "utf-16", "cp437"):
    codecs.lookup(_codec)
tacit.runs.card.templates().get_template("card-language.md.j2")
