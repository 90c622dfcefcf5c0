"""Audio files of drawn formats, codings, channels, rates and lengths, compared with what libsndfile reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streamer.decode import AudioClip
from streamer.errors import StreamerError
from streamer.media.audio.format import Audio
from tests.formats.cases import samples_in
from tests.formats.library_environment import make, python_with_only

pytestmark = [pytest.mark.formats, pytest.mark.timeout(3000)]

SOUNDFILE = "soundfile==0.14.0"
COUNT = 400
# What windows are cut out of.
WINDOWS = (".wav", ".flac")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Makes files, of which each has what soundfile reads beside it."""
    folder = tmp_path_factory.mktemp("sounds")
    make(python_with_only(SOUNDFILE), "sounds.py", folder, "draw", COUNT)
    found = [path for path in sorted(folder.iterdir()) if path.suffix != ".npy" and Path(f"{path}.npy").exists()]
    assert len(found) > COUNT // 2
    return found


def differs(found: np.ndarray, want: np.ndarray) -> bool:
    return found.shape != want.shape or not np.array_equal(found, want)


def test_whole_files(files: list[Path]):
    """`AudioClip` decodes the samples and the rate that libsndfile reads; it refuses no sounds but big-endian LAW."""
    wrong, refused = list[str](), list[str]()
    for path in files:
        want = np.load(f"{path}.npy")
        try:
            found = AudioClip()(path.read_bytes())
        except Exception as error:  # noqa: BLE001 - FFmpeg has many
            refused.append(f"{path.name}: {type(error).__name__}: {error}")
            continue
        # VOC stores a time instead of the rate.
        is_rate = path.suffix == ".voc" or f"-{found['sample_rate']}-" in path.name
        if differs(found["audio"], want) or not is_rate:
            wrong.append(path.name)
    assert not wrong
    assert [said for said in refused if "LAW-BIG" not in said and "-0." not in said] == []


@pytest.mark.parametrize("chunk_bytes", [1_000, 8 << 20])
def test_windows(chunk_bytes: int, files: list[Path]):
    """Consecutive windows of WAV and FLAC files are the whole file, wherever chunks begin."""
    wrong, compared = list[str](), 0
    for path in files:
        want = np.load(f"{path}.npy")
        if path.suffix not in WINDOWS or not want.shape[1] or "LAW" in path.name:
            continue
        try:
            windows = samples_in(Audio(seconds=0.03, at_end="pad"), {f"a{path.suffix}": path.read_bytes()}, chunk_bytes)
        except StreamerError as error:
            wrong.append(f"{path.name}: {error}")
            continue
        joined = np.concatenate([window["audio"] for window in windows], axis=1)[:, : want.shape[1]]
        compared += 1
        if differs(joined, want):
            wrong.append(path.name)
    assert not wrong
    assert compared > 50
