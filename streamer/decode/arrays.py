"""Numbers: npy, npz, safetensors -> numpy arrays; torch files and pickles only when allowed."""

from __future__ import annotations

import importlib
import io
import json
import math
import pickle

import numpy as np
from numpy.typing import NDArray

from streamer.errors import ConfigError

Content = bytes | bytearray | memoryview
Array = NDArray[np.generic]

# numpy refuses longer headers too, because they are parsed as Python literals.
_NPY_HEADER_BYTES = 10_000
_SAFETENSORS_HEADER_BYTES = 100_000_000
_SAFETENSORS_TYPES = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
}


def decode_npy(content: Content) -> Array:
    """Reads an array as `numpy.save` wrote it. A writable buffer is used in place, not copied.

    Raises:
        ValueError: not npy, truncated, or an array of Python objects (that would be a pickle).
    """
    stream = io.BytesIO(content[: _NPY_HEADER_BYTES + 16])
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, kind = read(stream, max_header_size=_NPY_HEADER_BYTES)
    if kind.hasobject:
        raise ValueError("the array holds Python objects, which would have to be unpickled")
    flat = _numbers(content, kind, math.prod(shape), stream.tell())
    return flat.reshape(shape[::-1]).transpose() if fortran_order else flat.reshape(shape)


def decode_npz(content: Content) -> dict[str, Array]:
    """Reads the arrays of a `numpy.savez` archive by name.

    Raises:
        ValueError, zipfile.BadZipFile: not npz, or it holds Python objects.
    """
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def decode_safetensors(content: Content) -> dict[str, Array]:
    """Reads the arrays of a safetensors file by name. A writable buffer is used in place, not copied.

    Raises:
        ValueError: not safetensors, truncated, or a type that numpy does not have (bfloat16, 8-bit floats).

    Source: https://github.com/huggingface/safetensors, "Format".
    """
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 + length or length > _SAFETENSORS_HEADER_BYTES:
        raise ValueError(f"the header says {length} bytes, the file has {len(content)}")
    header = json.loads(bytes(content[8 : 8 + length]))
    header.pop("__metadata__", None)
    return {name: _tensor(content, 8 + length, name, entry) for name, entry in header.items()}


def decode_torch(content: Content) -> object:
    """Reads what `torch.save` wrote, pickles included: only for files that you wrote yourself."""
    torch = importlib.import_module("torch")
    loaded: object = torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
    return loaded


def decode_pickle(content: Content) -> object:
    """Unpickles: only for files that you wrote yourself."""
    loaded: object = pickle.loads(content)  # noqa: S301 - reached only with allow_pickle=True
    return loaded


def refuse_pickle(content: Content) -> object:
    """Stands in for `decode_torch` and `decode_pickle` until the user allows them.

    Raises:
        ConfigError: always; names the setting.
    """
    raise ConfigError(
        "pickles run code when they are read (.pt, .pth, .pkl, .pickle); pass allow_pickle=True if you wrote these "
        "files yourself, or decode={'pt': your_function}, or store npy or safetensors",
        field="allow_pickle",
    )


def _tensor(content: Content, base: int, name: str, entry: dict[str, object]) -> Array:
    match entry:
        case {"dtype": str(kind), "shape": list(shape), "data_offsets": [int(start), int(stop)]}:
            pass
        case _:
            raise ValueError(f"tensor {name!r} has no dtype, shape and data_offsets")
    if kind not in _SAFETENSORS_TYPES:
        raise ValueError(f"tensor {name!r} is {kind}, which numpy does not have")
    sizes = [int(size) for size in shape]
    numbers = _numbers(content, np.dtype(_SAFETENSORS_TYPES[kind]), math.prod(sizes), base + start)
    if numbers.nbytes != stop - start:
        raise ValueError(f"tensor {name!r}: shape {sizes} needs {numbers.nbytes} bytes, it has {stop - start}")
    return numbers.reshape(sizes)


def _numbers(content: Content, kind: np.dtype[np.generic], count: int, offset: int) -> Array:
    """`count` numbers from `offset` on: writable, aligned, and in place where that is possible."""
    if offset + count * kind.itemsize > len(content):
        raise ValueError(
            f"{count} x {kind} from byte {offset} need {offset + count * kind.itemsize} bytes, "
            f"there are {len(content)}: truncated"
        )
    found = np.frombuffer(content, kind, count, offset)
    return found if found.flags.writeable and found.flags.aligned else found.copy()
