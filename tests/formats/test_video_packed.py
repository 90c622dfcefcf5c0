"""Videos packed as shards of clips, read again by streamer and PyAV, and by webdataset and torchcodec beside it."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import av
import numpy as np
import pytest

import streamer
from streamer import StreamingDataset
from streamer.cli.main import main
from streamer.decode import VideoClip
from streamer.formats import Video
from tests.formats.library_environment import library_python, make
from tests.videos import KINDS, MATROSKA, decoded, ffmpeg_of_pyav, made

ALL = [name for name in (*KINDS, *MATROSKA) if name != "refresh.mp4"]
LIBRARIES = ("torchcodec==0.13.0", "webdataset==1.0.2", "braceexpand==0.1.7")
OPTIONS = {"num_frames_per_clip": 4, "num_indices_between_frames": 2, "num_indices_between_clip_starts": 7}


@pytest.fixture(scope="module")
def here() -> Iterator[Executor]:
    """Gives the executor that packs: one thread in place of processes."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        yield pool


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a folder without videos."""
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "videos" / "b").mkdir(parents=True)
    return tmp_path


def packed(folder: Path, names: list[str], here: Executor, **more: object) -> Path:
    """Packs these videos, the last one of them in a folder."""
    for name in names:
        (folder / "videos" / ("b" if name == names[-1] else "") / name).write_bytes(made(name))
    options = {"format": Video(**OPTIONS), **more}
    streamer.pack(folder / "videos", folder / "out", executor=here, **options)  # type: ignore[arg-type]
    return folder / "out"


@functools.cache
def shown(name: str) -> tuple[np.ndarray, list[float]]:
    frames, pts, _ = decoded(made(name))
    return frames, np.round(pts, 6).tolist()


def check(sample: dict[str, object], source: object, pts: object, step: int = 2) -> str:
    """Compares the frames of a sample with those that a full decode of its video has at these times."""
    path, times = str(source["path"]), list(pts)  # type: ignore[index,call-overload]
    frames, known = shown(path.rpartition("/")[2])
    chosen = [known.index(each) for each in np.round(times, 6).tolist()]
    assert np.array_equal(sample["mp4"], frames[chosen])
    assert np.diff(chosen).tolist() == [step] * (len(chosen) - 1)
    assert np.allclose(source["time"], [times[0], times[-1]], atol=5.1e-4)  # type: ignore[index]
    return path


@pytest.mark.parametrize("output", ["webdataset", "parquet"])
def test_clips_are_read_as_they_were(folder: Path, here: Executor, output: str):
    """Packed clips have the frames of their videos at their times, in tars and in Parquet."""
    out = packed(folder, ["open_gop.mp4", "variable.mp4"], here, output_format=output, shard_bytes="64kB")
    assert len(list(out.glob("*.tar" if output == "webdataset" else "*.parquet"))) > 1
    with closing(StreamingDataset(out, decode={"mp4": VideoClip(4)})) as dataset:
        samples = list(dataset)
    told = [(sample, sample["json"] if output == "webdataset" else sample) for sample in samples]
    found = [check(sample, values["source"], values["pts_seconds"]) for sample, values in told]
    assert sorted(set(found)) == ["b/variable.mp4", "open_gop.mp4"]
    assert len({sample["__key__"] for sample in samples}) == len(found) == 2 * len(range(0, 84, 7))


def test_shards_have_the_size_that_was_asked_for(folder: Path, here: Executor):
    """Shards of clips stay within 1.3 times shard_bytes, though a clip at each frame repeats the video's bytes."""
    every = {"num_frames_per_clip": 4, "num_indices_between_clip_starts": 1}
    out = packed(folder, ["b_frames.mp4"], here, format=Video(**every), shard_bytes="1MB", fields=["frames"])
    sizes = [path.stat().st_size for path in out.glob("*.tar")]
    assert sum(sizes) > 5 * len(made("b_frames.mp4"))
    assert max(sizes) < 1_300_000


def test_frames_that_are_gops_apart_are_arrays(folder: Path, here: Executor):
    """Clips whose frames are GOPs apart are packed as arrays, and others as videos."""
    apart = {"num_frames_per_clip": 2, "num_indices_between_frames": 60, "num_indices_between_clip_starts": 15}
    out = packed(folder, ["open_gop.mp4"], here, format=Video(**apart))
    with closing(StreamingDataset(out)) as dataset:
        for sample in dataset:
            times = sample["pts_seconds.npy"]
            source = {"path": "b/open_gop.mp4", "time": [times[0], times[1]]}
            check({"mp4": sample["frames.npy"]}, source, times, step=60)
    sparse = {"num_frames_per_clip": 2, "num_indices_between_clip_starts": 40}
    streamer.pack(folder / "videos", folder / "sparse", format=Video(**sparse), executor=here)
    with closing(StreamingDataset(folder / "sparse", decode={"mp4": VideoClip(2)})) as dataset:
        assert len([check(s, s["json"]["source"], s["json"]["pts_seconds"], step=1) for s in dataset]) == 3


@pytest.mark.leaves_over("libuv opens one pipe for signals per process and keeps it")
def test_columns_of_segments_and_sounds_are_kept(folder: Path, here: Executor):
    """A packed clip keeps its row's columns, its sound and its time in the video, and plays these frames alone."""
    row = {"path": "b/sound.mp4", "start": 1, "end": 2, "caption": "a pattern", "number": 7}
    (folder / "videos" / "rows.jsonl").write_text(json.dumps(row))
    options = {"num_frames_per_clip": 8, "segments": "rows.jsonl", "audio": True}
    (folder / "videos" / "b" / "sound.mp4").write_bytes(made("sound.mp4"))
    told = json.dumps(options)
    index = ["index", f"{folder}/videos/", "--format", "video", "--format-options", told, "--out", f"{folder}/manifest"]
    assert main(index) == 0
    out = packed(folder, [], here, format=Video(**options), manifest=f"{folder}/manifest")
    with closing(StreamingDataset(out, decode=None)) as dataset:
        [sample] = list(dataset)
    assert sample.keys() - {"__key__"} == {"mp4", "json", "caption.txt", "audio.npy"}
    told = json.loads(sample["json"])
    assert (told["number"], told["sample_rate"], told["source"]["time"]) == (7, 48000, [1.0, 1.233])
    (folder / "a.mp4").write_bytes(sample["mp4"])
    with av.open(str(folder / "a.mp4")) as box:
        frames = list(box.decode(video=0))
    assert [frame.time for frame in frames] == pytest.approx(np.arange(8) / 30)


@pytest.mark.formats
def test_webdataset_and_torchcodec_read_clips(folder: Path, here: Executor, monkeypatch: pytest.MonkeyPatch):
    """webdataset and torchcodec read packed clips of all kinds of videos, RGB bit by bit, at their times."""
    out = packed(folder, ALL, here)
    python = library_python(*LIBRARIES)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(ffmpeg_of_pyav(folder / "links")))
    make(python, "packed_clips.py", out, folder / "written.json")
    seen = dict.fromkeys(ALL, 0)
    for path, count, times in json.loads((folder / "written.json").read_text()):
        name = path.rpartition("/")[2]
        frames, known = shown(name)
        assert count == len(times) == 4
        for seconds, digest in times:
            place = known.index(min(known, key=lambda each, seconds=seconds: abs(each - seconds)))
            assert abs(known[place] - seconds) < 1e-5
            assert hashlib.blake2b(frames[place].tobytes(), digest_size=12).hexdigest() == digest, (path, seconds)
        seen[name] += 1
    assert min(seen.values()) > 5
