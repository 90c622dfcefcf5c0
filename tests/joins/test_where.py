"""`select(where=...)` on columns of the right side, on a real engine, compared with a filter in plain Python."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamer import MixedDataset, StreamingDataLoader, StreamingDataset
from streamer.batches.samples.join_cost import describe_join, join_cost
from streamer.cli.main import main
from streamer.errors import ConfigError
from tests.joins import sides

Closing = Callable[[Any], Any]
COUNT = sides.COUNT
# Rows that no sample has; and every ninth sample has none.
NUMBERS = [number for number in range(COUNT + 30) if number % 9]


def row(number: int) -> dict[str, Any]:
    """Returns a row of the right side, some of which have null or NaN."""
    width = None if number % 5 == 0 else float("nan") if number % 7 == 0 else number * 2.0
    return {"uid": sides.uid(number), "width": width, "lang": ["en", "de", None][number % 3], "good": number % 2 == 0}


CONDITIONS: dict[str, Callable[[dict[str, Any] | None], bool]] = {
    "width >= 100 and lang == 'en'": lambda row: bool(
        row and row["width"] and row["width"] >= 100 and row["lang"] == "en"
    ),
    "lang is None or width < 30": lambda row: (
        not row or row["lang"] is None or bool(row["width"] and row["width"] < 30)
    ),
    "not good and lang in ('de', 'en')": lambda row: bool(row and not row["good"] and row["lang"]),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("where")
    sides.write_left(folder / "left")
    rows = [row(int(number)) for number in np.random.default_rng(1).permutation(NUMBERS)]
    (folder / "parquet").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), folder / "parquet" / "0.parquet", row_group_size=50)
    (folder / "lines").mkdir()
    lines = [json.dumps({**one, "width": one["width"] if one["width"] == one["width"] else None}) for one in rows]
    (folder / "lines" / "0.jsonl").write_text("\n".join(lines))
    return folder


def joined(
    data: Path, closing: Closing, kind: str = "parquet", *, missing: Any = "none", **options: Any
) -> StreamingDataset:
    """Returns samples of tars with rows of one kind; their numbers are what the tests compare."""
    left = closing(StreamingDataset(data / "left", transform=lambda sample: {"n": sample["json"]["n"]}, **options))
    right = closing(StreamingDataset(data / kind))
    return closing(left.join(right, on=("json.uid", "uid"), columns=["width", "lang", "good"], missing=missing))


def matching(where: str, *, missing: str = "none") -> list[int]:
    """Returns the numbers that match, by a loop over all of them."""
    numbers = (number for number in range(COUNT) if missing == "none" or number % 9)
    return [number for number in numbers if CONDITIONS[where](row(number) if number % 9 else None)]


def numbers_of(dataset: StreamingDataset, batch: int = 8) -> Counter[int]:
    """Returns the numbers of an epoch, without repeats."""
    with StreamingDataLoader(dataset, batch, report_every=None) as loader:
        return Counter(number for each in loader for number in each["n"][~loader.repeated].tolist())


@pytest.mark.parametrize("where", CONDITIONS)
@pytest.mark.parametrize("missing", ["none", "drop"])
def test_conditions(where: str, missing: str, data: Path, closing: Closing):
    """A condition on columns of a joined Parquet needs no index, and a sample without a row has no value.

    Conditions may be combined with a selection and with columns of the left side.
    """
    chosen = closing(joined(data, closing, missing=missing).select(where=where))
    expected = matching(where, missing=missing)
    assert 0 < chosen.samples == len(expected) < COUNT
    assert numbers_of(chosen) == Counter(expected)
    # Those of a selection, and of both sides together.
    assert main(["index", str(data / "left"), "--columns", "json.n"]) == 0
    some = closing(closing(chosen.select(indices=slice(2, None))).select(where="json.n < 200"))
    assert numbers_of(some) == Counter(number for number in expected[2:] if number < 200)


def test_an_index_of_the_right_side(data: Path, closing: Closing):
    """A condition on joined JSON lines needs `streamer index --columns`, as its error says, and leaves chunks out.

    Chunks without a match are not in the schedule.
    """
    assert main(["index", str(data / "left"), "--columns", "json.n"]) == 0
    whole = joined(data, closing, "lines", missing="drop")
    where = "lang == 'en' and good"
    with pytest.raises(
        ConfigError, match=r"the column 'good'.* lang, good\. `streamer index \S+lines/? --columns good` reads"
    ):
        _ = whole.select(where=where).samples
    assert main(["index", str(data / "lines"), "--columns", "lang,good"]) == 0
    expected = [n for n in range(COUNT) if n % 9 and row(n)["lang"] == "en" and row(n)["good"]]
    assert numbers_of(closing(whole.select(where=where))) == Counter(expected)
    first = closing(whole.select(where=f"good and json.n < {COUNT // sides.SHARDS}"))
    assert np.count_nonzero(first._member.open().chunk_samples) == 1
    # What is said before counts the chosen samples only.
    (join,), chosen = first._member.open().joins, first._member.open()
    assert f": {chosen.samples} of {chosen.samples} samples have rows;" in describe_join(join, chosen, 1 << 30)
    all_bytes = join_cost(join, whole._member.open()).fetched_bytes
    assert 0 < join_cost(join, chosen).fetched_bytes < all_bytes / (sides.SHARDS - 1)


def test_ranks_and_a_resume(data: Path, closing: Closing):
    """A condition on a join gives each matching sample once on 4, then 2, then 1 rank, with one digest."""
    where = "width >= 100 and lang == 'en'"
    came: Counter[int] = Counter()
    state, digests = None, set()
    for world, batches in ((4, 1), (2, 2), (1, None)):
        states = []
        for rank in range(world):
            dataset = closing(joined(data, closing, rank=rank, world_size=world).select(where=where))
            digests.add(dataset._member.open().digest)
            with StreamingDataLoader(dataset, 8 // world, report_every=None) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                for number, batch in enumerate(loader, 1):
                    came.update(batch["n"][~loader.repeated].tolist())
                    if number == batches:
                        break
                states.append(loader.state_dict())
        state = states[0]
    assert came == Counter(matching(where))
    assert len(digests) == 1


def test_a_mix(data: Path, closing: Closing):
    """A joined member of a mix that is selected by a condition gives its matching samples and no others."""
    where = "not good and lang in ('de', 'en')"
    chosen = closing(joined(data, closing).select(where=where))
    plain = closing(StreamingDataset(data / "left", transform=lambda sample: {"n": sample["json"]["n"]}, seed=3))
    mix = closing(MixedDataset({"some": chosen, "all": plain}, weights={"some": 1, "all": 1}))
    with StreamingDataLoader(mix, 8, report_every=None) as loader:
        came: Counter[int] = Counter()
        for batch in loader:
            came.update(batch["n"][(loader.sources == 0) & ~loader.repeated].tolist())
    assert set(came) == set(matching(where))


def test_columns_that_are_none(data: Path, closing: Closing):
    """A condition on an unknown or renamed column, or on lists of rows, is an error that names what there is."""
    left, right = closing(StreamingDataset(data / "left")), closing(StreamingDataset(data / "parquet"))
    renamed = closing(left.join(right, on=("json.uid", "uid"), columns={"width": "w"}, missing="drop"))
    assert closing(renamed.select(where="w >= 100")).samples > 0
    with pytest.raises(
        ConfigError, match=r"'width'; columns of this dataset are: .*\bw\. `streamer index \S+left --columns"
    ):
        _ = renamed.select(where="width >= 100").samples
    every = closing(left.join(closing(StreamingDataset(data / "lines")), on=("json.uid", "uid"), missing="drop"))
    with pytest.raises(
        ConfigError, match=r"`streamer index \S+left --columns size` or `streamer index \S+lines/? --col"
    ):
        _ = every.select(where="size >= 100").samples
    whole = closing(left.join(right, on=("json.uid", "uid"), missing="drop"))
    with pytest.raises(
        ConfigError,
        match=r"'size'; columns of this dataset are: .*\b(width|good)\. `streamer index \S+left --columns size` reads",
    ):
        _ = whole.select(where="size >= 100").samples
    with pytest.raises(ConfigError, match=r"'size'; columns of this dataset are: .*\buid\b.*\. Name one of these$"):
        _ = right.select(where="size >= 100").samples
    many = closing(left.join(right, on=("json.uid", "uid"), columns=["width"], validate="many_to_many", missing="none"))
    with pytest.raises(
        ConfigError, match=r"names 'width' of the join with \S+: with validate='many_to_many' samples have lists"
    ):
        _ = many.select(where="width >= 100").samples
