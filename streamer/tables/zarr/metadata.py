"""Parses the metadata of a zarr array, of version 2 or 3, into one description in the terms of version 3.

`tables/zarr/format.py` reads metadata with it, and `tables/zarr/codecs.py` uses the description. What cannot be read
raises `ArraysError`.

Source: https://zarr-specs.readthedocs.io, "Zarr core specification (version 3)", "sharding-indexed", "Zarr storage
specification version 2".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from streamer.formats.table.records import is_dtype
from streamer.tables.tiles import ArraysError

ZARR_3 = "zarr.json"
ARRAY_2 = ".zarray"
GROUP_2 = ".zgroup"
NAMES = (ZARR_3, ARRAY_2, GROUP_2)
# Objects with chunks have names such as "c/0/1" and "c.0.1" in version 3, "0/1" and "0.1" in version 2. `CHUNK_NAME`
# is the part behind the last slash.
_NUMBER = re.compile(r"\d{1,15}", re.ASCII)
CHUNK_NAME = re.compile(r"(?:c\.)?\d+(?:\.\d+)*")
_DTYPES = {
    "bool": "?",
    **{f"{kind}int{bits}": f"{kind[:1] or 'i'}{bits // 8}" for kind in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"f{bits // 8}" for bits in (16, 32, 64)},
    **{f"complex{bits}": f"c{bits // 8}" for bits in (64, 128)},
}
_MAX_AXES = 32
_CHECKSUM = "crc32c"
_SHARDS = "sharding_indexed"
_TRANSPOSE = "transpose"
_BYTES = "bytes"
# Names of codecs that make bytes of bytes.
COMPRESSIONS = ("blosc", "bz2", _CHECKSUM, "gzip", "lz4", "zlib", "zstd")


class ZarrCodec(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """A codec of an array, or another thing with a name and a configuration: grid of chunks, encoding of names."""

    name: str
    configuration: dict[str, Any] = msgspec.field(default_factory=dict)


class Shard(msgspec.Struct, frozen=True):
    """The layout of objects that are shards.

    Attributes:
        chunk: shape of the chunks in a shard.
        at_end: whether the index of the chunks is at the end of a shard; else it is at the beginning.
        has_checksum: whether the index ends with its CRC-32C.
    """

    chunk: tuple[int, ...]
    at_end: bool
    has_checksum: bool


class ZarrArray(msgspec.Struct, frozen=True):
    """The metadata of an array.

    Attributes:
        dtype: dtype of the items as stored.
        shape: shape of the array; axis 0 are the rows.
        object_shape: shape of the part of the array that an object has: a chunk or a shard.
        start: beginning of the names of its objects, below the array ("c/").
        separator: text between the numbers in these names.
        codecs: codecs of a chunk, or empty if a chunk is its items, one after the other.
        fill: bytes of an item that was never written.
        shard: layout of the shards, or None if every object is a chunk.
    """

    dtype: str
    shape: tuple[int, ...]
    object_shape: tuple[int, ...]
    start: str
    separator: str
    codecs: tuple[ZarrCodec, ...]
    fill: bytes
    shard: Shard | None = None

    @property
    def tile(self) -> tuple[int, ...]:
        """Shape of a chunk."""
        return self.shard.chunk if self.shard else self.object_shape

    @property
    def index_bytes(self) -> int:
        """Bytes of the index of a shard; 0 if there are no shards."""
        if self.shard is None:
            return 0
        axes = zip(self.object_shape, self.shard.chunk, strict=True)
        return 16 * math.prod(length // step for length, step in axes) + 4 * self.shard.has_checksum

    def origin(self, name: str) -> tuple[int, ...] | None:
        """Returns the place of the first item of the object with this name; None if it has no part of the array."""
        numbers = name.removeprefix(self.start).split(self.separator)
        if (
            not name.startswith(self.start)
            or len(numbers) != len(self.shape)
            or not all(map(_NUMBER.fullmatch, numbers))
        ):
            return None
        axes = zip(map(int, numbers), self.object_shape, self.shape, strict=True)
        origin = [(number * step, length) for number, step, length in axes]
        return tuple(first for first, _ in origin) if all(first < length for first, length in origin) else None


class _Array3(msgspec.Struct, frozen=True):
    """The metadata of an array in version 3, as its JSON has them."""

    shape: tuple[int, ...]
    data_type: Any
    chunk_grid: ZarrCodec
    fill_value: Any
    codecs: list[ZarrCodec | str]
    chunk_key_encoding: ZarrCodec
    storage_transformers: list[Any] = msgspec.field(default_factory=list)


class _Array2(msgspec.Struct, frozen=True):
    """The metadata of an array in version 2, as its JSON has them."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: Any
    fill_value: Any
    compressor: dict[str, Any] | None = None
    order: str = "C"
    filters: list[Any] | None = None
    dimension_separator: str = "."


