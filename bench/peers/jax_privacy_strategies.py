"""The strategies that jax_privacy finds, as figures to hold ours against.

    python bench/peers/jax_privacy_strategies.py

jax_privacy gets an environment of its own; with `--python` one that exists is used.  Its figures go
to tests/mechanisms/jax_privacy_strategies.json, which is committed.  Errors are those of the
running sum at a noise multiplier of 1: deviation times sensitivity, as a root mean square over the
rounds ("mean") and at their largest ("largest").  All of them are worked out by jax_privacy itself,
from coefficients that it found.  `optimize` of its buffers has a decorator that hides its
arguments, so `error` has to be given by its name: whoever looks for it first does not find it, and
gets what is best for the largest error twice.  Seconds are those of processors.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VERSION = "2.0.0"
RECORD = Path(__file__).parents[2] / "tests" / "mechanisms" / "jax_privacy_strategies.json"
SETTINGS = ((60, 15), (200, 50), (2052, 342), (5000, 152))  # rounds and separation
# Rounds, users, users a round, epsilon: banded noise, amplified by cyclic Poisson sampling.
AMPLIFIED = ((512, 20_000, 100, 2.0), (512, 20_000, 100, 8.0), (256, 8_192, 256, 1.0))
DELTA = 1e-6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, help="of an environment that has jax_privacy")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        for row in [*_strategies(), *_amplified()]:
            print(json.dumps(row), flush=True)
        return
    python = asked.python or _environment()
    done = subprocess.run(
        [str(python), __file__, "--measure"], capture_output=True, text=True, check=True
    )
    rows = [{**json.loads(line)} for line in done.stdout.splitlines()]
    for row in rows:
        if "separation" in row:
            row["our_seconds"] = _our_seconds(row)
    record = {
        "jax_privacy": VERSION,
        "command": "python bench/peers/jax_privacy_strategies.py",
        "strategies": [row for row in rows if "separation" in row],
        "amplified": [row for row in rows if "separation" not in row],
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _environment() -> Path:
    from environments import python_for

    return python_for(f"jax_privacy=={VERSION}")


def _our_seconds(row: dict[str, Any]) -> float:
    """What our search takes for the same, on the same machine."""
    from tacit.mechanisms import strategy_search
    from tacit.mechanisms.participation import Participation

    began = time.process_time()
    strategy_search.best(
        row["kind"],
        row["rounds"],
        Participation(row["separation"]),
        buffers=row["buffers"] or 4,
        objective=row["objective"],
    )
    return round(time.process_time() - began, 3)


def _strategies() -> Iterator[dict[str, Any]]:
    """Inside of the environment: buffered and banded strategies, best for either error."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    from jax_privacy.matrix_factorization import (
        buffered_toeplitz,
        toeplitz,
    )

    for rounds, separation in SETTINGS:
        times = -(-rounds // separation)
        for objective, error, reduce in (("mean", "mean", jnp.mean), ("largest", "max", jnp.max)):
            for kind in ("blt", "banded"):
                began, buffers = time.process_time(), None
                if kind == "blt":
                    found = buffered_toeplitz.optimize(
                        n=rounds, min_sep=separation, max_participations=times, error=error
                    )
                    buffers, column = len(found.buf_decay), found.toeplitz_coefs(rounds)
                else:
                    column = toeplitz.optimize_banded_toeplitz(
                        n=rounds, bands=separation, reduction_fn=reduce
                    )
                seconds = time.process_time() - began
                squared = toeplitz.minsep_sensitivity_squared(
                    column, min_sep=separation, max_participations=times, n=rounds
                )
                variances = toeplitz.per_query_error(strategy_coef=column, n=rounds) * squared
                yield {
                    "kind": kind,
                    "rounds": rounds,
                    "separation": separation,
                    "objective": objective,
                    "buffers": buffers,
                    "mean": float(jnp.sqrt(variances.mean())),
                    "largest": float(jnp.sqrt(variances.max())),
                    "seconds": round(seconds, 1),
                }


def _amplified() -> Iterator[dict[str, Any]]:
    """Inside of the environment: as many bands as are best at an epsilon."""
    import jax.numpy as jnp
    from jax_privacy.matrix_factorization import toeplitz

    for rounds, users, cohort, epsilon in AMPLIFIED:
        began = time.process_time()
        column, stddev = toeplitz.optimize_coefs_for_amplifications(
            rounds, dataset_size=users, expected_batch_size=cohort, epsilon=epsilon, delta=DELTA
        )
        variances = toeplitz.per_query_error(strategy_coef=column, n=rounds)
        yield {
            "rounds": rounds,
            "population": users,
            "cohort": cohort,
            "epsilon": epsilon,
            "delta": DELTA,
            "bands": len(column),
            "stddev": float(stddev),
            "mean": float(jnp.sqrt(variances.mean()) * stddev),
            "seconds": round(time.process_time() - began, 1),
        }


if __name__ == "__main__":
    main()
