"""Makes and maps tables of keys, sorted on the disk, which say which samples of a dataset have a key.

`loader/members/keys.py` makes them, for joins (`manifest/joined.py`, `loader/members/joins.py`) and for reading a
sample by its key. `engine/manifests/manifest_store.py` reads the heads of joins with it.

    <folder>/head.json     kind of the keys, number of rows, and what is known of repeated keys
    <folder>/high.u64      first half of the hash of each row's key, ascending
    <folder>/low.u64       second half, ascending where the first halves are equal
    <folder>/ordinal.i64   the sample, ascending among equal keys

A text is hashed to 128 bits by BLAKE2: among 10^8 keys, two have one hash with a probability of 10^-23. A whole number
of 64 bits with a sign has a hash that no other such number has; of longer numbers, the second half tells those apart
whose lowest 64 bits are the same. So the keys themselves, of any length, are not kept: a row has 24 bytes.

The rows are divided into buckets by the first bits of their hash. The buckets are sorted one after the other, so that
memory does not grow with the number of rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Literal, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.base.linux import map_file
from streamer.base.splitmix import mix
from streamer.errors import ManifestCorruptError, ManifestError
from streamer.manifest.columns import encode_text

Int64Array = NDArray[np.int64]
Words = NDArray[np.uint64]
Kind = Literal["text", "number", ""]
_Head = TypeVar("_Head")

HEAD_NAME = "head.json"
HIGH_NAME = "high.u64"
LOW_NAME = "low.u64"
ORDINAL_NAME = "ordinal.i64"
_ROW = np.dtype([("high", "<u8"), ("low", "<u8"), ("ordinal", "<i8")])
# First bits of a hash that choose its bucket; of 10^8 rows, each bucket has 9.4 MB.
_BUCKET_BITS = 8
_INT64 = range(-(2**63), 2**63)
# Keys that are yielded together.
_BATCH = 1 << 20
_LISTED = (HIGH_NAME, LOW_NAME, "missing.u8")
_COLUMNS = ((HIGH_NAME, "high"), (LOW_NAME, "low"), (ORDINAL_NAME, "ordinal"))


class Keys(msgspec.Struct, frozen=True, eq=False):
    """The hashes of the keys of some samples.

    Attributes:
        kind: kind of the keys, or "" if no sample has one.
        high, low: uint64, shape (n,): the halves of each hash.
        missing: bool, shape (n,): whether the sample has no key; its hash has no meaning then.
    """

    kind: Kind
    high: Words
    low: Words
    missing: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.high)

    def places_of(self, key: object) -> Int64Array:
        """Returns the places of a key among these: int64, ascending, empty if it is not there.

        Raises:
            ManifestError: it cannot be a key, see `hash_values`.
        """
        wanted = hash_values([key])
        found: Int64Array = np.flatnonzero((self.high == wanted.high) & (self.low == wanted.low) & ~self.missing)
        return found if wanted.kind == self.kind else found[:0]


class KeyHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Facts about a table of keys.

    Attributes:
        kind: kind of its keys, or "" if it has none.
        rows: number of samples with a key.
        missing: number of samples without one.
        repeated: number of keys that several samples have.
        example: ordinals of two samples with the same key; empty if no key is repeated.
    """

    kind: Kind
    rows: int
    missing: int
    repeated: int = 0
    example: tuple[int, ...] = ()


class KeyTable:
    """The samples of a dataset by key. Immutable, safe to use from any thread; takes no memory per row.

    Attributes:
        path: the folder.
        head: facts about the table.
        ordinals: int64, shape (rows,): the sample of each row.
    """

    def __init__(self, path: Path, head: KeyHead, high: Words, low: Words, ordinals: Int64Array) -> None:
        self.path = path
        self.head = head
        self.ordinals = ordinals
        self._high = high
        self._low = low

    @classmethod
    def open(cls, path: Path) -> Self:
        """Maps the table in a folder.

        Raises:
            ManifestError: the folder has no head.
            ManifestCorruptError: a file is missing or malformed.
        """
        head = read_head(path, KeyHead, "table of keys")
        high, low, ordinals = (map_numbers(path / name, head.rows, "<u8") for name, _ in _COLUMNS)
        return cls(path=path, head=head, high=high, low=low, ordinals=ordinals.view(np.int64))

    def __len__(self) -> int:
        return self.head.rows

    def __repr__(self) -> str:
        return f"KeyTable({self.path}, {len(self)} rows)"

    def find(self, keys: Keys) -> tuple[Int64Array, Int64Array]:
        """Returns the place of each key's first row, and its number of rows, 0 if it has none: int64, (n,) each."""
        # The keys are looked up in the order of the table, so that neighbours are in one page of memory.
        order = np.argsort(keys.high)
        wanted = keys.high[order]
        first = np.empty(len(keys), np.int64)
        stop = np.empty(len(keys), np.int64)
        first[order] = self._high.searchsorted(wanted, "left")
        stop[order] = self._high.searchsorted(wanted, "right")
        some = np.flatnonzero(stop > first)
        low = self._low
        second = keys.low[some]
        same = (low[first[some]] == second) & (low[stop[some] - 1] == second)
        for place in some[~same].tolist():
            run = low[first[place] : stop[place]]
            begin = first[place]
            first[place] = begin + run.searchsorted(keys.low[place], "left")
            stop[place] = begin + run.searchsorted(keys.low[place], "right")
        counts = stop - first
        counts[keys.missing] = 0
        if keys.kind != self.head.kind:
            counts[:] = 0
        return first, counts

    def rows_of(self, key: object) -> Int64Array:
        """Returns the ordinals of the samples with a key: int64, ascending, empty if there are none.

        Raises:
            ManifestError: it cannot be a key, see `hash_values`.
        """
        first, counts = self.find(hash_values([key]))
        return self.ordinals[int(first[0]) : int(first[0] + counts[0])]


