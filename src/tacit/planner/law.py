"""How far a training gets: a law with four constants, fitted to trainings that were measured.

A rehearsal on test people (`planner.rehearsal`) says how fast this text is learnt: the loss falls
by `gain` nats a token in twelve rounds without noise, at a rate that falls as in a training.  In T
rounds at a share r of the server's full rate, with noise of `noise` clip norms on each average, it
falls by

    gain MOST n^READING * travel / (travel + HALF) - (scatter / SCATTER)^2   nats a token,

    travel  = r T                    (how far the server goes)
    scatter = r noise sqrt(T)        (how far the noise of all rounds carries it astray)

where people read n times as much in a round as in the rehearsal.  What is left to learn from these
people by this model comes to an end; noise costs what a shift of the weights in all directions
costs, which is as much on any text: so how much noise is worth how many rounds depends on how much
there is to learn.  The plan is chosen by this law (`planner.choice`), and expectations are read
from it (`planner.outlook`).  What it was fitted to and how far it was off elsewhere is in
docs/results/own-text.md.
"""

from __future__ import annotations

import math

MOST = 2.0  # times what a rehearsal gains: what a training of any length gains
HALF = 17.0  # rounds after which it has half of that
SCATTER = 126.0  # clip norms of noise that cost a nat
READING = 0.175  # four times the tokens bring a fourth more
READ = 200  # tokens a round, in rehearsals and in most trials


def fall(
    gain: float, rounds: int, noise: float, rate_share: float = 1.0, reading: float = 1.0
) -> float:
    """By how many nats a token the loss falls; less than 0 where noise costs more than is learnt.

    Args:
        gain: of the rehearsal, in nats a token.
        rounds: T.
        noise: the length of the noise on a round's average, in clip norms.
        rate_share: r.
        reading: how many times as much as in the rehearsal people read in a round.
    """
    travel, scatter = rate_share * rounds, rate_share * noise * math.sqrt(rounds)
    most = gain * MOST * math.pow(reading, READING)
    return most * travel / (travel + HALF) - (scatter / SCATTER) ** 2
