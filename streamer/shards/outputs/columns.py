"""Finds the columns of Parquet shards from the first samples, and converts values to them; without pyarrow.

`registry.py` describes the columns and `parquet.py` fits values to them. `tokens.py` and `shards/task.py` use the
conversions of values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.base.system_limits import raise_shortage
from streamer.decode import arrays, values
from streamer.decode.values import encode_json_tree
from streamer.errors import ConfigError, DecodeError, PackError
from streamer.formats.base import Field
from streamer.formats.names import BYTES, IMAGE, kind_of_bytes
from streamer.manifest.model import NESTED
from streamer.shards.values import KEY, Sample, encode_text, json_of, value_of

# The columns of all shards follow from so many samples at the beginning.
FIRST_SAMPLES = 64
TEXT = "txt"
JSON = "json"
_IMAGE_KINDS = (IMAGE, "jpg", "png", "webp")
# The manifest spells these dtypes in another way than numpy does.
_DTYPES = {"|b1": "?", "|u1": "u1", "|i1": "i1"}
_NUMBER = "biuf"


class OutputColumn(msgspec.Struct, frozen=True, array_like=True):
    """A column of a Parquet shard.

    Attributes:
        name: its name, which is that of the field.
        kind: kind of its values in the words of the reader of Parquet: "image", "bytes", "txt", "json", "<i8",
            "<f4[2,3]", or "<f4[-1,3]" if the first length varies.
    """

    name: str
    kind: str

    @property
    def dtype(self) -> np.dtype[np.generic] | None:
        """The dtype of a column of numbers or arrays; None for other kinds."""
        return None if self.kind in (IMAGE, BYTES, TEXT, JSON) else np.dtype(self.kind.partition("[")[0])

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of a column of arrays, whose first length is -1 if it varies; None for other kinds."""
        _, bracket, lengths = self.kind.rstrip("]").partition("[")
        return tuple(map(int, lengths.split(","))) if bracket else None


class JsonText(bytes):
    """A JSON document in UTF-8, which is written as JSON and not as bytes."""


def _json_text(content: memoryview) -> JsonText:
    json.loads(bytes(content))
    return JsonText(content)


# Bytes in a field with one of these extensions are decoded so, as the loader does.
_BY_ENDING: dict[str, Callable[[memoryview], object]] = {
    **dict.fromkeys(["cls", "cls2", "index", "inx", "id"], values.decode_class),
    **dict.fromkeys(["txt", "text", "transcript"], values.decode_text),
    **dict.fromkeys(["json", "jsn"], _json_text),
    "jsonl": values.decode_jsonl,
    "npy": arrays.decode_npy,
}


def field_value(field: Field) -> tuple[str, object]:
    """Returns name and value of a field of a source, for Parquet and tokens.

    A text becomes a str, JSON and nested values become `JsonText`, and images stay bytes; their names do not change.
    Other fields are as `values.value_of` returns them.

    Raises:
        DecodeError, ValueError: the bytes are not what the kind says.
    """
    if field.kind == TEXT:
        return field.name, str(field.content, "utf-8")
    if field.kind in (JSON, NESTED):
        return field.name, JsonText(field.content if field.kind == JSON else encode_json_tree(field.content))
    return (field.name, field.content) if field.kind in _IMAGE_KINDS else value_of(field)


def to_given(name: str, value: object) -> object:
    """Returns a value from `Output.field_value` as a transform receives it: JSON decoded, and no memoryview.

    Args:
        name: name of the field, for the error.
        value: the value.

    Raises:
        DecodeError: the value is damaged JSON.
    """
    if isinstance(value, JsonText):
        return _read_json(name, value)
    return bytes(value) if isinstance(value, memoryview) else value


def to_json(name: str, value: object) -> object:
    """Returns a value from `field_value` as an item of a list, which is written as JSON.

    Args:
        name: name of the field, whose extension says how bytes are decoded.
        value: the value.

    Raises:
        PackError: the bytes are not what the name says, or a text is not valid Unicode.
        DecodeError: the value is damaged JSON.
    """
    plain = _plain(name, value)
    return _read_json(name, plain) if isinstance(plain, JsonText) else plain


def _read_json(name: str, text: JsonText) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"field {name!r} is damaged JSON: {error}", field=name) from error


