"""Files of sound: soundfile writes those of its own formats, and reads all that are in a folder.

    python sounds.py FOLDER
    python sounds.py FILE.flac HOURS
    python sounds.py FOLDER draw COUNT

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


_PCM = ("PCM_16", "PCM_24", "PCM_32")
_FLOATS = ("FLOAT", "DOUBLE")
# By format: the subtypes that FFmpeg and libsndfile decode to the same numbers.
DRAWN = {
    "AIFF": ("PCM_S8", "PCM_U8", *_PCM, *_FLOATS, "ULAW", "ALAW"),
    "AU": ("PCM_S8", *_PCM, *_FLOATS, "ULAW", "ALAW"),
    "CAF": ("PCM_S8", *_PCM, *_FLOATS, "ULAW", "ALAW"),
    "FLAC": ("PCM_S8", "PCM_16", "PCM_24"),
    "RF64": ("PCM_U8", *_PCM, *_FLOATS),
    "VOC": ("PCM_U8", "PCM_16"),
    "W64": ("PCM_U8", *_PCM, *_FLOATS),
    "WAV": ("PCM_U8", *_PCM, *_FLOATS, "ULAW", "ALAW"),
    "WAVEX": ("PCM_U8", *_PCM, *_FLOATS),
}
ENDINGS = {"WAVEX": "wav", "RF64": "wav"}
# Of which FFmpeg has no demuxer.
UNREAD_ORDERS = {("AU", "LITTLE"), ("AIFF", "LITTLE")}


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


def draw(folder: Path, count: int) -> None:
    """Writes short files of drawn kinds, orders of bytes, channels, rates and lengths, which it reads back exactly."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = np.random.default_rng(53)
    made = 0
    while made < count:
        kind = str(drawn.choice(list(DRAWN)))
        subtype = str(drawn.choice(DRAWN[kind]))
        order = str(drawn.choice(["FILE", "BIG", "LITTLE"]))
        channels = int(drawn.choice([1, 2, 3, 5, 6, 8, 9, 16]))
        rate = int(drawn.choice([8_000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000]))
        length = int(drawn.choice([0, 1, 2, 255, 1_000, 5_000, int(drawn.integers(3, 9_000))]))
        samples = np.clip(drawn.normal(0, 0.3, (length, channels)), -1, 1)
        ending = ENDINGS.get(kind, kind.lower())
        path = folder / f"{made:04}-{kind}-{subtype}-{order}-{channels}-{rate}-{length}.{ending}"
        if (kind, order) in UNREAD_ORDERS:
            continue
        with contextlib.suppress(soundfile.LibsndfileError, ValueError):
            soundfile.write(path, samples, rate, subtype, order, format=kind)
            made += 1


if __name__ == "__main__":
    if len(sys.argv) == 4:
        draw(Path(sys.argv[1]), int(sys.argv[3]))
        read(Path(sys.argv[1]))
        sys.exit()
    if len(sys.argv) == 3:
        write_hours(sys.argv[1], int(sys.argv[2]))
        sys.exit()
    write(Path(sys.argv[1]) / "own")
    read(Path(sys.argv[1]))
