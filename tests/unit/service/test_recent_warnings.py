"""The recent warnings of the log in the statistics."""

import logging

import pytest

from streamer.service.recent_warnings import MAX_WARNINGS, recent_warnings

logger = logging.getLogger("streamer.test")


def test_warnings_are_kept_and_lines_of_less_weight_are_not():
    """Warnings and errors are kept while the context lasts, the newest first; lines of lower levels are not."""
    with recent_warnings() as warnings:
        logger.info("all is well")
        logger.warning("peer %d is slow", 3)
        logger.error("peer %d is gone", 4)
        texts = [(entry["level"], entry["logger"], entry["text"]) for entry in warnings.entries()]
    logger.warning("after it")
    assert texts == [("ERROR", "streamer.test", "peer 4 is gone"), ("WARNING", "streamer.test", "peer 3 is slow")]
    assert len(warnings.entries()) == 2


def test_a_message_that_comes_again_counts_up():
    """A message that is logged again with other values counts up and replaces its text, and pushes out no other."""
    with recent_warnings() as warnings:
        logger.warning("the disk is full")
        for number in range(1000):
            logger.warning("peer %d is slow", number)
        found = [(entry["text"], entry["count"]) for entry in warnings.entries()]
    assert found == [("peer 999 is slow", 1000), ("the disk is full", 1)]


def test_their_number_and_length_are_bounded():
    """The recent warnings are bounded in number, where the oldest kinds are dropped, and in length."""
    with recent_warnings() as warnings:
        for number in range(MAX_WARNINGS + 5):
            logger.warning(f"kind {number} {'x' * 1000}")  # noqa: G004 - each is a kind of its own
        found = warnings.entries()
    assert [str(entry["text"]).split()[1] for entry in found] == [str(number) for number in range(24, 4, -1)]
    assert {len(str(entry["text"])) for entry in found} == {600}


class Unprintable:
    """A value that has no text."""

    def __str__(self):
        raise ValueError("no text")


@pytest.mark.parametrize(("text", "values"), [("peer %d is slow", ["a"]), ("%s", [Unprintable()]), (Unprintable(), [])])
def test_a_wrong_call_stops_nothing(text, values, capsys, monkeypatch):
    """A call whose values do not fit its text is reported on stderr as by any handler, and does not stop the caller.

    Its error came out of the call, in the middle of what the engine was doing.
    """
    monkeypatch.setattr(logging.getLogger("streamer"), "propagate", False)  # pytest's own handler raises such errors
    with recent_warnings() as warnings:
        logger.warning("peer %d is slow", 1)
        logger.warning(text, *values)
        texts = [entry["text"] for entry in warnings.entries()]
    assert texts == ["peer 1 is slow"]
    assert "--- Logging error ---" in capsys.readouterr().err
    assert warnings.newest()[0] == 1
