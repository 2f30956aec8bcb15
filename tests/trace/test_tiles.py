from hypothesis import given
from hypothesis import strategies as st

from spearhead.trace.tiles import Cause, Tiles

CAUSES = list(Cause)


@given(
    st.lists(st.tuples(st.integers(-20, 120), st.integers(-20, 120), st.sampled_from(CAUSES)), max_size=30)
)
def test_every_moment_belongs_to_what_was_painted_there_last(strokes):
    tiles = Tiles(0, 100)
    truth = [Cause.UNATTRIBUTED] * 100
    for start, end, cause in strokes:
        tiles.paint(start, end, cause)
        for moment in range(max(start, 0), min(end, 100)):
            truth[moment] = cause
    found = list(tiles)
    assert found[0].start_ns == 0
    assert [tile.end_ns for tile in found[:-1]] == [tile.start_ns for tile in found[1:]]
    assert [tile.cause for tile in found for _ in range(tile.duration_ns)] == truth


def test_an_empty_stretch_has_no_tile():
    tiles = Tiles(5, 5)
    tiles.paint(0, 10, Cause.VERIFY)
    assert list(tiles) == []
