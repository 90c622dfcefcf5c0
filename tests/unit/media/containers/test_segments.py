"""Segments of videos by a table: their frames, the videos that their paths name, and tables that are refused."""

from __future__ import annotations

import io
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamer.errors import ConfigError, ManifestError, RecodeError
from streamer.manifest.model import ObjectRecord
from streamer.media.containers.clips import FrameTable, Pattern, Sampling
from streamer.media.containers.recode import ClipRecoder
from streamer.media.containers.segments import Segments, SegmentTable, assign_rows, read_table
from streamer.media.containers.tables import Packets
from streamer.media.video.format import Video

URL = "s3://b/videos/rows.csv"


def rows(sampling: Sampling, *segments: tuple[float, float], frames: int = 40) -> list[list[int]]:
    """Returns the frames of segments of a video of 10 frames a second, with a key frame every 7."""
    number = np.arange(frames)
    zero = np.zeros(frames, np.int64)
    packets = Packets(number * 100, zero + 100, number * 10, zero + 10, number % 7 == 0, number >= 0, zero)
    start, end = ([pair[side] for pair in segments] for side in (0, 1))
    numbers = list(range(len(segments)))
    table = Segments(URL, numbers, start, end, [b"%d" % number for number in numbers])
    kept, left_out = table.inside(sampling, FrameTable.from_packets(packets), 100, "s3://b/videos/a.mp4")
    if left_out:
        raise ManifestError("; ".join(each.what for each in left_out))
    found = kept.samples(sampling, packets, FrameTable.from_packets(packets), 100)
    assert len(found.extra) == len(found.rows)
    order = sorted(range(len(found.rows)), key=lambda place: int(found.extra[place]))
    return [found.rows[place].tolist() for place in order]


def test_clips_begin_at_their_segments():
    """A clip begins with the frame shown at its segment's start, to a millisecond, and ends within the segment."""
    assert rows(Sampling(Pattern(3)), (1.0, 1.4), (0.3, 0.5), (1.05, 2)) == [[10, 11, 12], [10, 11, 12]]
    assert rows(Sampling(Pattern(2)), (0.9996, 1.2004)) == [[10, 11]]
    assert rows(Sampling(Pattern(3, 2)), (1.0, 1.5), (1.0, 1.4)) == [[10, 12, 14]]
    assert rows(Sampling(Pattern(3, 0, 0.15)), (1.0, 1.5), (1.0, 1.2)) == [[10, 11, 13]]


@pytest.mark.parametrize(("every", "seconds"), [(1, 0.0), (0, 0.1)], ids=["frames", "seconds"])
def test_clips_by_times_end_with_their_segments(every, seconds):
    """A frame that is shown in a segment for less than a millisecond ends no clip of it, by frames and by times."""
    assert rows(Sampling(Pattern(2, every, seconds)), (0.3, 0.4007), (1.0, 1.1993)) == [[10, 11]]
    drawn = Sampling(Pattern(3, every, seconds), start="random")
    assert rows(drawn, (0.0, 0.4007), (2.0, 2.4)) == [[0, 1, 2, 3], [20, 21, 22, 23]]


def test_frames_at_the_edges_of_segments():
    """A clip of a segment of one millisecond has the frame shown then, and the last frame of a video ends a clip."""
    assert rows(Sampling(Pattern(1, 0, 0.1)), (1.0995, 1.1005)) == [[11]]
    assert rows(Sampling(Pattern(2, 0, 0.1)), (3.9, 4.09), (3.8, 4.09)) == [[38, 39]]


def test_the_last_frame_of_a_segment_is_repeated():
    """A clip that is longer than its segment repeats the segment's last frame, not the video's."""
    repeats = Sampling(Pattern(4), repeats_last=True)
    assert rows(repeats, (0.3, 0.5), (3.8, 9.0)) == [[3, 4, 4, 4], [38, 39, 39, 39]]


def test_clips_at_key_frames_and_drawn_ones():
    """A clip begins at the first key frame of its segment if it fits behind it; a drawn one wherever it fits."""
    assert rows(Sampling(Pattern(3), start="key"), (0.1, 1.2), (0.8, 1.3), (0.6, 0.9)) == [[7, 8, 9]]
    assert rows(Sampling(Pattern(3), start="random"), (1.0, 1.5)) == [[10, 11, 12, 13, 14]]


def test_frames_are_spread_over_segments():
    """With start="spread" frames lie in the middle of equal parts, also of segments that have fewer frames."""
    assert rows(Sampling(Pattern(4), start="spread"), (0, 4), (1.0, 1.2)) == [[5, 15, 25, 35], [10, 10, 11, 11]]
    assert rows(Sampling(Pattern(1), start="spread"), (1.02, 1.04)) == [[10]]


def test_segments_behind_their_video():
    """A segment beyond the end of its video is refused with its row, except for a little more than the last frame."""
    assert rows(Sampling(Pattern(2)), (3.5, 4.09)) == [[35, 36]]
    with pytest.raises(
        ManifestError,
        match=r"rows\.csv: row 1 is of 3\.000 to 4\.200 s of .*a\.mp4, which ends at 4\.000 s \(at_end='repeat_last'",
    ):
        rows(Sampling(Pattern(2)), (0, 1), (3.0, 4.2))
    with pytest.raises(ManifestError, match=r"row 0 is of 4\.500 to 4\.700 s"):
        rows(Sampling(Pattern(2), repeats_last=True), (4.5, 4.7))


