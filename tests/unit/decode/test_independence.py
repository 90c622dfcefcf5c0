"""Decoded samples do not depend on what a process has decoded before: each is bit by bit as alone, in any order."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable

import numpy as np
import pytest

from streamer.decode import AudioClip, VideoClip
from streamer.media.containers.movie import VIDEO
from tests.recordings import encoded, sound
from tests.videos import index_of, joined, made, packed_b_frames, repacked, video, without_tables

PLAIN = {"g": "12", "bf": "0"}
JPEG = {"qmin": "3", "qmax": "3"}
HEVC = "keyint=12:bframes=0:log-level=none:pools=1"


def bringing_parameters(one: bytes, two: bytes) -> bytes:
    """Joins two videos of h264 as one track, of which the second has its parameter sets in its packets."""
    movie, _ = index_of(two)
    track = movie.track(VIDEO)
    setup, found, at = track.codec().extradata, b"", 6
    # Sequence parameter sets, and behind their last one the number of image parameter sets.
    for left in (setup[5] & 31, 1):
        for _ in range(left):
            [length] = struct.unpack_from(">H", setup, at)
            found += struct.pack(">I", length) + setup[at + 2 : at + 2 + length]
            at += 2 + length
        at += 1
    return joined(one, two, entries=1, before_keys=found)


def encode_h264() -> dict[str, bytes]:
    one, small = video("libx264", 24, options=PLAIN), video("libx264", 24, options={**PLAIN, "crf": "40"})
    other = video("libx264", 24, options={**PLAIN, "preset": "ultrafast", "profile": "baseline"})
    return {
        "quality": bringing_parameters(one, small),
        "healthy": one,
        "profile": bringing_parameters(one, other),
        "of that profile": other,
    }


@functools.cache
def samples() -> dict[str, Callable[[], object]]:
    """Returns by name what decodes a sample: pairs of which one disturbs the other where a decoder is kept."""
    videos = {f"h264 {name}": content for name, content in encode_h264().items()}
    for name, told in (("hevc", HEVC), ("hevc of other quality", f"{HEVC}:crf=45")):
        videos[name] = video("libx265", 24, options={"preset": "ultrafast", "x265-params": told})
    for name, more in (
        ("mpeg4", {}),
        ("mpeg4 in quarters", {"flags": "qpel"}),
        ("mpeg4 by tables", {"mpeg_quant": "1"}),
    ):
        videos[name] = video("mpeg4", 24, name="x.avi", options={"g": "12", **more})
    videos["mpeg4, packed"] = repacked(
        video("mpeg4", 24, name="x.avi", options={"g": "12", "bf": "1"}), "y.avi", packed_b_frames
    )
    for name, tables in (("mjpeg with its tables", "optimal"), ("mjpeg", "default")):
        videos[name] = video("mjpeg", 12, name="x.avi", form="yuvj420p", options={**JPEG, "huffman": tables})
    videos["mjpeg without tables"] = repacked(
        videos["mjpeg"], "y.avi", lambda packets: [without_tables(each) for each in packets]
    )
    videos["ten bits"] = video("libx265", 12, form="yuv420p10le", options={"preset": "ultrafast", "x265-params": HEVC})
    videos["png"], videos["vp9"] = video("png", 12, name="x.avi", form="rgb24"), made("vp9.webm")
    found: dict[str, Callable[[], object]] = {}
    for name, content in videos.items():
        found[name] = functools.partial(VideoClip(8), content)
        found[f"{name}, small"] = functools.partial(VideoClip(4, start="first", size=(50, 38)), content)
    waves = {rate: sound(1.5, 2, rate) for rate in (44_100, 48_000)}
    sounds = {
        f"{codec} of {rate} Hz": encoded(codec, container, wave, rate)
        for codec, container in (("libmp3lame", "mp3"), ("flac", "flac"), ("vorbis", "ogg"), ("aac", "ipod"))
        for rate, wave in waves.items()
    }
    sounds["opus"] = encoded("libopus", "ogg", waves[48_000], 48_000)
    sounds["aac with noise"] = encoded("aac", "adts", waves[48_000], 48_000, noise=True)
    sounds["mp3 whose rate changes"] = sounds["libmp3lame of 44100 Hz"] + sounds["libmp3lame of 48000 Hz"]
    for name, content in sounds.items():
        found[name] = functools.partial(AudioClip(), content)
        found[f"{name}, a window"] = functools.partial(AudioClip(0.5, start=0.3), content)
    return found


def digest(decode: Callable[[], object]) -> list[object]:
    """Returns what is decoded, or the error that says why not."""
    try:
        value = decode()
    except ValueError as error:
        return [str(error)]
    fields = value if isinstance(value, dict) else {"": value}
    return [item for name, field in fields.items() for item in (name, np.shape(field), np.asarray(field).tobytes())]


@functools.cache
def alone() -> dict[str, list[object]]:
    return {name: digest(decode) for name, decode in samples().items()}


@pytest.mark.parametrize(
    "seed", [0, 1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_samples_in_any_order_are_as_alone(seed: int):
    """Samples that are decoded in a drawn order are the same as each alone."""
    names, expected = list(samples()), alone()
    for name in np.random.default_rng(seed).permutation(names).tolist():
        assert digest(samples()[name]) == expected[name], name


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_samples_behind_every_other_are_as_alone():
    """Each sample decoded behind each other one is the same as alone."""
    expected = alone()
    for before, first in samples().items():
        for name, second in samples().items():
            digest(first)
            assert digest(second) == expected[name], f"{name} behind {before}"


@pytest.mark.parametrize("name", ["h264 quality", "h264 healthy", "mjpeg", "mpeg4", "hevc"])
def test_samples_of_the_test_are_decoded(name: str):
    """The samples of these tests are decoded and are no errors, which would always be equal."""
    assert len(alone()[name]) == 3
