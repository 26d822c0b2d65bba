"""Who draws which of the noise: all of it once, and all workers alike."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tacit.mechanisms.noise import _noise_pieces


@given(st.integers(0, 10**11), st.integers(1, 20))
def test_every_coordinate_is_in_one_piece_and_all_pieces_are_alike(size, workers):
    pieces = _noise_pieces(size, workers)
    assert len(pieces) == workers
    assert pieces[0].start == 0
    assert pieces[-1].stop == size
    for one, next_one in pairwise(pieces):
        assert one.stop == next_one.start
    sizes = [piece.stop - piece.start for piece in pieces]
    assert max(sizes) - min(sizes) <= 1
