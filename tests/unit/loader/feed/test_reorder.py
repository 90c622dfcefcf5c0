"""Tests of the window that decides which batch is made and which is delivered next, without threads."""

from __future__ import annotations

from streamer.loader.feed.run import BatchCursor, BatchWindow


def window(batches: int = 3, span: int = 4) -> BatchWindow[str]:
    return BatchWindow(BatchCursor(lambda epoch: batches, 0, 0), span)


def test_a_window_crosses_epochs_and_skips_empty_ends():
    """The batch after an epoch's last is the next epoch's first; a start behind the end is the next epoch."""
    cursor = BatchCursor(lambda epoch: 2 + epoch, 0, 1)
    assert [cursor.advance() for _ in range(5)] == [(0, 1), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert BatchCursor(lambda epoch: 2, 0, 2).advance() == (1, 0)


def test_no_more_than_span_is_begun():
    """At most `span` batches are begun and not taken."""
    w = window()
    assert [w.draw(0, 9).step for _ in range(4)] == [0, 1, 2, 3]
    assert w.draw(0, 9) is None
    assert w.draw(1, 9).step == 4


def test_no_later_epoch_is_begun():
    """No batch is begun of an epoch beyond the last one that the window may reach."""
    w = window(batches=1, span=100)
    assert [w.draw(0, 1).epoch for _ in range(2)] == [0, 1]
    assert w.draw(0, 1) is None


def test_in_order_whatever_the_order_of_finishing():
    """Batches that are finished early are delivered in their order."""
    w = window()
    first, second, third = (w.draw(0, 9) for _ in range(3))
    w.finish(third, "c")
    w.finish(second, "b")
    assert list(w.deliver()) == []
    w.finish(first, "a")
    assert list(w.deliver()) == ["a", "b", "c"]


def test_repeats_come_first_and_in_order():
    """A batch to be made again goes before new ones, the earliest first."""
    w = window()
    first, second = w.draw(0, 9), w.draw(0, 9)
    w.repeat(second)
    w.repeat(first)
    assert w.draw(0, 9) is first
    assert w.draw(0, 9) is second
    assert w.draw(0, 9).step == 2


def test_unread_is_the_first_at_work():
    """`unread` is the first batch that a worker has still to read, whatever is finished and waits for its turn."""
    w = window()
    first, second = w.draw(0, 9), w.draw(0, 9)
    assert w.unread == 0
    w.finish(first, "a")
    assert w.unread == 1
    w.finish(second, "b")
    assert w.unread == 2


def test_abandoned_work_is_marked():
    """At the end of a run batches at work are marked as abandoned, and finished ones are given back."""
    w = window()
    first, second = w.draw(0, 9), w.draw(0, 9)
    w.finish(second, "b")
    assert list(w.abandon()) == ["b"]
    assert first.abandoned
    assert not second.abandoned
