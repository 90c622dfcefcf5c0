"""Fields that come as `Ragged`, from a real engine and workers: encoded files and arrays of different lengths."""

from __future__ import annotations

import io
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from streamer import MixedDataset, Ragged, StreamingDataLoader, StreamingDataset
from streamer.errors import ConfigError
from streamer.formats import Parquet
from tests.inspection import poison_freed_slots
from tests.tars import tar_of

COUNT, BATCH = 60, 8
Close = Callable[[StreamingDataset], StreamingDataset]


def content(number: int) -> bytes:
    """Returns bytes that begin with the number; from 1,500 to 2,680 of them."""
    return number.to_bytes(4, "little") * (375 + 5 * number)


def picture(value: int, width: int) -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (width, 4), (value,) * 3).save(made, "PNG")
    return made.getvalue()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, standing_engine: Callable[[Path], None]) -> Path:
    """Returns the same samples as files and in a tar, and lists of images in Parquet.

    In the tar each has an array of as many rows as its number's remainder by three.
    """
    folder = tmp_path_factory.mktemp("ragged")
    (folder / "files").mkdir()
    entries = []
    for number in range(COUNT):
        (folder / "files" / f"{number:04}.jpg").write_bytes(content(number))
        np.save(folder / "rows.npy", np.full((number % 3, 2), number, np.float32))
        entries += [(f"{number:04}.jpg", content(number)), (f"{number:04}.npy", (folder / "rows.npy").read_bytes())]
    (folder / "tars").mkdir()
    (folder / "tars" / "0.tar").write_bytes(tar_of(entries))
    even = [[picture(number, 4) for _ in range(number % 3)] for number in range(COUNT)]
    uneven = [[picture(number, 4), picture(number, 5)] for number in range(COUNT)]
    (folder / "lists").mkdir()
    columns = {"even": pa.array(even, pa.list_(pa.binary())), "uneven": pa.array(uneven, pa.list_(pa.binary()))}
    pq.write_table(pa.table(columns), folder / "lists" / "0.parquet")
    standing_engine(folder / "files")
    return folder


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("layout", ["files", "tars"])
def test_every_value_is_that_of_its_sample(data: Path, closing: Close, layout: str, workers: int) -> None:
    """Each view of a `Ragged` field is the value of its sample, in two epochs.

    In the second epoch the bytes are read directly to the slot.
    """
    dataset = closing(StreamingDataset(data / layout, decode={"jpg": None}))
    fields = ("jpg",) if layout == "files" else ("jpg", "npy")
    with StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, ragged=fields) as loader:
        for _ in range(2):
            seen = []
            for batch in loader:
                numbers = [int(key.removesuffix(".jpg")) for key in batch["__key__"]]
                jpegs = batch["jpg"]
                assert isinstance(jpegs, Ragged)
                assert jpegs.encoded
                assert jpegs.values.dtype == torch.uint8
                assert [view.numpy().tobytes() for view in jpegs.views()] == list(map(content, numbers))
                assert jpegs.offsets.tolist() == np.cumsum([0, *(len(content(n)) for n in numbers)]).tolist()
                if "npy" in fields:
                    rows = batch["npy"]
                    assert rows.values.shape == (sum(n % 3 for n in numbers), 2)
                    assert [view.tolist() for view in rows.views()] == [[[n, n]] * (n % 3) for n in numbers]
                seen += numbers
            assert sorted(seen) == list(range(COUNT))


def test_members_of_a_mix_may_have_different_lengths(data: Path, closing: Close) -> None:
    """A `Ragged` field of a batch may have other lengths in each member of a mix, where other fields need one shape."""
    members = {
        name: closing(StreamingDataset(data / "tars", decode={"jpg": None}, seed=len(name))) for name in ("a", "bb")
    }
    mix = MixedDataset(members)
    with StreamingDataLoader(mix, batch_size=BATCH, num_workers=1, ragged=("jpg", "npy")) as loader:
        seen = []
        for batch in loader:
            numbers = list(map(int, batch["__key__"]))
            assert [len(view) for view in batch["npy"].views()] == [n % 3 for n in numbers]
            assert [len(view) for view in batch["jpg"].views()] == [len(content(n)) for n in numbers]
            seen += numbers
        assert sorted(seen) == sorted([*range(COUNT)] * 2)
    mix.close()


