"""Videos in training through an engine: annotations, selections, mixes, drawn clips, resumes; reports of decoding."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from streamer import MixedDataset, Order, StreamingDataLoader, StreamingDataset
from streamer.cli.main import main
from streamer.errors import ConfigError
from streamer.formats import Video
from streamer.formats.chunkfile import HEADER_BYTES
from streamer.loader.stall.advice import Bottleneck
from streamer.loader.stall.report import StallReport
from tests.videos import made, number_in

EVERY, STEP = 2, 6
CLIPS = Video(3, num_indices_between_frames=EVERY, num_indices_between_clip_starts=STEP)
DRAWN = Video(3, num_indices_between_frames=EVERY, num_indices_between_clip_starts=STEP, start="random")
# Videos have 90 frames: clips that begin with these end inside of it.
FIRSTS = range(0, 86, STEP)


@pytest.fixture
def videos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a video, and one in a folder, with 15 clips each."""
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    folder = tmp_path / "videos"
    (folder / "b").mkdir(parents=True)
    (folder / "a.mp4").write_bytes(made("b_frames.mp4"))
    (folder / "b" / "c.mp4").write_bytes(made("open_gop.mp4"))
    return folder


def begin(sample: Mapping[str, object]) -> tuple[str, int]:
    """Compares the numbers in a clip's frames with their times; returns its key and its first frame."""
    shown = [number_in(np.moveaxis(frame, 0, -1)) for frame in sample["frames"]]
    assert shown == [shown[0] + EVERY * number for number in range(3)]
    times = np.round(sample["pts_seconds"] * 30 - shown, 6)
    assert (times == times[0]).all()
    return str(sample["__key__"]), shown[0]


def test_a_codec_that_PyAV_does_not_have(videos: Path, monkeypatch: pytest.MonkeyPatch):
    """A codec that PyAV lacks is an error at opening; with the frames undecoded the dataset opens."""

    def unknown(name: str, mode: str) -> av.Codec:
        raise ValueError(name)

    monkeypatch.setattr(av, "Codec", unknown)
    with (
        closing(StreamingDataset(str(videos), format=CLIPS)) as dataset,
        pytest.raises(ConfigError, match=r"this PyAV .* has no decoder 'h264'"),
    ):
        assert dataset.samples
    with closing(StreamingDataset(str(videos), format=CLIPS, decode={"frames": None})) as dataset:
        assert dataset.samples == 30


def test_a_row_serves_all_clips_of_a_video(videos: Path, tmp_path: Path):
    """A row of annotations, found by the video's path, serves its clips, which `select` and index choose."""
    (tmp_path / "labels.csv").write_text("file_name,label\na.mp4,run\nb/c.mp4,jump\n")
    with closing(StreamingDataset(videos, format=CLIPS, annotations=str(tmp_path / "labels.csv"))) as dataset:
        samples = list(dataset)
        assert len(samples) == len(dict(map(begin, samples))) == 2 * len(FIRSTS)
        assert sorted(first for _, first in map(begin, samples)) == sorted([*FIRSTS, *FIRSTS])
        assert {(sample["__key__"].partition("#")[0], sample["label"]) for sample in samples} == {
            ("a.mp4", "run"),
            ("b/c.mp4", "jump"),
        }
        assert dict(map(begin, dataset.select(indices=[2, 17]))) == dict(map(begin, (dataset[2], dataset[17])))
        halves = [dict(map(begin, dataset.select(fraction=part))) for part in ((0, 0.5), (0.5, 1))]
        assert len(halves[0] | halves[1]) == sum(map(len, halves)) == 2 * len(FIRSTS)


