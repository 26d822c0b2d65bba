"""Secure sums of real processes that are killed: python secure_processes.py FOLDER.

Eight people are enrolled, of whom six can end a sum.  One client is killed after it has shared its
keys, another after it has sent its masked input; with a third the round has no sum, and the server
ends.  That client is started again, the server goes on, is killed between a sum and its charge, and
goes on again.  What came of it is printed as JSON.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tacit.cli.main import main as tacit
from tacit.federation import roster
from tacit.federation.secure_client import SumMember
from tacit.federation.trial import free_port
from tacit.privacy.ledger import Ledger
from tacit.runs.session import Session
from tests.federation.members import SecureWorld
from tests.federation.processes import dying, ended, forked

ROUNDS = 5
MASK, CONFIRM = 1, 2  # which of the server's later messages of a sum it is
DEATHS = {0: (0, MASK), 1: (1, CONFIRM), 2: (3, MASK)}  # of a person: the round, and at what


def dying_in(round: int, trip: int) -> None:
    """Let this client be killed when it is asked for something in a sum."""
    begun, go_on = SumMember._begun, SumMember._go_on
    at = {"round": -1, "trip": 0}

    def begins(self, name, content):
        at.update(round=json.loads(content["order"]["json"])["round"], trip=0)
        return begun(self, name, content)

    def goes_on(self, name, message):
        if at == {"round": round, "trip": trip}:
            os.kill(os.getpid(), signal.SIGKILL)
        go_on(self, name, message)
        at["trip"] += 1

    SumMember._begun, SumMember._go_on = begins, goes_on


def main(folder: Path) -> None:
    world, port = SecureWorld(folder / "world", ROUNDS), free_port()
    where, run = f"127.0.0.1:{port}", folder / "run"
    recipe = folder / "experiment.toml"
    recipe.write_text(world.simulated.changed(corpus={"users": None}).to_toml())
    world.roster.save(folder / roster.FILE)
    for number, person in enumerate(world.people):
        world.keys[person].save(folder / f"{number}.key")
        digest = world.roster.digest
        roster.confirm(folder / f"{number}.key", folder / roster.FILE, digest)

    def client(number, death=None):
        words = ["federate", "client", "--corpus", str(world.folder / "corpus"), "--server", where]
        words += ["--user", world.people[number], "--key", str(folder / f"{number}.key")]

        def answer():
            if death is not None:
                dying_in(*death)
            tacit([*words, "--poll", "0.05"])

        return forked(folder / f"{number}.log", answer)

    def server(wait_for, *, first=False, phase=None):
        words = ["federate", "server", *([str(recipe), "--secure-sum"] if first else ["--resume"])]
        words += ["--evaluate-on", str(world.folder / "corpus")] if first else []
        words += ["--run", str(run), "--clients", str(world.enrolled), "--listen", where]
        words += ["--silence", "6", "--deadline", "60", "--wait-for", str(wait_for), "--quiet"]

        def serve():
            if phase is not None:
                dying(*phase)
            tacit(words)

        return ended(forked(folder / "server.log", serve), 250)

    def charged():
        entries = Ledger.read(run / "ledger.jsonl").entries
        return [(entry.round, entry.attempt) for entry in entries if entry.kind == "round"]

    began = time.monotonic()
    children = {one: client(one, DEATHS.get(one)) for one in range(len(world.people))}
    facts = {}
    try:
        facts["too few"] = server(8, first=True), charged()
        for one in DEATHS:
            facts[f"client {one}"] = ended(children.pop(one), 5)
        children[2] = client(2)
        facts["killed"] = server(6, phase=(Session, "charge", 4)), charged()
        facts["whole"] = server(6), charged()
    finally:
        for process in children.values():
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    facts["seconds"] = time.monotonic() - began
    print(json.dumps(facts | {"people": world.people}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