def plain_values(sample: Sample) -> dict[str, object]:
    """Returns the values of a sample by column. Bytes are decoded if the extension of the field says how.

    Names that begin with two underscores are left out, except the key.

    Raises:
        PackError: a name or the key is not a text, or not valid Unicode, bytes are not what the name says, or there are
            no fields.
    """
    found: dict[str, object] = {}
    for name, value in sample.items():
        if not isinstance(name, str):
            raise PackError(f"a field is named by {name!r}, which is not a text")
        encode_text(name, name)
        if name == KEY and not isinstance(value, str):
            raise PackError(f"{KEY} is {value!r}, which is not a text")
        if _is_column(name):
            found[name] = _plain(name, value)
    if not found.keys() - {KEY}:
        raise PackError("it has no fields")
    return found


def kinds_of(values: Mapping[str, object]) -> dict[str, str]:
    """Returns the kind of each value that is not None, as `OutputColumn.kind`, by name.

    Args:
        values: values from `plain_values`.

    Raises:
        PackError: a value cannot be in a column.
    """
    return {name: _kind(name, value) for name, value in values.items() if value is not None}


def columns_of(kinds: Sequence[Mapping[str, str]], known: Mapping[str, str]) -> list[OutputColumn]:
    """Returns the columns for samples with these kinds, in the order in which their fields first occur.

    Args:
        kinds: kinds of the first samples, from `kinds_of`.
        known: kinds by field, as far as the source knows them of all samples; they win over those of samples.

    Raises:
        PackError: there are no values, or the values of one field fit into no common column.
    """
    names = dict.fromkeys([*(name for sample in kinds for name in sample), *known])
    if not names:
        raise PackError(
            f"the first {FIRST_SAMPLES} samples have no values, or the transform leaves all of them out, so that the "
            "columns are not known; pack in another order (order='shuffle')"
        )
    return [OutputColumn(name, known.get(name) or _merge_kinds(name, kinds)) for name in names]


def select_kinds(kinds: Mapping[str, str]) -> dict[str, str]:
    """Returns kinds of the source as kinds of columns, by field; leaves out fields that must be seen in samples first.

    A varying length becomes -1, and a nested field JSON.
    """
    found = {
        name: JSON if kind == NESTED else kind.replace("[]", "[-1]") for name, kind in kinds.items() if _is_column(name)
    }
    return {name: kind for name, kind in found.items() if kind in (IMAGE, TEXT, JSON) or _is_numeric(kind)}


def fit_value(column: OutputColumn, value: object) -> object:
    """Returns a copy of a value in the form of its column: bytes, a str, a Python number, or an array.

    Args:
        column: the column.
        value: a value from `plain_values`, or None if the sample has none. None stays None, except in a column of
            arrays of a fixed shape, where it does not fit.

    Raises:
        PackError: the value does not fit.
    """
    if value is None and (column.shape is None or column.shape[0] < 0):
        return None
    found = _try_fit(column, value)
    if found is None:
        given = "None" if value is None else repr(_kind(column.name, value))
        given += f" ({value})" if isinstance(value, int | float | np.generic) else ""
        raise PackError(
            f"field {column.name!r} is {given}, the column has {column.kind!r}, as the first samples do; make all "
            "samples alike in a transform, or write tars"
        )
    return found


def estimate_bytes(value: object) -> int:
    """Returns the approximate length in bytes of a value from `fit_value` in a file, before compression."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    return len(value) if isinstance(value, bytes | str) else 8


def features_of(columns: Sequence[OutputColumn]) -> bytes:
    """Returns Hugging Face's description, as JSON, of images and arrays, which types of Arrow do not describe fully."""
    features: dict[str, object] = {}
    for column in columns:
        if column.kind == IMAGE:
            features[column.name] = {"_type": "Image"}
        elif column.shape is not None and column.dtype is not None:
            feature: dict[str, object] = {"dtype": column.dtype.name, "_type": "Value"}
            for length in reversed(column.shape):
                feature = {"feature": feature, "length": length, "_type": "Sequence"}
            features[column.name] = feature
    return json.dumps({"info": {"features": features}}).encode()


def _plain(name: str, value: object) -> object:
    """Returns a value as columns take it: bytes decoded as the name says, other arrays as arrays of numpy.

    Raises:
        PackError: the bytes are not what the name says, or a text is not valid Unicode.
    """
    if isinstance(value, JsonText):
        return value
    if isinstance(value, str):
        encode_text(name, value)
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        read = _BY_ENDING.get(name.rpartition(".")[2].lower())
        try:
            return memoryview(value) if read is None else read(memoryview(value))
        except ConfigError:
            raise
        except Exception as error:  # each decoder has its own errors
            raise_shortage(error)
            raise PackError(f"field {name!r} is not what its name says: {type(error).__name__}: {error}") from error
    if hasattr(value, "__array__") and not isinstance(value, np.generic):
        return np.asarray(value)
    return value


