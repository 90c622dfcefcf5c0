"""A model on windows out of long recordings: which of two speakers talks, from one second of audio.

    python examples/speech_windows.py
    python examples/speech_windows.py --url s3://bucket/talks/ --workers 8

Nothing is cut beforehand: windows are read by ranges out of the recordings, in an order over all of them. A table
beside the recordings names the speaker of each, and one row serves all windows of a recording.
"""

from __future__ import annotations

import argparse
import tempfile
import wave
from pathlib import Path

import numpy as np
import torch
from torch import nn

from streamer import StreamingDataLoader, StreamingDataset
from streamer.formats import Audio

RATE, BANDS, SPEAKERS = 8_000, 50, ("ada", "bob")


def make_talks(folder: Path) -> None:
    """Two recordings of each speaker; a voice is a pitch and noise."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    rows = ["file_name,speaker"]
    for number in range(4):
        speaker = number % 2
        time = np.arange(RATE * 60) / RATE
        voice = np.sin(2 * np.pi * (200 if speaker else 900) * time) + rng.normal(0, 1, len(time))
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes((voice * 5_000).astype("<i2").tobytes())
        rows.append(f"{number}.wav,{SPEAKERS[speaker]}")
    (folder / "speakers.csv").write_text("\n".join(rows) + "\n")


def spectrum(sample: dict[str, object]) -> dict[str, object]:
    """The loudness of 50 bands, and the number of the speaker."""
    heights = np.abs(np.fft.rfft(sample["audio"][0]))[: RATE // 2]
    bands = np.log1p(heights.reshape(BANDS, -1).mean(1)).astype(np.float32)
    return {"bands": bands, "speaker": SPEAKERS.index(sample["speaker"])}


def train(dataset: StreamingDataset, arguments: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(BANDS), nn.Linear(BANDS, len(SPEAKERS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with StreamingDataLoader(dataset, batch_size=16, num_workers=arguments.workers) as loader:
        for epoch in range(arguments.epochs):
            right = windows = 0
            for batch in loader:
                logits = model(batch["bands"])
                loss = nn.functional.cross_entropy(logits, batch["speaker"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                right += int((logits.argmax(1) == batch["speaker"]).sum())
                windows += len(logits)
            print(f"epoch {epoch}: {windows} windows, {right / windows:.0%} right, loss {loss.item():.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="folder of recordings with speakers.csv; without one it is made")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        url = arguments.url or f"{scratch}/talks"
        if arguments.url is None:
            make_talks(Path(url))
        dataset = StreamingDataset(
            url,
            cache_dir=f"{scratch}/cache",
            format=Audio(seconds=1.0, seconds_between_starts=0.5),
            annotations=f"{url.rstrip('/')}/speakers.csv",
            transform=spectrum,
        )
        train(dataset, arguments)
        dataset.close()


if __name__ == "__main__":
    main()
