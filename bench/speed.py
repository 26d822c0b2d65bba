"""Users per second of tacit, pfl-research, Flower and a bare eager loop, side by side.

Each is a process of its own (or two) that is stopped until its turn; a repetition is one round of
each, in turn and back again, so that a busy machine slows all alike.  A figure is the median over
the repetitions with the range, a ratio the median of the ratios within a repetition.  What is
measured goes to docs/results/speed.md, between two marks, and to docs/images/speed.png.

What everybody computes is in `peers/workload.py`, and what each row is in docs/results/speed.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
PEERS, DOCS = HERE / "peers", HERE.parent / "docs"
sys.path.insert(0, str(PEERS))
import synthetic_users  # noqa: E402
from contestant import Contestant, Failed  # noqa: E402
from environments import NoEnvironment, cache_folder, python_for  # noqa: E402
from report import Goal, Line, note, plot, table  # noqa: E402

PFL, FLOWER = "pfl==0.6.0", "flwr[simulation]==1.41.0"
FEW, MANY = 10_000, 1_000_000  # users in the corpus


@dataclass
class Row:
    """One thing that is measured: who is asked to do what."""

    name: str
    cores: int
    who: list[str]
    command: str = "round"
    rates: dict[int, float] = field(default_factory=dict)  # users per second, by repetition
    facts: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""

    def line(self) -> Line:
        return Line(self.name, self.cores, list(self.rates.values()), self.problem)


ROWS = {
    "kernel": Row("tacit, C++ kernel", 1, ["kernel"], "private"),
    "plain": Row("tacit, not private", 1, ["kernel"], "plain"),
    "many": Row(f"tacit, {MANY:,} users in the corpus", 1, ["many"], "private"),
    "greedy": Row("tacit, greedy clipping", 1, ["kernel"], "greedy"),
    "torch": Row("tacit, torch operations", 1, ["torch"], "private"),
    "sampled": Row("tacit, sampled softmax", 1, ["kernel"], "sampled"),
    "products": Row("matrix products alone", 1, ["products"]),
    "pfl": Row("pfl-research", 1, ["pfl"]),
    "flower": Row("Flower", 1, ["flower"]),
    "eager": Row("eager loop, nn.LSTM", 1, ["eager"]),
    "eager, own": Row("eager loop, tacit's model", 1, ["eager, own"]),
    "kernel 2": Row("tacit, C++ kernel", 2, ["kernel 2"], "private"),
    "torch 2": Row("tacit, torch operations", 2, ["torch 2"], "private"),
    "sampled 2": Row("tacit, sampled softmax", 2, ["kernel 2"], "sampled"),
    "products 2": Row("matrix products alone", 2, ["products", "products too"]),
    "pfl 2": Row("pfl-research", 2, ["pfl 2"]),
    "flower 2": Row("Flower", 2, ["flower 2"]),
}
ONE_CORE = ["kernel", "torch", "sampled", "pfl", "flower", "eager", "eager, own", "products"]
TWO_CORES = ["kernel 2", "torch 2", "sampled 2", "pfl 2", "flower 2", "products 2"]
BESIDE = ["kernel", "plain", "greedy", "many"]


def commands(few: Path, many: Path, cohort: int) -> dict[str, Callable[[], Contestant]]:
    """How each contestant is started."""

    def tacit(kernel: str, processes: int, cache: Path) -> Callable[[], Contestant]:
        script = [sys.executable, str(PEERS / "tacit_rounds.py")]
        command = [*script, str(processes), str(cache), str(cohort)]
        return lambda: Contestant(command, {"TACIT_KERNEL": kernel})

    def ours(script: str, *arguments: object) -> Callable[[], Contestant]:
        command = [sys.executable, str(PEERS / script), *map(str, arguments)]
        return lambda: Contestant(command)

    def theirs(requirement: str, script: str, *arguments: object) -> Callable[[], Contestant]:
        said = [str(PEERS / script), *map(str, arguments)]
        return lambda: Contestant([str(python_for(requirement)), *said])

    def torchrun(requirement: str, script: str, *arguments: object) -> Callable[[], Contestant]:
        launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
        launch += ["--master-addr", "127.0.0.1", "--master-port", str(_free_port())]
        said = [*launch, str(PEERS / script), *map(str, arguments)]
        return lambda: Contestant([str(python_for(requirement)), *said])

    return {
        "kernel": tacit("c++", 1, few),
        "many": tacit("c++", 1, many),
        "torch": tacit("torch", 1, few),
        "products": ours("products.py", cohort),
        "products too": ours("products.py", cohort),
        "pfl": theirs(PFL, "pfl_research.py", cohort),
        "flower": theirs(FLOWER, "flower.py", 1, cohort),
        "eager": ours("eager.py", "nn.LSTM", cohort),
        "eager, own": ours("eager.py", "tacit", cohort),
        "kernel 2": tacit("c++", 2, few),
        "torch 2": tacit("torch", 2, few),
        "pfl 2": torchrun(PFL, "pfl_research.py", cohort),
        "flower 2": theirs(FLOWER, "flower.py", 2, cohort),
    }


@contextmanager
def all_started(starts: dict[str, Callable[[], Contestant]]) -> Iterator[dict[str, Contestant]]:
    """Those that can be, one after the other; the rows of the others say why not."""
    running: dict[str, Contestant] = {}
    with ExitStack() as stack:
        for name, start in starts.items():
            try:
                contestant = start()
                stack.callback(contestant.end)
                contestant.wait_until_ready()
                running[name] = contestant
            except (NoEnvironment, Failed) as error:
                give_up(name, error)
        yield running


def give_up(name: str, error: Exception) -> None:
    for row in ROWS.values():
        if name in row.who:
            row.problem = row.problem or str(error)
    print(f"not measured from here on: {name}: {error}", flush=True)


def one_round(row: Row, running: dict[str, Contestant], repetition: int) -> None:
    """A round of it.  One before it brings back what went cold while it stood still."""
    if row.problem:
        return
    answers: list[dict[str, Any]] = []
    for name in row.who:
        running[name].wake()
    try:
        for _ in ("to warm up", "to be counted"):
            answers.clear()
            for name in row.who:
                running[name].ask(row.command)
            for name in row.who:
                answers.append(running[name].answer())
    except Failed as error:
        give_up(name, error)
        return
    finally:
        for name in row.who:
            running[name].rest()
    users = sum(found["users"] for found in answers)
    row.rates[repetition] = users / max(found["seconds"] for found in answers)
    row.facts += answers


def ratio(one: str, other: str) -> float:
    """How many times the users per second of another row; NaN if one was not measured."""
    mine, theirs = ROWS[one].rates, ROWS[other].rates
    found = [mine[repetition] / theirs[repetition] for repetition in mine if repetition in theirs]
    return statistics.median(found) if found else float("nan")


def growth() -> float:
    """Resident memory with many users in the corpus less that with few, in MB."""
    few, many = (
        [fact["resident"] for fact in ROWS[name].facts if fact.get("resident")]
        for name in ("kernel", "many")
    )
    return statistics.median(many) - statistics.median(few) if few and many else float("nan")


def goals() -> list[Goal]:
    return [
        Goal("C++ kernel / pfl-research, one core", ratio("kernel", "pfl"), 2.0),
        Goal("C++ kernel / pfl-research, two cores", ratio("kernel 2", "pfl 2"), 2.0),
        Goal("torch operations / pfl-research, one core", ratio("torch", "pfl"), 1.6),
        Goal("torch operations / pfl-research, two cores", ratio("torch 2", "pfl 2"), 1.6),
        Goal("C++ kernel / Flower, one core", ratio("kernel", "flower"), 2.0),
        Goal("C++ kernel / Flower, two cores", ratio("kernel 2", "flower 2"), 2.0),
        Goal("C++ kernel / products of the same shapes", ratio("kernel", "products"), 0.85),
        Goal("sampled softmax / pfl-research, one core", ratio("sampled", "pfl"), 4.5),
        Goal("time of a private round / not private", ratio("plain", "kernel"), 1.05, at_most=True),
        Goal("two processes / one, C++ kernel", ratio("kernel 2", "kernel"), 1.85),
        Goal(
            f"time of a round with {MANY:,} users / {FEW:,}",
            ratio("kernel", "many"),
            1.10,
            at_most=True,
        ),
        Goal("memory grown by that, MB", growth(), 100.0, at_most=True, digits=1),
    ]


def profiles(running: dict[str, Contestant]) -> dict[str, dict[str, Any]]:
    """Where the time of a round goes, by the clock."""
    found = {}
    for row in (ROWS["kernel"], ROWS["torch"], ROWS["sampled"]):
        if not row.problem:
            contestant = running[row.who[0]]
            with suppress(Failed):
                contestant.wake()
                contestant.ask("profile", row.command)
                found[row.name] = contestant.answer()
            contestant.rest()
    return found


def machine() -> str:
    """The processor, how wide its vectors are, and torch."""
    name, width = platform.processor() or platform.machine(), ""
    with suppress(OSError):
        facts = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        name = (re.findall(r"model name\s*: (.*)", facts) or [name])[0]
        width = next((f", {v.upper()}" for v in ("avx512f", "avx2") if f" {v}" in facts), "")
    return f"{name}{width}, {os.cpu_count()} cores, torch {torch.__version__}"


def busy(seconds: float = 2.0) -> float:
    """How many cores are at work while nothing is measured; NaN where there is no /proc."""

    def ticks() -> tuple[int, int]:
        values = [int(v) for v in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(values), values[3] + values[4]

    try:
        before = ticks()
        time.sleep(seconds)
        total, idle = (b - a for a, b in zip(before, ticks(), strict=True))
    except (OSError, ValueError):
        return float("nan")
    return (1 - idle / max(total, 1)) * (os.cpu_count() or 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--repetitions", type=int, default=7, help="rounds of each that count")
    parser.add_argument("--cohort", type=int, default=20, help="users of a round")
    parser.add_argument("--minutes", type=float, default=15, help="no repetition begins after that")
    parser.add_argument("--few", type=int, default=FEW, help=argparse.SUPPRESS)
    parser.add_argument("--many", type=int, default=MANY, help=argparse.SUPPRESS)
    parser.add_argument("--no-write", action="store_true", help="leave docs/ as it is")
    options = parser.parse_args()
    began = time.monotonic()
    for requirement in (PFL, FLOWER):
        with suppress(NoEnvironment):  # its rows say so later
            python_for(requirement)
    cache_folder().mkdir(parents=True, exist_ok=True)
    others = busy()
    folder = Path(tempfile.mkdtemp(prefix="tokens-", dir=cache_folder()))
    try:
        few, many = folder / "few", folder / "many"
        starts = commands(few, many, options.cohort)
        synthetic_users.write(few, options.few)
        try:
            synthetic_users.write(many, options.many)
        except OSError as error:
            starts.pop("many")
            give_up("many", error)
        with all_started(starts) as running:
            waiting = busy()
            done = 0
            for repetition in range(1, options.repetitions + 1):
                if repetition > 1 and time.monotonic() - began > 60 * options.minutes:
                    break
                rows = list(ROWS.values())
                for row in rows if repetition % 2 else reversed(rows):
                    one_round(row, running, repetition)
                done = repetition
                print(f"repetition {repetition} of {options.repetitions}", flush=True)
            shown = profiles(running)
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    operations = next((fact["operations"] for fact in ROWS["products"].facts), float("nan"))
    lines = {key: row.line() for key, row in ROWS.items()}
    text = note(
        setting=(
            f"{done} repetitions of {options.cohort} users on {machine()}. Before the start, others"
            f" kept {others:.2f} cores busy; all contestants waiting, {waiting:.2f}."
        ),
        tables=[
            table([lines[k] for k in ONE_CORE], operations, lines["pfl"], lines["products"]),
            table([lines[k] for k in TWO_CORES], operations, lines["pfl 2"], lines["products 2"]),
            table([lines[k] for k in BESIDE], operations, lines["kernel"], lines["products"]),
        ],
        goals=goals(),
        profiles=shown,
    )
    print(text)
    if not options.no_write:
        _put_between_marks(DOCS / "results" / "speed.md", text)
        plot([[lines[k] for k in ONE_CORE], [lines[k] for k in TWO_CORES]], DOCS / "images")


def _put_between_marks(path: Path, text: str) -> None:
    begin, end = "<!-- measured: begin -->", "<!-- measured: end -->"
    before, after = "# Speed\n\n", "\n"
    if path.exists():
        whole = path.read_text(encoding="utf-8")
        before, rest = whole.split(begin, 1)
        after = rest.split(end, 1)[1]
    path.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    main()
