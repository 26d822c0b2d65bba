"""An exported bundle: the run's ledger, ended by a line that holds the digests of all other files.

The hash of that last line, the bundle's head, says that nothing in the bundle was exchanged; and a
model whose weights, tokenizer or card are not those of the ledger is refused.

A claim is a function of the ledger and of nothing else (design rule 11), so that a bundle is asked
for its guarantee as a run is: `open_release` opens whichever of them a folder holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tacit.corpus.people_ledger import remark_on_others
from tacit.privacy import trusted
from tacit.privacy.documents import fitted, parse_json
from tacit.privacy.events import PostProcessing
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Charge, LedgerError
from tacit.privacy.records import canonical_json
from tacit.runs.run import Run

LEDGER_FILE = "ledger.jsonl"
EXPORTED = "export"  # the kind of the last entry


def sealed_ledger(data: bytes, ledger: Ledger, files: Mapping[str, bytes], round: int) -> bytes:
    """The data of a run's ledger with the last line that makes it a bundle's."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
    note = canonical_json(digests)
    event = PostProcessing("the model and the files that were exported with it")
    digest = hashlib.sha256(note.encode()).hexdigest()
    return data + ledger.line_of(Charge(EXPORTED, round, 0, event, digest, note=note))


def is_bundle(path: Path) -> bool:
    """Whether a folder is a bundle, or was one before something was taken out of it."""
    return (path / LEDGER_FILE).is_file() and not (path / "checkpoints").is_dir()


@dataclass(frozen=True)
class Bundle:
    """A bundle whose files are those that its ledger names.

    `open` refuses any other; a `Bundle` made by hand can be asked for its `faults`.
    """

    path: Path
    ledger: Ledger
    checked_against = "its last line"  # which says how long the ledger has to be
    is_complete = None  # a bundle does not say

    @classmethod
    def open(cls, path: Path | str) -> Bundle:
        """The bundle in a folder; one with a file that is missing, changed or added is refused."""
        trusted.refuse_irregular_in(Path(path))
        bundle = cls(Path(path), Ledger.read(Path(path) / LEDGER_FILE))
        if faults := bundle.faults():
            raise LedgerError(faults[0])
        return bundle

    @property
    def round(self) -> int:
        """The round whose model it holds."""
        return self.ledger.entries[-1].round

    def digests(self) -> dict[str, str]:
        """What its ledger says of its files."""
        last = self.ledger.entries[-1] if self.ledger.entries else None
        if last is None or last.kind != EXPORTED or last.note is None:
            raise LedgerError(
                f"{self.path} is no bundle: the last line of its ledger names no exported files, so"
                " that nothing says which model it is of"
            )
        if hashlib.sha256(last.note.encode()).hexdigest() != last.plan_hash:
            raise LedgerError(f"{self.path}: the last line of its ledger contradicts itself")
        where = f"the last line of {self.ledger.path}"
        return fitted(parse_json(last.note, where), dict[str, str], where)

    def faults(self) -> list[str]:
        """What differs from what the ledger says, a sentence for each file."""
        digests = self.digests()
        said = []
        for name, digest in digests.items():
            file = self.path / name
            if not file.is_file():
                said.append(f"{file} is missing from the bundle")
            elif hashlib.sha256(file.read_bytes()).hexdigest() != digest:
                said.append(f"{file} was changed: the ledger has another digest of it")
        known = {*digests, LEDGER_FILE}
        others = sorted(one.name for one in self.path.iterdir() if one.name not in known)
        return said + [f"{self.path / name} is not of the bundle" for name in others]

    def guarantee(self) -> Guarantee:
        """What may be claimed for the model: that of its run, beside other runs known here."""
        return Guarantee.of(self.ledger).beside(remark_on_others(self.ledger))


def open_release(path: Path | str) -> Run | Bundle:
    """The run or bundle in a folder; one that contradicts its ledger is refused."""
    path = Path(path)
    if is_bundle(path):
        return Bundle.open(path)
    if (path / "model.safetensors").is_file():
        raise ValueError(f"{path} has a model, but no ledger: it was not trained privately")
    return Run.open(path)
