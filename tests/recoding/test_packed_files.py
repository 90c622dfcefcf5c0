"""Compressed files of real formats, through an engine process: decompression bombs, and what is imported where."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import cramjam
import pytest

from tests.tars import tar_of

pytestmark = pytest.mark.process

GiB = 1 << 30


def zeros(count: int) -> bytes:
    """Returns a Zstandard file of 33 KB for each GiB, made frame by frame."""
    frame = bytes(cramjam.zstd.compress(bytes(64 << 20)))
    return frame * (count // (64 << 20))


@pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        ("jsonl", "a.jsonl.zst", "decompresses to more than 1073741824 bytes"),
        ("webdataset", "a.tar.zst", "decompresses to more than 1073741824 bytes"),
        pytest.param("jsonl", "a.jsonl.gz", "decompresses to more than 1073741824 bytes", marks=pytest.mark.slow),
    ],
)
def test_a_bomb(tmp_path: Path, kind: str, name: str, reason: str) -> None:
    """A decompression bomb is a ManifestError; the engine's memory stays as it is, its recoder's below the limit."""
    good, bomb = tmp_path / "good" / name, tmp_path / "bomb" / name
    for path in (good, bomb):
        path.parent.mkdir()
    pack = gzip.compress if name.endswith("gz") else lambda content: bytes(cramjam.zstd.compress(content))
    good.write_bytes(pack(b"1\n" if kind == "jsonl" else tar_of([("a.txt", b"1")])))
    bomb.write_bytes(zeros(2 * GiB) if name.endswith("zst") else gzip.compress(bytes(256 << 20), 1) * 5)
    command = [sys.executable, "-m", "tests.recoding.bomb", str(tmp_path), kind, str(tmp_path / "cache")]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    found = json.loads(done.stdout)
    assert found["said"].startswith("ManifestError"), found
    assert reason in found["said"]
    assert found["engine"] < 48 << 20
    # What it may have, beside the libraries: the packed bytes, and the records.
    assert found["recoder"] < GiB + (320 << 20)


def test_the_engine_imports_no_codecs() -> None:
    """Neither the public interface nor the engine imports pyarrow or cramjam."""
    program = "import sys, streamer, streamer.service.lifecycle\n"
    program += "import streamer.engine.manifests.manifests, streamer.formats.detect\n"
    program += "from streamer.formats.json_lines import JsonLines\n"
    program += "print(sorted({'pyarrow', 'cramjam'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