def videos_of(*paths: str) -> dict[str, list[int]]:
    urls = [f"s3://b/videos/{name}" for name in ("a.mp4", "x/a.mp4", "x/b.mp4", "y/b.mp4", "y/c.mp4")]
    count = len(paths)
    table = SegmentTable(list(paths), [0.0] * count, [1.0] * count, [], [b""] * count)
    found, left_out = assign_rows(URL, table, [ObjectRecord(url, 1, "") for url in urls])
    if left_out:
        raise ManifestError("; ".join(each.what for each in left_out))
    return {url.removeprefix("s3://b/videos/"): segments.numbers for url, segments in found.items()}


def test_paths_of_videos():
    """A path is a url, a path below the table's folder, or the end of the path of exactly one video."""
    assert videos_of("a.mp4", "x/a.mp4", "./a.mp4", "s3://b/videos/x/b.mp4", "c.mp4", "videos/y/b.mp4") == {
        "a.mp4": [0, 2],
        "x/a.mp4": [1],
        "x/b.mp4": [3],
        "y/c.mp4": [4],
        "y/b.mp4": [5],
    }
    with pytest.raises(
        ManifestError, match=r"rows\.csv: row 1 names 'd\.mp4', which is no video of the 5 of the dataset"
    ):
        videos_of("a.mp4", "d.mp4")
    with pytest.raises(ManifestError, match=r"row 0 names 'b\.mp4', which is 2 videos"):
        videos_of("b.mp4")


def test_the_table_is_one_of_the_objects():
    """`segments` names one of the listed objects by its path or url; none, several or an empty one raise an error."""
    others = [ObjectRecord(url, 1, "") for url in (URL, "s3://b/videos/x/rows.csv", "s3://b/videos/y.csv")]
    assert next(read_table("video", "y.csv", others)).object.url == "s3://b/videos/y.csv"
    assert next(read_table("video", URL, others)).object.url == URL
    with pytest.raises(ConfigError, match=r"segments='z\.csv' names 0 of the 3 objects that are no videos"):
        next(read_table("video", "z.csv", others))
    with pytest.raises(ConfigError, match=r"segments='rows\.csv' names 2 of"):
        next(read_table("video", "rows.csv", others))
    with pytest.raises(ManifestError, match=r"videos/rows\.csv is empty: write it again \(at byte 0 of 0\)"):
        next(read_table("video", "rows.csv", [ObjectRecord(URL, 0, "")]))


def parsed(content: bytes, ending: str = "jsonl") -> SegmentTable:
    made = ClipRecoder(["frames"]).recode(memoryview(content), -1, f"s3://b/rows.{ending}".encode())
    return msgspec.msgpack.decode(made.parts[0], type=SegmentTable)


def parquet(columns: dict[str, Sequence[object]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def test_tables():
    """Columns of numbers of any type are seconds, and other columns are fields of the samples."""
    columns = {"end": [2, 3], "path": ["a.mp4", "007"], "start": [0.5, 1], "caption": ["run", None], "box": [[1.0], []]}
    lines = b'{"path": "a.mp4", "start": 0.5, "end": 2, "caption": "run"}\n{"path": "007", "start": 1, "end": 3}'
    for found in (parsed(parquet(columns), "parquet"), parsed(lines)):
        assert (found.paths, found.start, found.end) == (["a.mp4", "007"], [0.5, 1.0], [2.0, 3.0])
        assert found.fields[0].name == "caption"
        assert b"run" in found.records[0]
        assert b"run" not in found.records[1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b'{"path": "a", "start": true, "end": "1:00"}',
            "the column 'start' has values of type bool; they are seconds, or hours:minutes:seconds",
        ),
        (b'{"path": "a", "end": 1}', "it has no column start, but path, end"),
        (b'{"path": "a", "start": 0, "end": 1, "frames": 2}', "its column 'frames' has the name of a field of clips"),
        (b'{"path": "a", "start": 0, "end": 1, "x": "%s"}' % (b"a" * 40_000), "row 0 has 40005 bytes besides path, st"),
        (b"{", "cannot be read: ArrowInvalid"),
    ],
)
def test_tables_that_are_refused(content: bytes, said: str):
    """A table of segments that cannot be used is refused with the row or the column."""
    with pytest.raises(RecodeError, match=said):
        parsed(content)


@pytest.mark.parametrize(
    "options",
    [{"clips_per_sample": 2}, {"seconds_between_clip_starts": 1.0}],
    ids=["clips_per_sample", "seconds_between_clip_starts"],
)
def test_options_that_exclude_each_other(options):
    """Segments take the place of a grid, so options of a grid and start="grid" exclude them."""
    with pytest.raises(ConfigError, match=f"segments with start='grid' and {next(iter(options))} exclude each other"):
        Video(segments="a.csv", **options)


def test_options_of_spread_frames():
    """With start="spread" frames need segments and have no distance of their own."""
    with pytest.raises(ConfigError, match="start='spread' and num_indices_between_frames exclude each other"):
        Video(segments="a.csv", start="spread", num_indices_between_frames=2)
    with pytest.raises(ConfigError, match=r"start='spread' spreads frames over segments; segments= is missing"):
        Video(start="spread")
