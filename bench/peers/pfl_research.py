"""pfl-research as its own documentation uses it: FederatedAveraging on the simulated backend.

A round is a central iteration with the central Gaussian mechanism: train, clip, sum, add noise,
average, apply.  Under torchrun the users of a cohort are divided over its processes.
The argument is the number of users of a round.
"""

from __future__ import annotations

import functools
import logging
import sys
import time

import numpy as np
import torch
from workload import (
    BATCH,
    CLIP_NORM,
    DISTINCT,
    NOISE_MULTIPLIER,
    RATE,
    WordLSTM,
    answer,
    commands,
    own_stdout,
    user_rows,
)

own_stdout()
from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.data.pytorch import PyTorchTensorDataset  # noqa: E402
from pfl.data.sampling import MinimizeReuseUserSampler  # noqa: E402
from pfl.hyperparam import NNTrainHyperParams  # noqa: E402
from pfl.internal.ops import pytorch_ops  # noqa: E402
from pfl.metrics import Metrics, Weighted  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402
from pfl.privacy.gaussian_mechanism import GaussianMechanism  # noqa: E402
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism  # noqa: E402


class Measured(WordLSTM):
    def metrics(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, Weighted]:
        """pfl asks for it in the first iteration, which is not measured."""
        with torch.no_grad():
            return {"loss": Weighted(float(self.loss(inputs, targets)), 1)}


class Pace(TrainingProcessCallback):
    """Waits for a command before each iteration, and says how long it took."""

    def __init__(self, cohort: int) -> None:
        self.cohort = cohort
        self.is_first = pytorch_ops.distributed.global_rank == 0
        self.commands = commands() if self.is_first else iter(())
        self.began = 0.0

    def _waits(self) -> bool:
        """Whether there is nothing more to do; all processes learn it from the first."""
        said = self.is_first and next(self.commands, None) is None
        [stops] = pytorch_ops.distributed.all_reduce([torch.tensor([float(said)])])
        self.began = time.perf_counter()
        return bool(stops)

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self._waits()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        seconds = time.perf_counter() - self.began
        if self.is_first:
            weights = model.get_parameters().values()
            finite = all(bool(w.isfinite().all()) for w in weights)
            answer(seconds=seconds, users=self.cohort, finite=finite)
        return self._waits(), Metrics()


def main() -> None:
    cohort = int(sys.argv[1])
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)  # pfl draws the same users in all processes from it
    everybody = {
        user: PyTorchTensorDataset(user_rows(user), user_id=str(user)) for user in range(DISTINCT)
    }
    users = FederatedDataset(everybody.__getitem__, MinimizeReuseUserSampler(list(everybody)))
    network = Measured()
    model = PyTorchModel(
        network,
        functools.partial(torch.optim.SGD, fused=True),
        torch.optim.SGD(network.parameters(), lr=1.0),
    )
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIP_NORM, NOISE_MULTIPLIER))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=10**9,
            evaluation_frequency=10**9,
            train_cohort_size=cohort,
            val_cohort_size=None,
        ),
        SimulatedBackend(users, users, [noise]),
        model,
        NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=RATE),
        callbacks=[Pace(cohort)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