class _ZarrNode(msgspec.Struct, frozen=True):
    """What the metadata of any node say: the version, and in version 3 "array" or "group"."""

    zarr_format: Any = None
    node_type: str = ""


def read_metadata(name: str, content: memoryview) -> ZarrArray | None:
    """Parses the metadata of a node; returns an array, or None for a group.

    Args:
        name: name of the object, one of `NAMES`.
        content: its bytes.

    Raises:
        ArraysError: the metadata are damaged, or of an array that is not read.
    """
    try:
        node = msgspec.json.decode(content, type=_ZarrNode)
        if node.zarr_format != (3 if name == ZARR_3 else 2):
            raise ArraysError(f"it is of zarr_format {node.zarr_format!r}")
        if name == GROUP_2 or (name == ZARR_3 and node.node_type == "group"):
            return None
        if name == ARRAY_2:
            return _array_2(msgspec.json.decode(content, type=_Array2))
        return _array_3(msgspec.json.decode(content, type=_Array3))
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise ArraysError(f"its metadata cannot be read: {error}") from error


def _array_3(found: _Array3) -> ZarrArray:
    """Returns the description of an array of version 3; raises ArraysError for what is not read."""
    if found.storage_transformers:
        raise ArraysError("it has storage transformers")
    if found.chunk_grid.name != "regular":
        raise ArraysError(f"its chunk grid is {found.chunk_grid.name!r}")
    if not isinstance(found.data_type, str) or found.data_type not in _DTYPES:
        raise ArraysError(f"it holds {found.data_type!r}, not numbers")
    shape = found.shape
    encoding = found.chunk_key_encoding
    outer = _lengths(found.chunk_grid.configuration.get("chunk_shape"), shape)
    codecs = [ZarrCodec(each) if isinstance(each, str) else each for each in found.codecs]
    shard = None
    if codecs and codecs[0].name == _SHARDS:
        shard, codecs = _shard(codecs, outer)
    # The codec "bytes", which makes bytes of items, only says their byte order, and is taken out. The others remain.
    names = [codec.name for codec in codecs]
    place = names.index(_BYTES) if _BYTES in names else -1
    unknown = [name for name in names[:place] if name != _TRANSPOSE] + [
        name for name in names[place + 1 :] if name not in COMPRESSIONS
    ]
    if place < 0 or unknown:
        raise ArraysError(f"it is stored by codecs {names}; {', '.join((_BYTES, _TRANSPOSE, *COMPRESSIONS))} are read")
    for codec in codecs[:place]:
        if sorted(_numbers(codec.configuration.get("order"))) != [*range(len(shape))]:
            raise ArraysError(f"its axes are transposed by {codec.configuration}")
    order = _order(codecs[place])
    codecs = [*codecs[:place], *codecs[place + 1 :]]
    dtype = np.dtype(order + _DTYPES[found.data_type])
    separator = encoding.configuration.get("separator", "/" if encoding.name == "default" else ".")
    if encoding.name not in {"default", "v2"} or separator not in ("/", "."):
        raise ArraysError(f"its objects are named as {encoding} says")
    start = f"c{separator}" if encoding.name == "default" else ""
    return ZarrArray(
        dtype=dtype.str,
        shape=shape,
        object_shape=outer,
        start=start,
        separator=separator,
        codecs=tuple(codecs),
        fill=_fill(found.fill_value, dtype),
        shard=shard,
    )


def _array_2(found: _Array2) -> ZarrArray:
    """Returns the description of an array of version 2; raises ArraysError for what is not read."""
    if not isinstance(found.dtype, str) or not is_dtype(found.dtype, "biufc"):
        raise ArraysError(f"it holds {found.dtype!r}, not numbers")
    dtype = np.dtype(found.dtype)
    if found.filters:
        raise ArraysError(f"it has filters={found.filters}: arrays without filters are read")
    if found.order not in {"C", "F"}:
        raise ArraysError(f"it has order={found.order!r}, not 'C' or 'F'")
    if found.dimension_separator not in {".", "/"}:
        raise ArraysError(f"it has dimension_separator={found.dimension_separator!r}, not '.' or '/'")
    codecs = []
    if found.order == "F" and len(found.shape) > 1:
        codecs.append(ZarrCodec(_TRANSPOSE, {"order": [*range(len(found.shape))][::-1]}))
    if found.compressor:
        codecs.append(ZarrCodec(str(found.compressor.get("id")), found.compressor))
    if unknown := next((each.name for each in codecs if each.name not in {*COMPRESSIONS, _TRANSPOSE}), None):
        raise ArraysError(f"it is stored by codec {unknown!r}; {', '.join(COMPRESSIONS)} are read")
    outer = _lengths(found.chunks, found.shape)
    fill = _fill(found.fill_value, dtype)
    return ZarrArray(
        dtype=dtype.str,
        shape=found.shape,
        object_shape=outer,
        start="",
        separator=found.dimension_separator,
        codecs=tuple(codecs),
        fill=fill,
    )