def hash_values(values: Iterable[object]) -> Keys:
    """Hashes keys: either texts and bytes, or whole numbers. None means that a sample has no key.

    Raises:
        ManifestError: a key of another type, as NaN is, or of the other kind than those before it; `details` has its
            place as `index`.
    """
    texts: list[bytes | None] = []
    numbers: list[int | None] = []
    for index, value in enumerate(values):
        if value is None:
            texts.append(None)
            numbers.append(None)
        elif isinstance(value, str):
            texts.append(_encode_key(value))
        elif isinstance(value, bytes | memoryview):
            texts.append(bytes(value))
        elif isinstance(value, int | np.integer) and not isinstance(value, bool):
            numbers.append(int(value))
        else:
            raise ManifestError(
                f"{value!r:.100} is a {type(value).__name__}; keys are texts or whole numbers", index=index
            )
        if len(texts) <= index and len(numbers) <= index:
            raise ManifestError(f"{value!r:.100} after keys of the other kind: texts, or whole numbers", index=index)
    if len(numbers) > len(texts):
        missing = np.fromiter((number is None for number in numbers), np.bool_, len(numbers))
        masked = ((number or 0) & (2**64 - 1) for number in numbers)
        found = number_keys(np.fromiter(masked, np.uint64, len(numbers)), missing)
        for place, number in enumerate(numbers):
            if number is not None and number not in _INT64:
                found.low[place] = int.from_bytes(blake2b(str(number).encode(), digest_size=8).digest(), "little") | 1
        return found
    are_missing = np.fromiter((text is None for text in texts), np.bool_, len(texts))
    raw = b"".join([blake2b(text or b"", digest_size=16).digest() for text in texts])
    words = np.frombuffer(raw, "<u8").reshape(-1, 2)
    kind: Kind = "" if are_missing.all() else "text"
    return Keys(kind, words[:, 0].astype(np.uint64), words[:, 1].astype(np.uint64), are_missing)


def _encode_key(text: str) -> bytes:
    """Returns a text as UTF-8; bytes of a file's name that are no UTF-8 are kept as they were."""
    try:
        return encode_text(text)
    except UnicodeEncodeError:
        # Half a pair of surrogates, as JSON may have it.
        return text.encode("utf-8", "surrogatepass")


def number_keys(numbers: Words, missing: NDArray[np.bool_] | None = None) -> Keys:
    """Hashes whole numbers of 64 bits with a sign.

    Args:
        numbers: uint64, shape (n,): the numbers modulo 2^64.
        missing: bool, shape (n,): whether the sample has no number; None means that all have one.
    """
    none = np.zeros(len(numbers), np.bool_) if missing is None else missing
    return Keys("" if none.all() else "number", mix(numbers.astype(np.uint64)), np.zeros(len(numbers), np.uint64), none)


def write_keys(batches: Iterable[Keys], place: Path) -> None:
    """Writes keys in the order of their samples: `high.u64`, `low.u64` and `missing.u8` of a folder, which exists.

    Raises:
        OSError: a file cannot be written.
    """
    with ExitStack() as files:
        high, low, missing = (files.enter_context((place / name).open("wb")) for name in _LISTED)
        for keys in batches:
            high.write(keys.high.tobytes())
            low.write(keys.low.tobytes())
            # The second bit (2) says that the key is a text, since its hash does not say it.
            missing.write((keys.missing | np.uint8(2 * (keys.kind == "text"))).astype(np.uint8).tobytes())


def read_keys(place: Path, samples: int) -> Iterator[Keys]:
    """Maps the keys of `samples` samples that `write_keys` has written, and yields them in order, in batches.

    Raises:
        ManifestCorruptError: a file is missing, or has another length.
    """
    high, low = (map_numbers(place / name, samples, "<u8") for name in _LISTED[:2])
    flags = map_numbers(place / _LISTED[2], samples, "u1")

    def read_batch(first: int) -> Keys:
        some = slice(first, first + _BATCH)
        missing = (flags[some] & np.uint8(1)).astype(np.bool_)
        kind: Kind = "" if missing.all() else "text" if (flags[some] >= 2).any() else "number"
        return Keys(kind, high[some], low[some], missing)

    return map(read_batch, range(0, samples, _BATCH))


