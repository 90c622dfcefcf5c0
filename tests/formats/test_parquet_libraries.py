"""Larger Parquet files that pyarrow and datasets have just written, in an environment of their own."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from streamer import StreamingDataset
from streamer.tables.parquet.format import Parquet
from tests.formats.cases import MemoryStore, built, read_case
from tests.formats.contract import Job, _sorted, _told, engine_below, samples_of
from tests.formats.library_environment import python_with_only

pytestmark = [pytest.mark.formats, pytest.mark.timeout(3000)]

ROOT = Path(__file__).parents[2]
MAKE = Path(__file__).parent / "make" / "parquet.py"
ROWS = 2000
RAW = {"huggingface": ["image"], "kinds": ["picture"], "pages": [], "codecs": []}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes the files, by the libraries."""
    folder = tmp_path_factory.mktemp("made")
    python = python_with_only("datasets==5.2.0", "pillow")
    subprocess.run([python, MAKE, folder, str(ROWS)], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    return folder


@pytest.mark.parametrize("kind", RAW)
def test_what_the_libraries_write(
    kind: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """Parquet files have each field as pyarrow reads it, in this process and, detected, through an engine."""
    case = read_case(Parquet(), str(made / kind), raw=RAW[kind])
    assert len(case.samples) >= ROWS
    assert samples_of(case) == list(case.samples)
    manifest = asyncio.run(built(case.format, MemoryStore(case.objects, seed=1), tmp_path / "manifest", 64 << 10))
    assert manifest.samples == len(case.samples)
    engine_below(tmp_path, monkeypatch)
    with closing(Job(tmp_path, case, lambda: capsys.readouterr().out)) as job:
        rule = dict.fromkeys(case.raw) if case.raw else "auto"
        with closing(StreamingDataset(job.folder, decode=rule, cache_bytes="1GB")) as dataset:
            read = [_told(dict(sample)) for sample in dataset]
    assert _sorted(read) == job.expected
