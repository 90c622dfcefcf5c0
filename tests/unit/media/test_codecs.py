"""Codecs of datasets: which their manifests name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from streamer.formats import Audio, LeRobot, Video
from streamer.formats.base import Format
from streamer.formats.registry import find_codecs
from streamer.formats.webdataset import WebDataset
from tests.formats.cases import MemoryStore, built
from tests.lerobot_sets import lerobot_set
from tests.recordings import flac, sound, wav
from tests.tars import tar_of
from tests.videos import made

VIDEOS = {"a.mp4": made("b_frames.mp4"), "b.mp4": made("mpeg4.mp4")}


@pytest.mark.parametrize(
    ("chosen", "objects", "names"),
    [
        (Video(4), VIDEOS, {"h264", "mpeg4"}),
        (Audio(seconds=1.0), {"a.flac": flac(), "b.wav": wav(sound(3))}, {"flac"}),
        (LeRobot(), lerobot_set(), {"h264", "libdav1d"}),
        (WebDataset(), {"a.tar": tar_of([("a.mp4", VIDEOS["a.mp4"])])}, set()),
    ],
)
async def test_codecs_of_manifests(chosen: Format, objects: Mapping[str, bytes], names: set[str], tmp_path: Path):
    """A manifest of videos or audio names the codecs of its files; WAV and files within tars have none."""
    assert find_codecs(await built(chosen, MemoryStore(objects), tmp_path)) == names
