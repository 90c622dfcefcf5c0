"""Tables of keys on the disk: the samples of each key, sorted; and which values are no keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from streamer.errors import ManifestCorruptError, ManifestError
from streamer.manifest.keys import KeyTable, build_keys, hash_values, number_keys, read_keys, write_keys


def table(folder: Path, *batches: Sequence[object]) -> KeyTable:
    """Builds a table of the keys of consecutive samples."""
    folder.mkdir()
    firsts = np.cumsum([0, *map(len, batches)]).tolist()
    build_keys(zip(firsts, map(hash_values, batches), strict=False), folder)
    return KeyTable.open(folder)


def test_texts(tmp_path: Path):
    """Each text key finds its samples in order, other keys find none, and a null is no key."""
    found = table(tmp_path / "keys", ["b", "a", None], ["", "a", "ä" * 1000, b"b"])
    rows = {key: found.rows_of(key).tolist() for key in ("a", "b", "", "ä" * 1000, "c", None, 1)}
    assert rows == {"a": [1, 4], "b": [0, 6], "": [3], "ä" * 1000: [5], "c": [], None: [], 1: []}
    assert (len(found), found.head.missing, found.head.repeated) == (6, 1, 2)
    assert found.head.example in {(1, 4), (0, 6)}


def test_numbers(tmp_path: Path):
    """Negative numbers and those beyond 63 bits are distinct keys, and a text of the same digits is another key."""
    keys = [0, -1, 2**63, 1, np.int32(5), 2**64 - 2]
    found = table(tmp_path / "keys", keys)
    assert [found.rows_of(key).tolist() for key in keys] == [[number] for number in range(6)]
    assert found.rows_of("1").tolist() == found.rows_of(7).tolist() == []


def test_many(tmp_path: Path):
    """A hundred thousand keys of ten rows each, in any order, are found with all their rows in one call."""
    numbers = np.random.default_rng(0).permutation(np.repeat(np.arange(100_000), 10))
    (tmp_path / "keys").mkdir()
    parts = np.array_split(numbers, 7)
    firsts = np.cumsum([0, *map(len, parts)]).tolist()
    build_keys(zip(firsts, (number_keys(part.astype(np.uint64)) for part in parts), strict=False), tmp_path / "keys")
    found = KeyTable.open(tmp_path / "keys")
    first, counts = found.find(number_keys(np.arange(100_010, dtype=np.uint64)))
    assert (counts[:100_000] == 10).all()
    assert not counts[100_000:].any()
    rows = found.ordinals[first[:100_000, None] + np.arange(10)]
    assert (numbers[rows] == np.arange(100_000)[:, None]).all()
    assert (np.diff(rows, axis=1) > 0).all()


def test_equal_first_halves(tmp_path: Path):
    """Keys whose hashes differ in the second half only are told apart."""
    keys = hash_values([f"key {number}" for number in range(9)])
    keys.high[:] = np.repeat(keys.high[::3], 3)
    build_keys([(0, keys)], tmp_path)
    first, counts = KeyTable.open(tmp_path).find(keys)
    assert counts.tolist() == [1] * 9
    assert KeyTable.open(tmp_path).ordinals[first].tolist() == list(range(9))


@pytest.mark.parametrize("value", [1.0, float("nan"), True, [1], {"a": 1}])
def test_what_is_no_key(value: object):
    """Floats, truth values, lists and dicts are no keys: ManifestError names the sample."""
    with pytest.raises(ManifestError, match="keys are texts or whole numbers") as caught:
        hash_values([None, value])
    assert caught.value.details["index"] == 1


@pytest.mark.parametrize("mixed", [[1, "a"], ["a", 1]], ids=["number first", "text first"])
def test_two_kinds(mixed: list[object]):
    """Texts and numbers as keys of one batch raise ManifestError."""
    with pytest.raises(ManifestError, match="after keys of the other kind"):
        hash_values(mixed)


def test_two_kinds_in_two_batches(tmp_path: Path):
    """Texts and numbers as keys of two batches of one table raise ManifestError with the sample."""
    with pytest.raises(ManifestError, match="from sample 2 on, keys are numbers, those before are texts"):
        table(tmp_path / "keys", ["a", "b"], [1])


def test_nothing(tmp_path: Path):
    """A table of nulls only finds no samples."""
    assert table(tmp_path / "keys", [None, None]).rows_of("a").tolist() == []


def test_keys_in_their_order(tmp_path: Path):
    """Written keys are read in the order of their samples, with the missing ones marked."""
    batches = [hash_values(["a", None, "b"]), hash_values([None]), hash_values(["c"])]
    write_keys(batches, tmp_path)
    (found,) = read_keys(tmp_path, 5)
    assert found.kind == "text"
    assert found.missing.tolist() == [False, True, False, True, False]
    assert found.low.tolist() == [number for batch in batches for number in batch.low.tolist()]


def test_a_file_that_is_cut_off(tmp_path: Path):
    """A table of keys with a file that is cut off is corrupt, and a missing one is a ManifestError."""
    found = table(tmp_path / "keys", [str(number) for number in range(10)])
    (found.path / "low.u64").write_bytes(bytes(8))
    with pytest.raises(ManifestCorruptError, match=r"low\.u64 has 1 numbers, expected 10"):
        KeyTable.open(found.path)
    with pytest.raises(ManifestError, match="no table of keys"):
        KeyTable.open(tmp_path / "other")
