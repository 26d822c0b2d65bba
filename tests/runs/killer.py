"""Kills a training again and again: python killer.py KIND FOLDER RUN KILLS.

KIND is "seeded", "secret" (a key as of a real run, so that the people's ledger is charged) or
"nlu".  This process imports everything and computes nothing, so its children can be forked at
once.  The moments are drawn over the time that a run takes, set-up included.  What an unharmed run
leaves is beside RUN, in "whole", made on an installation of its own.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from tacit.corpus import people
from tacit.privacy.ledger import Ledger
from tacit.privacy.randomness import RunKey
from tacit.runs.checkpoints import Checkpoints
from tacit.train import train
from tacit.train import train as train_nlu

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.runs.small import experiment
from tests.tasks.nlu.small import of_method


def child(kind: str, folder: Path, run: Path) -> None:
    import torch

    torch.set_num_threads(1)
    if (run / "result.json").exists():  # it was killed after its last act: there is nothing to do
        return
    # The same key for both runs that are compared, and yet not marked as a simulation's; and the
    # same name for the people of the utterances, whom each installation would name by chance.
    RunKey.generate = classmethod(lambda cls: cls(bytes(range(32)), is_simulation=False))
    people.secrets = SimpleNamespace(token_hex=lambda size: "5e" * size, token_bytes=bytes)
    resume = run.exists()
    if kind == "nlu":
        data = {"source": str(folder / "spoken.jsonl")}
        wanted = of_method("edp-sgd", data=data).changed(seed=None)
        train_nlu(None if resume else wanted, run, resume=resume)
        return
    seed = None if kind == "secret" else 5
    train(None if resume else experiment(folder).changed(seed=seed), run, resume=resume)


def started(kind: str, folder: Path, run: Path) -> int:
    process = os.fork()
    if process == 0:
        try:
            os.environ["TACIT_STATE"] = str(run.with_name(f"{run.name}-state"))
            child(kind, folder, run)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return process


def forget(folder: Path, run: Path) -> None:
    """Begin with people of whom nothing is known."""
    shutil.rmtree(run.with_name(f"{run.name}-state"), ignore_errors=True)
    shutil.rmtree(folder / "corpus" / "people", ignore_errors=True)


def go_on(kind: str, folder: Path, run: Path) -> int:
    """A run that was killed before it had its name is begun again on a new installation.

    What it had charged stays on record, rightly; but a real run would begin again with another
    key, and with the same one this reads as a run that was restored from a backup.
    """
    if not run.exists():
        forget(folder, run)
    return started(kind, folder, run)


def main(kind: str, folder: Path, run: Path, kills: int) -> None:
    draw = random.Random(kills)
    done = during = undercounts = 0
    began = time.monotonic()
    os.waitpid(started(kind, folder, run.with_name("whole")), 0)
    longest = time.monotonic() - began
    while done < kills:
        process = go_on(kind, folder, run)
        time.sleep(draw.uniform(0, longest))
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:  # faster than the clock: start over, and kill sooner
            if status:
                sys.exit(1)
            shutil.rmtree(run)
            continue
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        done += 1
        if run.exists():
            last = Checkpoints(run / "checkpoints").read()
            data = (run / "ledger.jsonl").read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            (run.with_name("ledger-seen.jsonl")).write_bytes(whole)
            entries = Ledger.read(run.with_name("ledger-seen.jsonl"), last.head).entries
            during += bool(entries)
            undercounts += sum(entry.kind == "round" for entry in entries) < last.leg
    process = go_on(kind, folder, run)
    _, status = os.waitpid(process, 0)
    print(json.dumps({"kills": done, "kills_during_rounds": during, "undercounts": undercounts}))
    sys.exit(1 if status else 0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
