"""The cost of an index that is under way: the lines of its progress, and the refusal of one that takes too long.
Sizes and seconds are given; nothing is read."""

from __future__ import annotations

import pytest

from streamer.engine.manifests.index_resources import IndexCost
from streamer.errors import ManifestError
from streamer.manifest.protocols import BuildProgress, IndexEstimate

MB = 10**6


class Run:
    """Stands for an index of 100 GB with a limit of ten minutes: real cost, given clock, texts collected."""

    def __init__(self, read_bytes: int = 100_000 * MB) -> None:
        self.texts: list[str] = []
        self.seconds = 1000.0
        self.cost = IndexCost("s3://b/", 600.0, lambda text, done, total: self.texts.append(text), lambda: self.seconds)
        self.cost.take_estimate(IndexEstimate(100, 100_000 * MB, read_bytes, 12_000, 8 << 20))

    def at(self, seconds: float, done: int) -> None:
        """Reports so many bytes as read at this second."""
        self.seconds = 1000.0 + seconds
        self.cost.take_progress(BuildProgress(0, 100, done, 100_000 * MB, done, 0))


def test_the_rate_of_the_index_is_said_once():
    """The rate of an index is told once, after 64 MiB and two seconds from the first bytes on.
    A store that answers late is not a slow one."""
    run = Run()
    run.at(300, 8 * MB)
    run.at(301, 508 * MB)
    run.at(302, 1008 * MB)
    run.at(303, 1508 * MB)
    said = [text for text in run.texts if text.startswith("index")]
    assert said == ["index 100 objects: read 100.0 GB once", "index 100 objects: read 100.0 GB, 3.3 min at 500.0 MB/s"]


def test_an_index_that_takes_too_long_is_refused():
    """An index that would exceed `max_seconds` at its measured rate is refused with the figures and what to do."""
    run = Run()
    run.at(0, 8 * MB)
    run.at(3, 70 * MB)
    with pytest.raises(
        ManifestError,
        match=r"20.8 min at 80.0 MB/s: more than Index\(max_seconds=...\) allows \(10 min\).*streamer index",
    ):
        run.at(4, 328 * MB)


def test_a_listing_that_is_enough_is_never_refused():
    """An index that needs only the listing is never refused, since it reads no files."""
    run = Run(read_bytes=0)
    run.at(0, 0)
    run.at(10_000, 70 * MB)
    assert run.texts[0] == "index 100 objects (100.0 GB): the listing is enough"


def test_a_short_index_of_one_object_is_told_in_seconds():
    """The progress of a short index has seconds and singular words (it said "1 objects" and 0.0 min)."""
    run = Run()
    run.cost.take_estimate(IndexEstimate(1, 600 * MB, 600 * MB, 12_000, 8 << 20))
    for seconds, done in ((0, 0), (3, 300 * MB)):
        run.seconds = 1000.0 + seconds
        run.cost.take_progress(BuildProgress(0, 1, done, 600 * MB, done, 1))
    assert run.texts[-1] == "index 1 object: read 600.0 MB, 6 s at 100.0 MB/s"
    assert run.texts[-2] == "0 of 1 object, 1 sample"


def test_an_index_that_is_over_is_not_refused():
    """An index that has read everything is not refused, however long it took."""
    run = Run()
    run.at(0, 8 * MB)
    run.at(1000, 100_000 * MB)
    # No rate is said either.
    assert run.texts == ["index 100 objects: read 100.0 GB once", *["0 of 100 objects, 0 samples"] * 2]


def test_what_an_earlier_manifest_knows_takes_no_time():
    """Bytes that an earlier manifest knows do not count: with 99 of 100 GB known only 1 GB is estimated."""
    run = Run()
    run.cost.take_estimate(IndexEstimate(100, 100_000 * MB, 1000 * MB, 120, 8 << 20, known_bytes=99_000 * MB))
    run.at(0, 99_008 * MB)
    run.at(4, 99_328 * MB)
    assert run.texts[-4] == "index 100 objects: read 1.0 GB of 100.0 GB once"
    assert run.texts[-1] == "index 100 objects: read 1.0 GB, 12.5 s at 80.0 MB/s"
