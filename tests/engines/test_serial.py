"""The engine that all others are measured by."""

import torch

from tacit.engines.engine import SerialEngine, engine_for
from tacit.federated.cohort import sum_over
from tacit.kernels.local_sgd import AutogradSGD, local_sgd_for
from tests.engines.cohorts import TASK, bits, job_of
from tests.federated.tiny import small


def test_it_is_the_sum_over_the_cohort_in_order(model):
    seen = []
    found = SerialEngine(local_sgd_for(model)).sum(TASK, job_of(model), [3, 0, 6], seen.append)
    assert bits(found) == bits(sum_over(TASK, job_of(model), [3, 0, 6], local_sgd_for(model)))
    assert seen == [1, 2, 3]


def test_kernel_names_torch_and_the_arithmetic(model):
    """Weights by another arithmetic differ in their last bits: the HMAC of a release tells."""
    by_hand, by_autograd = SerialEngine(local_sgd_for(model)), SerialEngine(AutogradSGD(model))
    assert by_hand.kernel.startswith(f"torch {torch.__version__}, ")
    assert by_autograd.kernel == f"torch {torch.__version__}, autograd"
    assert by_hand.kernel != by_autograd.kernel


def test_one_worker_is_serial(model):
    engine = engine_for(small("transformer-14m"), 1)
    assert isinstance(engine, SerialEngine)
    engine.close()
