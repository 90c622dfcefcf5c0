"""The log of a container's index on the disk: appended, cut off, damaged, refused, and of another version."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from streamer.formats.folder import Folder
from streamer.formats.webdataset import WebDataset
from streamer.indexing.index_log import IndexLog, IndexLogs, LoggedSamples
from streamer.manifest.model import Facts, ObjectRecord
from streamer.manifest.protocols import Source


def append(log: IndexLog, first: int, stop: int, *, finished: bool = False) -> None:
    starts = np.arange(first, stop, dtype=np.int64) * 100
    log.append(starts, starts + 90, stop * 100, finished=finished)


def found(samples: int, *, finished: bool = False) -> LoggedSamples:
    starts = [i * 100 for i in range(samples)]
    return LoggedSamples(starts, [start + 90 for start in starts], samples * 100, finished)


@pytest.fixture
def log(tmp_path) -> IndexLog:
    """Makes a log of five samples in two records."""
    made = IndexLog(tmp_path / "logs" / "one")
    assert made.read() == LoggedSamples()
    append(made, 0, 3)
    append(made, 3, 5)
    return made


def test_what_was_appended_is_read(log, tmp_path):
    """Records that several processes appended are read in order, up to the end of the container."""
    after = IndexLog(tmp_path / "logs" / "one")
    assert after.read() == found(5)
    append(after, 5, 6, finished=True)
    assert IndexLog(tmp_path / "logs" / "one").read() == found(6, finished=True)


@pytest.mark.parametrize("lost", [1, 30, 57])
def test_a_record_that_was_cut_off_is_removed(log, tmp_path, lost):
    """A record that was cut off is removed, and the next one follows the last complete one."""
    path = tmp_path / "logs" / "one"
    path.write_bytes(path.read_bytes()[:-lost])
    after = IndexLog(path)
    assert after.read() == found(3)
    append(after, 3, 4)
    assert IndexLog(path).read() == found(4)


@pytest.mark.parametrize("place", [0, 4, 20, 40])
def test_a_damaged_record_is_never_believed(log, tmp_path, place):
    """A log whose first record has a wrong bit is emptied, and nothing of it is used."""
    path = tmp_path / "logs" / "one"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    assert IndexLog(path).read() == LoggedSamples()
    assert path.stat().st_size == 0


def test_records_of_two_writers_are_not_mixed(log, tmp_path):
    """A second writer that began at the same place appends nothing to the first one's records."""
    path = tmp_path / "logs" / "one"
    second = IndexLog(path)
    append(second, 0, 4)
    assert IndexLog(path).read() == found(5)


def test_a_disk_that_refuses_costs_only_the_log(tmp_path, caplog):
    """A disk that refuses the log costs a line in the program's log, and the index goes on."""
    (tmp_path / "logs").write_text("not a folder")
    log = IndexLog(tmp_path / "logs" / "one")
    assert log.read() == LoggedSamples()
    append(log, 0, 3)
    assert "cannot be written" in caplog.text


class LaterTars(WebDataset):
    """Stands for a later revision of the tar format."""

    revision = WebDataset.revision + 1


RECORD = ObjectRecord("s3://b/a", 100, "etag:1")
SOURCE, TARS, CHUNK_BYTES = Source(RECORD), WebDataset(), 1 << 20
REPLACE = msgspec.structs.replace


@pytest.mark.parametrize(
    ("source", "indexer", "facts", "chunk_bytes"),
    [
        pytest.param(Source(REPLACE(RECORD, version="etag:2")), TARS, Facts(), CHUNK_BYTES, id="version"),
        pytest.param(Source(REPLACE(RECORD, size=101)), TARS, Facts(), CHUNK_BYTES, id="size"),
        pytest.param(REPLACE(SOURCE, notes=b"other"), TARS, Facts(), CHUNK_BYTES, id="notes"),
        pytest.param(REPLACE(SOURCE, sidecar=RECORD), TARS, Facts(), CHUNK_BYTES, id="sidecar"),
        pytest.param(SOURCE, Folder(), Facts(), CHUNK_BYTES, id="format"),
        pytest.param(SOURCE, LaterTars(), Facts(), CHUNK_BYTES, id="revision"),
        pytest.param(SOURCE, TARS, Facts(notes={"keys": "lower"}), CHUNK_BYTES, id="facts"),
        pytest.param(SOURCE, TARS, Facts(), 2 << 20, id="chunk size"),
    ],
)
def test_another_version_is_another_log(tmp_path, source, indexer, facts, chunk_bytes):
    """Another version, sidecar, format, revision, chunk size or other facts of the survey have another log."""
    logs = IndexLogs(tmp_path)
    append(logs.open_log(SOURCE, TARS, Facts(), CHUNK_BYTES), 0, 3)
    assert logs.open_log(SOURCE, TARS, Facts(), CHUNK_BYTES).read() == found(3)
    assert logs.open_log(source, indexer, facts, chunk_bytes).read() == LoggedSamples()
