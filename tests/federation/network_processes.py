"""A training over a bad network: python network_processes.py FOLDER clear|secure|absent.

A server and eight clients, each on a host of its own (`hosts`).  Every packet takes 20 ms, one in
50 is lost, and in some rounds hosts are cut off as they hand in what they have computed: a client,
the server, half of the clients.  What came of it is printed as JSON.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tacit.cli.main import main as tacit
from tacit.federation import keys, roster
from tests.federation.hosts import Network, address
from tests.federation.members import SecureWorld
from tests.federation.processes import forked
from tests.federation.small import PEOPLE, World

DELAY, LOSS = 0.02, 0.02
ROUNDS = {"clear": 6, "secure": 3, "absent": 6}
SILENCE = {"clear": 20, "secure": 20, "absent": 5}
SERVER, EVERYBODY = 0, range(1, PEOPLE + 1)  # hosts
# When a client has computed so many updates, these hosts are cut off for so many seconds.
CUTS = {
    "clear": [(1, 1, [1], 3), (2, 2, [SERVER], 3), (3, 3, [3, 4, 5, 6], 3)],
    "secure": [(1, 1, [1], 3), (2, 2, [SERVER], 3), (3, 3, [3, 4, 5, 6], 3)],
    "absent": [(1, 2, [1], 30)],
}


def main(folder: Path, mode: str) -> None:
    network = Network(PEOPLE + 1, delay=DELAY, loss=LOSS, seed=0)
    world = (SecureWorld if mode == "secure" else World)(folder / "world", ROUNDS[mode])
    keys.renew(world.enrolled, [address(SERVER)])
    where, run = f"{address(SERVER)}:8443", folder / "run"
    recipe = folder / "experiment.toml"
    recipe.write_text(world.simulated.changed(corpus={"users": None}).to_toml())
    for host in EVERYBODY:
        world.keys[world.people[host - 1]].save(folder / f"{host}.key")
    if mode == "secure":
        world.roster.save(folder / roster.FILE)
        for host in EVERYBODY:
            roster.confirm(folder / f"{host}.key", folder / roster.FILE, world.roster.digest)

    def client(host: int) -> int:
        words = ["federate", "client", "--corpus", str(world.folder / "corpus"), "--server", where]
        words += ["--user", world.people[host - 1], "--key", str(folder / f"{host}.key")]
        act = lambda: tacit([*words, "--poll", "0.05"])  # noqa: E731
        return network.host(host, folder / f"{host}.log", forked, act)

    words = ["federate", "server", str(recipe), "--evaluate-on", str(world.folder / "corpus")]
    words += ["--run", str(run), "--clients", str(world.enrolled), "--listen", where]
    words += ["--silence", str(SILENCE[mode]), "--deadline", "120", "--wait-for", str(PEOPLE)]
    words += ["--quiet", *(["--secure-sum"] if mode == "secure" else [])]
    serve = lambda: tacit(words)  # noqa: E731
    children = {SERVER: network.host(SERVER, folder / "server.log", forked, serve)}
    children |= {host: client(host) for host in EVERYBODY}
    began, left, held = time.monotonic(), list(CUTS[mode]), []
    status = None
    try:
        while status is None and time.monotonic() < began + 300:
            network.carry(0.02)
            for cut in list(left):
                host, computed, others, seconds = cut
                said = (folder / f"{host}.log").read_text()
                if said.count("answered") + said.count("is computed") >= computed:
                    left.remove(cut)
                    held.append(network.held)
                    for other in others:
                        network.cut(other, seconds)
            done, code = os.waitpid(children[SERVER], os.WNOHANG)
            if done:
                status = os.waitstatus_to_exitcode(code)
                del children[SERVER]
    finally:
        for process in children.values():
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    facts = {"ending": status, "people": world.people, "cuts": len(held)}
    ends = [*held[1:], network.held]
    facts["held"] = [after - before for before, after in zip(held, ends, strict=True)]
    facts |= {"passed": network.passed, "lost": network.lost, "seconds": time.monotonic() - began}
    print(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
