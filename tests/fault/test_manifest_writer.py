"""A manifest's builder that is killed: the next one removes its files. The builder is a process of its own."""

from __future__ import annotations

import subprocess
import sys

from streamer.manifest.staging import sweep, workplace

WRITER = """
import sys
from pathlib import Path
from streamer.manifest.staging import workplace
with workplace(Path(sys.argv[1])) as place:
    (place / "samples-00000.arrows").write_bytes(b"half")
    print(place, flush=True)
    sys.stdin.read()
"""


def test_a_killed_writer_is_swept_and_a_living_one_is_not(tmp_path):
    """A sweep removes the folder of a killed writer and leaves that of a running one,
    because the kernel releases a lock with its process.
    """
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        folder = writer.stdout.readline().strip()
        assert sweep(tmp_path) == []
        writer.kill()
        writer.wait()
    assert [str(path) for path in sweep(tmp_path) if path.suffix != ".lock"] == [folder]
    with workplace(tmp_path) as place:
        assert place.is_dir()
    assert list(tmp_path.iterdir()) == []
