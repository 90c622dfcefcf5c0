"""Keys of joins that are missing, repeated or of the wrong kind, and several rows of a key, on a real engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamer import StreamingDataset
from streamer.errors import ConfigError, DecodeError, ManifestError
from streamer.formats import Parquet
from tests.joins import sides

Closing = Callable[[Any], Any]


def lines(folder: Path, rows: Sequence[object]) -> Path:
    """Writes JSON lines."""
    folder.mkdir(parents=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


class Sides:
    """Writes both sides as JSON lines and joins them."""

    def __init__(self, root: Path, closing: Closing) -> None:
        self.root, self.closing, self.count = root, closing, 0

    def dataset(self, rows: Sequence[object], **options: Any) -> StreamingDataset:
        """Makes a dataset of JSON lines, in their order."""
        self.count += 1
        folder = lines(self.root / str(self.count), rows)
        return self.closing(StreamingDataset(folder, shuffle=False, **options))

    def joined(self, left: Sequence[object], right: Sequence[object], **options: Any) -> StreamingDataset:
        """Makes a join on "k"."""
        return self.closing(self.dataset(left).join(self.dataset(right), **{"on": "k", **options}))


@pytest.fixture
def both(tmp_path: Path, closing: Closing) -> Sides:
    return Sides(tmp_path, closing)


def values(dataset: StreamingDataset, name: str) -> list[object]:
    """Returns a field of all samples, in their order."""
    return [sample[name] for sample in dataset]  # type: ignore[index]


LEFT = [{"k": key, "a": number} for number, key in enumerate(["x", "y", "z", "y"])]


def test_samples_without_a_row(both: Sides):
    """Samples without a row are an error with counts and keys, or have None, or are left out with missing="drop".

    The numbers of the others close up.
    """
    right = [{"k": "y", "b": 1}, {"k": "x", "b": 0}, {"k": "other", "b": 9}]
    with pytest.raises(ManifestError, match=r"1 of 4 samples have no row .* the first is 'z'; keys 'k' .* like 'y'"):
        both.joined(LEFT, right)[0]
    assert values(both.joined(LEFT, right, missing="none", columns=["b"]), "b") == [0, 1, None, 1]
    with pytest.raises(ConfigError, match=r"name their own fields .* columns= says which"):
        both.joined(LEFT, right, missing="none")[0]
    dropped = both.joined(LEFT, right, missing="drop")
    assert dropped.samples == 3
    assert values(dropped, "b") == [0, 1, 1]
    assert values(dropped.select(indices=[2]), "a") == [3]
    with pytest.raises(ManifestError, match="4 of 4 samples have no row"):
        both.joined(LEFT, [{"k": "other", "b": 9}], missing="none")[0]


def test_selections_of_both_sides(both: Sides, closing: Closing):
    """`select` counts numbers of the dataset on which it is called, and a row outside of a selection is no row."""
    left, right = both.dataset(LEFT), both.dataset([{"k": key, "b": key * 2} for key in "zyx"])
    chosen = closing(closing(left.select(indices=[0, 2, 3])).join(right.select(indices=[0, 1]), on="k", missing="drop"))
    assert values(chosen, "b") == ["zz", "yy"]
    assert values(closing(chosen.select(indices=[0])), "a") == [2]


def test_several_rows_of_a_key(both: Sides):
    """Several rows of a key come in the order of the right side, or are an error with validate="many_to_one".

    The error has counts and a key.
    """
    right = [{"k": key, "b": number} for number, key in enumerate(["y", "x", "y", "y"])]
    with pytest.raises(
        ManifestError,
        match=r"2 of 4 samples have more than one row .*, up to 3, the first is 'y'; validate='many_to_many'",
    ):
        both.joined(LEFT, right, missing="none")[0]
    many = both.joined(LEFT, right, validate="many_to_many", missing="none", columns=["b"])
    assert values(many, "b") == [[1], [0, 2, 3], [], [0, 2, 3]]


def test_nulls_and_numbers(both: Sides):
    """A null is no key of a join, on either side, and numbers are equal to numbers, however large."""
    left = [{"k": key} for key in (1, None, -(2**40), 2**62)]
    right = [{"k": key, "b": str(key)} for key in (2**62, None, 1, -(2**40), 7)]
    found = values(both.joined(left, right, missing="none", columns=["b"]), "b")
    assert found == ["1", None, str(-(2**40)), str(2**62)]


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [
        (["1"], [1], "its keys are texts, those of the other side numbers"),
        ([1], ["1"], "its keys are numbers, those of the other side texts"),
        ([1.5], [1], "the key 'k' of sample 0: 1.5 is a float; keys are texts or whole numbers"),
        ([1], [1, True], "the key 'k' of sample 1: True is a bool"),
        ([1], [1, "1"], "the key 'k' of sample 1: '1' after keys of the other kind"),
        ([[1, 2]], [1], "is a list; keys are texts or whole numbers"),
    ],
)
def test_keys_that_cannot_be_compared(left: list[object], right: list[object], said: str, both: Sides):
    """Keys that cannot be compared are refused with the side and the sample; nothing is converted."""
    with pytest.raises(ManifestError, match="^/.*" + said):
        both.joined([{"k": key} for key in left], [{"k": key, "b": 0} for key in right])[0]


def test_nan_in_a_column(tmp_path: Path, both: Sides, closing: Closing):
    """A column of floats has no keys for a join, NaN or not."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"k": [1.0, float("nan")], "b": [1, 2]}), tmp_path / "rows.parquet")
    right = closing(StreamingDataset(tmp_path / "rows.parquet"))
    with pytest.raises(ManifestError, match=r"rows.parquet: .*sample 0: 1.0 is a float"):
        closing(both.dataset([{"k": 1}]).join(right, on="k"))[0]


