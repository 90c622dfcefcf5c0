"""The track: one session's place in its schedule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.engine.session import open_bytes
from streamer.engine.track import Track
from streamer.errors import ProtocolError


def columns(*uses):
    chunk, first, last = zip(*uses, strict=True) if uses else ((), (), ())
    return np.array(chunk, np.uint32), np.array(first, np.int64), np.array(last, np.int64)


def track_of(*uses, epoch=0, chunks=10):
    track = Track(np.full(chunks, 100))
    track.extend(epoch, columns(*uses), complete=True)
    return track


def hold_all(track):
    while (use := track.next_use()) is not None:
        track.hold(use)


def arrive(track, *chunks):
    for chunk in chunks:
        track.arrived(chunk)
    for use in track.openable():
        track.opened(use)


def test_the_line_moves_when_the_missing_chunk_arrives():
    """A later chunk that is there first does not move the line; the missing one moves it past both."""
    track = track_of((0, 0, 1), (1, 1, 2), (2, 2, 3))
    track.advance(0, 3)
    hold_all(track)
    arrive(track, 1)
    assert track.through() == -1
    arrive(track, 0)
    assert track.through() == 1
    arrive(track, 2)
    assert track.through() == 3


def test_only_a_consumer_that_cannot_go_on_blocks_the_line():
    """While it has steps to read, what comes next may wait for what it gives back."""
    track = track_of((0, 0, 0), (1, 1, 1), (2, 2, 2))
    track.advance(0, 2)
    hold_all(track)
    questions = [track.take_question() for _ in range(3)]
    assert [track.blocks_line(question) for question in questions] == [True, False, False]
    arrive(track, 0)
    assert not any(track.blocks_line(question) for question in questions[1:])
    track.advance(1, 2)
    assert [track.blocks_line(question) for question in questions[1:]] == [True, False]


def test_nothing_beyond_want_is_ready():
    """The consumer asked for one step: it is told of no more, and what is ahead is not open."""
    track = track_of((0, 0, 0), (1, 1, 1))
    track.advance(0, 0)
    hold_all(track)
    arrive(track, 0, 1)
    assert track.through() == 0
    assert track.ahead_bytes == 100
    assert track.open_chunks() == 1


def test_uses_end_with_their_last_step():
    """A chunk is given back when its last step is done, not before."""
    track = track_of((0, 0, 2), (1, 1, 1))
    track.advance(0, 2)
    hold_all(track)
    arrive(track, 0, 1)
    track.advance(2, 2)
    assert [use.chunk for use in track.take_over()] == [1]
    track.advance(3, 3)
    assert [use.chunk for use in track.take_over()] == [0]
    assert not track.holds(0)


def test_two_pieces_of_a_chunk_are_held_until_the_later_ends():
    """A chunk on a cut is used twice; it is there for both after one arrival."""
    track = track_of((4, 0, 0), (4, 1, 3))
    track.advance(0, 3)
    hold_all(track)
    arrive(track, 4)
    track.advance(1, 3)
    assert len(track.take_over()) == 1
    assert track.holds(4)
    assert track.through() == 3


def test_uses_that_the_consumer_passed_are_let_go():
    """A consumer that skips steps leaves nothing held and nothing to ask."""
    track = track_of((0, 0, 0), (1, 1, 1), (2, 5, 5))
    track.advance(0, 0)
    use = track.next_use()
    track.hold(use)
    track.advance(3, 3)
    assert [use.chunk for use in track.take_over()] == [0]
    assert track.next_use().chunk == 2
    assert track.take_question() is None


def test_a_broken_chunk_stops_the_line_until_it_is_back():
    """After a reject nothing is ready; the chunk is asked for at the head of the line."""
    track = track_of((0, 0, 3), (1, 1, 3))
    track.advance(0, 3)
    hold_all(track)
    arrive(track, 0, 1)
    assert track.lost(1, broken=True)
    assert track.through() == -1
    question = track.take_question()
    assert question.chunk == 1
    assert track.blocks_line(question)
    assert track.is_wanted(1)
    arrive(track, 1)
    assert track.through() == 3


def test_an_evicted_look_ahead_is_asked_for_again():
    """Losing a chunk that is not open costs nothing but a question."""
    track = track_of((0, 0, 0), (1, 1, 1))
    track.advance(0, 0)
    hold_all(track)
    while track.take_question() is not None:
        pass
    arrive(track, 0, 1)
    assert track.lost(1)
    assert track.take_question().chunk == 1
    assert not track.lost(7)


def test_a_loss_while_another_question_is_asked_is_not_forgotten():
    """The answer to one question may evict an earlier chunk of the same session: both are asked in the end.

    Found by the demo on 2026-11-20: the later question was settled in place of the earlier, and the line stood still.
    """
    track = track_of((0, 0, 0), (1, 1, 1), (2, 2, 2))
    track.advance(0, 2)
    hold_all(track)
    assert track.take_question().chunk == 0
    track.arrived(0)
    assert track.take_question().chunk == 1
    later = track.take_question()
    assert later.chunk == 2
    track.lost(0)
    track.ask_later(later)
    assert track.has_questions()
    assert [track.take_question().chunk for _ in range(2)] == [0, 2]
    assert track.take_question() is None


def test_an_incomplete_schedule_is_not_used():
    """Frames of one epoch are one schedule; nothing is held before the last."""
    track = Track(np.full(10, 100))
    track.extend(0, columns((0, 0, 0)), complete=False)
    assert track.next_use() is None
    track.extend(0, columns((1, 1, 1)), complete=True)
    hold_all(track)
    assert track.holds(0)
    assert track.holds(1)


@pytest.mark.parametrize(
    "bad",
    [
        columns((99, 0, 0)),
        columns((0, 3, 3), (1, 2, 2)),
        columns((0, 3, 2)),
        (np.zeros(2, np.uint32), np.zeros(1, np.int64), np.zeros(2, np.int64)),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(bad):
    """Unknown chunks, steps that go back, uses that end before they begin, columns of different length."""
    with pytest.raises(ProtocolError):
        Track(np.full(10, 100)).extend(0, bad, complete=True)


def test_bytes_ahead_are_those_beyond_what_is_wanted():
    """Held uses count until the consumer asks for them, or passes over them."""
    track = Track(np.array([1, 10, 100, 1000]))
    track.extend(0, columns((0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 3, 3)), complete=True)
    hold_all(track)
    assert track.ahead_bytes == 1111
    track.advance(0, 1)
    track.openable()
    assert track.ahead_bytes == 1100
    track.advance(3, 3)
    track.take_over()
    assert track.ahead_bytes == 1000
    track.openable()
    assert track.ahead_bytes == 0


def test_open_bytes_counts_what_overlaps():
    """What closes at a step goes before what opens at it."""
    sizes = np.array([10, 100, 1000], np.int64)
    assert open_bytes(columns((0, 0, 1), (1, 1, 3), (2, 4, 4)), sizes) == 1000
    assert open_bytes(columns((0, 0, 4), (1, 1, 3), (2, 4, 4)), sizes) == 1010
    assert open_bytes(columns(), sizes) == 0


@given(st.data())
def test_every_use_is_opened_and_given_back_once(data):
    """In whatever order chunks arrive: each use opens after its chunk is there and ends after its last step."""
    firsts = sorted(data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=12)))
    uses = [(data.draw(st.integers(0, 4)), first, first + data.draw(st.integers(0, 4))) for first in firsts]
    track = track_of(*uses)
    over, final = [], max(last for _, _, last in uses)
    done = 0
    while done <= final:
        track.advance(done, done + data.draw(st.integers(0, 3)))
        hold_all(track)
        for chunk in data.draw(st.permutations(range(5))):
            arrive(track, chunk)
        assert track.through() >= min(track.want, final)
        over += track.take_over()
        done += 1
    track.advance(final + 1, final + 1)
    over += track.take_over()
    assert sorted((use.chunk, use.first, use.last) for use in over) == sorted(uses)
    assert track.through() == final
