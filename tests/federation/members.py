"""Clients of secure sums in one process, and a world in which everybody is in every round."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tacit.corpus.builtin import enrolment_name
from tacit.federation.engine import FederatedEngine
from tacit.federation.flower import RecordDict
from tacit.federation.kept_sum import KeptSum
from tacit.federation.participations import FILE, Participations
from tacit.federation.roster import Roster
from tacit.federation.secure_client import SumMember
from tacit.federation.secure_gathering import Masked
from tacit.federation.sum_ledger import SumLedger
from tacit.privacy.ledger import Ledger
from tacit.train import train
from tests.federation.small import PEOPLE, TURNS, World
from tests.runs.small import experiment

ADVERT, SHARES, MASKED, CONFIRMATION, REVEALED = range(5)  # the trips of a sum
LOST = 2  # of eight, of whom six can end a sum

Change = Callable[[int, str, RecordDict], RecordDict | None]


class SecureWorld(World):
    """Eight people, all of whom are asked in each of few rounds."""

    def __init__(self, folder: Path, rounds: int = 2, **plan: object) -> None:
        super().__init__(folder, rounds)
        plan = TURNS | {"cohort": PEOPLE, "separation": 1} | plan
        self.simulated = experiment(folder, rounds=rounds, plan=plan, corpus={"users": PEOPLE})
        source = enrolment_name(self.enrolled, str(folder / "corpus"), secure_sum=True)
        self.federated = self.simulated.changed(corpus={"source": source, "users": None})
        public = {
            one: key.signing.public_key().public_bytes_raw() for one, key in self.keys.items()
        }
        self.roster = Roster(public)

    def members(self, noise=lambda key: None, sums_per_round: int = 1) -> dict[str, SumMember]:
        """Clients that have just been started: all that they remember is on their disks.

        `noise` makes, of a client's key, what it draws its share of the noise from.
        """
        return {
            one: SumMember(
                self.trainer(one, noise=noise(self.keys[one])),
                self.keys[one],
                self.roster,
                SumLedger(self.folder / f"{one}.sums.jsonl", sums_per_round),
            )
            for one in self.people
        }


class Members:
    """Members without a network.

    `change(trip, client, answer)` may alter or drop an answer: a client whose answer is dropped has
    done its part and is lost before the server has it.
    """

    def __init__(
        self,
        members: Mapping[str, SumMember],
        change: Change = lambda trip, client, content: content,
    ) -> None:
        self.members, self.change = members, change
        self.sums = 0  # that were begun
        self.asked: list[tuple[int, str]] = []  # (trip, client)
        self.received: list[RecordDict] = []
        self.refused: list[str] = []
        self._trip = -1

    def ask(self, contents, answer_bytes):
        every = list(contents)
        is_new = "order" in every[0][1]
        self._trip, self.sums = 0 if is_new else self._trip + 1, self.sums + is_new
        for client, content in every:
            self.asked.append((self._trip, client))
            try:
                answer = self.members[client].answer(content)
            except ValueError as refusal:
                self.refused.append(str(refusal))
                answer = RecordDict()
            changed = self.change(self._trip, client, answer)
            if changed is not None:
                self.received.append(changed)
                yield client, changed


def secured(world: SecureWorld, run: Path, clients: Members, told=lambda what: None, **options):
    """The federated training with secure sums, over members that are called directly."""

    def engine(model):
        ledger = Ledger.read(run / "ledger.jsonl")
        record = Participations(run / "private" / FILE)
        record.refuse_behind(ledger)
        gathering = Masked(clients, world.roster, KeptSum(run / "private"), told)
        return FederatedEngine(model, ledger.header.run_id, gathering, record)

    wanted = None if options.get("resume") else world.federated
    return train(wanted, run, engine=engine, progress=False, **options)
