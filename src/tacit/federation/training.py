"""A training whose users are clients: the same loop, ledger, noise and claim as any other.

What a federation cannot keep the promises of is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tacit.config.experiment import Experiment
from tacit.corpus.builtin import always_on, enrolment_folder, has_secure_sums, is_enrolment
from tacit.corpus.enrolment import Enrolment
from tacit.engines.engine import Engine
from tacit.federation.engine import FederatedEngine, Gathering, InTheClear, Told
from tacit.federation.fleet import FleetGrid, FleetState, FlowerClients
from tacit.federation.flower import Context, Grid, RecordDict, ServerApp
from tacit.federation.kept_sum import KeptSum
from tacit.federation.keys import ServerFiles
from tacit.federation.participations import FILE, Participations
from tacit.federation.roster import Roster
from tacit.federation.secure_gathering import Masked
from tacit.federation.service import Address, Service
from tacit.mechanisms.distributed_noise import DistributedNoise
from tacit.mechanisms.samplers import MinSeparationSampler, PoissonSampler
from tacit.models.base import LanguageModel
from tacit.privacy.ledger import Ledger
from tacit.runs.directory import RunDirectory
from tacit.tasks.task import MakeEngine


def refuse_unfit(experiment: Experiment) -> None:
    """Raise for an experiment that clients cannot compute, or whose claim would not be true."""
    vouched = always_on(experiment.source)
    claimed = PoissonSampler.kind if vouched else MinSeparationSampler.kind
    for number in range(max(len(experiment.phases), 1)):
        plan = experiment.phase_plan(number)
        sampling = plan.sampling
        if plan.noise == DistributedNoise.kind and not has_secure_sums(experiment.source):
            raise ValueError(
                f'plan.noise = "{plan.noise}" needs secure sums, in which a share of the noise is'
                " enough to hide an update; add --secure-sum"
            )
        if sampling == claimed:
            continue
        if vouched:
            raise ValueError(
                f"plan.sampling must be {claimed!r} with --always-on, got {sampling!r}: silos draw"
                " each of their people alone; leave --always-on out for any other"
            )
        raise ValueError(
            f"plan.sampling must be {claimed!r} where clients come and go, got {sampling!r}: who"
            " takes part can be seen on the network, so that no sampling may be claimed; add"
            " --min-separation, or --always-on for silos that are"
        )
    _refuse_unfit_for_silos(experiment)
    if experiment.corpus.view != "users":
        raise ValueError("corpus.view must be 'users': nobody can reshuffle text that is not here")
    if has_secure_sums(experiment.source) and experiment.corpus.users is not None:
        raise ValueError("corpus.users cannot be told to clients of secure sums; leave it out")
    if experiment.audit.is_on:
        raise ValueError("[audit] plants text or users, and there is none here; leave it out")
    if experiment.model.own_factory or experiment.model.trained:
        raise ValueError(
            "model.name must be one of tacit's own, and model.trained empty: clients run the code"
            " that is installed with them, and are sent one vector of weights"
        )
    if experiment.tokenizer.source == "oracle":
        raise ValueError("tokenizer.source cannot be 'oracle': the users' text is not here")


def _refuse_unfit_for_silos(experiment: Experiment) -> None:
    """Raise for what contradicts the numbers of people that silos were enrolled with."""
    if not is_enrolment(experiment.source):
        return
    silos = Enrolment.open(enrolment_folder(experiment.source)).silos
    if not silos:
        if always_on(experiment.source):
            raise ValueError("--always-on is for silos, and those who are enrolled are one person")
        return
    declared, population = experiment.plan.population, sum(silos.values())
    if declared is not None and declared != population:
        raise ValueError(
            f"plan.population must be the {population:,} people that all silos together were"
            f" enrolled with, got {declared:,}; leave it out"
        )
    phases = range(max(len(experiment.phases), 1))
    if any(experiment.phase_plan(number).noise == DistributedNoise.kind for number in phases):
        raise ValueError(
            f'plan.noise cannot be "{DistributedNoise.kind}" with silos: its shares are of clients'
            " that are one person each; let the server add the noise"
        )
    if experiment.corpus.users is not None or experiment.corpus.part:
        raise ValueError(
            "corpus.users and corpus.part choose among people, whom only their silos know; leave"
            " them out"
        )


@dataclass(frozen=True)
class Federation:
    """A server that is up: where, and how its engines are made."""

    address: Address
    clients: FlowerClients
    grid: FleetGrid
    roster: Roster
    _kept: list[KeptSum] = field(default_factory=list)

    def engine_for(self, run: Path, told: Told) -> MakeEngine:
        """What makes the engine of a run; its record has to know all that its ledger has.

        Whether sums are secure is in the run's experiment, so it stays what its ledger declares.
        """

        def make(model: LanguageModel) -> Engine:
            directory = RunDirectory.open(run)
            ledger = Ledger.read(directory.ledger_file, torn_is_left_out=True)
            record = Participations(directory.private / FILE)
            record.refuse_behind(ledger)
            gathering: Gathering = InTheClear(self.clients, told, self.roster.silos)
            if has_secure_sums(directory.experiment().source):
                self._kept.append(KeptSum(directory.private))
                gathering = Masked(self.clients, self.roster, self._kept[-1], told)
            return FederatedEngine(model, ledger.header.run_id, gathering, record)

        return make

    def run(self, training: Callable[[], None]) -> None:
        """Carry out a training as Flower's ServerApp, over this server's grid."""
        app = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            training()

        app(self.grid, Context(self.grid.run.run_id, 0, {}, RecordDict(), {}))
        for kept in self._kept:
            kept.forget()


@contextmanager
def federation(
    folder: Path, address: Address, *, insecure: bool, deadline: float, silence: float = 15.0
) -> Iterator[Federation]:
    """Serve the clients that are enrolled in a folder, for as long as the block lasts."""
    for name, value in (("deadline", deadline), ("silence", silence)):
        if not 0 < value < 1e6:
            raise ValueError(f"{name} must be a number of seconds above 0, got {value}")
    enrolment = Enrolment.open(folder)
    if not enrolment.clients:
        raise ValueError(f"nobody is enrolled in {folder}: tacit federate keys enrol adds clients")
    files = None if insecure else ServerFiles.inside(folder)
    state = FleetState()
    grid = FleetGrid(state)
    keys = {client["id"]: client["key"].encode() for client in enrolment.clients}
    clients = FlowerClients(grid, keys, deadline=deadline, silence=silence)
    with Service(state, address, files, silence=silence) as service:
        yield Federation(service.address, clients, grid, Roster.of(enrolment))
