"""Rows of joins in a real engine: a batch locates and reads them together, and opens each chunk file once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamer import StreamingDataLoader, StreamingDataset
from streamer.batches.samples import joins
from streamer.batches.samples.cached_bytes import CachedBytes
from streamer.client.chunk_reader import ChunkReader
from tests.joins import sides

Closing = Callable[[Any], Any]
BATCH = 32


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sides")
    sides.write_left(folder / "left")
    sides.tars(folder / "tars", np.arange(sides.COUNT))
    sides.parquet(folder / "parquet", np.arange(sides.COUNT))
    return folder


def joined(data: Path, closing: Closing, kind: str, **options: Any) -> StreamingDataset:
    """Returns left samples with their rows, all of them as they are stored."""
    left = closing(StreamingDataset(data / "left", **options))
    return closing(left.join(closing(StreamingDataset(data / kind)), **sides.vectors_of(kind)))


def check(batch: dict[str, Any]) -> int:
    """Checks that each sample has its row; returns how many there are."""
    assert batch["vector"][:, 0].tolist() == batch["json"]["n"].tolist()
    return len(batch["vector"])


@pytest.mark.process
@pytest.mark.parametrize("kind", ["tars", "parquet"])
def test_a_chunk_file_is_opened_once_a_batch(kind: str, data: Path, closing: Closing, monkeypatch: pytest.MonkeyPatch):
    """A chunk file of the right side is opened once for all rows of a batch.

    Samples of the left side that are decoded are read one by one.
    """
    dataset = joined(data, closing, kind)
    (join,) = dataset._member.open().joins
    mine = {key.tobytes() for key in join.manifest.chunk_keys}
    opened, usual = Counter[bytes](), ChunkReader._open

    def counted(self: ChunkReader, key: bytes, tries: int = 0) -> tuple[int, str]:
        opened[key] += 1
        return usual(self, key, tries)

    with StreamingDataLoader(dataset, BATCH, num_workers=0) as loader:
        assert sum(map(check, loader)) == sides.COUNT
        monkeypatch.setattr(ChunkReader, "_open", counted)
        for batch in loader:
            check(batch)
            assert max(opened[key] for key in mine) == 1, "of the chunks of the right side"
            opened.clear()


@pytest.mark.process
@pytest.mark.parametrize("ahead_bytes", [0, 1000])
def test_long_rows_are_not_read_together(
    ahead_bytes: int, data: Path, closing: Closing, monkeypatch: pytest.MonkeyPatch
):
    """Rows of a join are read together up to a limit of bytes, and a row that is longer is read alone."""
    monkeypatch.setattr(joins, "_AHEAD_BYTES", ahead_bytes)
    lengths, usual = list[int](), CachedBytes.read_each

    def counted(self: CachedBytes, places: Any) -> list[memoryview]:
        contents = usual(self, places)
        lengths.append(sum(map(len, contents)) if len(contents) > 1 else 0)
        return contents

    monkeypatch.setattr(CachedBytes, "read_each", counted)
    with StreamingDataLoader(joined(data, closing, "parquet"), BATCH, num_workers=0) as loader:
        assert sum(map(check, loader)) == sides.COUNT
    assert max(lengths) <= ahead_bytes
    assert (max(lengths) > 0) == (ahead_bytes > 0)


@pytest.mark.process
def test_rows_that_cannot_be_read_are_those_of_one_sample(
    data: Path, closing: Closing, monkeypatch: pytest.MonkeyPatch
):
    """A disk error in a read of many rows is an error of the sample whose row it is, and not of the first of them."""
    bad, usual = 7, CachedBytes.read_each

    def failing(self: CachedBytes, places: Any) -> list[memoryview]:
        if any(place.ordinal == bad for place in places):
            raise OSError(5, "Input/output error")
        return usual(self, places)

    monkeypatch.setattr(CachedBytes, "read_each", failing)
    dataset = joined(data, closing, "parquet", on_error="skip")
    with StreamingDataLoader(dataset, BATCH, num_workers=0) as loader:
        numbers = {number for batch in loader for number in batch["json"]["n"].tolist()}
    assert numbers == set(range(sides.COUNT)) - {bad}
