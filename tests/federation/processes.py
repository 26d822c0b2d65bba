"""A federation of real processes that are killed: python processes.py FOLDER.

Eight people are enrolled.  Five are clients as they are installed, one of which is killed; three
misbehave; a stranger tries too.  The server is killed with SIGKILL in every phase of a round and
goes on with --resume.  This process imports everything and computes nothing, so its children can be
forked at once.  What came of it is printed as JSON.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from tacit.cli.main import main as tacit
from tacit.federation import keys
from tacit.federation.bounds import Bound
from tacit.federation.connection import Connection, Unreachable
from tacit.federation.flower import Array, ArrayRecord, Message
from tacit.federation.orders import Order, width_of
from tacit.federation.participations import Participations
from tacit.federation.trial import free_port
from tacit.privacy.ledger import Ledger
from tacit.runs.session import Session
from tacit.tasks.language.trainer import LanguageTrainer
from tests.federation.small import World

ROUNDS = 10
HONEST, NAN, MISSHAPEN, REPLAYING = range(5), 5, 6, 7
# Where the server is killed: the class, the method at whose call, and in which round.
PHASES = {
    "before it is on record who took part": (Participations, "record", 1),
    "before anything is charged": (Session, "charge", 3),
    "between proof and ledger": (Ledger, "charge", 5),
    "after the charge, before the noise": (LanguageTrainer, "run", 7),
    "after the noise, before the checkpoint": (Session, "save", 9),
}


def forked(log: Path, child) -> int:
    """The process id of a child that does this, and prints to a file."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        child()
        code = 0
    except SystemExit as stop:
        code = stop.code
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def ended(process: int, seconds: float) -> int:
    """How a child ended: its exit code, or minus the signal that killed it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return 999


def dying(owner: type, method: str, round: int) -> None:
    """Let this process be killed when the method is called in that round."""
    original = getattr(owner, method)

    def die(self, *arguments, **options):
        now = arguments[0] if owner is Participations else None
        if owner is Session:
            now = self.leg - (method == "save")
        if owner is LanguageTrainer:
            now = arguments[0].leg
        if owner is Ledger:
            now = max((one.round for one in arguments[0] if one.kind == "round"), default=None)
        if now == round:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *arguments, **options)

    setattr(owner, method, die)


def misbehave(world: World, person: int, server: str, told: Path) -> None:
    """A client that is enrolled, and answers every order with something else than it should."""
    key = world.keys[world.people[person]]
    trainer, first = world.trainer(key.id), None
    facts = {"taken": 0, "replays taken": 0, "answers": 0}
    connection, is_open = Connection(server, key, insecure=False), False
    while True:
        try:
            if not is_open:
                is_open = bool(connection.open())
            message = connection.take()
            if message is None:
                time.sleep(0.05)
                continue
            order = Order.read(message.content)
            bound = Bound(order.plan, order.clip_state, len(order.weights))
            content = trainer.answer(order).to_content(width_of(bound.grid.limit))
            if person == NAN:
                values = np.full(len(order.weights), np.nan, np.float32)
                content["update"] = ArrayRecord({"units": Array(values)})
            if person == MISSHAPEN:
                many = 10**6 if order.round % 4 < 2 else 3  # far too large, and of another shape
                content["update"] = ArrayRecord({"units": Array(np.zeros(many, np.uint8))})
            if person == REPLAYING:
                first = first or (order.round, content)
                content = content if order.round == first[0] else first[1]
            answer = Message(content, reply_to=message)
            facts["answers"] += 1
            facts["taken"] += connection.hand_in(answer)
            facts["replays taken"] += connection.hand_in(Message(content, reply_to=message))
            told.write_text(json.dumps(facts))
        except Unreachable:
            is_open = False
            time.sleep(0.1)


def main(folder: Path) -> None:
    world, port = World(folder / "world", ROUNDS), free_port()
    where, run = f"127.0.0.1:{port}", folder / "run"
    recipe = folder / "experiment.toml"
    recipe.write_text(world.simulated.changed(corpus={"users": None}).to_toml())
    stranger = keys.ClientKey.generate(world.authority)
    stranger.save(folder / "stranger.key")
    for person in HONEST:
        world.keys[world.people[person]].save(folder / f"{person}.key")

    def client(key: str, person: int):
        words = ["federate", "client", "--corpus", str(world.folder / "corpus")]
        words += ["--user", world.people[person], "--key", str(folder / key), "--poll", "0.05"]
        return lambda: tacit([*words, "--server", where])

    def server(first: bool, phase):
        words = ["federate", "server", *([str(recipe)] if first else ["--resume"])]
        words += ["--evaluate-on", str(world.folder / "corpus")] if first else []
        words += ["--run", str(run), "--clients", str(world.enrolled), "--listen", where]
        words += ["--silence", "6", "--deadline", "60", "--wait-for", "7", "--quiet"]

        def serve():
            if phase is not None:
                dying(*phase)
            tacit(words)

        return serve

    children = {p: forked(folder / f"{p}.log", client(f"{p}.key", p)) for p in HONEST}
    for person in (NAN, MISSHAPEN, REPLAYING):
        told = folder / f"{person}.json"
        act = lambda person=person, told=told: misbehave(world, person, where, told)  # noqa: E731
        children[person] = forked(folder / f"{person}.log", act)
    endings, began = {}, time.monotonic()
    try:
        for number, (name, phase) in enumerate(PHASES.items()):
            process = forked(folder / "server.log", server(number == 0, phase))
            if number == 1:
                turned_away = forked(folder / "stranger.log", client("stranger.key", 0))
            endings[name] = ended(process, 200)
            if number == 0:  # nothing is on record of this round, so nobody misses it
                os.kill(children[0], signal.SIGKILL)
                os.waitpid(children.pop(0), 0)
        endings["whole"] = ended(forked(folder / "server.log", server(False, None)), 200)
        stranger_code = ended(turned_away, 5)
    finally:
        for process in children.values():
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    facts = {str(p): json.loads((folder / f"{p}.json").read_text()) for p in (5, 6, 7)}
    print(
        json.dumps(
            {
                "people": world.people,
                "endings": endings,
                "stranger": stranger_code,
                "seconds": time.monotonic() - began,
                "hostile": facts,
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
