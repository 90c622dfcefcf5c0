"""`VideoClip`: which frames of whole videos, in which memory, from which containers; and the error without PyAV.
Videos have the number of each frame drawn in it."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import sys
from importlib import util

import av
import numpy as np
import pytest

from streamer.decode import Frames, SampleDecoder, VideoClip
from streamer.errors import ConfigError, DecodeError
from streamer.formats.base import Field, FieldSpec
from streamer.media.containers.entries import TrackCodec
from streamer.media.containers.packet_checks import find_droppable
from streamer.media.decode.decoder import Deadline, context_of
from streamer.media.decode.rgb import write_rgb
from streamer.media.decode.video import _find_frames, decode_frames, read_video
from streamer.media.decode.video_packets import VideoPackets
from tests.videos import decoded, made, number_in, video


def numbers(clip: np.ndarray) -> list[int]:
    return [number_in(frame) for frame in np.moveaxis(clip, 1, -1)]


@pytest.mark.parametrize("name", ["b_frames.mp4", "open_gop.mp4", "fragments.mp4", "sound.mov", "hevc.mp4"])
def test_frames_of_a_whole_video(name: str):
    """VideoClip returns every second frame from the middle on, or the first frames, as their numbers show."""
    clip = VideoClip(4, num_indices_between_frames=2)(made(name))
    assert clip.shape == (4, 3, 96, 128)
    first = numbers(clip)[0]
    assert numbers(clip) == [first, first + 2, first + 4, first + 6]
    assert 20 < first < 50
    assert numbers(VideoClip(3, start="first")(made(name))) == [0, 1, 2]


def test_containers_that_FFmpeg_reads():
    """Matroska is read by FFmpeg's demuxer, with the same frames."""
    content = video("libx264", 40, name="x.mkv", options={"preset": "veryfast", "g": "12"})
    assert numbers(VideoClip(3, start="first", num_indices_between_frames=7)(content)) == [0, 7, 14]


def test_a_video_of_an_unknown_codec_is_refused():
    """A video of an unknown codec raises ValueError, since PyAV gives it no decoder."""
    content = made("b_frames.mkv").replace(b"V_MPEG4/ISO/AVC", b"V_MPEG4/ISO/ABC")
    with pytest.raises(ValueError, match="no decoder of its video: its head is damaged, or its codec unknown"):
        VideoClip(2)(content)


def test_frames_are_written_to_their_row():
    """Frames are written to a row of the right shape, and not to one of another shape."""
    row = np.zeros((4, 3, 48, 64), np.uint8)
    decoder = VideoClip(4, size=(48, 64))
    assert decoder.decode(memoryview(made("b_frames.mp4")), row) is row
    assert row.any()
    other = decoder.decode(memoryview(made("b_frames.mp4")), np.zeros((2, 2), np.uint8))
    assert np.array_equal(other, row)
    last = VideoClip(4, size=(48, 64), dimension_order="NHWC")(made("b_frames.mp4"))
    assert np.array_equal(np.moveaxis(last, -1, 1), row)


