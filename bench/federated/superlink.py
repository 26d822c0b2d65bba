"""Plain Flower for `bench/federation.py`: its SuperLink, and its FedAvg in a ServerApp."""

from __future__ import annotations

import multiprocessing
import threading
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from federated.meter import Meter, model_of


def serve_flower(folder: Path, weights: int | None, pipe: Pipe) -> None:
    """Flower's SuperLink, in memory, with TLS and node keys; its ServerApp is a child process."""
    import uvicorn
    from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
    from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
    from flwr.superlink.main import create_app

    from tacit.corpus.enrolment import Enrolment
    from tacit.federation import flower  # first: it turns telemetry off
    from tacit.federation.trial import free_port

    del flower
    app, port = create_app(), free_port()
    app.state.enable_supernode_auth = True
    state = app.state.linkstate_factory.state()
    nodes = [
        state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, one["key"].encode(), 30)
        for one in Enrolment.open(folder).clients
    ]
    run_id = state.create_run(
        None, None, None, {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP
    )
    task = state.get_run_info(run_ids=[run_id])[0].primary_task_id
    token = state.claim_task(task)
    state.activate_task(task)
    state._cleanup_expired_task_tokens_locked = lambda: None  # for its heartbeats
    fork = multiprocessing.get_context("fork")
    app_pipe, theirs = fork.Pipe()
    words = (folder, weights, f"127.0.0.1:{port}", token, run_id, task, theirs)
    child = fork.Process(target=flower_app, args=words)
    child.start()
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host="127.0.0.1",
            port=port,
            log_config=None,
            log_level="critical",
            access_log=False,
            ssl_certfile=folder / "server.pem",
            ssl_keyfile=folder / "server.key",
        )
    )
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.05)
    run, before = state.run_ids[run_id].run, (0, 0)
    pipe.send(port)
    while (number := pipe.recv()) is not None:
        for node in nodes:  # a heartbeat of each
            state.acknowledge_node_heartbeat(node, 1e4)
        meter = Meter()
        app_pipe.send(number)
        theirs = app_pipe.recv()
        after = run.bytes_sent, run.bytes_recv
        row = {"sent": after[0] - before[0], "received": after[1] - before[1]}
        row |= meter.row() | {"answered": theirs["answered"]}
        pipe.send(row | {name: row[name] + theirs[name] for name in ("processor", "memory")})
        before = after
    child.kill()


def flower_app(
    folder: Path, weights: int | None, where: str, token: str, run: int, task: int, pipe: Pipe
) -> None:
    """Its ServerApp: FedAvg over Flower's own Grid."""
    import logging
    from types import SimpleNamespace

    from flwr.common.constant import SUPERLINK_NODE_ID
    from flwr.serverapp.strategy import FedAvg
    from flwr.supercore.run import Run
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid import http_grid

    from tacit.federation import flower

    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    http_grid.time = SimpleNamespace(time=time.time, sleep=lambda _: time.sleep(0.1))
    TaskIdentity.run_id, TaskIdentity.node_id = run, SUPERLINK_NODE_ID
    TaskIdentity.task_id = task
    grid = http_grid.HttpGrid(
        where, root_certificates=(folder / "ca.pem").read_bytes(), token=token
    )
    grid.set_run(Run.create_empty(run))
    answered: list[int] = []
    while True:
        model = model_of(weights, pipe.recv())
        meter = Meter()
        arrays = flower.ArrayRecord({"weights": flower.Array(model)})
        strategy = FedAvg(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            train_metrics_aggr_fn=lambda replies, _: answered.append(len(replies)),
        )
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1)
        assert result.arrays["weights"].numpy().shape == model.shape
        pipe.send(meter.row() | {"answered": answered[-1]})
