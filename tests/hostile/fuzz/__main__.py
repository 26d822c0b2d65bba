"""Fuzz for a while: python -m tests.hostile.fuzz --minutes 30 --seed 1 --out build/fuzz

`make fuzz` does that.  Exits with 1 if anything failed whose cause is not known.
"""

from __future__ import annotations

import argparse
import importlib.util
import secrets
import shutil
import sys
from pathlib import Path

from tests.hostile.fuzz import page, place
from tests.hostile.fuzz.known import is_known
from tests.hostile.fuzz.place import say
from tests.hostile.fuzz.session import SHARES, Session, case_of


def main() -> int:
    """Fuzz, or repeat one case, or write the page of results."""
    asked = _arguments()
    if asked.page:
        page.write(asked.out / "figures.json")
        return 0
    seed = secrets.randbelow(10**6) if asked.seed is None else asked.seed
    kinds = tuple(asked.only or SHARES)
    if "guided" in kinds and importlib.util.find_spec("atheris") is None:
        say("fuzz: atheris is not installed, so no parser is guided by coverage (make fuzz has it)")
        kinds = tuple(kind for kind in kinds if kind != "guided")
    if not asked.repeat:
        shutil.rmtree(asked.out, ignore_errors=True)
    asked.out.mkdir(parents=True, exist_ok=True)
    say(f"fuzz: seed {seed}; making the runs that are to be damaged")
    place.preload()
    with place.made(whole=True) as made:
        session = Session(made, seed, asked.out.resolve(), kinds)
        if asked.repeat:
            kind, _, number = asked.repeat.partition(":")
            say(f"fuzz: {case_of(seed, kind, int(number), made).summary}")
            failure = session.try_one(kind, int(number))
            say(f"fuzz: {failure or 'nothing is wrong with it'}")
            return 1 if failure else 0
        figures = session.run(asked.minutes * 60)
    new = [one for counts in figures.failures.values() for one in counts if not is_known(one)]
    for one in dict.fromkeys(new):
        say(f"fuzz: {one}")
    say(f"fuzz: {len(set(new))} causes; figures and failing cases are in {asked.out}")
    return 1 if new else 0


def _arguments() -> argparse.Namespace:
    words = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz", description=__doc__)
    words.add_argument("--minutes", type=float, default=30.0)
    words.add_argument("--seed", type=int, help="of all cases; random if it is left out")
    words.add_argument("--out", type=Path, default=Path("build/fuzz"))
    words.add_argument("--only", action="append", choices=list(SHARES), help="may be repeated")
    words.add_argument("--repeat", metavar="KIND:NUMBER", help="run a single case again")
    words.add_argument("--page", action="store_true", help="write docs/results/hostile.md anew")
    return words.parse_args()


if __name__ == "__main__":
    sys.exit(main())
