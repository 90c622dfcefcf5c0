"""Tests of decoders and transforms that write to their rows: the loader delivers what it would deliver without.

Images are real PNG files, loaders run with threads on a fake engine.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from streamer.batches.batch import slot_layout as slots
from streamer.batches.batch.placement import NO_SLOT
from streamer.batches.batch.slot_layout import WritableBatch
from streamer.batches.workers.batch_maker import BatchMaker
from streamer.decode.images import ImageDecoder
from streamer.decode.transforms import CenterCrop, HorizontalFlip, OnField, RandomResizedCrop
from streamer.loader.dataloader import StreamingDataLoader

COUNT, BATCH = 24, 4


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Writes 24 images of 60 x 80, every third one larger, and returns their folder."""
    root = tmp_path / "pictures"
    root.mkdir()
    rng = np.random.default_rng(1)
    for number in range(COUNT):
        shape = (90, 110, 3) if number % 3 == 0 else (60, 80, 3)
        Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(root / f"{number:02}.png")
    return root


@pytest.fixture
def in_old_slots(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns the batches whose slot had memory when they were made.

    How many depends on when the trainer takes batches.
    """
    found: list[int] = []
    lay_out = BatchMaker.lay_out

    def noted(self, loaded):
        if loaded.rows.known:
            found.append(loaded.task)
        return lay_out(self, loaded)

    monkeypatch.setattr(BatchMaker, "lay_out", noted)
    return found


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[frozenset[object]]:
    """Returns which fields stood in their rows, for each batch that was laid out with rows."""
    found: list[frozenset[object]] = []
    make = WritableBatch.__init__

    def noted(self, structure, rows=NO_SLOT):
        make(self, structure, rows)
        if rows.shapes:
            found.append(self.claimed)

    monkeypatch.setattr(slots.WritableBatch, "__init__", noted)
    return found


def delivered(dataset, workers: int, epochs: int = 2) -> list[object]:
    """Returns all batches, as lists."""
    with StreamingDataLoader(dataset, BATCH, workers, worker_type="thread") as loader:
        return [[b["__key__"], b["png"].tolist()] for _ in range(epochs) for b in loader]


def halve(sample: dict[str, object], *, out: dict[str, np.ndarray]) -> dict[str, object]:
    """Stands for a user's transform with an `out` parameter."""
    picture = sample["png"][:60, :80]
    if "png" not in out:
        return {**sample, "png": picture // 2}
    return {**sample, "png": np.floor_divide(picture, 2, out=out["png"])}


def ignores(sample: dict[str, object], *, out: dict[str, np.ndarray]) -> dict[str, object]:
    """Stands for a transform that takes rows and never uses them."""
    return {**sample, "png": sample["png"][:60, :80] + 1}


class Keeps:
    """Stands for a transform that keeps what it was given, and looks whether it has changed at the next sample."""

    def __init__(self) -> None:
        self.last: np.ndarray | None = None
        self.first: np.ndarray | None = None
        self.wrong = 0

    def __call__(self, sample: dict[str, object]) -> dict[str, object]:
        picture = sample["png"][:60, :80]
        if self.last is not None:
            self.wrong += bool((self.last != self.first).any())
        self.last, self.first = picture, picture.copy()
        return {**sample, "png": picture}


@pytest.mark.parametrize(
    ("transform", "writes"),
    [
        (OnField("png", RandomResizedCrop(48), HorizontalFlip(0.5)), True),
        (OnField("png", HorizontalFlip(0.5), CenterCrop(48, 56)), True),
        (halve, True),
        (ignores, False),
        (lambda sample: {**sample, "png": sample["png"][:60, :80]}, None),
    ],
)
def test_the_same_with_rows_and_without(make_dataset, pictures, claims, in_old_slots, transform, writes):
    """A transform delivers the same with rows and without.

    One with `out` that writes to rows does so wherever a slot has memory.
    """
    expected = delivered(make_dataset(pictures, transform=transform), 0)
    assert claims == []
    assert delivered(make_dataset(pictures, transform=transform), 1) == expected
    if writes is None:
        assert claims == []
    elif writes:
        assert len(claims) == len(in_old_slots) > 0
        assert set(claims) == {frozenset({"png"})}
    else:
        assert len(claims) == 4
        assert set(claims) == {frozenset()}


def test_decoders_write_to_rows(make_dataset, pictures, claims):
    """Without a transform images of one size are decoded into their rows, with the same values."""
    names = [path.name for number, path in enumerate(sorted(pictures.iterdir())) if number % 3 == 0]
    for path in pictures.iterdir():
        if path.name in names:
            path.unlink()
    expected = delivered(make_dataset(pictures), 0)
    assert delivered(make_dataset(pictures), 1) == expected
    assert set(claims) == {frozenset({"png"})}


def test_what_a_transform_keeps_is_its_own(make_dataset, pictures):
    """Arrays given to a transform without `out` never lie in a slot, and are not overwritten later."""
    keeps = Keeps()
    assert len(delivered(make_dataset(pictures, transform=keeps), 1, epochs=4)) == 24
    assert keeps.last is not None
    assert keeps.wrong == 0


@pytest.mark.parametrize("sizes", [(40, 90), (90, 40)])
def test_batches_of_changing_size(make_dataset, pictures, sizes):
    """Batches whose arrays change their size have the right values, although the rows foreseen do not fit."""

    def alternate(sample: dict[str, object], *, out: dict[str, np.ndarray]) -> dict[str, object]:
        side = sizes[counter[0] // BATCH % 2]
        counter[0] += 1
        number = int(str(sample["__key__"])[:2])
        place = out.get("png")
        if place is None or place.size < side * side:
            return {**sample, "png": np.full((side, side), number, np.uint8)}
        # The row itself, or a picture of another size in the row's memory.
        made = place if place.shape == (side, side) else place.reshape(-1)[: side * side].reshape(side, side)
        made[...] = number
        return {**sample, "png": made}

    counter = [0]
    with StreamingDataLoader(make_dataset(pictures, transform=alternate), BATCH, 1, worker_type="thread") as loader:
        for _ in range(3):
            for batch in loader:
                numbers = [int(key[:2]) for key in batch["__key__"]]
                assert batch["png"].flatten(1).float().mean(1).tolist() == numbers


class Drawing(OnField):
    """Stands for a user's subclass of `OnField` that draws from the global generator."""

    def __call__(self, sample: dict[str, object], **given: object) -> dict[str, object]:
        return {**super().__call__(sample, **given), "drawn": random.random()}


class DrawingDecoder(ImageDecoder):
    """Stands for a user's subclass of a decoder that draws, and has no `out` to write to."""

    def __call__(self, content: bytes) -> np.ndarray:
        return super().__call__(content)[: random.randrange(1, 40)]


@pytest.mark.parametrize(
    ("transform", "decode", "draws"),
    [
        pytest.param(OnField("png", CenterCrop(40)), "auto", False, id="own"),
        pytest.param(
            OnField("png", CenterCrop(40)),
            {"png": lambda content: np.zeros((50, 50, 3), np.uint8)},
            True,
            id="user's decoder",
        ),
        pytest.param(OnField("png", lambda picture, *, rng, out: picture[:40, :40]), "auto", True, id="user's step"),
        pytest.param(Drawing("png", CenterCrop(40)), "auto", True, id="subclass of OnField"),
        pytest.param(None, {"png": DrawingDecoder()}, True, id="subclass of a decoder"),
        pytest.param(lambda sample: {**sample, "png": 0}, "auto", True, id="user's transform"),
        pytest.param(None, lambda name, content: len(content), True, id="user's decode"),
    ],
)
def test_nothing_is_seeded_where_nothing_draws(make_dataset, pictures, transform, decode, draws):
    """Samples are seeded unless only streamer's own decoders and transforms make them, which draw from `rng` alone."""
    from streamer.batches.workers import batch_maker as maker

    prepared = make_dataset(pictures, transform=transform, decode=decode)._get_opening().prepare(BATCH)
    source = prepared.recipe().open()
    assert source.draws is draws
    made = maker.BatchMaker(source, maker.MakerRules(17))
    assert made._seeds_samples is draws
