"""A federation on one machine: a server and clients as real processes, and then the same simulated.

Everything is as it is between machines: certificates, client keys, enrolment, TLS.  Only the corpus
is one folder here, of which each client reads its own person's text, or its own silo's, and no
other.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tacit.config.experiment import Experiment
from tacit.corpus.builtin import load_corpus
from tacit.federation import keys, roster
from tacit.federation.participations import FILE, Participations
from tacit.federation.silo import SilosHere
from tacit.federation.sum_terms import SMALLEST_GROUP
from tacit.mechanisms.distributed_noise import DistributedNoise
from tacit.mechanisms.noise import IndependentNoise
from tacit.privacy import durable
from tacit.privacy.ledger import Ledger
from tacit.runs.checkpoints import Checkpoints
from tacit.runs.directory import RunDirectory
from tacit.runs.run import Run
from tacit.tasks.task import MakeEngine
from tacit.train import train


@dataclass(frozen=True)
class Trial:
    """The folder of a trial, and what is in it."""

    folder: Path
    corpus: str
    clients: int
    secure_sum: bool = False
    silos: bool = False
    noise: str = IndependentNoise.kind
    seed: int = 1  # of the run key, and of the noise that clients share

    @property
    def enrolled(self) -> Path:
        """What the server has: certificate, and who is enrolled."""
        return self.folder / "enrolled"

    @property
    def run(self) -> Path:
        """The run directory of the federated training."""
        return self.folder / "run"

    @property
    def simulated(self) -> Path:
        """That of the same training in one process."""
        return self.folder / "simulated"

    @property
    def people(self) -> int:
        """Whose text is trained on."""
        return len(load_corpus(self.corpus).train) if self.silos else self.clients

    def key_file(self, number: int) -> Path:
        """What a client has."""
        return self.folder / f"client-{number}.key"

    def set_up(self) -> Trial:
        """Make the folder: a certificate for this machine, a key for each client, the enrolment.

        The clients are the first training users of the corpus, with their hashed ids; or silos, to
        which all of them are dealt out by these ids.
        """
        corpus = load_corpus(self.corpus)
        if not 1 <= self.clients <= len(corpus.train):
            raise ValueError(
                f"clients must be from 1 to the {len(corpus.train)} training users of"
                f" {self.corpus}, got {self.clients}"
            )
        if self.secure_sum and self.clients < SMALLEST_GROUP:
            raise ValueError(
                f"clients must be at least {SMALLEST_GROUP} with --secure-sum, got {self.clients}"
            )
        if self.noise not in (IndependentNoise.kind, DistributedNoise.kind):
            raise ValueError(f"noise must be independent or distributed, got {self.noise!r}")
        if self.noise == DistributedNoise.kind and not self.secure_sum:
            raise ValueError("distributed noise needs secure sums: add --secure-sum")
        if self.noise == DistributedNoise.kind and self.silos:
            raise ValueError("distributed noise is of clients that are one person each, not silos")
        if self.folder.exists():
            raise ValueError(f"{self.folder} exists already: name a new folder")
        durable.make_folder(self.folder)
        enrolment = keys.make_server(
            self.enrolled,
            ["127.0.0.1"],
            people=corpus.identity,
            about_people=corpus.about_people,
        )
        authority = (self.enrolled / "ca.pem").read_text(encoding="ascii")
        made = []
        for number in range(self.clients):
            if self.silos:
                silo = len(corpus.train.part(number + 1, self.clients))
                key = keys.ClientKey.generate(authority, silo=silo)
            else:
                key = keys.ClientKey.generate(authority, corpus.train.user_id(number))
            key.save(self.key_file(number))
            made.append(key.enrolled())
        everybody = roster.Roster.of(enrolment.add(made))
        if self.secure_sum:
            listed = self.enrolled / roster.FILE
            everybody.save(listed)
            for number in range(self.clients):
                roster.confirm(self.key_file(number), listed, everybody.digest)
        return self

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Leave nothing behind if it is stopped inside: a trial cannot be resumed."""
        try:
            yield
        except KeyboardInterrupt:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def server_words(self, port: int, *more: str) -> list[str]:
        """The server's command."""
        words = ["federate", "server", *more, "--run", str(self.run)]
        return [*words, "--clients", str(self.enrolled), "--listen", f"127.0.0.1:{port}"]

    def client_words(self, number: int, port: int, *more: str) -> list[str]:
        """A client's command."""
        words = ["federate", "client", "--corpus", self.corpus]
        if self.silos:
            words += ["--part", f"{number + 1}/{self.clients}"]
        else:
            words += ["--user", keys.ClientKey.load(self.key_file(number)).id]
        words += ["--server", f"127.0.0.1:{port}", "--key", str(self.key_file(number))]
        if self.noise == DistributedNoise.kind:
            words += ["--noise-seed", str(self.seed)]
        return [*words, "--poll", "0.1", *more]

    def simulate(self) -> Experiment:
        """The same training in one process, with the same key; what was trained.

        Its cohorts are those who were enrolled, all of whom take part whenever it is their turn.
        It knows nothing of silos but what names the randomness of a person's own training.
        """
        experiment = RunDirectory.open(self.run).experiment()
        assert isinstance(experiment, Experiment)
        users = None if self.silos else self.clients
        alone = experiment.changed(corpus={"source": self.corpus, "users": users, "identity": ""})
        engine = self._engine() if self.silos else None
        train(alone, self.simulated, engine=engine, progress=False)
        return alone

    def _engine(self) -> MakeEngine:
        """One that knows which silo each person of the corpus is in."""
        everybody, of = load_corpus(self.corpus).train, {}
        for number in range(self.clients):
            silo = keys.ClientKey.load(self.key_file(number)).id
            part = everybody.part(number + 1, self.clients)
            of.update({part.user_id(index): silo for index in range(len(part))})
        return lambda model: SilosHere(model, of)

    def differences(self) -> list[str]:
        """What differs between both runs: weights, and what was charged."""
        told = []
        runs = (self.run, self.simulated)
        federated, simulated = (Checkpoints(path / "checkpoints") for path in runs)
        if federated.legs() != simulated.legs():
            told.append("they have other checkpoints")
        for leg in federated.legs():
            one, other = (c.read(leg).model_file.read_bytes() for c in (federated, simulated))
            if one != other:
                told.append(f"the models after round {leg} differ")
        charged = []
        for path in runs:
            ledger = Ledger.read(RunDirectory.open(path).ledger_file)
            charged.append([(e.round, e.attempt, e.event, e.plan_hash) for e in ledger.entries])
        if charged[0] != charged[1]:
            told.append("they have other charges in their ledgers")
        return told

    def answered(self) -> list[int]:
        """How many clients took part in each round."""
        ledger = Run.open(self.run).ledger
        record = Participations(self.run / "private" / FILE)
        rounds = [entry for entry in ledger.entries if entry.kind == "round"]
        return [len(record.of(entry.round, entry.attempt)) for entry in rounds]


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def started(words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """A `tacit` command in a process of its own, whose output goes to a file."""
    search_path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "tacit.cli.main", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | {"PYTHONPATH": search_path, "OMP_NUM_THREADS": "1"},
        )


@contextmanager
def processes() -> Iterator[ExitStack]:
    """A stack that ends the processes that `ending` was asked to, however the block ends."""
    with ExitStack() as stack:
        yield stack


def ending(stack: ExitStack, process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """The process, which is ended with the stack."""
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def rehearse(trial: Trial, *server: str, seconds: float = 600) -> str:
    """Train with a server and clients of their own; raises with the server's words if it fails."""
    port, log = free_port(), trial.folder / "server.log"
    with processes() as stack:
        process = ending(stack, started(trial.server_words(port, *server), log))
        for number in range(trial.clients):
            words = trial.client_words(number, port)
            ending(stack, started(words, trial.folder / f"client-{number}.log"))
        end = time.monotonic() + seconds
        while process.poll() is None:
            if time.monotonic() > end:
                raise ValueError(f"the server did not end within {seconds:g} seconds: see {log}")
            time.sleep(0.1)
    said = log.read_text(encoding="utf-8", errors="replace")
    if process.returncode:
        last = (said.strip().splitlines() or ["it said nothing"])[-1]
        if not trial.run.exists():  # it was refused: keys of nothing need not stay
            shutil.rmtree(trial.folder)
        raise ValueError(f"the server ended with exit code {process.returncode}: {last}")
    return said
