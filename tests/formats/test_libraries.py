"""Larger datasets that LeRobot, MosaicML Streaming and LitData have just written, in environments of their own."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from streamer import StreamingDataset
from streamer.formats.base import Format
from streamer.media.lerobot.format import LeRobot
from streamer.tables.litdata.format import LitData
from streamer.tables.mds import MDS
from tests.formats.cases import read_case
from tests.formats.contract import Job, _sorted, _told, engine_below, samples_of
from tests.formats.library_environment import library_python, make

pytestmark = [pytest.mark.formats, pytest.mark.timeout(3000)]

SAMPLES = 300
# MosaicML imports these; not what it asks for, which is an older numpy.
MOSAIC = ("mosaicml-streaming==0.13.0", "transformers==5.23.0", "tokenizers", "sentencepiece", "torchvision==0.28.0")
MOSAIC_CODECS = ("brotli", "catalogue", "python-snappy", "xxhash", "zstd")
LITDATA = ("torchvision==0.28.0", "tifffile", "zstd")
LIBRARIES = {
    "mds": (MDS(), "mds.py", (*MOSAIC, *MOSAIC_CODECS)),
    "litdata-0.2.76": (LitData(), "litdata_chunks.py", ("litdata==0.2.76", *LITDATA)),
    "litdata-0.2.51": (LitData(), "litdata_chunks.py", ("litdata==0.2.51", *LITDATA)),
}

# What `lerobot.datasets` imports of what lerobot asks for.
LEROBOT = ("lerobot==0.4.4", "av==15.1.0", "datasets==4.5.0", "huggingface_hub==0.35.3", "torchvision==0.28.0")
LEROBOT_MORE = (
    "dill==0.4.0",
    "httpx",
    "multiprocess==0.70.18",
    "pandas==2.3.3",
    "pytz",
    "torchcodec==0.13.0",
    "tzdata",
    "xxhash",
)


def test_what_lerobot_writes(tmp_path: Path):
    """Sets that lerobot has written, in AV1 and H.264, give its windows of all cameras.

    Most episodes begin in the middle of their files.
    """
    make(library_python(*LEROBOT, *LEROBOT_MORE), "lerobot_sets.py", tmp_path / "made")
    windows = json.loads((tmp_path / "made" / "windows.json").read_text())
    for codec in ("libsvtav1", "h264"):
        case = read_case(LeRobot(delta_timestamps=windows), str(tmp_path / "made" / codec))
        films = [name for name in case.objects if name.endswith(".mp4")]
        assert len(films) >= 6
        assert len(case.samples) == 126
        assert samples_of(case) == list(case.samples)


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_the_libraries_write(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """MDS and LitData are read as their libraries do, in this process and, detected, through an engine."""
    chosen, script, packages = LIBRARIES[library]
    make(library_python(*packages), script, tmp_path / "written", SAMPLES)
    folders = sorted(path.parent for path in (tmp_path / "written").glob("*/expected.json"))
    assert len(folders) >= 3
    for number, folder in enumerate(folders):
        # A short path: the engine listens at a socket below it.
        _compare(chosen, folder, tmp_path / str(number), monkeypatch, lambda: capsys.readouterr().out)


def _compare(chosen: Format, folder: Path, root: Path, patch: pytest.MonkeyPatch, out) -> None:
    given = LitData(block_size=8) if folder.name == "tokens" else chosen
    case = read_case(given, str(folder))
    assert len(case.samples) >= SAMPLES
    assert samples_of(case) == list(case.samples), folder.name
    engine_below(root, patch)
    with closing(Job(root, case, out)) as job:
        named = given if given.options else "auto"
        with closing(StreamingDataset(job.folder, format=named, cache_bytes="1GB")) as dataset:
            read = [_told(dict(sample)) for sample in dataset]
    assert _sorted(read) == job.expected, folder.name
