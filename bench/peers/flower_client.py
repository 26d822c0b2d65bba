"""What a client of the Flower simulation does; a module of its own, so that actors keep the model.

A function of the main script would be sent to the actors anew, and its model built, for each user.
"""

from __future__ import annotations

import functools

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from workload import BATCH, RATE, WordLSTM, user_rows

app = ClientApp(mods=[fixedclipping_mod])
network = functools.cache(WordLSTM)
rows = functools.cache(user_rows)


@app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, fused=True)
    inputs, targets = rows(int(context.node_config["partition-id"]))
    for x, y in zip(inputs.split(BATCH), targets.split(BATCH), strict=True):
        optimizer.zero_grad()
        model.loss(x, y).backward()
        optimizer.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": inputs.numel()}),
        }
    )
    return Message(content=content, reply_to=message)
