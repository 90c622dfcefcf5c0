"""`streamer show`: its texts for values, and the files that it writes."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from streamer.batches.samples.maker import SampleLocation
from streamer.cli.show_command import _draw, _ordinal, describe_sample, value_text
from streamer.cli.terminal import Terminal
from streamer.errors import ConfigError
from streamer.formats.detect import chooser
from streamer.indexing.build import build
from tests.unit.manifest.conftest import MemoryStore


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "int 3"),
        ("a" * 300, f"str '{'a' * 199}..."),
        (b"", "no bytes"),
        (bytes(range(20)), "20 B, begins 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f"),
        ({"a": 1}, "dict of 1: {'a': 1}"),
        (np.zeros((2, 3, 3), np.uint8), "uint8 2 x 3 x 3, 18 B: 0 to 0, mean 0"),
        (np.array([0.5, 2.0]), "float64 2, 16 B: [0.5, 2.0]"),
        (np.array(2.5), "float64 scalar, 8 B: 2.5"),
        (np.zeros((0, 4)), "float64 0 x 4, 0 B"),
        (np.array(["x", "y"]), "<U1 2, 8 B"),
    ],
)
def test_a_value_is_one_line(value: object, text: str) -> None:
    """A value is one line with type, shape, size and what can be told of its content."""
    assert value_text(value) == text


def test_numbers_count_from_the_end_as_in_a_list() -> None:
    """Negative sample numbers count from the end; one outside raises ConfigError with the range."""
    assert (_ordinal(-1, 80), _ordinal(79, 80)) == (79, 79)
    with pytest.raises(ConfigError, match="0 to 79"):
        _ordinal(80, 80)


async def test_an_empty_file_is_named_itself(tmp_path: Path) -> None:
    """An empty file is shown with its own url, though it begins in its chunk where its neighbour begins."""
    store = MemoryStore({f"s3://b/a/{number}.jpg": b"x" * (number % 3) for number in range(9)})
    manifest = await build("s3://b/", tmp_path, lister=store, reader=store, choose_format=chooser("auto"))
    for ordinal in range(9):
        key = manifest.name(ordinal).object_key
        place = SampleLocation(sample=ordinal, start=0, stop=0, ordinal=ordinal, chunk=0)
        assert describe_sample({"__key__": key}, place, manifest) == [
            f"sample {ordinal} of 9: {key}",
            f"  in s3://b/{key}, {int(key[2]) % 3} bytes from 0 on, chunk 0",
        ]


def test_audio_is_written_as_wav(tmp_path: Path) -> None:
    """Audio is written as WAV with its numbers of 16 bits; a sample without audio raises ConfigError."""
    numbers = np.array([[0, 1, -32768], [7, -7, 32767]], "<i2")
    _draw({"audio": numbers / np.float32(32768), "sample_rate": 8_000}, tmp_path / "a.wav", Terminal())
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert (file.getnchannels(), file.getframerate()) == (2, 8_000)
        assert file.readframes(3) == numbers.T.tobytes()
    with pytest.raises(ConfigError, match="has no audio"):
        _draw({"audio": b"RIFF"}, tmp_path / "b.wav", Terminal())


@pytest.mark.parametrize("shape", [(5, 3, 100, 640), (1, 5, 3, 100, 640)], ids=["one clip", "several clips"])
def test_the_frames_of_a_clip_are_one_image(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """The frames of a clip, or of several, are one image in rows, scaled down, with their times below them."""
    frames = np.zeros((5, 3, 100, 640), np.uint8)
    frames[:, 0] = np.arange(100, 200, 20)[:, None, None]
    _draw({"frames": frames.reshape(shape), "pts_seconds": np.arange(5.0)}, tmp_path / "a.png", Terminal())
    with Image.open(tmp_path / "a.png") as sheet:
        image = np.asarray(sheet)
    assert image.shape == (2 * (50 + 14), 3 * 320, 3)
    assert [image[top + 25, left + 160, 0] for top in (0, 64) for left in (0, 320, 640)] == [
        *range(100, 200, 20),
        0,
    ]
    assert image[50:64, :320].max() > 200
    assert not image[114:, 640:].any()
