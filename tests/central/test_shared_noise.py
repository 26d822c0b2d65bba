"""Who draws which of the noise: all of it once, and most by those with the least to do."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tacit.central import shared_noise
from tacit.central.shared_noise import noise_pieces


@given(st.integers(0, 10**11), st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_every_coordinate_is_in_one_piece(size, loads):
    pieces = noise_pieces(size, loads)
    assert len(pieces) == len(loads)
    assert pieces[0].start == 0
    assert pieces[-1].stop == size
    for one, next_one in pairwise(pieces):
        assert one.start <= one.stop == next_one.start


def test_equal_loads_have_equal_pieces():
    assert noise_pieces(12, [7, 7, 7]) == [slice(0, 4), slice(4, 8), slice(8, 12)]
    assert noise_pieces(9, [3]) == [slice(0, 9)]
    assert noise_pieces(10, [0, 0]) == [slice(0, 5), slice(5, 10)]


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8))
def test_nobody_waits_longer_than_needed(loads):
    """Loads and noise together end at one time, but for those who had more to do from the start."""
    size = 10**6
    noise = np.array([piece.stop - piece.start for piece in noise_pieces(size, loads)])
    done = np.array(loads) + noise / size * shared_noise._A_VECTOR
    drawing = noise > 0
    assert np.ptp(done[drawing]) < 1e-4
    assert (done[~drawing] >= done[drawing].max() - 1e-4).all()
