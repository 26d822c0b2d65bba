"""What a round costs the server of a federation, beside plain Flower and with secure sums.

    python bench/federation.py [--clients 100] [--rounds 2] [--of tacit flower secure]
    python bench/federation.py --predict 10000

Clients compute nothing: over TLS they take the order of the 1.35M model and hand in an answer of
full precision, a share of them in each of a few threads of one process.  So this is the transport
and the server's own work, on whatever else the machine does.

    tacit    the server of `tacit federate server`, without the training around a round
    flower   Flower's SuperLink, its FedAvg in a ServerApp of its own, node keys and TLS, as it is
             but for a pause of 3 seconds between looks for answers, which is 0.1 here; clients send
             as many bytes, as one array of float32
    secure   tacit's with --secure-sum: five trips instead of one

Each is a server process and a client process of its own; rounds take turns.  Seconds are of the
clock, and of the processor in the server's processes; memory is the highest of a round.

What is predicted are the bytes of a round of any size, from messages that are built for it, and
the server's seconds, from what a request and a megabyte took in a measurement: with --weights 1000
nearly all is requests, and the rest is megabytes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from federated.clients import answer_all
from federated.meter import Meter, model_of
from federated.superlink import serve_flower

KINDS = ("tacit", "flower", "secure")
FOREVER = 1e5  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--of", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--weights", type=int, help="of another model than the 1.35M one")
    parser.add_argument("--predict", type=int, metavar="CLIENTS", help="measure nothing")
    parser.add_argument("--group", type=int, default=100, help="clients of a secure sum")
    parser.add_argument("--ms-a-request", type=float, default=1.3)
    parser.add_argument("--ms-a-megabyte", type=float, default=4.2)
    asked = parser.parse_args()
    if asked.predict is not None:
        predict(asked)
        return
    import tacit.federation.training  # noqa: F401  (once for all processes)

    with tempfile.TemporaryDirectory() as folder:
        parties = [
            Party(kind, asked.clients, asked.weights, Path(folder) / kind) for kind in asked.of
        ]
        print("| | round | s | server's processor: s | MB resident | MB sent, received a client |")
        print("|---" * 6 + "|")
        for number in range(asked.rounds):
            for party in parties:
                print(party.round(number), flush=True)
        for party in parties:
            print(party.summary())
            party.close()


class Party:
    """A server with its clients, in processes of their own."""

    def __init__(self, kind: str, clients: int, weights: int | None, folder: Path) -> None:
        self.kind, self._clients, self._rows = kind, clients, []
        fork = multiprocessing.get_context("fork")
        self._answering, theirs = fork.Pipe()
        self._others = fork.Process(target=answer_all, args=(kind, clients, folder, theirs))
        self._others.start()
        self._serving, own = fork.Pipe()
        self._server = fork.Process(target=SERVERS[kind], args=(folder, weights, own))
        self._heard()  # everybody is enrolled
        self._server.start()
        self._answering.send(self._serving.recv())
        self._heard()  # and connected

    def _heard(self) -> Any:
        while not self._answering.poll(1):
            if not self._others.is_alive():
                raise SystemExit("the clients have ended")
        return self._answering.recv()

    def round(self, number: int) -> str:
        self._serving.send(number)
        self._answering.send(number)
        row = self._serving.recv()
        self._heard()
        assert row["answered"] == self._clients, row
        self._rows.append(row)
        return (
            f"| {self.kind} | {number} | {row['seconds']:.1f} | {row['processor']:.1f} |"
            f" {row['memory']:.0f} | {row['sent'] / self._clients / 1e6:.2f},"
            f" {row['received'] / self._clients / 1e6:.2f} |"
        )

    def summary(self) -> str:
        median = {
            what: statistics.median(row[what] for row in self._rows) for what in self._rows[0]
        }
        each = 1e3 * median["processor"] / self._clients
        return (
            f"{self.kind}: {self._clients} clients, median of {len(self._rows)} rounds:"
            f" {median['seconds']:.1f} s, {each:.1f} ms of the server's processor a client,"
            f" {max(row['memory'] for row in self._rows):.0f} MB at most"
        )

    def close(self) -> None:
        for pipe, process in ((self._answering, self._others), (self._serving, self._server)):
            pipe.send(None)
            process.join(timeout=20)
            process.kill()


def predict(asked: argparse.Namespace) -> None:
    """The bytes and the server's seconds of a round, and of groups that sum securely."""
    from tacit.federation.costs import round_traffic, secure_traffic

    order, _ = make_orders(asked.predict, (), asked.weights)(0)
    rows = {
        f"{asked.predict:,} clients": round_traffic(order),
        f"{asked.predict:,} clients, in secure sums of {asked.group}": secure_traffic(
            order, asked.group
        ),
    }
    print("| | a client: requests | MB sent | MB received | all: GB | server's processor: s |")
    print("|---" * 6 + "|")
    for name, own in rows.items():
        megabytes = (own.sent + own.received) / 1e6
        seconds = (asked.ms_a_request * own.requests + asked.ms_a_megabyte * megabytes) / 1e3
        print(
            f"| {name} | {own.requests} | {own.sent / 1e6:.2f} | {own.received / 1e6:.2f} |"
            f" {asked.predict * megabytes / 1e3:.1f} | {asked.predict * seconds:.0f} |"
        )


