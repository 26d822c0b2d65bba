"""Cohorts to compute with several engines."""

import dataclasses
import os
from dataclasses import dataclass

from tacit.federated.cohort import CohortSum
from tacit.federated.user_update import FedAvg, FedSGD
from tacit.mechanisms.clipping import QuantileClip
from tacit.mechanisms.estimators import UserWeighting
from tacit.mechanisms.noise import IndependentNoise
from tests.federated.tiny import ListedUsers, few_users, job, plan, task, texts

PLAN = plan(
    weighting=UserWeighting(20.0),
    adaptive=QuantileClip(),
    noise=IndependentNoise(0.7),
    population=50,
)
SHUFFLED = FedAvg(learning_rate=0.5, batch_size=2, unroll=4, shuffle=True)
UPDATES = {
    "fedavg": SHUFFLED,
    "greedy": dataclasses.replace(SHUFFLED, clip_each_step=True),
    "fedsgd": FedSGD(learning_rate=0.5, unroll=4, batch_size=3),
}
USERS = few_users()
TASK = task(PLAN, SHUFFLED, USERS)


def job_of(model, **changes):
    return dataclasses.replace(job(model, PLAN), **changes)


def bits(summed: CohortSum) -> tuple:
    total = summed.total
    return total.update.tobytes(), total.weight, total.bits.tobytes()


@dataclass(frozen=True)
class Troubled:
    """Users one of whom is a trouble to every process but one."""

    pid: int
    error: type[BaseException] | None  # None: the process kills itself
    message: str = ""

    def __len__(self) -> int:
        return 8

    def tokens(self, index: int):
        if os.getpid() != self.pid:
            if self.error is None:
                os.kill(os.getpid(), 9)
            raise self.error(self.message)
        return texts(3, seed=index)

    def key(self, index: int) -> str:
        return f"{index:032x}"


@dataclass(frozen=True)
class ElsewhereOnly(ListedUsers):
    """Users that another process cannot find."""

    def __reduce__(self):
        return open, ("/there/is/no/such/file",)
