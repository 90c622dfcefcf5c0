"""Audio in training: windows with annotations, in a mix, resumed on fewer ranks; files whose window is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from streamer import MixedDataset, Order, StreamingDataLoader, StreamingDataset
from streamer.cache.chunk_files import verify_file
from streamer.decode import AudioClip
from streamer.formats import Audio
from streamer.formats.chunkfile import ChunkHeader
from tests.recordings import decoded, flac, sound, wav

WINDOWS = Audio(seconds=0.5, seconds_between_starts=0.25)
DRAWN = Audio(seconds=0.5, seconds_between_starts=0.25, start="random")


@pytest.fixture
def talks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes a WAV of 15 windows, and a FLAC of 11 in a folder."""
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    folder = tmp_path / "talks"
    (folder / "b").mkdir(parents=True)
    (folder / "0.wav").write_bytes(wav(sound(4)))
    (folder / "b" / "1.flac").write_bytes(flac(3, 1))
    return folder


def check(sample: dict[str, object], folder: Path, *, begin: bool = False) -> str:
    """Compares a window with the file; returns its key, and where it begins."""
    key = sample["__key__"]
    wave, rate = decoded((folder / key.partition("#")[0]).read_bytes())
    first = round(float(sample["start_seconds"]) * rate)
    assert np.array_equal(sample["audio"], wave[:, first : first + rate // 2])
    return f"{key} {first}" if begin else key


def test_a_row_serves_all_windows_of_a_file(talks: Path, tmp_path: Path):
    """A row of annotations, found by the file's path, serves all windows of the file."""
    (tmp_path / "speakers.csv").write_text("file_name,speaker\n0.wav,ada\nb/1.flac,bob\n")
    table = str(tmp_path / "speakers.csv")
    with closing(StreamingDataset(talks, format=WINDOWS, annotations=table)) as dataset:
        samples = list(dataset)
        assert len({check(sample, talks) for sample in samples}) == len(samples) == 26
        assert "b/1.flac#t=0.25,0.75" in {sample["__key__"] for sample in samples}
        assert {(sample["__key__"][0], sample["speaker"]) for sample in samples} == {("0", "ada"), ("b", "bob")}


def test_windows_of_files_are_drawn_anew_in_each_epoch(talks: Path):
    """Windows drawn from audio files differ between epochs, and are the same in a second run."""

    def drawn() -> list[dict[str, float]]:
        rule = dict.fromkeys(["wav", "flac"], AudioClip(seconds=0.5, start="random"))
        with closing(StreamingDataset(talks, decode=rule)) as dataset:
            return [{sample["__key__"]: _start(sample) for sample in dataset} for _ in range(2)]

    first, second = drawn()
    assert first.keys() == second.keys() == {"0.wav", "b/1.flac"}
    assert all(first[key] != second[key] for key in first)
    assert drawn() == [first, second]


def _start(sample: dict[str, object]) -> float:
    (clip,) = (value for value in sample.values() if isinstance(value, dict))
    assert clip["audio"].shape == (1, clip["sample_rate"] // 2)
    return clip["start_seconds"]


@pytest.mark.formats
@pytest.mark.parametrize("chosen", [WINDOWS, DRAWN])
def test_resumes_on_fewer_ranks_in_a_mix(chosen: Audio, talks: Path, tmp_path: Path):
    """A mix of windows and files resumed on 4, 2 and 1 ranks has each sample once, as on one rank."""
    words = tmp_path / "words"
    words.mkdir()
    for number in range(22):
        (words / f"{number}.txt").write_text(str(number))

    def loaders(ranks: int, workers: int = 1) -> Iterator[StreamingDataLoader]:
        for rank in range(ranks):
            members = {
                "talks": StreamingDataset(
                    talks, format=chosen, transform=lambda sample: check(sample, talks, begin=True)
                ),
                "words": StreamingDataset(words, transform=lambda sample: sample["__key__"]),
            }
            once, filled = {"talks": 1.0, "words": 1.0}, Order(last_batch="fill")
            mix = MixedDataset(members, repeat=once, rank=rank, world_size=ranks, order=filled)
            with StreamingDataLoader(mix, 4 // ranks, workers, report_every=None) as loader:
                yield loader

    for loader in loaders(1, 0):
        expected, following = _keys(loader, None), _keys(loader, None)
    assert (sorted(expected) == sorted(following)) == (chosen.start == "grid")
    seen: list[str] = []
    state: dict[str, object] | None = None
    for ranks, steps in ((4, 4), (2, 4), (1, None)):
        reached: dict[str, object] | None = None
        for loader in loaders(ranks):
            if state is not None:
                loader.load_state_dict(state)
            seen += _keys(loader, steps)
            reached = loader.state_dict()
        state = reached
    assert sorted(seen) == sorted({*expected})
    assert len(seen) == 26 + 22
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and _is_chunk(path)]
    assert files
    for path in files:
        verify_file(path, ChunkHeader.decode(path.read_bytes()[:64], str(path)).key)


def _keys(loader: StreamingDataLoader, steps: int | None) -> Sequence[str]:
    found: list[str] = []
    for number, batch in enumerate(loader):
        found += [key for key, again in zip(batch, loader.repeated, strict=True) if not again]
        if number + 1 == steps:
            break
    return found


def _is_chunk(path: Path) -> bool:
    return path.read_bytes()[:4] == b"STRM"