def build_keys(batches: Iterable[tuple[int, Keys]], place: Path) -> KeyHead:
    """Writes a table of keys, sorted, into a folder.

    Args:
        batches: keys of consecutive samples, each time with the ordinal of the first one.
        place: the folder, which exists.

    Returns:
        The head of the table, which is also written.

    Raises:
        ManifestError: some keys are numbers and some texts.
        OSError: a file cannot be written.
    """
    buckets = place / "buckets"
    buckets.mkdir()
    kind: Kind = ""
    missing = 0
    with ExitStack() as files:
        opened = [files.enter_context((buckets / f"{number}").open("w+b")) for number in range(1 << _BUCKET_BITS)]
        for first, keys in batches:
            if kind and keys.kind and kind != keys.kind:
                raise ManifestError(f"from sample {first} on, keys are {keys.kind}s, those before are {kind}s")
            kind = kind or keys.kind
            missing += int(keys.missing.sum())
            # Rows go to the buckets of their hashes.
            rows = np.empty(len(keys), _ROW)
            rows["high"] = keys.high
            rows["low"] = keys.low
            rows["ordinal"] = np.arange(first, first + len(keys))
            rows = rows[~keys.missing]
            bucket = rows["high"] >> np.uint64(64 - _BUCKET_BITS)
            order = np.argsort(bucket, kind="stable")
            edges = np.searchsorted(bucket[order], np.arange(len(opened) + 1, dtype=np.uint64))
            rows = rows[order]
            for number in np.flatnonzero(np.diff(edges)).tolist():
                opened[number].write(rows[edges[number] : edges[number + 1]].tobytes())
        head = _sort_and_write(opened, place, kind, missing)
    for file in buckets.iterdir():
        file.unlink()
    buckets.rmdir()
    (place / HEAD_NAME).write_bytes(msgspec.json.encode(head))
    return head


def _sort_and_write(buckets: Sequence[BinaryIO], place: Path, kind: Kind, missing: int) -> KeyHead:
    """Sorts one bucket after the other, writes the columns, and returns the head; empties the buckets."""
    rows = repeated = 0
    example: tuple[int, ...] = ()
    with ExitStack() as files:
        columns = [(files.enter_context((place / name).open("wb")), field) for name, field in _COLUMNS]
        for bucket in buckets:
            bucket.seek(0)
            found = np.fromfile(bucket, _ROW)
            # The bytes of the bucket are not needed again.
            os.ftruncate(bucket.fileno(), 0)
            found = found[np.lexsort((found["ordinal"], found["low"], found["high"]))]
            same = (found["high"][1:] == found["high"][:-1]) & (found["low"][1:] == found["low"][:-1])
            if same.any():
                # True where a run of equal keys begins.
                begins = same & ~np.append(False, same[:-1])
                repeated += int(begins.sum())
                at = int(np.argmax(same))
                example = example or tuple(found["ordinal"][at : at + 2].tolist())
            for file, field in columns:
                file.write(np.ascontiguousarray(found[field]).tobytes())
            rows += len(found)
    return KeyHead(kind=kind, rows=rows, missing=missing, repeated=repeated, example=example)


def read_head(path: Path, kind: type[_Head], name: str) -> _Head:
    """Reads `head.json` of a folder.

    Args:
        path: the folder.
        kind: type of the head.
        name: what the folder has, for errors.

    Raises:
        ManifestError: the file cannot be read.
        ManifestCorruptError: the file is malformed.
    """
    try:
        return msgspec.json.decode((path / HEAD_NAME).read_bytes(), type=kind)
    except OSError as error:
        raise ManifestError(f"no {name} at {path}: {error.strerror}", path=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise ManifestCorruptError(f"{path / HEAD_NAME}: {error}", path=str(path)) from error


def map_numbers(path: Path, count: int, dtype: str) -> NDArray[np.uint64]:
    """Maps a file of `count` numbers, read-only. Without numbers no file is needed.

    Args:
        path: the file.
        count: number of numbers.
        dtype: their dtype, such as "<u8"; the result has it, whatever the annotation says.

    Raises:
        ManifestCorruptError: the file is missing, or has another length.
    """
    if count == 0:
        return np.empty(0, dtype)
    try:
        found = np.frombuffer(map_file(path), dtype)
    except (OSError, ValueError) as error:
        raise ManifestCorruptError(f"{path} cannot be mapped: {error}", path=str(path)) from error
    if len(found) != count:
        raise ManifestCorruptError(f"{path} has {len(found)} numbers, expected {count}", path=str(path))
    return found
