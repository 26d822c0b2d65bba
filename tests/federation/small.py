"""A federation in one process: eight people, a tiny model, and clients that are called directly."""

from pathlib import Path

from tacit.config.experiment import Experiment
from tacit.corpus.builtin import enrolment_name
from tacit.corpus.enrolment import Enrolment
from tacit.corpus.store import Corpus
from tacit.engines.engine import SerialEngine
from tacit.federated.cohort import CohortSum
from tacit.federation import keys
from tacit.federation.bounds import Bound
from tacit.federation.client import Person, Trainer
from tacit.federation.engine import FederatedEngine, InTheClear
from tacit.federation.orders import Order, width_of
from tacit.federation.own_ledger import Consent, OwnLedger
from tacit.federation.participations import FILE, Participations
from tacit.kernels.local_sgd import local_sgd_for
from tacit.privacy.ledger import Ledger
from tacit.runs.checkpoints import Checkpoints
from tacit.train import train
from tests.runs.small import experiment, make_folder

PEOPLE = 8
TURNS = {
    "cohort": PEOPLE / 2,
    "sampling": "min-separation",
    "separation": 2,
    "population": PEOPLE,
}


def in_turns(folder: Path, rounds: int) -> Experiment:
    """The experiment as it is simulated, with the first people of the corpus in `folder`."""
    return experiment(folder, rounds=rounds, plan=TURNS, corpus={"users": PEOPLE})


class World:
    """A corpus, its first people enrolled, and the same experiment for both ways to train."""

    def __init__(self, folder: Path, rounds: int = 4) -> None:
        self.folder = make_folder(folder)
        self.corpus = Corpus.open(folder / "corpus")
        self.people = [self.corpus.train.user_id(index) for index in range(PEOPLE)]
        self.enrolled = folder / "enrolled"
        enrolment = keys.make_server(
            self.enrolled, ["127.0.0.1"], people=self.corpus.identity, about_people=True
        )
        self.authority = (self.enrolled / "ca.pem").read_text()
        self.keys = {one: keys.ClientKey.generate(self.authority, one) for one in self.people}
        enrolment.add([key.enrolled() for key in self.keys.values()])
        self.simulated = in_turns(folder, rounds)
        source = enrolment_name(self.enrolled, str(folder / "corpus"))
        self.federated = self.simulated.changed(corpus={"source": source, "users": None})

    def trainer(self, person: str, consent: Consent | None = None, noise=None) -> Trainer:
        own = OwnLedger(self.folder / f"{person}.given.jsonl", consent or Consent())
        return Trainer(Person.of(person, self.corpus, person), own, noise)


class CalledClients:
    """Clients without a network: `change(client, order, content)` may alter or drop an answer."""

    def __init__(self, world: World, change=lambda client, order, content: content) -> None:
        self._trainers = {person: world.trainer(person) for person in world.people}
        self._change = change
        self.sent = []  # (client, content) of every message

    def ask(self, contents, answer_bytes):
        for client, content in contents:
            self.sent.append((client, content))
            order, trainer = Order.read(content), self._trainers[client]
            answer = trainer.answer(order)
            bound = Bound(order.plan, order.clip_state, len(order.weights), trainer.people)
            sent = answer.to_content(width_of(bound.limit), trainer.people)
            changed = self._change(client, order, sent)
            if changed is not None:
                yield client, changed


def federated(world: World, run: Path, clients: CalledClients, told=lambda what: None, **options):
    """The federated training, over clients that are called directly."""

    def engine(model):
        ledger = Ledger.read(run / "ledger.jsonl")
        record = Participations(run / "private" / FILE)
        record.refuse_behind(ledger)
        gathering = InTheClear(clients, told, Enrolment.open(world.enrolled).silos)
        return FederatedEngine(model, ledger.header.run_id, gathering, record)

    wanted = None if options.get("resume") else world.federated
    return train(wanted, run, engine=engine, progress=False, **options)


class Survivors:
    """Computes a cohort in this process, of those only who took part by a record."""

    kernel = "survivors"

    def __init__(self, model, record: Participations) -> None:
        self._engine, self._record = SerialEngine(local_sgd_for(model)), record

    def sum(self, task, job, users, progress=None) -> CohortSum:
        there = set(self._record.of(job.round, job.attempt))
        survivors = [user for user in users if task.users.key(user) in there]
        return self._engine.sum(task, job, survivors, progress)

    def close(self) -> None:
        pass


def simulated(wanted: Experiment, run: Path, like: Path) -> None:
    """The same training in one process, on the same survivors as the federated run `like` had."""
    record = Participations(like / "private" / FILE)
    train(wanted, run, engine=lambda model: Survivors(model, record), progress=False)


def models_of(run: Path) -> dict[int, bytes]:
    checkpoints = Checkpoints(run / "checkpoints")
    return {leg: checkpoints.read(leg).model_file.read_bytes() for leg in checkpoints.legs()}


def charges_of(run: Path) -> list:
    entries = Ledger.read(run / "ledger.jsonl").entries
    return [(entry.round, entry.attempt, entry.event, entry.plan_hash) for entry in entries]
