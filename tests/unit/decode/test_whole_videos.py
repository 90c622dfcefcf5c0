"""Whole videos in every container: all frames of FFmpeg's full decode, in its order, bit by bit; what is refused."""

from __future__ import annotations

import io
import socket
import time
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.reformatter import Interpolation
from hypothesis import given, settings
from hypothesis import strategies as st

from streamer.decode import Frames, VideoClip
from streamer.media.decode import decoder as deadline
from streamer.media.decode import video_packets as containers
from streamer.media.decode.decoder import Deadline
from streamer.media.decode.video import decode_frames, read_video
from streamer.media.decode.video_packets import VideoPackets
from streamer.media.video.format import Video
from tests.formats.cases import block_bytes, find, recode
from tests.videos import joined, made, number_in, packed_b_frames, repacked, repeated, video, without_times

B_FRAMES = {"preset": "veryfast", "bf": "3", "g": "12"}
HEVC = {"preset": "ultrafast", "x265-params": "keyint=12:bframes=3:log-level=none:pools=1"}
SDP = b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=video %d RTP/AVP 96\r\n"
# Name, encoder, format of pixels, options.
KINDS = [
    ("a.avi", "libx264", "yuv420p", B_FRAMES),
    ("open.avi", "libx264", "yuv420p", {**B_FRAMES, "x264-params": "open-gop=1"}),
    ("a.avi", "mpeg4", "yuv420p", {"bf": "2", "g": "12"}),
    ("a.avi", "mpeg2video", "yuv420p", {"bf": "2"}),
    ("a.avi", "msmpeg4v2", "yuv420p", {}),
    ("a.avi", "libvpx", "yuv420p", {"cpu-used": "8"}),
    ("a.avi", "png", "rgb24", {}),
    ("a.avi", "utvideo", "yuv420p", {}),
    ("a.avi", "rawvideo", "bgr24", {}),
    ("a.avi", "rawvideo", "rgb555le", {}),
    ("a.avi", "huffyuv", "yuv422p", {}),
    ("a.avi", "ffv1", "yuv420p10le", {}),
    ("a.avi", "zmbv", "bgr0", {}),
    ("a.mpg", "mpeg2video", "yuv420p", {"bf": "2"}),
    ("a.m2v", "mpeg2video", "yuv420p", {"bf": "2"}),
    ("a.h264", "libx264", "yuv420p", B_FRAMES),
    ("a.hevc", "libx265", "yuv420p", HEVC),
    ("a.ts", "libx265", "yuv420p", HEVC),
    ("a.flv", "libx264", "yuv420p", B_FRAMES),
    ("a.wmv", "wmv2", "yuv420p", {}),
    ("a.gif", "gif", "rgb8", {}),
    ("a.y4m", "wrapped_avframe", "yuv420p", {}),
    ("a.nut", "mpeg4", "yuv420p", {"bf": "2"}),
    ("a.mxf", "mpeg2video", "yuv420p", {"bf": "2"}),
    ("a.mov", "png", "rgb24", {}),
    ("a.mov", "qtrle", "rgb24", {}),
    ("a.mov", "rawvideo", "yuyv422", {}),
    ("a.mov", "v210", "yuv422p10le", {}),
    ("a.mov", "mpeg2video", "yuv420p", {}),
]  # fmt: skip


def played(content: bytes) -> np.ndarray:
    """Returns all frames of a video as FFmpeg plays them: [n, height, width, 3]."""
    with av.open(io.BytesIO(content)) as box:
        stream = box.streams.best("video")
        stream.codec_context.thread_count = 1
        frames = []
        for packet in box.demux(stream):
            try:
                frames += packet.decode()
            except av.FFmpegError:
                continue
        return np.stack([each.to_ndarray(format="rgb24", interpolation=Interpolation.BICUBIC) for each in frames])


def check_all(content: bytes) -> np.ndarray:
    """Checks clips at the beginning, in the middle and of all frames; returns the frames of a full decode."""
    expected = played(content)
    for count, every in ((len(expected), 1), (4, 2), (1, 1)):
        for start in ("first", "middle"):
            clip = VideoClip(count, num_indices_between_frames=every, start=start, dimension_order="NHWC")
            begin = 0 if start == "first" else (len(expected) - (count - 1) * every - 1) // 2
            assert np.array_equal(clip(content), expected[begin : begin + count * every : every]), (count, start)
    return expected


