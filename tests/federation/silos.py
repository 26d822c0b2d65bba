"""A federation of silos in one process: the people of the small corpus, dealt out to three."""

from pathlib import Path

from tacit.corpus.builtin import enrolment_name
from tacit.corpus.store import Corpus
from tacit.federation import keys
from tacit.federation.own_ledger import Consent
from tacit.federation.roster import Roster
from tacit.federation.silo import People, Silo
from tacit.federation.silo_ledger import SiloLedger
from tests.runs.small import experiment, make_folder

SILOS = 3
WHO = "the board of the three hospitals"


class SiloWorld:
    """A corpus, its people in silos by a hash of their ids, and one experiment for both ways."""

    def __init__(self, folder: Path, rounds: int = 4, *, secure: bool = False, **update) -> None:
        self.folder = make_folder(folder)
        self.corpus = Corpus.open(folder / "corpus")
        self.enrolled = folder / "enrolled"
        enrolment = keys.make_server(self.enrolled, ["127.0.0.1"], people=self.corpus.identity)
        self.parts = [self.corpus.train.part(number + 1, SILOS) for number in range(SILOS)]
        authority = (self.enrolled / "ca.pem").read_text()
        made = [keys.ClientKey.generate(authority, silo=len(part)) for part in self.parts]
        self.keys = {key.id: key for key in made}
        self.people = list(self.keys)  # as clients are called in `small`
        self.roster = Roster.of(enrolment.add([key.enrolled() for key in made]))
        everybody = len(self.corpus.train)
        turns = {"sampling": "min-separation", "separation": 2}
        plan = turns | {"cohort": everybody / 2, "population": everybody}
        self.simulated = experiment(
            folder, rounds=rounds, plan=plan | {"population_is_counted": False}, update=update
        )
        self.federated = self._federated(secure)
        self.always_on = self._federated(secure, WHO).changed(
            plan={"sampling": "poisson", "separation": None}
        )
        # Who is where, which only this test and the silos know.
        self.silo_of = {
            part.user_id(index): silo
            for silo, part in zip(self.people, self.parts, strict=True)
            for index in range(len(part))
        }

    def _federated(self, secure: bool, always_on: str = ""):
        source = enrolment_name(
            self.enrolled, str(self.folder / "corpus"), secure_sum=secure, always_on=always_on
        )
        return self.simulated.changed(corpus={"source": source})

    def given(self, silo: str) -> Path:
        return self.folder / f"{silo}.given.jsonl"

    def trainer(self, silo: str, consent: Consent | None = None) -> Silo:
        """A silo that has just been started: all that it remembers is on its disk."""
        part, size = (self.people.index(silo) + 1, SILOS), self.keys[silo].silo
        members = People(self.corpus, size, self.folder / "tokens", part)
        return Silo(members, size, SiloLedger(self.given(silo), consent or Consent()))

    def drawn(self, silo: str) -> dict[tuple[int, int], list[str]]:
        """Whom the silo drew for each round and attempt, by its own record."""
        rows = SiloLedger(self.given(silo), Consent())._rows
        return {
            (row["round"], row["attempt"]): row["people"] for one in rows.values() for row in one
        }
