"""Films for `video.py`: pictures that move, with grain, at the bit rate of real films; torchcodec on PyAV's FFmpeg."""

from __future__ import annotations

import importlib.util
import os
import sys
from fractions import Fraction
from pathlib import Path

import av
import checkout  # noqa: F401
import numpy as np

from tests.videos import ffmpeg_of_pyav

# Scenes of 2 to 9 seconds.
_SCENE_SECONDS = (2, 9)
_GRAIN = 24
_SOUND_RATE, _SOUND_FRAME = 48_000, 1024


def write_film(path: Path, size: tuple[int, int], rate: int, seconds: int, bit_rate: int, *, sound: bool) -> None:
    """Encodes a film with the key frames that x264 chooses.

    Args:
        path: of the mp4.
        size: width and height.
        rate: frames a second.
        seconds: of the film.
        bit_rate: bits a second of the pictures.
        sound: whether it has a track of sound between the pictures.
    """
    drawn, (width, height) = np.random.default_rng(0), size
    grain = drawn.integers(0, _GRAIN, (8, height, width, 3), np.uint8)
    with av.open(str(path), "w") as box:
        stream = box.add_stream("libx264", rate=rate, options={"preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = width, height, "yuv420p", bit_rate
        wave = box.add_stream("aac", rate=_SOUND_RATE, layout="mono") if sound else None
        left, image, heard = 0, np.empty(0), 0
        for number in range(seconds * rate):
            if left == 0:
                left = int(drawn.integers(*(rate * each for each in _SCENE_SECONDS)))
                coarse = drawn.integers(0, 230, (height // 16 + 1, width // 16 + 1, 3), np.uint8)
                image = coarse.repeat(16, 0).repeat(16, 1)[:height, :width]
            left -= 1
            frame = av.VideoFrame.from_ndarray(np.roll(image, 2 * left, 1) + grain[number % 8], "rgb24")
            frame.pts, frame.time_base = number, Fraction(1, rate)
            box.mux(stream.encode(frame))
            while wave and heard < (number + 1) * _SOUND_RATE // rate:
                values = drawn.normal(0, 0.1, (1, _SOUND_FRAME)).astype(np.float32)
                piece = av.AudioFrame.from_ndarray(values, "fltp", "mono")
                piece.sample_rate, piece.pts, piece.time_base = _SOUND_RATE, heard, Fraction(1, _SOUND_RATE)
                box.mux(wave.encode(piece))
                heard += _SOUND_FRAME
        box.mux(stream.encode(None))
        if wave:
            box.mux(wave.encode(None))


def repeat_film(short: Path, long: Path, seconds: int) -> None:
    """Writes the packets of a film one time after the other, without encoding."""
    with av.open(str(short)) as box, av.open(str(long), "w") as out:
        made = {stream.index: out.add_stream_from_template(stream) for stream in box.streams}
        # Sound begins before the picture and ends behind it.
        length = max(stream.duration * stream.time_base for stream in box.streams) + len(box.streams) - 1
        known = [
            (bytes(each), each.stream.index, each.pts, each.dts, each.duration, each.time_base, each.is_keyframe)
            for each in box.demux()
            if each.size
        ]
        for turn in range(int(seconds / length)):
            for content, index, pts, dts, duration, base, is_key in known:
                packet, shift = av.Packet(content), int(turn * length / base)
                packet.stream, packet.time_base, packet.is_keyframe = made[index], base, is_key
                packet.pts, packet.dts, packet.duration = pts + shift, dts + shift, duration
                out.mux(packet)


def with_torchcodec(folder: Path) -> None:
    """Starts this program again with PyAV's FFmpeg for torchcodec, by links in `folder`, where it is installed."""
    if str(folder) in os.environ.get("LD_LIBRARY_PATH", "") or importlib.util.find_spec("torchcodec") is None:
        return
    environment = {**os.environ, "LD_LIBRARY_PATH": str(ffmpeg_of_pyav(folder))}
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)
