"""Order, resume and mix of joins on a real engine; versions and bytes of the right side in an S3 server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamer import MixedDataset, StreamingDataLoader, StreamingDataset
from streamer.batches.samples.join_cost import join_cost
from streamer.errors import ObjectChangedError
from tests.joins import sides
from tests.joins.buckets import Buckets

Closing = Callable[[Any], Any]
BATCH = 24


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sides")
    sides.write_left(folder / "left")
    numbers = np.random.default_rng(5).permutation(sides.COUNT)
    sides.parquet(folder / "parquet", numbers)
    sides.tars(folder / "tars", numbers)
    return folder


def both(sample: dict[str, Any]) -> dict[str, Any]:
    """Returns the number of the left side, and of the row."""
    return {"n": sample["json"]["n"], "row": np.asarray(sample["vector"])[0]}


def joined(data: Path, closing: Closing, kind: str = "parquet", **options: Any) -> StreamingDataset:
    """Returns the left side with the rows of one kind."""
    left = closing(StreamingDataset(data / "left", transform=both, **options))
    return closing(left.join(closing(StreamingDataset(data / kind)), **sides.vectors_of(kind)))


def numbers_of(batch: dict[str, Any]) -> list[int]:
    """Returns the numbers in a batch, whose rows are theirs."""
    assert batch["n"].tolist() == batch["row"].tolist()
    return batch["n"].tolist()


@pytest.mark.parametrize("kind", ["parquet", "tars"])
def test_the_order_is_that_of_the_left_side(kind: str, data: Path, closing: Closing):
    """A joined dataset has the order of its left side, sample for sample."""
    alone = closing(StreamingDataset(data / "left", transform=lambda sample: {"n": sample["json"]["n"]}))
    with StreamingDataLoader(alone, BATCH) as loader:
        expected = [batch["n"].tolist() for batch in loader]
    with StreamingDataLoader(joined(data, closing, kind), BATCH) as loader:
        assert [numbers_of(batch) for batch in loader] == expected


@pytest.mark.parametrize("kind", ["parquet", "tars"])
def test_a_resume_on_fewer_ranks(kind: str, data: Path, closing: Closing):
    """A join on four ranks, resumed on two and then on one, has the global batches of one run."""

    def run(world: int, state: object, batches: int | None) -> tuple[list[set[int]], object]:
        found: list[set[int]] = []
        for rank in range(world):
            dataset = joined(data, closing, kind, rank=rank, world_size=world)
            with StreamingDataLoader(dataset, BATCH // world) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                for number, batch in enumerate(loader):
                    found += [set()] if number == len(found) else []
                    found[number] |= set(numbers_of(batch))
                    if number + 1 == batches:
                        break
                saved = loader.state_dict()
        return found, saved

    whole, _ = run(1, None, None)
    first, state = run(4, None, 3)
    second, state = run(2, state, 4)
    third, _ = run(1, state, None)
    assert [*first, *second, *third] == whole
    assert set().union(*whole) == set(range(sides.COUNT))


@pytest.mark.slow
def test_a_mix_of_a_joined_and_a_plain_dataset(data: Path, closing: Closing):
    """A mix of joined and plain datasets gives each its share, and joined samples their own rows."""
    plain = closing(StreamingDataset(data / "left", transform=lambda sample: {"n": -1, "row": np.float32(-1)}, seed=3))
    members = {"joined": joined(data, closing), "plain": plain, "tars": joined(data, closing, "tars", seed=5)}
    mix = closing(MixedDataset(members, weights={"joined": 2, "plain": 1, "tars": 1}, seed=1))
    with StreamingDataLoader(mix, BATCH, num_workers=2) as loader:
        for _ in range(2):
            found: list[int] = []
            for batch in loader:
                found += numbers_of(batch)
            assert len(found) == mix.samples
            assert found.count(-1) == mix.quotas()["plain"]


# ---------------------------------------------------------------- bytes, counted by the server


class Sides(Buckets):
    """Both sides of a join in buckets with keys of their own."""

    def __init__(self, data: Path, root: Path, kind: str, cache_bytes: int) -> None:
        super().__init__({"left": data / "left", "right": data / kind}, root, cache_bytes)
        self.kind = kind

    def joined(self, closing: Closing) -> StreamingDataset:
        on, name = (("json.uid", "uid"), "vector")
        if self.kind == "tars":
            on, name = (("json.uid", "meta.json.id.uid"), "vector.npy")
        left, right = closing(self.dataset("left", transform=both)), closing(self.dataset("right"))
        return closing(left.join(right, on=on, columns={name: "vector"}))


@pytest.fixture
def buckets(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, int], Sides]]:
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    made: list[Sides] = []

    def make(kind: str, cache_bytes: int) -> Sides:
        made.append(Sides(data, tmp_path, kind, cache_bytes))
        return made[-1]

    yield make
    while made:
        made.pop().close()


def test_a_new_version_of_the_right_side(buckets: Callable[[str, int], Sides], closing: Closing):
    """A new version of the right side is fetched by the next join, and nothing of the left side is fetched again.

    Both sides have credentials of their own.
    """
    made = buckets("tars", 200_000_000)
    for _ in range(2):
        with StreamingDataLoader(made.joined(closing), BATCH) as loader:
            assert sum(len(numbers_of(batch)) for batch in loader) == sides.COUNT
        left, right = made.store.sent["left"], made.store.sent["right"]
    made.change("right")
    with StreamingDataLoader(made.joined(closing), BATCH) as loader:
        assert sum(len(numbers_of(batch)) for batch in loader) == sides.COUNT
    assert made.store.sent["right"] > right
    assert made.store.sent["left"] == left


def test_a_change_within_an_epoch(buckets: Callable[[str, int], Sides], closing: Closing):
    """A right side that changes within an epoch raises ObjectChangedError with its url.

    Rows of two versions never come together.
    """
    made = buckets("tars", 200_000_000)
    dataset = made.joined(closing)
    assert dataset.samples == sides.COUNT
    made.change("right")
    with StreamingDataLoader(dataset, BATCH) as loader, pytest.raises(ObjectChangedError, match="s3://right"):
        list(loader)


def test_the_bytes_of_the_right_side(buckets: Callable[[str, int], Sides], closing: Closing):
    """A right side of tars costs the bytes of its rows once an epoch, and the server counts what the log predicts."""
    made = buckets("tars", 200_000_000)
    dataset = made.joined(closing)
    (join,) = dataset._member.open().joins
    cost = join_cost(join, dataset._member.open())
    before, reads = made.store.sent["right"], len(made.store.reads)
    with StreamingDataLoader(dataset, BATCH) as loader:
        assert sum(len(numbers_of(batch)) for batch in loader) == sides.COUNT
    rows = sum(len(content) for content in made.contents["right"].values()) - 3 * 10240
    assert rows * 0.9 <= cost.row_bytes <= cost.fetched_bytes <= rows * 1.01
    # The fetcher asks again for some ranges of a slow store.
    assert cost.fetched_bytes <= made.store.sent["right"] - before <= 1.1 * cost.fetched_bytes
    assert cost.requests <= made.requests("right", reads) <= 1.1 * cost.requests
