"""What an engine that a client starts tells it: one line through a pipe, and nothing to any other file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from streamer.service.embedded import StartReport


def test_a_report_is_one_line_and_closes_its_descriptor() -> None:
    """The client reads one line of JSON, and then the end of the pipe."""
    end, start = os.pipe()
    StartReport(start).write({"ready": True})
    with os.fdopen(end) as read:
        assert json.loads(read.read()) == {"ready": True}


def test_a_second_report_does_not_reach_a_file_that_has_the_number_now(tmp_path: Path) -> None:
    """An error after "ready" is written to no file, and closes none, that was opened with the number of the pipe."""
    end, start = os.pipe()
    report = StartReport(start)
    report.write({"ready": True})
    other = os.open(tmp_path / "chunk", os.O_CREAT | os.O_RDWR)
    assert other == start, "the number is given again"
    report.write({"kind": "BrokenError", "message": "later"})
    assert os.fstat(other).st_size == 0
    os.close(other)
    os.close(end)


def test_a_client_that_is_gone_is_no_error() -> None:
    """A report that nothing reads any more closes the descriptor without an error."""
    end, start = os.pipe()
    os.close(end)
    StartReport(start).write({"ready": True})
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(start)