@pytest.mark.leaves_over("libuv opens one pipe for signals per process and keeps it")
def test_cache_check_knows_clips(videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`streamer cache check` accepts chunk files of clips, and finds and repairs one with a changed byte."""
    with closing(StreamingDataset(videos, format=CLIPS, engine="inline")) as dataset:
        assert len(list(dataset)) == 2 * len(FIRSTS)
    cache = tmp_path / "cache"
    assert main(["cache", "check", str(cache)]) == 0
    chunks = [path for path in cache.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"STRM"]
    assert len(chunks) == 2
    content = bytearray(chunks[0].read_bytes())
    content[HEADER_BYTES + len(content) // 2] ^= 1
    chunks[0].write_bytes(content)
    assert main(["cache", "check", str(cache)]) == 1
    assert "checksum of its bytes" in "".join(capsys.readouterr())
    assert main(["cache", "check", str(cache), "--repair"]) == 0
    assert not chunks[0].exists()
    with closing(StreamingDataset(videos, format=CLIPS, engine="inline")) as dataset:
        assert len(dict(map(begin, dataset))) == 2 * len(FIRSTS)


def taken(loader: StreamingDataLoader, steps: int | None = None) -> Iterator[str]:
    """Yields the samples of the next steps, but those that fill the last batch."""
    for number, batch in enumerate(loader):
        yield from (sample for sample, again in zip(batch, loader.repeated, strict=True) if not again)
        if number + 1 == steps:
            break


def loaders(videos: Path, words: Path, ranks: int, workers: int) -> Iterator[StreamingDataLoader]:
    """Yields the loaders of a mix of videos and texts, one rank after the other."""
    for rank in range(ranks):
        members = {
            "videos": StreamingDataset(videos, format=DRAWN, transform=lambda sample: "{} {}".format(*begin(sample))),
            "words": StreamingDataset(words, transform=lambda sample: sample["__key__"]),
        }
        once, filled = {"videos": 1.0, "words": 1.0}, Order(last_batch="fill")
        mix = MixedDataset(members, repeat=once, rank=rank, world_size=ranks, order=filled)
        with StreamingDataLoader(mix, 6 // ranks, workers, report_every=None) as loader:
            yield loader


@pytest.mark.formats
def test_starts_agree_after_a_resume_on_other_ranks(videos: Path, tmp_path: Path):
    """Drawn clips of a mix are the same after a resume on three ranks, and drawn anew in each epoch."""
    words = tmp_path / "words"
    words.mkdir()
    for number in range(12):
        (words / f"{number}.txt").write_text(str(number))
    for loader in loaders(videos, words, 1, 0):
        expected, following = list(taken(loader)), list(taken(loader))
    seen: list[str] = []
    for loader in loaders(videos, words, 2, 0):
        seen += taken(loader, 3)
        state = loader.state_dict()
    for loader in loaders(videos, words, 3, 1):
        loader.load_state_dict(state)
        seen += taken(loader)
    assert sorted(seen) == sorted(expected)
    clips, again = (dict(each.split() for each in found if "#" in each) for found in (expected, following))
    assert clips.keys() == again.keys()
    assert len(clips) == 2 * len(FIRSTS)
    assert len(expected) == len(following) == 2 * len(FIRSTS) + 12
    assert sum(clips[key] != again[key] for key in clips) > len(clips) // 2
    for found in (clips, again):
        assert sorted(int(first) // STEP for first in found.values()) == sorted(
            [*range(len(FIRSTS)), *range(len(FIRSTS))]
        )


def captioned(batch: Mapping[str, object]) -> list[tuple[str, list[int]]]:
    """Returns the caption of each clip, and the numbers in its frames."""
    clips = np.moveaxis(np.asarray(batch["frames"]), 2, -1)
    return list(zip(batch["caption"], [[number_in(frame) for frame in clip] for clip in clips], strict=True))


def test_a_caption_for_each_segment(videos: Path):
    """Each row of a table of segments comes once in an epoch with its clip, by workers and after a resume."""
    rows = [("a.mp4" if number % 3 else "b/c.mp4", number / 10) for number in range(24)]
    table = "".join(f"{path},{start},{start + 0.5},{path} {start}\n" for path, start in rows)
    (videos / "rows.csv").write_text("path,start,end,caption\n" + table)
    expected = {
        f"{path} {start}": [int(start * 30 + 15 * part) for part in (1 / 6, 0.5, 5 / 6)] for path, start in rows
    }
    segments = Video(3, segments="rows.csv", start="spread")
    with closing(StreamingDataset(videos, format=segments)) as dataset:
        with StreamingDataLoader(dataset, 4, 2, report_every=None) as loader:
            first = [captioned(batch) for batch in loader]
            begun = [captioned(batch) for _, batch in zip(range(2), loader, strict=False)]
            state = loader.state_dict()
        with StreamingDataLoader(dataset, 4, 0, report_every=None) as loader:
            loader.load_state_dict(state)
            second = [*begun, *(captioned(batch) for batch in loader)]
    for epoch in (first, second):
        assert len(epoch) == 6
        assert {text: numbers for batch in epoch for text, numbers in batch} == expected
    assert first != second


@pytest.mark.leaves_over("libuv opens one pipe for signals per process and keeps it")
def test_what_decoding_takes_is_in_the_stall_report(videos: Path):
    """The stall report says which share of decoded packets a dataset of single frames throws away."""
    singles = Video(1, num_indices_between_clip_starts=1)
    with (
        closing(StreamingDataset(videos, format=singles, engine="inline")) as dataset,
        StreamingDataLoader(dataset, 4, 1, report_every=None) as loader,
    ):
        next(iter(loader))
        report = loader.name_samples(StallReport(bottleneck=Bottleneck.DECODE, advice="more workers"))
    assert report.advice.startswith(
        "more workers; clips: 9 packets for 1 of 1 frames, 89% thrown away; key frames are "
    )


@pytest.mark.process
def test_what_decoding_takes_is_in_show_and_plan(videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`streamer show` prints what decoding a clip takes, and `streamer plan` the workers that all clips need."""
    options = '{"num_frames_per_clip": 3, "num_indices_between_frames": 2, "num_indices_between_clip_starts": 6}'
    data = [f"{videos}/", "--format", "video", "--format-options", options]
    assert main(["show", *data, "--sample", "3", "--out", str(tmp_path / "clip.png")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("sample 3 of 30: a.mp4#t=0.6")
    assert shown[-3] == "decoding: 23 packets for 3 of 5 frames, 87% thrown away; key frames are 0.8 s apart"
    assert shown[-2].startswith('  cheaper: start="key": 5 packets, clips_per_sample=4: ')
    with Image.open(tmp_path / "clip.png") as sheet:
        assert sheet.size == (2 * 128, 2 * (96 + 14))
    plan = [*data, "--cache-bytes", "100MB", "--batch-size", "4", "--link", "1GB/s", "--no-search"]
    figures = tmp_path / "plan.json"
    assert main(["plan", *plan, "--step-seconds", "0.000001", "--json-file", str(figures)]) == 0
    planned, found = capsys.readouterr().out, json.loads(figures.read_text())
    assert re.search(r"\ndecoding: 1\d packets for 3 of 5 frames, 7\d% thrown away; key frames are ", planned), planned
    assert found["setting"]["job"]["sample_seconds"] == found["decoding"]["seconds"] > 0
    assert f"{math.ceil(4e6 * found['decoding']['seconds']):,} workers of each rank" in planned
    assert main(["plan", *plan, "--step-seconds", "1", "--sample-seconds", "0.5"]) == 0
    assert "decod" not in capsys.readouterr().out
