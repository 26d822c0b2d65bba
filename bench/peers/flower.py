"""Flower's simulation on Ray: FedAvg with its own fixed clipping at the client, and its noise.

Arguments: the number of actors, each with one CPU, and the users of a round.
"""

from __future__ import annotations

import os
import sys
import time

from workload import CLIP_NORM, NOISE_MULTIPLIER, WordLSTM, answer, commands, own_stdout

own_stdout()
os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # else its actors yield to whatever else is running
}

import logging  # noqa: E402

import flower_client  # noqa: E402
from flwr.app import ArrayRecord, Context  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import (  # noqa: E402
    DifferentialPrivacyClientSideFixedClipping,
    FedAvg,
)
from flwr.simulation import run_simulation  # noqa: E402

ACTORS, COHORT = int(sys.argv[1]), int(sys.argv[2])
server = ServerApp()


@server.main()
def serve(grid: Grid, context: Context) -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    average = FedAvg(fraction_train=1.0, fraction_evaluate=0.0)
    strategy = DifferentialPrivacyClientSideFixedClipping(
        average, NOISE_MULTIPLIER, CLIP_NORM, COHORT
    )
    arrays = ArrayRecord(WordLSTM().state_dict())
    for _ in commands():
        began = time.perf_counter()
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1)
        seconds = time.perf_counter() - began
        # Without one round's answers there are no new arrays, and nothing was trained.
        finite = bool(result.arrays) and all(
            bool(part.isfinite().all()) for part in result.arrays.to_torch_state_dict().values()
        )
        arrays = result.arrays if finite else arrays
        answer(seconds=seconds, users=COHORT, finite=finite)


if __name__ == "__main__":
    run_simulation(
        server_app=server,
        client_app=flower_client.app,
        num_supernodes=COHORT,
        backend_config={
            "init_args": {
                "num_cpus": ACTORS,
                "object_store_memory": 500_000_000,
                "log_to_driver": False,
            },
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