def test_a_sample_without_the_field(both: Sides):
    """A sample without the field of the key is an error with its number and the fields that it has."""
    with pytest.raises(
        ManifestError, match=r"^/[^:]*: the key 'k' of sample 1: it has no field 'k'; it has __key__, a"
    ):
        both.joined([{"k": 1}, {"a": 2}], [{"k": 1, "b": 0}])[0]
    with pytest.raises(ManifestError, match=r"field 'k' has no 'part'"):
        both.joined([{"k": {"other": 1}}], [{"k": 1}], on=("k.part", "k"))[0]


@pytest.mark.slow
def test_long_and_many_equal_keys(both: Sides):
    """Keys of 1 MB are compared as a whole, and 2,000 samples may have one row."""
    long = ["a" * 1_000_000, "a" * 999_999 + "b"]
    right = [{"k": long[1], "b": 1}, {"k": long[0], "b": 0}]
    assert values(both.joined([{"k": key} for key in long], right), "b") == [0, 1]
    same = both.joined([{"k": 1}] * 2000, [{"k": 1, "b": 3}])
    assert same.samples == 2000
    assert same[1999]["b"] == 3  # type: ignore[index]


@pytest.mark.slow
def test_a_million_rows_of_one_key(tmp_path: Path, both: Sides, closing: Closing):
    """A million rows of one key are counted in the error, or are a list in their sample."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 1_000_000
    pq.write_table(pa.table({"k": np.zeros(count, np.int64), "b": np.arange(count)}), tmp_path / "rows.parquet")
    left, right = both.dataset([{"k": 0}]), closing(StreamingDataset(tmp_path / "rows.parquet"))
    with pytest.raises(
        ManifestError, match=r"1 of 1 samples have more than one row .*, up to 1,000,000, the first is 0;"
    ):
        closing(left.join(right, on="k"))[0]
    (sample,) = closing(left.join(right, on="k", validate="many_to_many"))
    assert sample["b"] == list(range(count))  # type: ignore[index]


def test_names_of_fields(both: Sides):
    """columns= chooses and renames fields of the right side, and a field of both sides is an error.

    So is one that the right side lacks.
    """
    left, right = [{"k": 1, "a": 0}], [{"k": 1, "a": 1, "b": 2}]
    assert both.joined(left, right, columns=["b"])[0] == {"__key__": "0", "k": 1, "a": 0, "b": 2}
    renamed = both.joined(left, right, columns={"a": "right_a", "__key__": "row"})
    assert renamed[0] == {"__key__": "0", "k": 1, "a": 0, "right_a": 1, "row": "0"}
    with pytest.raises(DecodeError, match="both sides of the join have the field 'a'"):
        both.joined(left, right)[0]
    with pytest.raises(DecodeError, match=r"have the field 'a'; columns=\{'b': 'another name'\}"):
        both.joined(left, right, columns={"b": "a"})[0]
    with pytest.raises(DecodeError, match="columns='c' is not a field of sample '0' of the right side"):
        both.joined(left, right, columns=["c"])[0]


def test_the_column_of_the_key_is_left_out(tmp_path: Path, both: Sides, closing: Closing):
    """A join on Parquet adds the chosen columns to a sample, without the column of the key."""
    sides.parquet(tmp_path / "right", range(40))
    right = closing(StreamingDataset(tmp_path / "right", format=Parquet(columns=("uid", "vector"))))
    joined = closing(both.dataset([{"k": sides.uid(5)}]).join(right, on=("k", "uid")))
    assert list(joined[0]) == ["__key__", "k", "vector"]  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on": ("a", "b", "c")}, "on="),
        ({"on": ""}, "on="),
        ({"columns": "b"}, "columns='b'"),
        ({"columns": []}, "columns="),
        ({"missing": "empty"}, "missing='empty' must be one of 'error', 'drop', 'none'"),
        ({"validate": "1:m"}, "validate='1:m' must be one of 'many_to_one', 'many_to_many'"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], said: str, both: Sides):
    """join() refuses wrong values of on=, columns=, missing= and validate= with the argument's name."""
    with pytest.raises(ConfigError, match=said):
        both.joined(LEFT, LEFT, **options)


def test_sides_that_cannot_be_joined(both: Sides, closing: Closing):
    """join() refuses a right side with a transform, one that is itself a join, and what is no dataset."""
    plain = both.dataset(LEFT)
    with pytest.raises(ConfigError, match="has transform=: give it to the dataset that is joined"):
        plain.join(both.dataset(LEFT, transform=lambda sample: sample), on="k")
    with pytest.raises(ConfigError, match="joined itself: join each to this one"):
        plain.join(closing(plain.join(both.dataset(LEFT), on="k")), on="k")
    with pytest.raises(ConfigError, match="give a StreamingDataset"):
        plain.join("s3://bucket/rows/", on="k")  # type: ignore[arg-type]
