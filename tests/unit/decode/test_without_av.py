"""What is imported without a film being decoded."""

from __future__ import annotations

import subprocess
import sys

import pytest

LISTED = """
import sys
import streamer
import streamer.service.embedded
from streamer.decode import AudioClip, SampleDecoder, VideoClip
from streamer.formats import Audio, Video
from streamer.formats.registry import find_format
from streamer.batches.workers import fork_server_main as server
from streamer.recode import pool, process

server.Imports().add(server._ALWAYS)
find_format("video", {}), find_format("audio", {})
SampleDecoder({"mp4": VideoClip(16), "wav": AudioClip()})
print(*sys.modules)
"""


@pytest.mark.process
def test_no_process_imports_av_before_it_decodes():
    """FFmpeg's libraries are 60 MB: trainer, engine, recoder and workers of other data do without."""
    listed = subprocess.run([sys.executable, "-c", LISTED], check=True, stdout=subprocess.PIPE, text=True)
    imported = set(listed.stdout.split())
    assert {"streamer.media.decode.video", "streamer.media.containers.recode"} <= imported
    assert "streamer.media.audio.recode" in imported
    assert not {"av", "torch"} & imported
