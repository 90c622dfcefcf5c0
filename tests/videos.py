"""Videos that PyAV encodes when a test needs them: every frame has its number as black and white squares."""

from __future__ import annotations

import functools
import io
import os
import re
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.reformatter import Interpolation

from streamer.formats.base import Need
from streamer.manifest.model import ObjectRecord
from streamer.media.containers.movie import VIDEO, Movie, read_movie
from streamer.media.video import mp4
from tests.recordings import NO_NOISE

SIZE = (128, 96)
# Markers of JPEG; start code and a type of pictures of MPEG-4, and what says that B-frames are packed.
JPEG_TABLES, JPEG_SCAN = 0xC4, 0xDA
VOP, VOP_B, USER_DATA = b"\0\0\1\xb6", 2, b"\0\0\1\xb2DivX503b1393p\0"
_FAST = {"preset": "ultrafast"}
_X264 = {"preset": "veryfast", "bf": "3"}
_VARIABLE = tuple(np.cumsum(np.random.default_rng(0).choice([17, 33, 34, 50, 120, 700], 90)).tolist())

# By name: encoder, frames, and arguments of `video`.
KINDS: Mapping[str, tuple[str, int, Mapping[str, object]]] = {
    "b_frames.mp4": ("libx264", 90, {"options": {**_X264, "g": "24", "x264-params": "b-pyramid=normal"}}),
    "open_gop.mp4": ("libx264", 90, {"options": {**_X264, "g": "12", "x264-params": "open-gop=1"}}),
    "variable.mp4": ("libx264", 90, {"options": {**_X264, "g": "40"}, "times": _VARIABLE}),
    # Their edit lists begin later than the video, and between two frames of it.
    "late.mp4": ("libx264", 60, {"options": {**_X264, "g": "24"}, "times": range(500, 2480, 33)}),
    "hidden.mp4": ("libx264", 60, {"options": {**_X264, "g": "24"}, "times": range(-400, 1580, 33)}),
    "sound.mp4": ("libx264", 90, {"options": {**_X264, "g": "30"}, "movie": {"movflags": "faststart"}, "sound": True}),
    "sound.mov": ("libx264", 60, {"options": {**_FAST, "g": "30"}, "sound": True}),
    "fragments.mp4": (
        "libx264",
        90,
        {"options": {**_X264, "g": "20"}, "movie": {"movflags": "frag_keyframe+empty_moov+default_base_moof"}},
    ),
    "indexed.mp4": ("libx264", 90, {"options": {**_X264, "g": "20"}, "movie": {"movflags": "frag_keyframe+dash"}}),
    "dash.mp4": (
        "libx264",
        90,
        {"options": {**_X264, "g": "20"}, "movie": {"movflags": "frag_keyframe+dash+global_sidx"}},
    ),
    "refresh.mp4": ("libx264", 90, {"options": {**_FAST, "g": "30", "x264-params": "intra-refresh=1"}}),
    "hevc.mp4": (
        "libx265",
        60,
        {"options": {**_FAST, "x265-params": "keyint=20:bframes=4:open-gop=1:log-level=none:pools=1"}},
    ),
    "mpeg4.mp4": ("mpeg4", 60, {"options": {"g": "12", "bf": "2"}}),
}

MATROSKA: Mapping[str, tuple[str, int, Mapping[str, object]]] = {
    "b_frames.mkv": ("libx264", 60, {"options": {**_X264, "g": "24"}, "sound": True}),
    "live.mkv": ("libx264", 60, {"options": {**_X264, "g": "24"}, "movie": {"live": "1", "cluster_time_limit": "500"}}),
    "vp9.webm": ("libvpx-vp9", 60, {"options": {"deadline": "realtime", "cpu-used": "8", "g": "20"}}),
    "vp8.webm": ("libvpx", 60, {"options": {"cpu-used": "8", "g": "20", "auto-alt-ref": "1", "lag-in-frames": "10"}}),
}


