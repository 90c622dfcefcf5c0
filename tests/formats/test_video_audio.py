"""The sound of video clips, compared with PyAV's decoding of the whole video at the times of the clip."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import av
import numpy as np
import pytest

from streamer import StreamingDataLoader, StreamingDataset
from streamer.cache.chunk_files import verify_file
from streamer.errors import ConfigError, ManifestError
from streamer.formats.base import Block, Facts
from streamer.formats.chunkfile import ChunkHeader
from streamer.media.video.format import Video
from tests.formats.cases import Found, block_bytes, find, samples_in
from tests.formats.test_video import shown
from tests.videos import made, video

RATE = 48_000
WITH_AUDIO = Video(8, num_indices_between_clip_starts=5, audio=True)


def heard(content: bytes) -> np.ndarray:
    """Returns all sound of a video by a full decode, so that sample n is played at n / RATE."""
    with av.open(io.BytesIO(content)) as box:
        stream = box.streams.audio[0]
        frames = [(round(frame.pts * stream.time_base * RATE), frame.to_ndarray()) for frame in box.decode(stream)]
    end = max(begin + wave.shape[1] for begin, wave in frames)
    whole = np.zeros((frames[0][1].shape[0], end), np.float32)
    for begin, wave in frames:
        whole[:, max(begin, 0) : begin + wave.shape[1]] = wave[:, max(0, -begin) :]
    return whole


def check(sample: Mapping[str, object], whole: np.ndarray, frames: int = 8) -> None:
    """Compares the sound of a clip of 30 frames a second with that of the video."""
    begin, length = round(float(np.ravel(sample["pts_seconds"])[0]) * RATE), frames * RATE // 30
    expected = np.zeros((len(whole), length), np.float32)
    part = whole[:, begin : begin + length]
    expected[:, : part.shape[1]] = part
    assert sample["audio"].shape == expected.shape
    assert sample["sample_rate"] == RATE
    assert np.abs(sample["audio"] - expected).max() < 1e-5


@pytest.mark.parametrize("name", ["sound.mp4", "sound.mov"])
@pytest.mark.parametrize("chunk_bytes", [4 << 10, 8 << 20])
def test_the_sound_of_clips(name: str, chunk_bytes: int):
    """Clips have the sound of a full decode within 1e-5, and the frames and keys that they have without it."""
    content = made(name)
    whole, (_, pts, _) = heard(content), shown(name)
    samples = samples_in(WITH_AUDIO, {name: content}, chunk_bytes)
    silent = samples_in(Video(8, num_indices_between_clip_starts=5), {name: content}, chunk_bytes)
    assert [sample["pts_seconds"][0] for sample in samples] == pts[: len(pts) - 7 : 5].tolist()
    for sample, other in zip(samples, silent, strict=True):
        check(sample, whole)
        assert np.array_equal(sample["frames"], other["frames"])
        assert sample["__key__"] == other["__key__"]


def test_drawn_clips_and_several_of_a_sample():
    """Drawn clips, and each of several clips in a sample, have the sound of their own frames."""
    content = made("sound.mp4")
    whole = heard(content)
    drawn = Video(8, start="random", audio=True)
    begins = []
    for seed in (1, 2):
        samples = samples_in(drawn, {"sound.mp4": content}, draws=partial(np.random.default_rng, seed))
        for sample in samples:
            check(sample, whole)
        begins.append([sample["pts_seconds"][0] for sample in samples])
    assert begins[0] != begins[1]
    several = samples_in(Video(8, clips_per_sample=3, audio=True), {"sound.mp4": content})
    assert len(several) == 3
    for sample in several:
        assert sample["audio"].shape == (3, 1, 8 * RATE // 30)
        for audio, pts in zip(sample["audio"], sample["pts_seconds"], strict=True):
            check({"audio": audio, "pts_seconds": pts, "sample_rate": sample["sample_rate"]}, whole)


def test_clips_over_the_end_of_the_sound():
    """A clip that goes on after the sound's end has zeros there, and the length of others."""
    content = made("sound.mp4")
    whole = heard(content)
    [sample] = samples_in(Video(120, at_end="repeat_last", audio=True), {"sound.mp4": content})
    check(sample, whole, 120)
    assert not sample["audio"][:, whole.shape[1] :].any()


def test_clips_behind_the_end_of_the_sound():
    """Clips that begin after the sound's end are silent: at 1.4 s and later, with 1.36 s of sound."""
    content = video("libx264", 40, name="x.mp4", times=range(0, 4_000, 100), sound=True)
    whole = heard(content)
    samples = samples_in(Video(8, num_indices_between_clip_starts=1, audio=True), {"x.mp4": content})
    assert len(samples) == 33
    assert sum(not sample["audio"].any() for sample in samples) >= 33 - 14
    for sample in samples:
        check(sample, whole, 24)


def blocks_of(found: Found) -> list[Block]:
    return [item for _, items in found.items for item in items if isinstance(item, Block)]


def test_sound_between_pictures_is_fetched_once():
    """Sound interleaved with frames is fetched in the same range, and a chunk has each packet once."""
    content = made("sound.mp4")
    [with_sound], [silent] = (blocks_of(find(chosen, {"a.mp4": content})) for chosen in (WITH_AUDIO, Video(8)))
    assert with_sound.fetch_bytes <= len(content)
    assert len(with_sound.ranges) == 1
    records = WITH_AUDIO.recoder(Facts()).recode(
        memoryview(block_bytes(with_sound, content)), with_sound.samples, with_sound.hint
    )
    kept = sum(map(len, records.shared_parts))
    assert kept < 1.1 * with_sound.fetch_bytes
    assert sum(map(len, records.parts)) + kept <= with_sound.record_bytes
    assert (len(records.shared_parts), with_sound.part_ranges) == (with_sound.parts, 2)
    assert silent.part_ranges == 1


def test_batches_have_the_sound_of_their_clips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Batches that a worker decodes from the cache have the sound of their clips, and chunk files verify."""
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "videos").mkdir()
    for name in ("a.mp4", "b.mp4"):
        (tmp_path / "videos" / name).write_bytes(made("sound.mp4"))
    whole = heard(made("sound.mp4"))
    with (
        closing(StreamingDataset(tmp_path / "videos", format=WITH_AUDIO)) as dataset,
        StreamingDataLoader(dataset, batch_size=2, num_workers=1, report_every=None) as loader,
    ):
        batches = list(loader)
    assert sum(len(batch["audio"]) for batch in batches) == 34
    for batch in batches:
        for place, audio in enumerate(batch["audio"].numpy()):
            row = {
                "audio": audio,
                "pts_seconds": batch["pts_seconds"][place],
                "sample_rate": batch["sample_rate"][place],
            }
            check(row, whole)
    chunks = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.read_bytes()[:4] == b"STRM"]
    assert len(chunks) == 2
    for path in chunks:
        verify_file(path, ChunkHeader.decode(path.read_bytes()[:64], str(path)).key)


def test_videos_whose_audio_is_not_read():
    """Videos whose audio is not read, and audio with start="spread", are refused with the reason."""
    with pytest.raises(ManifestError, match=r"a\.mp4 has no track of kind 'soun'"):
        find(WITH_AUDIO, {"a.mp4": made("b_frames.mp4")})
    with pytest.raises(ManifestError, match=r"a\.mkv is Matroska, whose audio is not read: audio=True takes mp4"):
        find(WITH_AUDIO, {"a.mkv": made("b_frames.mkv")})
    with pytest.raises(ConfigError, match="audio and start='spread' exclude each other"):
        Video(segments="a.csv", start="spread", audio=True)