def test_clips_are_drawn_for_each_epoch():
    """start="random" draws the clip by the generator of the sample."""
    decoder, content = VideoClip(2, start="random"), memoryview(made("b_frames.mp4"))
    drawn = [numbers(decoder.decode(content, None, lambda s=s: np.random.default_rng(s)))[0] for s in (1, 1, 2, 3)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1


def without_order(content: bytes) -> bytes:
    """Returns the video without the SPS's limit of reordered images: its bitstream_restriction_flag is 0."""
    at = content.index(b"avcC") + 12
    length = int.from_bytes(content[at - 2 : at], "big")
    bits = f"{int.from_bytes(content[at : at + length], 'big'):0{8 * length}b}"
    number = "(1|01.|001..|0001...|00001....)"
    found = re.search(f"1111{number * 4}10*$", bits)
    assert found is not None
    changed = int(f"{bits[: found.start()]}01".ljust(8 * length, "0"), 2)
    return content[:at] + changed.to_bytes(length, "big") + content[at + length :]


def test_images_that_are_not_needed_are_skipped(monkeypatch: pytest.MonkeyPatch):
    """Frames that no wanted one needs are skipped; where that loses wanted ones, a second pass skips none.
    The order of frames may not be stated, and fields may be packets of their own."""
    passes: list[tuple[bool, int]] = []

    def counted(video: VideoPackets, wanted: set[int], skippable: list[bool]) -> dict[int, object]:
        found = _find_frames(video, wanted, skippable)
        passes.append((any(skippable), len(found)))
        return found  # type: ignore[return-value]

    monkeypatch.setattr("streamer.media.decode.video._find_frames", counted)
    decoder, content = VideoClip(4, num_indices_between_frames=3), made("b_frames.mp4")
    expected = decoder(content)
    assert numbers(expected) == [40, 43, 46, 49]
    assert passes == [(True, 4)]
    assert np.array_equal(decoder(without_order(content)), expected)
    assert passes[1:] == [(True, 3), (False, 4)]
    fields = video("libx264", 30, options={"preset": "veryfast", "x264-params": "interlaced=1"})
    assert numbers(VideoClip(4, num_indices_between_frames=3, start="first")(fields)) == [0, 3, 6, 9]
    assert passes[3:] == [(True, 4), (False, 4)]


@pytest.mark.parametrize("layers", ["", ":temporal-layers=3"])
def test_images_of_hevc_are_skipped(layers: str):
    """Frames of HEVC to which no other refers are skipped, also in sub-layers; the clip is that of a full decode."""
    told = f"keyint=30:bframes=4:b-pyramid=1:log-level=none:pools=1{layers}"
    content = video("libx265", 60, options={"preset": "veryfast", "x265-params": told})
    whole, frames = read_video(memoryview(content), Deadline())
    skippable = find_droppable(whole.packets, whole.codec)
    assert 20 < sum(skippable) < 40
    expected, _, _ = decoded(content)
    for first in range(0, 50, 3):
        clip = frames.pts[first : first + 10 : 3]
        video_of_it = VideoPackets(whole.codec, whole.packets, whole.pts, whole.timescale)
        assert np.array_equal(Frames().decode_video(video_of_it, clip, (4,), None), expected[first : first + 10 : 3])


def test_videos_shorter_than_a_clip():
    """A video shorter than a clip raises ValueError with its number of frames, or repeats its last frame."""
    with pytest.raises(ValueError, match="the video has 90 frames, a clip needs more; at_end='repeat_last'"):
        VideoClip(200)(made("b_frames.mp4"))
    assert numbers(VideoClip(92, at_end="repeat_last")(made("b_frames.mp4")))[-3:] == [89, 89, 89]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_frames_per_clip": "16"}, "num_frames_per_clip='16' is not a whole number of at least 1"),
        ({"num_frames_per_clip": 2.5}, r"num_frames_per_clip=2\.5 is not a whole number"),
        ({"num_indices_between_frames": 0}, "num_indices_between_frames=0 is not a whole number"),
        ({"seconds_between_frames": math.nan}, "seconds_between_frames=nan is not a positive number, finite"),
        ({"seconds_between_frames": 0}, "seconds_between_frames=0 is not a positive number"),
        (
            {"seconds_between_frames": 0.1, "num_indices_between_frames": 2},
            r"seconds_between_frames=0\.1 and num_indices_between_frames=2 exclude each other",
        ),
    ],
)
def test_options_are_checked(options: dict[str, object], said: str):
    """Wrong options of VideoClip raise ConfigError when the decoder is made."""
    with pytest.raises(ConfigError, match=f"VideoClip: {said}"):
        VideoClip(**options)


def test_rules_name_extensions():
    """A rule such as `decode={"mp4": VideoClip()}` decodes fields of that extension, and damage names the sample."""
    decoder = SampleDecoder({"mp4": VideoClip(2)})
    assert not decoder.runs_users_code
    assert decoder("a", [Field("mp4", memoryview(made("b_frames.mp4")))])["mp4"].shape == (2, 3, 96, 128)
    with pytest.raises(DecodeError, match="sample 'a': field 'mp4'"):
        decoder("a", [Field("mp4", memoryview(b"\0\0\0\x20ftyp" + bytes(24)))])
    with pytest.raises(ConfigError, match="VideoClip: start='last' is none of first, middle, random"):
        VideoClip(start="last")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Frames: size=5 is not \(height, width\)"):
        Frames(5)  # type: ignore[arg-type]


