"""Decodes numbers: npy, npz and safetensors become numpy arrays. Torch files and pickles are read only if allowed.

`decode/dispatch.py` chooses among these decoders. The readers and assemblers of batches use `Row` and the layout of
plain arrays (`streamer/batches`). `tables/foreign.py` and packs (`shards/outputs/columns.py`) use some of the decoders.
`ArrayDecoder` is public.

Decoders raise an error, mostly a ValueError, for bytes that are not what their name says, are truncated, or would have
to be unpickled. Those of arrays use a writable buffer in place instead of copying it.
"""

from __future__ import annotations

import importlib
import io
import json
import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.base.extras import require_extra
from streamer.errors import ConfigError
from streamer.formats.table.records import is_dtype

Content = bytes | bytearray | memoryview
Array = NDArray[np.generic]
# Memory of one sample's arrays in the batch, by the name of their field (or number, in a tuple).
Row = Mapping[str | int, Array]

# A row without arrays: whatever is decoded goes to new memory.
NO_ROW: Row = {}

# Longer headers are refused, because they are parsed as Python literals. It is numpy's own limit.
_NPY_HEADER_BYTES = 10_000
# Limit of the arrays of an npz file. deflate compresses zeros 1,000 to 1: without a limit, 2 MB take 2 GB in every
# worker.
MAX_NPZ_BYTES = 1 << 30
_SAFETENSORS_HEADER_BYTES = 100_000_000
_SAFETENSORS_TYPES = {
    "BOOL": "?",
    **{f"U{8 * size}": f"<u{size}" for size in (1, 2, 4, 8)},
    **{f"I{8 * size}": f"<i{size}" for size in (1, 2, 4, 8)},
    **{f"F{8 * size}": f"<f{size}" for size in (2, 4, 8)},
}


