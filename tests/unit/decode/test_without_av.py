"""Which modules a fresh process imports before it decodes a video; each test starts one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LISTED = """
import sys
from pathlib import Path
import streamer
import streamer.service.embedded
from streamer.decode import AudioClip, SampleDecoder, VideoClip
from streamer.formats import Audio, Video
from streamer.formats.registry import find_format
from streamer.batches.workers import fork_server_main as server
from streamer.recode import pool

server.Imports().add(server._ALWAYS)
find_format("video", {}), find_format("audio", {})
SampleDecoder({"mp4": VideoClip(16), "wav": AudioClip()})
print(*sys.modules)
"""


@pytest.mark.process
def test_no_process_imports_av_before_it_decodes():
    """Trainer, engine, recoder and workers of other data import no FFmpeg library, which takes 60 MB."""
    listed = subprocess.run([sys.executable, "-c", LISTED], check=True, stdout=subprocess.PIPE, text=True)
    imported = set(listed.stdout.split())
    assert {"streamer.media.decode.video", "streamer.media.containers.recode"} <= imported
    assert "streamer.media.audio.recode" in imported
    assert not {"av", "torch"} & imported


OPENED = """
import sys
from pathlib import Path
from pathlib import Path
from streamer import StreamingDataset

for name in "ab":
    Path(sys.argv[1], f"{name}.txt").write_text(name)
dataset = StreamingDataset(sys.argv[1])
assert {sample["txt"] for sample in dataset} == {"a", "b"}
assert dataset[0]["txt"] in "ab"
dataset.close()
print(*sys.modules)
"""


@pytest.mark.process
def test_files_are_read_without_a_wing(tmp_path: Path):
    """A rank that trains on files imports no format of tables or media, none of their decoders, peers or tools."""
    folders = {"STREAMER_CACHE_DIR": str(tmp_path / "cache"), "STREAMER_RUNTIME_DIR": str(tmp_path / "run")}
    data = tmp_path / "data"
    data.mkdir()
    listed = subprocess.run(
        [sys.executable, "-c", OPENED, str(data)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **folders},
    )
    wings = ("streamer.media", "streamer.tables", "streamer.peers", "streamer.tools", "streamer.shards")
    assert [name for name in listed.stdout.split() if name.startswith(wings)] == []
