"""How far a training gets: a law with four constants, fitted to trainings that were measured.

A rehearsal on test people (`planner.rehearsal`) says how fast this text is learnt: the loss falls
by g nats a token in twelve rounds without noise, at a rate that falls as in a training.  In T
rounds at a share r of the server's full rate, with noise of `noise` clip norms on each average, it
falls by

    g MOST * travel / (travel + HALF) / (1 + (scatter / SCATTER)^2)

    travel  = r T                    (how far the server goes)
    scatter = r noise sqrt(T)        (how far the noise of all rounds carries it astray)

times n^READING where people read n times as much in a round as in the rehearsal.  What is left to
learn from these people by this model comes to an end, and noise costs the more of it, the further
it has carried the model.  The plan is chosen by this law (`planner.choice`), and expectations are
read from it (`planner.outlook`).  What it was fitted to and how far it was off elsewhere is in
docs/results/own-text.md.
"""

from __future__ import annotations

import math

MOST = 2.15  # times what a rehearsal gains: what a training of any length gains
HALF = 16.0  # rounds after which it has half of that
SCATTER = 70.0  # clip norms of noise that halve what is learnt
READING = 0.125  # four times the tokens bring a fifth more
READ = 200  # tokens a round, in rehearsals and in most trials


def progress(rounds: int, noise: float, rate_share: float = 1.0, reading: float = 1.0) -> float:
    """How many times as far as the rehearsal a training gets.

    Args:
        rounds: T.
        noise: the length of the noise on a round's average, in clip norms.
        rate_share: r.
        reading: how many times as much as in the rehearsal people read in a round.
    """
    travel, scatter = rate_share * rounds, rate_share * noise * math.sqrt(rounds)
    more = math.pow(reading, READING)
    return MOST * more * travel / (travel + HALF) / (1 + (scatter / SCATTER) ** 2)
