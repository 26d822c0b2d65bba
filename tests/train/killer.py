"""Kills a training again and again: python killer.py FOLDER RUN KILLS.

This process imports everything and computes nothing, so its children can be forked at once.  The
moments are drawn over the time that a run takes, set-up included.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from tacit.privacy.ledger import Ledger
from tacit.runs.checkpoints import Checkpoints
from tacit.train import train

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.train.small import experiment


def child(folder: Path, run: Path) -> None:
    import torch

    torch.set_num_threads(1)
    if (run / "result.json").exists():  # it was killed after its last act: there is nothing to do
        return
    resume = run.exists()
    train(None if resume else experiment(folder), run, resume=resume)


def started(folder: Path, run: Path) -> int:
    process = os.fork()
    if process == 0:
        try:
            child(folder, run)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return process


def main(folder: Path, run: Path, kills: int) -> None:
    draw = random.Random(kills)
    done = during = undercounts = 0
    began = time.monotonic()
    os.waitpid(started(folder, run.with_name("whole")), 0)
    longest = time.monotonic() - began
    while done < kills:
        process = started(folder, run)
        time.sleep(draw.uniform(0, longest))
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:  # faster than the clock: start over, and kill sooner
            if status:
                sys.exit(1)
            for path in sorted(run.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            run.rmdir()
            continue
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        done += 1
        if run.exists():
            last = Checkpoints(run / "checkpoints").read()
            data = (run / "ledger.jsonl").read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            (folder / "ledger-seen.jsonl").write_bytes(whole)
            entries = Ledger.read(folder / "ledger-seen.jsonl", last.head).entries
            during += bool(entries)
            undercounts += sum(entry.kind == "round" for entry in entries) < last.round
    process = started(folder, run)
    _, status = os.waitpid(process, 0)
    print(json.dumps({"kills": done, "kills_during_rounds": during, "undercounts": undercounts}))
    sys.exit(1 if status else 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
