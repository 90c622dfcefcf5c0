"""Whole videos and audio files in training: in class folders, and in columns that Hugging Face's datasets writes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from streamer import StreamingDataLoader, StreamingDataset
from streamer.decode import AudioClip, VideoClip
from tests.formats.library_environment import make, python_with_only
from tests.recordings import decoded, flac, mp3, sound, wav
from tests.videos import made, number_in

SOUNDS = {"wav": wav(sound(1)), "flac": flac(1, 1), "mp3": mp3()}
FILMS = {"mp4": made("b_frames.mp4")}
CLIP, WHOLE = VideoClip(4, start="first"), AudioClip()


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a folder of two classes for each kind of file."""
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    for ending, content in (SOUNDS | FILMS).items():
        for name in ("cat", "dog"):
            (tmp_path / ending / name).mkdir(parents=True)
            (tmp_path / ending / name / f"0.{ending}").write_bytes(content)
    return tmp_path


def check(value: object, ending: str) -> None:
    """Compares a decoded field with the file."""
    if ending in FILMS:
        assert [number_in(np.moveaxis(np.asarray(frame), 0, -1)) for frame in value] == [0, 1, 2, 3]
        return
    wave, rate = decoded(SOUNDS[ending])
    assert (np.array_equal(value["audio"], wave), value["sample_rate"]) == (True, rate)


@pytest.mark.parametrize("ending", [*SOUNDS, *FILMS])
def test_files_of_class_folders(ending: str, folders: Path):
    """Videos and audio files in class folders are samples with their class, decoded by a worker."""
    rule = {ending: CLIP if ending in FILMS else WHOLE}
    with (
        closing(StreamingDataset(folders / ending, decode=rule)) as dataset,
        StreamingDataLoader(dataset, batch_size=1, num_workers=1, collate_fn=list, report_every=None) as loader,
    ):
        samples = [sample for batch in loader for sample in batch]
    assert sorted((sample["__key__"], sample["label"]) for sample in samples) == [
        (f"cat/0.{ending}", 0),
        (f"dog/0.{ending}", 1),
    ]
    for sample in samples:
        check(sample[ending], ending)


@pytest.mark.formats
def test_columns_of_datasets(folders: Path):
    """Columns `Audio()` and `Video()` of datasets, with the files' bytes, are decoded as the files are."""
    python = python_with_only("datasets==5.2.0", "pillow", "numpy")
    make(python, "media_columns.py", folders, folders / "parquet")
    rule = {"audio": WHOLE, "video": CLIP}
    with closing(StreamingDataset(folders / "parquet" / "sounds", decode=rule)) as dataset:
        found = {sample["label"]: sample["audio"] for sample in dataset}
    # In the order of their paths.
    assert len(found) == 2 * len(SOUNDS)
    for label, value in found.items():
        check(value, sorted(SOUNDS)[label // 2])
    with closing(StreamingDataset(folders / "parquet" / "videos", decode=rule)) as dataset:
        videos = list(dataset)
    assert len(videos) == 2
    for sample in videos:
        check(sample["video"], "mp4")
