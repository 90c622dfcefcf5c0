"""Datasets of LeRobot in training, through an engine and workers: shuffled, resumed in mid-epoch on other ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from streamer import Order, StreamingDataLoader, StreamingDataset
from streamer.decode import Frames
from streamer.formats import LeRobot
from tests.lerobot_sets import CAMERAS, FPS, LENGTHS, lerobot_set
from tests.videos import number_in

TOP, WRIST = CAMERAS
STEPS = (-2, 0, 1)
WINDOWS = {name: [step / FPS for step in STEPS] for name in (TOP, "action")}
GLOBAL_BATCH, STOP = 4, 3
SAMPLES = sum(LENGTHS)


def check(sample: Mapping[str, object]) -> dict[str, object]:
    """Compares the windows of a sample with its row."""
    row, frame = int(sample["index"]), int(sample["frame_index"])
    places = [frame + step for step in STEPS]
    inside = np.clip(places, 0, LENGTHS[int(sample["episode_index"])] - 1) + row - frame
    assert [number_in(np.moveaxis(picture, 0, -1)) for picture in sample[TOP]] == inside.tolist()
    assert sample["action"][:, 0].tolist() == inside.tolist()
    for name in WINDOWS:
        assert sample[f"{name}_is_pad"].tolist() == (inside != row + np.array(STEPS)).tolist()
    assert sample[WRIST].shape == (3, 48, 64)
    return {"row": row}


def loaders(folder: Path, ranks: int) -> Iterator[StreamingDataLoader]:
    """Yields the loaders of a job's ranks, one after the other."""
    for rank in range(ranks):
        dataset = StreamingDataset(
            folder, format=LeRobot(delta_timestamps=WINDOWS), decode={WRIST: Frames((48, 64))}, transform=check,
            rank=rank, world_size=ranks, order=Order(last_batch="fill"),
        )  # fmt: skip
        with StreamingDataLoader(dataset, GLOBAL_BATCH // ranks, 2, report_every=None) as loader:
            yield loader


def rows(loader: StreamingDataLoader, steps: int | None = None) -> list[int]:
    """Returns the rows of the next steps, but those that fill the last batch."""
    found: list[int] = []
    for number, batch in enumerate(loader):
        pairs = zip(batch["row"].tolist(), loader.repeated, strict=True)
        found += [row for row, again in pairs if not again]
        if number + 1 == steps:
            break
    return found


@pytest.mark.formats
def test_every_row_once_after_a_resume_on_other_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """After a stop in mid-epoch two ranks go on with each row once, then with an epoch in another order."""
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    for name, content in lerobot_set().items():
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).write_bytes(content)
    for loader in loaders(tmp_path / "set", 1):
        seen = rows(loader, STOP)
        state = loader.state_dict()
    assert seen != sorted(seen)
    following: list[int] = []
    for loader in loaders(tmp_path / "set", 2):
        loader.load_state_dict(state)
        seen += rows(loader)
        following += rows(loader)
    assert sorted(seen) == sorted(following) == list(range(SAMPLES))
    assert seen != following
