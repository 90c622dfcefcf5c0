"""10,000 records that TensorFlow and MXNet have just written, in environments of their own."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from streamer.formats.base import Format
from streamer.tables.recordio import RecordIO
from streamer.tables.tfrecord import TFRecord
from tests.formats.cases import MemoryStore, built, read_case
from tests.formats.contract import samples_of
from tests.formats.library_environment import python_with_only

pytestmark = [pytest.mark.formats, pytest.mark.timeout(3000)]

ROOT = Path(__file__).parents[2]
RECORDS = 10_000
TENSORFLOW = ("tensorflow-cpu==2.21.0", "tfrecord==1.14.6")
MXNET = ("mxnet==1.9.1", "numpy==1.23.5")


@pytest.mark.parametrize(
    ("script", "packages", "formats", "raw"),
    [
        (
            "tfrecord.py",
            TENSORFLOW,
            {"examples": TFRecord(), "indexed": TFRecord(), "records": TFRecord(example=False)},
            "image/encoded",
        ),
        ("recordio.py", MXNET, {"indexed": RecordIO(), "plain": RecordIO()}, "image"),
    ],
)
def test_what_the_libraries_write(
    script: str, packages: tuple[str, ...], formats: dict[str, Format], raw: str, tmp_path: Path
):
    """TFRecord and RecordIO files, with index files and without, have each field as the libraries read it."""
    made = Path(__file__).parent / "make" / script
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([python_with_only(*packages), made, tmp_path / "data", str(RECORDS)], check=True, env=environment)
    for name, chosen in formats.items():
        case = read_case(chosen, str(tmp_path / "data" / name), raw=[raw] if name != "records" else [])
        assert len(case.samples) >= RECORDS
        found = samples_of(case)
        differing = [
            number for number, (ours, theirs) in enumerate(zip(found, case.samples, strict=True)) if ours != theirs
        ]
        assert differing == []
        manifest = asyncio.run(built(chosen, MemoryStore(case.objects, seed=1), tmp_path / name, 64 << 10))
        assert manifest.samples == len(case.samples)