# Servers.


def make_orders(clients: int, source: Any, weights: int | None) -> Callable[[int], Any]:
    """What makes the order of a round, and each client's seed, by the round's number."""
    from tacit.federated.cohort import CohortJob, CohortTask, RemoteUsers
    from tacit.federated.user_update import FedAvg
    from tacit.federation.orders import Order
    from tacit.mechanisms.clipping import FlatClip
    from tacit.mechanisms.estimators import FixedDenominator
    from tacit.mechanisms.noise import IndependentNoise
    from tacit.mechanisms.plan import RoundPlan
    from tacit.mechanisms.samplers import MinSeparationSampler
    from tacit.models import registry
    from tacit.privacy.randomness import RunKey
    from tacit.tokenizers.public import PublicSource

    tokenizer = PublicSource("sotu+chatterbot").tokenizer("word", 10_000, "papers")
    model = registry.build("lstm", tokenizer.vocab_size)
    plan = RoundPlan(
        population=clients,
        sampler=MinSeparationSampler(1, 1.0),
        clipper=FlatClip(1.0),
        estimator=FixedDenominator(float(clients)),
        noise=IndependentNoise(1.0),
    )
    users = RemoteUsers(source, tokenizer, 1600)
    task = CohortTask(plan, FedAvg(learning_rate=1.0), tokenizer.bos, users)
    key = RunKey.generate()

    def order(number: int) -> tuple[Order, CohortJob]:
        job = CohortJob(model_of(weights, number), plan.initial_clip_state(), key, "main", number)
        return Order.of("bench", task, job, model), job

    return order


def serve_tacit(folder: Path, weights: int | None, pipe: Pipe, *, secure: bool = False) -> None:
    from tacit.corpus.enrolment import Enrolment
    from tacit.federation.engine import Gathering, InTheClear
    from tacit.federation.kept_sum import KeptSum
    from tacit.federation.secure_gathering import Masked
    from tacit.federation.service import Address
    from tacit.federation.training import federation

    enrolment = Enrolment.open(folder)
    orders = make_orders(len(enrolment.clients), enrolment.train, weights)
    here = Address("127.0.0.1", 0)
    with federation(folder, here, insecure=False, deadline=FOREVER, silence=FOREVER) as up:
        gathering: Gathering = InTheClear(up.clients, print)
        if secure:
            gathering = Masked(up.clients, up.roster, KeptSum(folder), print)
        run, before = up.grid.state.run_ids[up.grid.run.run_id].run, (0, 0)
        pipe.send(up.address.port)
        while (number := pipe.recv()) is not None:
            order, job = orders(number)
            meter = Meter()
            seeds = {one["id"]: job.seed(one["id"]) for one in enrolment.clients}
            _, took_part = gathering.gather(order, seeds, None)
            after = run.bytes_sent, run.bytes_recv
            sent, received = after[0] - before[0], after[1] - before[1]
            row = {"answered": len(took_part), "sent": sent, "received": received}
            pipe.send(meter.row() | row)
            before = after


def serve_secure(folder: Path, weights: int | None, pipe: Pipe) -> None:
    serve_tacit(folder, weights, pipe, secure=True)


SERVERS = {"tacit": serve_tacit, "flower": serve_flower, "secure": serve_secure}


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