def _kind(name: str, value: object) -> str:
    """Returns the kind of a value, see `OutputColumn`; raises PackError for numbers that Parquet does not have."""
    if isinstance(value, JsonText):
        return JSON
    if isinstance(value, bytes | memoryview):
        return kind_of_bytes(memoryview(value))
    if isinstance(value, str):
        return TEXT
    if isinstance(value, bool | int | float | np.generic):
        dtype = np.dtype(np.int64) if type(value) is int else np.asarray(value).dtype
        return _spell_dtype(name, dtype)
    if isinstance(value, np.ndarray):
        if 0 in value.shape[1:]:
            raise PackError(f"field {name!r} has shape {value.shape}; only the first length of an array can be 0")
        shape = ",".join(map(str, value.shape))
        return _spell_dtype(name, value.dtype) + (f"[{shape}]" if shape else "")
    return JSON


def _spell_dtype(name: str, dtype: np.dtype[np.generic]) -> str:
    """Returns a dtype as kinds have it, little-endian; raises PackError if Parquet does not have it."""
    if dtype.kind not in _NUMBER or dtype.itemsize > 8:
        raise PackError(f"field {name!r} has numbers of type {dtype}, which Parquet does not have; convert them")
    text = dtype.newbyteorder("<").str
    return _DTYPES.get(text, text)


def _is_column(name: str) -> bool:
    return name == KEY or not name.startswith("__")


def _is_numeric(kind: str) -> bool:
    """Returns whether a kind is one of numbers or arrays that a column can have."""
    try:
        column = OutputColumn("", kind)
        return (
            column.dtype is not None and column.dtype.kind in _NUMBER and min((column.shape or ())[1:], default=1) > 0
        )
    except (TypeError, ValueError):
        return False


def _merge_kinds(name: str, samples: Sequence[Mapping[str, str]]) -> str:
    """Returns a kind that holds all values of a field; raises PackError if there is none.

    Arrays of several shapes get -1 as their first length, if the other lengths are equal.
    """
    kinds = {sample[name].replace("[0", "[-1") for sample in samples if name in sample}
    for wide, narrow in ((BYTES, {IMAGE, BYTES}), ("<f8", {"<i8", "<f8"})):
        if kinds == narrow:
            return wide
    found = [OutputColumn(name, kind) for kind in kinds]
    rest = {(column.dtype, column.shape[1:]) for column in found if column.shape}
    if len(kinds) > 1 and len(rest) == 1 and all(column.shape for column in found):
        dtype, lengths = rest.pop()
        assert dtype is not None
        return f"{_spell_dtype(name, dtype)}[{','.join(map(str, (-1, *lengths)))}]"
    if len(kinds) > 1:
        one, other, *_ = sorted(kinds)
        raise PackError(
            f"field {name!r} is {one!r} in one sample and {other!r} in another, which no column can have; make all "
            "samples alike in a transform, or write tars"
        )
    return kinds.pop()


def _try_fit(column: OutputColumn, value: object) -> object | None:
    """Returns a value in the form of its column; None if it does not fit. Raises PackError for JSON."""
    if column.dtype is not None:
        given = np.asarray(value) if isinstance(value, bool | int | float | np.generic | np.ndarray) else None
        return None if given is None else _try_fit_numbers(column, column.dtype, given)
    if isinstance(value, JsonText):
        return value.decode() if column.kind == JSON else None
    if isinstance(value, bytes | memoryview):
        return bytes(value) if column.kind in (IMAGE, BYTES) else None
    if column.kind == TEXT:
        return value if isinstance(value, str) else None
    if column.kind == JSON and not isinstance(value, np.ndarray):
        return json_of(column.name, value).decode()
    return None


def _try_fit_numbers(column: OutputColumn, dtype: np.dtype[np.generic], given: NDArray[np.generic]) -> object | None:
    """Returns a number or an array in the form of its column; None if it does not fit.

    A number is converted if its value stays the same, or if the column has floats. An array must have the dtype of the
    column.
    """
    shape = column.shape
    if shape is None:
        if given.ndim or (given.dtype.kind == "b") != (dtype.kind == "b"):
            return None
        if given.dtype.kind not in _NUMBER or (given.dtype.kind == "f") > (dtype.kind == "f"):
            return None
        found = given.astype(dtype)
        return found.item() if dtype.kind == "f" or found == given else None
    fits = given.ndim == len(shape) and all(b in (-1, a) for a, b in zip(given.shape, shape, strict=True))
    # A copy: rows wait for their row group, and what made the array may use its memory again.
    return np.array(given, dtype, order="C") if fits and given.dtype == dtype else None