def picture(number: int, width: int, height: int) -> np.ndarray:
    """Makes a moving pattern with the number of the frame."""
    x, y = np.arange(width), np.arange(height)[:, None]
    image = np.empty((height, width, 3), np.uint8)
    image[..., 0] = (x + 3 * number) % 256
    image[..., 1] = (y * 2 + number) % 256
    image[..., 2] = ((x + y) // 2 + 5 * number) % 256
    for bit in range(16):
        image[0:8, bit * 8 : bit * 8 + 8] = 255 if number >> bit & 1 else 0
    return image


def number_in(image: np.ndarray) -> int:
    """Returns the number in an image (height, width, 3) of `SIZE`."""
    return sum(1 << bit for bit in range(16) if image[4, bit * 8 + 4].mean() > 128)


@functools.cache
def made(name: str) -> bytes:
    """Returns the video of that name in `KINDS` or `MATROSKA`."""
    codec, frames, more = (KINDS if name in KINDS else MATROSKA)[name]
    return video(codec, frames, name=name, **more)


@contextmanager
def same_scheduling() -> Iterator[None]:
    """Undoes what the encoder of AV1 does where it may: this thread, and all processes that it starts, at real time."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


@same_scheduling()
def video(
    codec: str,
    frames: int,
    *,
    name: str = "x.mp4",
    size: tuple[int, int] = SIZE,
    rate: int = 30,
    options: Mapping[str, str] | None = None,
    movie: Mapping[str, str] | None = None,
    times: Sequence[int] | None = None,
    sound: bool = False,
    shown: Sequence[int] | None = None,
    types: str = "",
    form: str = "yuv420p",
) -> bytes:
    """Encodes a video.

    `times` are milliseconds, `shown` the numbers in its pictures (else those of the frames), `types` the letters I, P
    and B of the types that its frames get (else those that the encoder likes).
    """
    # Some options read the file again.
    with (
        tempfile.TemporaryDirectory() as folder,
        av.open(path := f"{folder}/{name}", "w", options=dict(movie or {})) as box,
    ):
        stream = box.add_stream(codec, rate=rate, options=dict(options or {}))
        stream.width, stream.height, stream.pix_fmt = *size, form
        stream.codec_context.thread_count = 1
        base = Fraction(1, 1000) if times is not None else Fraction(1, rate)
        stream.codec_context.time_base = base
        wave = box.add_stream("aac", rate=48000, layout="mono", options=NO_NOISE) if sound else None
        at = 0
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(shown[number] if shown else number, *size), "rgb24")
            frame.pts, frame.time_base = (times[number] if times is not None else number), base
            frame.pict_type = "?IPB".index(types[number]) if types else 0
            box.mux(stream.encode(frame))
            while wave and at < (number + 1) * 48000 // rate:
                values = (0.2 * np.sin(np.arange(at, at + 1024) * 0.05)).astype(np.float32)
                piece = av.AudioFrame.from_ndarray(values[None], "fltp", "mono")
                piece.sample_rate, piece.pts, piece.time_base = 48000, at, Fraction(1, 48000)
                box.mux(wave.encode(piece))
                at += 1024
        box.mux(stream.encode(None))
        if wave:
            box.mux(wave.encode(None))
        box.close()
        return Path(path).read_bytes()


def joined(one: bytes, two: bytes, *, entries: int, before_keys: bytes = b"") -> bytes:
    """Joins two videos as one track: with the parameters of both, or of the first one (of the second in its packets).

    `before_keys` comes before the bytes of each key packet of the second one.
    """
    movies = [index_of(content)[0] for content in (one, two)]
    tracks = [movie.track(VIDEO) for movie in movies]
    packets = [movie.packets(track) for movie, track in zip(movies, tracks, strict=True)]
    contents = [
        content[start : start + size]
        for content, each in zip((one, two), packets, strict=True)
        for start, size in zip(each.offset.tolist(), each.size.tolist(), strict=True)
    ]
    count, ticks = len(packets[0]), int(packets[0].duration[0])
    for number in np.flatnonzero(packets[1].key).tolist():
        contents[count + number] = before_keys + contents[count + number]
    scale = ticks // int(packets[1].duration[0])
    time = np.concatenate([packets[0].pts, packets[1].pts * scale + count * ticks]) - packets[0].pts.min()
    keys = np.flatnonzero(np.concatenate([each.key for each in packets])) + 1
    number = np.arange(len(time))
    runs = [np.array(column) for column in ([1, 2], [count, len(time) - count], [1, entries])]
    tables = [
        mp4.full(b"stsd", 0, struct.pack(">I", entries), *(track.entries[0] for track in tracks[:entries])),
        mp4.full(b"stts", 0, mp4.rows(np.array([len(time)]), np.array([ticks]))),
        mp4.full(b"ctts", 1, mp4.rows(np.ones_like(time), time - number * ticks)),
        mp4.full(b"stsc", 0, mp4.rows(*runs)),
        mp4.full(b"stsz", 0, bytes(4), mp4.rows(np.array(list(map(len, contents))))),
        mp4.full(b"stss", 0, mp4.rows(keys)),
    ]
    edit = 0, len(time) * ticks
    head, first = mp4.box(b"ftyp", b"isom", bytes(4)), sum(map(len, contents[:count]))

    def moov(data: int) -> bytes:
        return mp4.movie_box(tables, edit, tracks[0].codec(), tracks[0].timescale, data, data + first)

    data = len(head) + len(moov(0)) + 8
    return head + moov(data) + mp4.box(b"mdat", *contents)


def decoded(content: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns all frames of a video, [n, 3, height, width], their times and durations in seconds, by a full decode."""
    with av.open(io.BytesIO(content)) as box:
        stream = box.streams.video[0]
        frames = list(box.decode(stream))
        rgb = [frame.to_ndarray(format="rgb24", interpolation=Interpolation.BICUBIC) for frame in frames]
        pts = np.array([frame.pts for frame in frames])
        last = pts[-1] + frames[-1].duration
        scale = stream.time_base.denominator
        return np.moveaxis(np.stack(rgb), -1, 1), pts / scale, np.diff(pts, append=last) / scale


def repeated(content: bytes, count: int) -> bytes:
    """Makes an mp4 of so many frames, which are the second one of this again and again, in hardly more bytes."""
    movie, _ = index_of(content)
    track = movie.track(VIDEO)
    packets = movie.packets(track)
    first, second = (content[at : at + size] for at, size in zip(packets.offset[:2], packets.size[:2], strict=True))
    sizes = np.array([len(first), *[len(second)] * (count - 1)])
    tables = [
        mp4.full(b"stsd", 0, struct.pack(">I", 1), track.entries[0]),
        mp4.full(b"stts", 0, mp4.rows(np.array([count]), packets.duration[:1])),
        mp4.full(b"stsc", 0, mp4.rows(np.array([1]), np.array([1]), np.array([1]))),
        mp4.full(b"stsz", 0, bytes(4), mp4.rows(sizes)),
        mp4.full(b"stss", 0, mp4.rows(np.array([1]))),
    ]
    edit = 0, count * int(packets.duration[0])
    head = mp4.box(b"ftyp", b"isom", bytes(20))

    def moov(data: int) -> bytes:
        places = [data, *[data + len(first)] * (count - 1)]
        return mp4.movie_box(tables, edit, track.codec(), track.timescale, *places)

    return head + moov(len(head) + len(moov(0)) + 8) + mp4.box(b"mdat", first, second)


def without_times(content: bytes) -> bytes:
    """Returns an mp4 that says of no frame when it is shown, but only when it is decoded."""
    return content.replace(b"ctts", b"free").replace(b"edts", b"free")


def index_of(content: bytes) -> tuple[Movie, list[tuple[int, int]]]:
    """Returns the index of a video, and the ranges that were read for it, in rounds."""
    asked = []
    steps = read_movie(ObjectRecord("s3://bucket/x.mp4", len(content), "etag:x"))
    answer = None
    while True:
        try:
            need = steps.send(answer)
        except StopIteration as end:
            return end.value, asked
        needs = (need,) if isinstance(need, Need) else need
        asked.append([(each.start, each.stop) for each in needs])
        views = tuple(memoryview(content)[each.start : each.stop] for each in needs)
        answer = views[0] if isinstance(need, Need) else views


def ffmpeg_of_pyav(folder: Path) -> Path:
    """Links to the libraries in PyAV's wheel, by the names that torchcodec asks for; returns the folder."""
    folder.mkdir(exist_ok=True)
    # libavcodec-5e6b81c2.so.62.28.102 becomes libavcodec.so.62; others keep their names.
    for library in (Path(av.__file__).parents[1] / "av.libs").iterdir():
        named = re.fullmatch(r"(lib(?:av|sw)[a-z]+)-\w+(\.so\.\d+).*", library.name)
        link = folder / ("".join(named.groups()) if named else library.name)
        if not link.exists():
            link.symlink_to(library)
    return folder


def repacked(content: bytes, name: str, change: Callable[[list[bytes]], list[bytes]]) -> bytes:
    """Returns the video in a container of this name, with other packets, one after the other from 0 on."""
    with av.open(io.BytesIO(content)) as box, tempfile.TemporaryDirectory() as folder:
        stream = box.streams.video[0]
        stored = [packet for packet in box.demux(stream) if packet.size]
        keys = [packet.is_keyframe for packet in stored]
        packets = change([bytes(packet) for packet in stored])
        with av.open(path := f"{folder}/{name}", "w") as out:
            written = out.add_stream_from_template(stream)
            for number, each in enumerate(packets):
                packet = av.Packet(each)
                packet.pts = packet.dts = number
                packet.time_base, packet.stream = 1 / Fraction(stream.average_rate), written
                packet.is_keyframe = keys[number]
                out.mux(packet)
        return Path(path).read_bytes()


def without_tables(picture: bytes) -> bytes:
    """Returns a JPEG without its Huffman tables, as cameras write it."""
    at, found = 2, picture[:2]
    while True:
        kind, length = picture[at + 1], int.from_bytes(picture[at + 2 : at + 4], "big")
        found += picture[at : at + 2 + length] if kind != JPEG_TABLES else b""
        at += 2 + length
        if kind == JPEG_SCAN:
            return found + picture[at:]


def packed_b_frames(packets: list[bytes]) -> list[bytes]:
    """Returns packets of MPEG-4 as DivX and XviD write them to AVI: each B-frame behind the frame that it needs.

    In its place is a picture that is not coded.
    """
    found = list[bytes]()
    for packet in packets:
        at = packet.index(VOP)
        if packet[at + 4] >> 6 == VOP_B:
            found[-1:] = [found[-1] + packet[at:], VOP + b"\x50\x00\x7f"]
        else:
            found.append(packet[:at] + USER_DATA * (not found) + packet[at:])
    return found