def test_memory_is_not_reused_while_a_view_of_it_lives(data: Path, closing: Close) -> None:
    """The memory of a batch is not reused while one view of it is kept, over more batches than the ring has slots.

    The test overwrites slots as soon as they are free.
    """
    dataset = closing(StreamingDataset(data / "files", decode=None))
    kept = []
    with StreamingDataLoader(dataset, batch_size=4, num_workers=1, ragged=("jpg",)) as loader:
        poison_freed_slots(loader)
        for _ in range(2):
            kept += [(int(batch["__key__"][1].removesuffix(".jpg")), batch["jpg"].views()[1]) for batch in loader]
    assert len(kept) == 2 * COUNT // 4
    assert all(view.numpy().tobytes() == content(number) for number, view in kept)


def shapes(sample: dict[str, object]) -> dict[str, object]:
    """Makes arrays whose last axis differs."""
    return {**sample, "npy": np.zeros((2, 1 + int(str(sample["__key__"]))))}


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("png", "'png' is not in a sample, which has __key__, jpg, npy"),
        ("npy", "cannot be joined along the first axis"),
    ],
)
def test_what_cannot_be_joined_is_refused(data: Path, closing: Close, field: str, message: str) -> None:
    """ragged= refuses a field that no sample has, and arrays that cannot be joined along their first axis, by name."""
    dataset = closing(StreamingDataset(data / "tars", decode={"jpg": None}, transform=shapes))
    with (
        StreamingDataLoader(dataset, batch_size=BATCH, ragged=(field,)) as loader,
        pytest.raises(ConfigError, match=message),
    ):
        next(iter(loader))


def test_names_of_fields_are_a_sequence_and_the_batch_is_made_by_one(data: Path, closing: Close) -> None:
    """ragged= is refused as a text, which would be a sequence of letters, and with a collate_fn.

    A collate_fn makes its own batches.
    """
    dataset = closing(StreamingDataset(data / "files"))
    with pytest.raises(ConfigError, match="ragged= with collate_fn"):
        StreamingDataLoader(dataset, ragged=("jpg",), collate_fn=list)
    with pytest.raises(ConfigError, match="give a sequence of names"):
        StreamingDataLoader(dataset, ragged="jpg")


@pytest.mark.slow
@pytest.mark.timing
def test_encoded_batches_cost_the_trainer_little(tmp_path: Path, data: Path, closing: Close) -> None:
    """Views of an encoded batch of 28 MB cost the trainer at most 0.5 ms of CPU and no page fault.

    As bytes it is 20 ms and 6,600 faults (point 19).
    """
    drawn = np.random.default_rng(0)
    for number in range(1024):
        (tmp_path / f"{number:05}.jpg").write_bytes(drawn.bytes(int(drawn.integers(60_000, 160_000))))
    dataset = closing(StreamingDataset(tmp_path, decode=None))
    costs = []
    with StreamingDataLoader(dataset, batch_size=256, num_workers=1, ragged=("jpg",)) as loader:
        for _ in range(8):
            batches = iter(loader)
            for _ in range(len(loader)):
                begun, before = time.thread_time(), resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
                batch = next(batches)
                taken = time.thread_time()
                views = batch["jpg"].views()
                viewed = time.thread_time()
                faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
                costs.append((taken - begun, viewed - taken, faults))
                assert sum(map(len, views)) > 25e6
                del views, batch
    # The first batches show which layout the next ones have.
    taking, viewing, faulting = zip(*costs[8:], strict=True)
    print(f"next {1e3 * min(taking):.2f} ms, views {1e3 * min(viewing):.2f} ms, {max(faulting)} page faults")
    assert min(viewing) < 0.5e-3
    assert min(taking) < 2e-3
    assert np.median(faulting) == 0


@pytest.mark.parametrize("workers", [0, 1])
def test_lists_of_pictures(data: Path, closing: Close, workers: int) -> None:
    """Lists of images of one size are stacked, also where a sample has none; lists of several sizes are refused."""
    dataset = closing(StreamingDataset(data / "lists", format=Parquet(columns=("even",))))
    with StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, ragged=("even",)) as loader:
        for batch in loader:
            found = batch["even"]
            assert found.values.shape[1:] == (4, 4, 3)
            for key, view in zip(batch["__key__"], found.views(), strict=True):
                assert len(view) == int(key) % 3
                assert (view == int(key)).all()
    dataset = closing(StreamingDataset(data / "lists", format=Parquet(columns=("uneven",))))
    with (
        StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, ragged=("uneven",)) as loader,
        pytest.raises(ConfigError, match="'uneven' has lists of arrays of several shapes"),
    ):
        next(iter(loader))
