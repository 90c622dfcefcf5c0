"""Files of sound: soundfile writes those of its own formats, and reads all that are in a folder.

    python sounds.py FOLDER
    python sounds.py FILE.flac HOURS

What it reads of `a.flac` becomes `a.flac.npy`, float32 [channels, samples].
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import numpy as np
import soundfile

RATES = {"OGG": 48_000, "MP3": 44_100}
WIDTHS = ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT")
# Format, subtype, channels.
KINDS = (
    *(("WAV", subtype, channels) for subtype in WIDTHS for channels in (1, 2)),
    *(("WAVEX", "PCM_24", 16), ("WAV", "DOUBLE", 3), ("RF64", "PCM_16", 2), ("RF64", "DOUBLE", 1)),
    *(("FLAC", subtype, channels) for subtype in ("PCM_S8", "PCM_16", "PCM_24") for channels in (1, 2, 8)),
    *(("MP3", "MPEG_LAYER_III", channels) for channels in (1, 2)),
    *(("OGG", "OPUS", channels) for channels in (1, 2, 6)),
    ("OGG", "VORBIS", 2),
)


def write(folder: Path) -> None:
    """Writes three seconds of each kind."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (kind, subtype, channels) in enumerate(KINDS):
        rate, drawn = RATES.get(kind, 16_000), np.random.default_rng(number)
        time = np.arange(3 * rate + 77)[:, None] / rate
        tones = 0.5 * np.sin(2 * np.pi * 200 * (1 + np.arange(channels)) * time)
        tones += drawn.normal(0, 0.05, tones.shape)
        ending = "wav" if kind in {"WAV", "WAVEX", "RF64"} else kind.lower()
        path = folder / f"{kind}-{subtype}-{channels}.{ending}".lower()
        soundfile.write(path, np.clip(tones, -1, 1), rate, subtype, format=kind)


def read(folder: Path) -> None:
    """Reads what soundfile can."""
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        with contextlib.suppress(soundfile.LibsndfileError, ValueError):
            samples, _ = soundfile.read(path, dtype="float32", always_2d=True)
            np.save(f"{path}.npy", samples.T)


def write_hours(path: str, hours: int) -> None:
    """Writes one file of noise, the same in each minute."""
    minute = np.random.default_rng(0).normal(0, 60, 60 * 8_000).astype(np.int16)
    with soundfile.SoundFile(path, "w", 8_000, 1, "PCM_16", compression_level=0.0) as file:
        for _ in range(60 * hours):
            file.write(minute)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        write_hours(sys.argv[1], int(sys.argv[2]))
        sys.exit()
    write(Path(sys.argv[1]) / "own")
    read(Path(sys.argv[1]))
