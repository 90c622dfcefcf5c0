from __future__ import annotations

import numpy as np
import pytest

from streamer.manifest.builder.index_log import Found, IndexLog, IndexLogs
from streamer.manifest.model import ObjectRecord


def append(log: IndexLog, first: int, stop: int, *, finished: bool = False) -> None:
    starts = np.arange(first, stop, dtype=np.int64) * 100
    log.append(starts, starts + 90, stop * 100, finished=finished)


def found(samples: int, *, finished: bool = False) -> Found:
    starts = [i * 100 for i in range(samples)]
    return Found(starts, [start + 90 for start in starts], samples * 100, finished)


@pytest.fixture
def log(tmp_path) -> IndexLog:
    made = IndexLog(tmp_path / "logs" / "one")
    assert made.read() == Found()
    append(made, 0, 3)
    append(made, 3, 5)
    return made


def test_what_was_appended_is_read(log, tmp_path):
    """Over any number of processes, to the end of the container."""
    after = IndexLog(tmp_path / "logs" / "one")
    assert after.read() == found(5)
    append(after, 5, 6, finished=True)
    assert IndexLog(tmp_path / "logs" / "one").read() == found(6, finished=True)


@pytest.mark.parametrize("lost", [1, 30, 57])
def test_a_record_that_was_cut_off_is_removed(log, tmp_path, lost):
    """The next record follows the last good one."""
    path = tmp_path / "logs" / "one"
    path.write_bytes(path.read_bytes()[:-lost])
    after = IndexLog(path)
    assert after.read() == found(3)
    append(after, 3, 4)
    assert IndexLog(path).read() == found(4)


@pytest.mark.parametrize("place", [0, 4, 20, 40])
def test_a_damaged_record_is_never_believed(log, tmp_path, place):
    """One wrong bit in checksum, head or samples of the first record: nothing is known."""
    path = tmp_path / "logs" / "one"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    assert IndexLog(path).read() == Found()
    assert path.stat().st_size == 0


def test_records_of_two_writers_are_not_mixed(log, tmp_path):
    """A second writer that began at the same place adds nothing: its records do not follow the first one's."""
    path = tmp_path / "logs" / "one"
    second = IndexLog(path)
    append(second, 0, 4)
    assert IndexLog(path).read() == found(5)


def test_a_disk_that_refuses_costs_only_the_log(tmp_path, caplog):
    """The index goes on."""
    (tmp_path / "logs").write_text("not a folder")
    log = IndexLog(tmp_path / "logs" / "one")
    assert log.read() == Found()
    append(log, 0, 3)
    assert "cannot be written" in caplog.text


def test_another_version_is_another_log(tmp_path):
    """Also another size, format or chunk size."""
    logs = IndexLogs(tmp_path)
    append(logs.of(ObjectRecord("s3://b/a", 100, "etag:1"), "webdataset", 1 << 20), 0, 3)
    assert logs.of(ObjectRecord("s3://b/a", 100, "etag:1"), "webdataset", 1 << 20).read() == found(3)
    for record, name, chunk_bytes in (
        (ObjectRecord("s3://b/a", 100, "etag:2"), "webdataset", 1 << 20),
        (ObjectRecord("s3://b/a", 101, "etag:1"), "webdataset", 1 << 20),
        (ObjectRecord("s3://b/a", 100, "etag:1"), "other", 1 << 20),
        (ObjectRecord("s3://b/a", 100, "etag:1"), "webdataset", 2 << 20),
    ):
        assert logs.of(record, name, chunk_bytes).read() == Found()