def test_damaged_packets():
    """Damaged packets raise an error that says which frames are missing; a codec that this PyAV lacks is named."""
    content = bytearray(made("b_frames.mp4"))
    begin, end = content.index(b"mdat") + 4, content.index(b"moov") - 4
    content[begin:end] = bytes(end - begin)
    with pytest.raises(DecodeError, match=r"sample 'a': field 'mp4'.* FFmpeg: .*Invalid data"):
        SampleDecoder({"mp4": VideoClip(4, start="first")})("a", [Field("mp4", memoryview(content))])
    # A time at which no image is shown.
    whole, _ = read_video(memoryview(made("b_frames.mp4")), Deadline())
    with pytest.raises(ValueError, match=r"1 of 2 frames cannot be decoded, the first at \d+\.\d+ s, from 24 packets"):
        decode_frames(
            VideoPackets(whole.codec, whole.packets[:24], whole.pts[:24], whole.timescale),
            [whole.pts[0], whole.pts[0] + 1],
        )
    with pytest.raises(ConfigError, match=r"this PyAV \([\d.]+\) has no decoder 'h2640': .* pip install -U av"):
        context_of(TrackCodec("h2640"))


def test_codecs_that_PyAV_does_not_have():
    """A codec that PyAV lacks is refused when a dataset is opened, unless only times or bytes are read."""
    specs = [FieldSpec("frames", "clip"), FieldSpec("pts_seconds", "clip-pts")]
    for decoder, fields in ((SampleDecoder(), specs), (SampleDecoder(), [FieldSpec("audio", "audio")])):
        decoder.check(fields, ["h264", "flac"])
        with pytest.raises(ConfigError, match=r"this PyAV \([\d.]+\) has no decoder 'h2640': .* pip install -U av"):
            decoder.check(fields, ["h2640"])
    for decoder in (SampleDecoder(None), SampleDecoder({"frames": None})):
        decoder.check(specs, ["h2640"])


def test_without_PyAV_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    """Without PyAV a dataset of videos is refused when it is opened, and the error says what to install."""
    found = util.find_spec
    monkeypatch.setattr("streamer.base.extras.find_spec", lambda name: None if name == "av" else found(name))
    for decoder, specs in (
        (SampleDecoder({"mp4": VideoClip()}), []),
        (SampleDecoder(), [Field("frames", memoryview(b""), "clip")]),
    ):
        with pytest.raises(
            ConfigError, match=r"needs av in this environment \(.*\): pip install 'streamer-data\[video\]'"
        ):
            decoder.check(specs)  # type: ignore[arg-type]
    assert sys.executable


@pytest.mark.parametrize("behind", [bytes(64), b"\0\xff" * 32, b"\xff" * 64])
def test_what_lies_behind_a_packet_is_not_read(behind):
    """Bytes behind a packet do not change its frame.
    Regression: with zero and another byte behind it MPEG-4's last frame was another."""
    content = made("mpeg4.mp4")
    opened, frames = read_video(memoryview(content), Deadline())
    end = 1 + opened.pts.index(wanted := sorted(frames.pts.tolist())[45])
    packets = [memoryview(bytes(packet) + behind)[: len(packet)] for packet in opened.packets[:end]]
    [frame] = decode_frames(VideoPackets(opened.codec, packets, opened.pts[:end], opened.timescale), [wanted])
    assert np.array_equal(frame.to_ndarray(format="rgb24").transpose(2, 0, 1), decoded(content)[0][45])


def converted(depth: str) -> np.ndarray:
    """Converts a grey frame to RGB in half its size."""
    target = np.empty((3, 360, 640), np.uint8)
    write_rgb(av.VideoFrame(1280, 720, depth), (360, 640), 0, target, planar=True)
    return target


@pytest.mark.process
@pytest.mark.parametrize("depth", ["yuv420p", "yuv420p10le"])
def test_images_are_converted_by_one_thread_and_after_a_fork(depth: str):
    """Conversion to RGB starts no thread, and works in a process that is forked after one in its parent."""
    before = len(os.listdir("/proc/self/task"))
    converted(depth)
    if depth == "yuv420p" or hasattr(av.filter.Graph(), "threads"):
        assert len(os.listdir("/proc/self/task")) == before
    child = multiprocessing.get_context("fork").Process(target=converted, args=(depth,))
    child.start()
    child.join(20)
    ended = child.exitcode
    child.kill()
    assert ended == 0
