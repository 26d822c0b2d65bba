"""Flower as this package uses it: messages, apps, the Fleet API; and what of it is turned off.

Nothing is sent to Flower's makers: no telemetry, no look for updates.  Nothing is installed at run
time, and no code is fetched from a server: a Flower SuperNode always fetches an app from its server
and runs it, which is why clients here are not SuperNodes.  They speak the same Fleet API, and run
the `ClientApp` that is installed with tacit.

A Flower SuperLink serves the start and stop of runs on the clients' port, to anybody, and starts a
ServerApp in a process of its own, from code that it was sent.  So the server here is not a
SuperLink either: it serves the Fleet API alone, from the process that trains.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ["FLWR_TRACING_ENABLED"] = "0"

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as missing:
    raise ImportError(
        f"{missing}; federated training needs Flower: pip install 'tacit-dp[federation]'"
    ) from missing

__all__ = [
    "Array",
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "Context",
    "Grid",
    "Message",
    "RecordDict",
    "ServerApp",
]

VERSION = (
    "1.41.0"  # of Flower: the only one whose inner parts are known to be as they are used here
)

# What goes wrong with a client is said by us, in a sentence, where it matters.
for _name in ("flwr", "uvicorn", "uvicorn.error", "httpx"):
    with suppress(ValueError):
        logging.getLogger(_name).setLevel(logging.CRITICAL)
