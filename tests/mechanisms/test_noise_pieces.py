"""Who draws which of the noise: all of it once, and all workers alike."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tacit.mechanisms.noise import add_own_noise_
from tacit.privacy.randomness import RunKey


@given(st.integers(0, 300), st.integers(1, 20))
def test_every_coordinate_has_its_noise_from_one_worker_and_all_draw_alike(size, workers):
    stream = RunKey.from_seed(0).stream(branch="a", round=0, attempt=0, purpose="noise")
    noised = np.array(
        [
            add_own_noise_(np.zeros(size), 1.0, worker, workers, stream) != 0
            for worker in range(workers)
        ]
    )
    assert (noised.sum(0) == 1).all()
    each = noised.sum(1)
    assert each.max() - each.min() <= 1