class PlainArray(msgspec.Struct, frozen=True):
    """The layout of an array in a field, in C order and native byte order: a head, then the numbers.

    Attributes:
        head: bytes before the numbers, equal for all arrays of this dtype and shape, or b"" if there are none.
        dtype: type of the numbers.
        shape: shape of the array.
    """

    head: bytes
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ArrayDecoder:
    """Decodes a field that consists of numbers only, without a header, in C order.

        StreamingDataset(url, decode={"bin": ArrayDecoder("<f4", (4, 64, 64))})

    Attributes:
        dtype: numpy's name of the type, for example "<u2". Without "<" or ">" the byte order is this machine's.
        shape: shape of the array. One length may be -1, and is derived from the number of bytes.

    Raises:
        ConfigError: the dtype is not one of numbers, or the shape is invalid.
    """

    dtype: str
    shape: tuple[int, ...] = (-1,)

    def __post_init__(self) -> None:
        if not is_dtype(self.dtype, "biufc"):
            raise ConfigError(f"ArrayDecoder: dtype={self.dtype!r} is not a type of numbers", field="decode")
        shape: object = self.shape
        lengths: list[object] = list(shape) if isinstance(shape, tuple | list) else [None]
        if not all(isinstance(length, int) and length >= -1 for length in lengths) or lengths.count(-1) > 1:
            raise ConfigError(f"ArrayDecoder: shape={self.shape} has no meaning", field="decode")

    def __call__(self, content: Content) -> Array:
        """Returns the array; raises a ValueError if the bytes do not fill the shape."""
        (dtype, known) = self._layout
        count = len(content)
        if count and (count == known or (known and -1 in self.shape and not count % known)):
            # numpy computes the open length faster than `_shape_of`.
            found = usable(np.frombuffer(content, dtype).reshape(self.shape))
        else:
            found = _numbers(content, dtype, count // dtype.itemsize, 0).reshape(self._shape_of(count))
        return found if dtype.isnative else found.astype(dtype.newbyteorder("="))

    def plain(self, count: int) -> PlainArray | None:
        """Returns the layout of a field of `count` bytes, or None if its byte order is not this machine's.

        Raises:
            ValueError: `count` bytes do not fill the shape.
        """
        dtype, _ = self._layout
        return PlainArray(b"", dtype, self._shape_of(count)) if dtype.isnative else None

    @cached_property
    def _layout(self) -> tuple[np.dtype[np.generic], int]:
        """Type of the numbers, and bytes of an array whose open length is 1. Computed once, not for each sample."""
        dtype = np.dtype(self.dtype)
        return dtype, dtype.itemsize * math.prod(length for length in self.shape if length >= 0)

    def _shape_of(self, count: int) -> tuple[int, ...]:
        _, known = self._layout
        free, rest = divmod(count, known) if known and -1 in self.shape else (1, count - known)
        if rest:
            raise ValueError(f"{count} bytes are not {self.dtype} of shape {self.shape}")
        return tuple(free if length < 0 else length for length in self.shape)


def decode_npy(content: Content) -> Array:
    """Decodes an array that `numpy.save` wrote."""
    shape, fortran_order, dtype = _npy_header(head := npy_head(content))
    flat = _numbers(content, dtype, math.prod(shape), len(head))
    return flat.reshape(shape[::-1]).transpose() if fortran_order else flat.reshape(shape)


def npy_head(content: Content) -> bytes:
    """Returns the bytes of an `.npy` file before its numbers, equal for all arrays of one dtype, shape and order.

    Raises a ValueError if the file does not begin as one.
    """
    start = bytes(content[:12])
    np.lib.format.read_magic(io.BytesIO(start))
    length = 10 + int.from_bytes(start[8:10], "little") if start[6] == 1 else 12 + int.from_bytes(start[8:12], "little")
    return bytes(content[: min(length, _NPY_HEADER_BYTES + 12)])


def plain_npy(content: Content) -> PlainArray | None:
    """Returns the layout of an `.npy` file, or None if it is in Fortran order or not in this machine's byte order.

    Raises:
        ValueError: the header cannot be read.
    """
    shape, fortran_order, dtype = _npy_header(head := npy_head(content))
    return PlainArray(head, dtype, shape) if dtype.isnative and not fortran_order else None


# A header is a Python literal, which takes 30 us to parse; the files of a dataset have few different ones.
@lru_cache(maxsize=64)
def _npy_header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Returns shape, whether the order is Fortran's, and dtype; a ValueError for damage and for Python objects."""
    stream = io.BytesIO(head)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(stream, max_header_size=_NPY_HEADER_BYTES)
    if dtype.hasobject:
        raise ValueError("the array holds Python objects, which would have to be unpickled")
    return shape, fortran_order, dtype


def decode_npz(content: Content) -> dict[str, Array]:
    """Decodes the arrays of a `numpy.savez` archive, by name.

    Raises:
        ValueError: an array would have to be unpickled, or they have more than `MAX_NPZ_BYTES` bytes.
        Exception: the archive is damaged: zipfile.BadZipFile, zlib.error and others.
    """
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        if (total := sum(entry.file_size for entry in archive.zip.infolist())) > MAX_NPZ_BYTES:
            raise ValueError(
                f"its {len(archive.files)} arrays have {total:,} bytes, more than the {MAX_NPZ_BYTES:,} that are "
                "decompressed; decode={'npz': your_function} reads larger ones"
            )
        try:
            return {name: archive[name] for name in archive.files}
        except MemoryError as error:
            # numpy takes the memory that a header asks for before it reads the numbers, also for a damaged one.
            for entry in archive.zip.infolist():
                head = npy_head(archive.zip.read(entry))
                shape, _, dtype = _npy_header(head)
                if len(head) + math.prod(shape) * dtype.itemsize > entry.file_size:
                    raise ValueError(
                        f"array {entry.filename!r} would be {dtype} of shape {shape}, it has {entry.file_size} bytes"
                    ) from error
            raise


def decode_safetensors(content: Content) -> dict[str, Array]:
    """Decodes the arrays of a safetensors file, by name.

    Raises an error, mostly a ValueError, if the file is damaged, and a ValueError if it has a type that numpy lacks
    (bfloat16, floats of 8 bits).

    Source: https://github.com/huggingface/safetensors, "Format".
    """
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 + length or length > _SAFETENSORS_HEADER_BYTES:
        raise ValueError(f"the header has {length} bytes, the file {len(content)}")
    try:
        header = json.loads(bytes(content[8 : 8 + length]))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise ValueError(f"its header is a {type(header).__name__} of JSON, not an object with the tensors by name")
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        match entry:
            case {"dtype": str(dtype), "shape": list(sizes), "data_offsets": [int(start), int(stop)]}:
                pass
            case _:
                raise ValueError(f"tensor {name!r} has no dtype, shape and data_offsets")
        if start < 0 or not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise ValueError(f"tensor {name!r} has the shape {sizes} from byte {start} on, which cannot be")
        if dtype not in _SAFETENSORS_TYPES:
            raise ValueError(f"tensor {name!r} is {dtype}, which numpy does not have")
        numbers = _numbers(content, np.dtype(_SAFETENSORS_TYPES[dtype]), math.prod(sizes), 8 + length + start)
        if numbers.nbytes != stop - start:
            raise ValueError(f"tensor {name!r}: shape {sizes} needs {numbers.nbytes} bytes, it has {stop - start}")
        tensors[name] = numbers.reshape(sizes)
    return tensors


def decode_torch(content: Content) -> object:
    """Decodes a file of `torch.save`, and runs the code in its pickles: only for files that the user wrote.

    Raises a ConfigError if torch is not installed.
    """
    with require_extra("reading files of torch.save", field="decode"):
        torch = importlib.import_module("torch")
    loaded: object = torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
    return loaded


def decode_pickle(content: Content) -> object:
    """Decodes a pickle, and runs its code: only for files that the user wrote."""
    loaded: object = pickle.loads(content)  # noqa: S301 - reached only with allow_pickle=True
    return loaded


def refuse_pickle(content: Content) -> object:
    """Raises a ConfigError: takes the place of `decode_torch` and `decode_pickle` unless the user allows pickles."""
    raise ConfigError(
        "pickles run code when they are read (.pt, .pth, .pkl, .pickle); pass "
        "decode=streamer.Decode(allow_pickle=True) if you wrote these files yourself, or "
        "decode={'pt': your_function}, or store npy or safetensors",
        field="allow_pickle",
    )


def _numbers(content: Content, dtype: np.dtype[np.generic], count: int, offset: int) -> Array:
    """Returns `count` numbers from the byte `offset` on, in place if possible; a ValueError if there are too few."""
    if offset + count * dtype.itemsize > len(content):
        raise ValueError(
            f"{count} x {dtype} from byte {offset} need {offset + count * dtype.itemsize} bytes, "
            f"there are {len(content)}: truncated"
        )
    return usable(np.frombuffer(content, dtype, count, offset))


def usable(found: Array) -> Array:
    """Returns the array itself if it is writable and aligned, otherwise a copy."""
    flags = found.flags
    return found if flags.writeable and flags.aligned else found.copy()
