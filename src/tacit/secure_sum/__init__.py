"""Secure sums: a server learns what clients' integer vectors add up to, and nothing else of them.

The protocol of Bonawitz et al. 2017, with signed keys and a round in which clients confirm to each
other who is there.  Nothing here knows a network, a file or a model: state machines take and give
bytes.

    rules = SumRules(clients=10, threshold=7, survivors=8, colluding=3, size=.., width=64, limit=..)
    session = Session(run="...", round=3, attempt=0)      # one sum; never used twice

    server = SumServer(session, rules, roster)            # roster: id -> enrolled Ed25519 key
    client = SumClient(id, signing_key, roster, session, rules, log)

    client.advertise()            -> server.receive(message)    # clients return and take bytes
    server.advance()              -> {id: message}              # ends a phase, answers everybody
    client.share(message)         -> server.receive(message)
    server.advance()              -> {id: message}
    client.mask(message, vector)  -> server.receive(message)    # the long one: size * width / 8
    server.advance()              -> {id: message}              # now `server.survivors` are known
    client.confirm(message)       -> server.receive(message)
    server.advance()              -> {id: message}
    client.reveal(message)        -> server.receive(message)
    server.advance()              -> {}
    server.total                                                # int64 vector

Between two calls of `advance` the caller waits for as many of `server.expected` as it likes.
`RefusedError` (a ValueError) is one message that was not taken, and changes nothing: drop it.
`RoundFailedError` is a phase that too few have answered: wait on, or give up and begin another
attempt, for which a client has to be asked anew.  `log` is a `SessionLog`: what a client remembers
on its own disk of the sums it was in.  Ids are from 1 to 2^63 - 1.

`ContributionLayout` makes the vector of a `Contribution`, and back; `NoisyLayout` that of one which
has its own share of the noise in it (`tacit.mechanisms.distributed_noise`).
"""

from tacit.secure_sum.client import SumClient
from tacit.secure_sum.layout import ContributionLayout, Layout, NoisyLayout
from tacit.secure_sum.messages import RefusedError
from tacit.secure_sum.rules import (
    RoundFailedError,
    Session,
    SessionLog,
    SessionMemory,
    SumRules,
    width_for,
)
from tacit.secure_sum.server import SumServer

__all__ = [
    "ContributionLayout",
    "Layout",
    "NoisyLayout",
    "RefusedError",
    "RoundFailedError",
    "Session",
    "SessionLog",
    "SessionMemory",
    "SumClient",
    "SumRules",
    "SumServer",
    "width_for",
]