@pytest.mark.parametrize(("name", "codec", "form", "options"), KINDS)
def test_frames_are_those_of_a_full_decode(name: str, codec: str, form: str, options: dict[str, str]):
    """Clips have the frames of a full decode for each container and codec, also without presentation times."""
    content = video(codec, 20, name=name, size=(150, 98), form=form, options=options)
    assert len(check_all(content)) == 20


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    st.sampled_from(["a.mp4", "a.mkv", "a.avi", "a.ts", "a.mov"]),
    st.sampled_from(["yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "yuvj420p"]),
    st.tuples(st.integers(64, 200), st.integers(16, 120)),
    st.integers(0, 3),
)
def test_videos_of_any_size_are_those_of_a_full_decode(name: str, form: str, size: tuple[int, int], b_frames: int):
    """Clips of h264 of drawn sizes and depths, in several containers, have the frames of a full decode."""
    even = (size[0] // 2 * 2, size[1] // 2 * 2) if form != "yuv444p" else size
    options = {"preset": "ultrafast", "bf": str(b_frames), "g": "7"}
    check_all(video("libx264", 12, name=name, size=even, form=form, options=options))


def test_packed_B_frames_are_in_the_order_shown():
    """Packed B-frames, as XviD and DivX write them, and with them UCF101 and HMDB51, come in the order shown."""
    content = repacked(video("mpeg4", 30, name="x.avi", options={"g": "12", "bf": "1"}), "y.avi", packed_b_frames)
    assert [number_in(frame) for frame in check_all(content)] == list(range(30))


def test_videos_that_are_longer_than_what_is_kept_are_decoded_again(monkeypatch: pytest.MonkeyPatch):
    """A video longer than the memory for its packets is read again and has the same frames."""
    monkeypatch.setattr(containers, "_MAX_KEPT_BYTES", 100_000)
    check_all(video("mpeg4", 30, name="x.avi", options={"g": "12", "bf": "2"}))


@pytest.mark.parametrize("name", ["b_frames.mp4", "hevc.mp4", "mpeg4.mp4"])
def test_mp4_without_times_of_showing(name: str):
    """An MP4 without presentation times has FFmpeg's order of frames, also in a clip of one frame."""
    content = without_times(made(name))
    frames = check_all(content)
    numbers = [number_in(frame) for frame in frames]
    assert numbers == sorted(numbers)
    for start in ("first", "middle"):
        assert len(VideoClip(1, start=start)(content)) == 1


@pytest.mark.parametrize("codec", ["mpeg1video", "mpeg2video", "libx264"])
def test_mp4_whose_first_box_is_another(codec: str):
    """An MP4 whose first box is another is read by FFmpeg's demuxer, with the frames in the order shown."""
    content = without_times(video(codec, 30, options={"bf": "2", "g": "12"}))
    numbers = [number_in(frame) for frame in check_all(content.replace(b"ftyp", b"uuid"))]
    assert numbers == list(range(30))


def test_mp4_whose_first_b_frame_comes_late():
    """An MP4 whose first B-frame comes late, without a sign of it before, has the frames in the order shown."""
    options = {"preset": "veryfast", "bf": "3", "g": "250", "x264-params": "b-adapt=0"}
    content = without_times(video("libx264", 24, options=options, types="IPPPPPPPPPPPIPBPBPBPBPBP"))
    assert [number_in(frame) for frame in check_all(content)] == list(range(24))


@pytest.mark.parametrize("repeats", [True, False])
def test_parameters_that_change_within_an_mp4(repeats: bool):
    """Frames behind a change of parameters are decoded by the new ones, whether the packets repeat them or not."""
    options = [{"preset": "veryfast", "g": "24"}, {"preset": "ultrafast", "g": "30"}]
    more = {"x264-params": "repeat-headers=1"} if repeats else {}
    one, two = (
        video("libx264", 20, options={**each, **more}, shown=range(n, n + 20))
        for n, each in zip((0, 20), options, strict=True)
    )
    numbers = [number_in(frame) for frame in check_all(joined(one, two, entries=2))]
    assert numbers == list(range(40))


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"bf": "0", "g": "20"}),
        ("libx264", {**B_FRAMES, "g": "20", "x264-params": "open-gop=1"}),
        ("libx265", {**HEVC, "x265-params": "keyint=20:bframes=4:open-gop=1:log-level=none:pools=1"}),
        ("mpeg2video", {"bf": "2", "g": "12"}),
    ],
)
def test_videos_that_begin_between_keys(codec: str, options: dict[str, str]):
    """A video that begins between key frames, as recordings of broadcasts do, begins where FFmpeg plays it."""
    stored = video(codec, 100, name="a.ts", options=options)
    numbers = [number_in(frame) for frame in check_all(stored[len(stored) // 2 // 188 * 188 :])]
    assert 20 <= len(numbers) < 60
    assert numbers[-20:] == list(range(80, 100))


def test_decoding_has_a_deadline(monkeypatch: pytest.MonkeyPatch):
    """Decoding ends with an error at its limit of CPU time: some kilobytes can decode to hours of frames."""
    monkeypatch.setattr(deadline, "MAX_SECONDS", 0.2)
    monkeypatch.setattr(deadline, "_SECONDS_PER_MB", 0.0)
    content = repeated(video("libx264", 2, size=(1024, 1024), options={"preset": "ultrafast", "bf": "0"}), 5_000)
    for each in (content, content.replace(b"ftyp", b"uuid")):
        start = time.thread_time()
        with pytest.raises(ValueError, match=r"decoding takes more than 0.2 s of CPU: .*cut, or converted"):
            VideoClip(2)(each)
        assert time.thread_time() - start < 2
    assert len(VideoClip(2, start="first")(content)) == 2
    found = find(Video(2, num_indices_between_clip_starts=4_000), {"x.mp4": content})
    [block] = [item for _, items in found.items for item in items]
    record = recode(Video(2), found, block, block_bytes(block, content))[-1]
    with pytest.raises(ValueError, match="decoding takes more than"):
        Frames()(record)


def test_a_long_video_has_more_time():
    """The limit of CPU time grows with the bytes of a video: an AVI of two hours takes longer than 60 s."""
    assert deadline.Deadline(900_000_000)._end > time.thread_time() + 9000
    assert deadline.Deadline(1000)._end < time.thread_time() + 61


def test_a_demuxer_has_a_deadline():
    """Demuxing of a container ends with an error at the limit of CPU time."""
    late = deadline.Deadline()
    late._end = late._earliest_end = 0.0
    with pytest.raises(ValueError, match="decoding takes more than 60 s of CPU"):
        containers.open_container(memoryview(made("b_frames.mp4")), late)


def test_a_packet_without_a_byte_is_no_end():
    """An empty packet, a frame that an encoder has dropped, does not end the video.
    FFmpeg's decoders take it for the end."""
    content = made("b_frames.mp4")
    whole, frames = read_video(memoryview(content), Deadline())
    empty = VideoPackets(
        whole.codec, [*whole.packets[:7], memoryview(b""), *whole.packets[7:]], [*whole.pts[:7], -1, *whole.pts[7:]],
        whole.timescale,
    )  # fmt: skip
    wanted = frames.pts[:20].tolist()
    for found, expected in zip(decode_frames(empty, wanted), decode_frames(whole, wanted), strict=True):
        assert np.array_equal(found.to_ndarray(), expected.to_ndarray())


def test_frames_at_one_time_all_come():
    """Frames with equal times all come: 2,500 a second in Matroska, which counts milliseconds."""
    content = video("libx264", 40, name="fast.mkv", rate=2_500, options={"preset": "veryfast", "bf": "0", "g": "10"})
    assert [number_in(frame) for frame in check_all(content)] == list(range(40))


def test_a_cover_is_no_video():
    """Audio with a cover is refused as having no video."""
    with pytest.raises(ValueError, match="no video"):
        VideoClip(1)(made_with_cover())


def made_with_cover() -> bytes:
    """Makes an MP3 with a cover."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp3") as box:
        sound, cover = box.add_stream("libmp3lame", rate=8_000, layout="mono"), box.add_stream("png")
        cover.width, cover.height, cover.pix_fmt = 32, 32, "rgb24"
        cover.disposition = av.stream.Disposition.attached_pic.value
        box.mux(cover.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), "rgb24")))
        wave = av.AudioFrame.from_ndarray(np.zeros((1, 576), np.float32), "fltp", "mono")
        wave.sample_rate, wave.pts = 8_000, 0
        box.mux([*sound.encode(wave), *sound.encode(None), *cover.encode(None)])
    return file.getvalue()


def test_files_that_name_others_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file that names others is refused: a session description opens no port, and a list of files reads none."""
    (tmp_path / "a.mp4").write_bytes(made("mpeg4.mp4"))
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for content in (SDP % port, b"ffconcat version 1.0\nfile a.mp4\n"):
        with pytest.raises(ValueError, match="none of the containers that are read"):
            VideoClip(1)(content)