def _lengths(found: object, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of a chunk in an array of this shape; raises ArraysError if it is none."""
    try:
        chunk = msgspec.convert(found, tuple[int, ...])
    except ValueError:
        chunk = ()
    if len(chunk) != len(shape) or len(shape) > _MAX_AXES or not _are_lengths(chunk) or not _are_lengths(shape, 0):
        raise ArraysError(f"its shape is {shape}, that of its chunks {found}")
    return chunk


def _are_lengths(numbers: Sequence[int], least: int = 1) -> bool:
    return all(least <= number < 1 << 48 for number in numbers)


def _shard(codecs: Sequence[ZarrCodec], outer: tuple[int, ...]) -> tuple[Shard, list[ZarrCodec]]:
    """Returns the layout of shards, and the codecs of the chunks in them; raises ArraysError.

    Args:
        codecs: codecs of the array, the first of which is that of shards.
        outer: shape of a shard.
    """
    try:
        settings = msgspec.convert(codecs[0].configuration, _Sharding)
    except ValueError as error:
        raise ArraysError(f"its shards are not described as they should be: {error}") from error
    inner = _lengths(settings.chunk_shape, outer)
    names = [codec.name for codec in settings.index_codecs]
    if len(codecs) > 1:
        more = ", ".join(codec.name for codec in codecs[1:])
        raise ArraysError(f"its shards are stored by further codecs ({more}): chunks in them may be, shards may not")
    if names not in ([_BYTES], [_BYTES, _CHECKSUM]):
        raise ArraysError(f"the indexes of its shards are stored by codecs {', '.join(names)}: bytes, crc32c are read")
    if _order(settings.index_codecs[0]) != "<":
        raise ArraysError("the indexes of its shards are big-endian: little-endian ones are read")
    if any(length % step for length, step in zip(outer, inner, strict=True)):
        raise ArraysError(f"its shards of shape {outer} are not a multiple of its chunks of shape {inner}")
    shard = Shard(inner, settings.index_location != "start", len(names) == 2)
    return shard, list(settings.codecs)


class _Sharding(msgspec.Struct, frozen=True):
    """The configuration of the codec of shards, as its JSON has it."""

    chunk_shape: tuple[int, ...]
    codecs: list[ZarrCodec]
    index_codecs: list[ZarrCodec]
    index_location: str = "end"


def _numbers(found: object) -> list[int]:
    return found if isinstance(found, list) and all(isinstance(each, int) for each in found) else []


def _order(codec: ZarrCodec) -> str:
    return ">" if codec.configuration.get("endian") == "big" else "<"


def _fill(value: object, dtype: np.dtype[np.generic]) -> bytes:
    """Returns the bytes of a fill value, from JSON in any form of version 2 or 3; raises ArraysError."""
    try:
        if isinstance(value, list) and dtype.kind == "c":
            value = complex(*map(float, value))
        if isinstance(value, str) and value.startswith("0x"):
            return int(value, 16).to_bytes(dtype.itemsize, "little" if dtype.str[0] != ">" else "big")
        if isinstance(value, str):
            value = float(value)
        found = np.array(0 if value is None else value, dtype)
        if found.ndim:
            raise ValueError("it is several numbers")
        return found.tobytes()
    except (TypeError, ValueError, OverflowError) as error:
        raise ArraysError(f"its fill value {value!r} is not one of {dtype}: {error}") from error


def nodes_of(urls: Mapping[str, object]) -> dict[str, str]:
    """Returns the name of the metadata of each node (array or group), by the node's url, which ends with a slash."""
    found: dict[str, str] = {}
    for url in urls:
        folder, slash, name = url.rpartition("/")
        # A node with metadata of several kinds has the first one of `NAMES`: an array rather than a group.
        if name in NAMES and NAMES.index(name) <= NAMES.index(found.get(folder + slash, GROUP_2)):
            found[folder + slash] = name
    return found
