"""Finds the fields that samples get from the columns of a schema. Parquet and Arrow use it.

| column | field |
| --- | --- |
| number, boolean, date, time, timestamp | number; dates and times as the integers that the file has |
| decimal | number of 64 bits |
| text | text |
| bytes | bytes, or an image if they begin like one; of a fixed length always bytes |
| list of numbers | array |
| struct | its parts, as "a.b" |
| another list, or a map | list, or dict |

Hugging Face's datasets describe columns in the metadata of a file ("features"). A column that they call `Image` is an
image, `Audio`, `Video`, `Pdf` and `Nifti` are bytes, `ClassLabel` is a number and its names are the dataset's classes,
and `Json` is the value of its JSON text. A list of lists of fixed length is an array of that shape.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import msgspec

from streamer.formats.base import FieldSpec
from streamer.manifest.model import NESTED
from streamer.tables.parquet.schema import BYTE_ARRAY, SchemaNode, number_dtype, tensor_shape

_BYTES_FEATURES = ("Audio", "Image", "Nifti", "Pdf", "Video")


class ColumnField(msgspec.Struct, frozen=True):
    """A field of the samples.

    Attributes:
        name: Name of the field: names of nodes, joined by dots.
        kind: Kind of the field, see `formats.base.Field`.
        path: Path of the node that has its values.
        classes: Names of the classes if the field is a label; else empty.
        meanings: For a nested field, pairs of the path of a node in it and "image", "bytes" or "json", if the features
            describe that node so.
        is_named_only: Whether samples have the field only if it is named among the wanted columns. This is true for the
            path beside the bytes of a file.
    """

    name: str
    kind: str
    path: tuple[str, ...]
    classes: tuple[str, ...] = ()
    meanings: tuple[tuple[tuple[str, ...], str], ...] = ()
    is_named_only: bool = False

    def is_among(self, columns: Sequence[str]) -> bool:
        """Whether the field is one of the wanted columns, or a part of one; without columns all fields are wanted."""
        return self.name in columns if self.is_named_only else is_among(self.name, columns)

    @property
    def spec(self) -> FieldSpec:
        """The field as the manifest has it."""
        return FieldSpec(self.name, self.kind)


def features_of(metadata: str | bytes) -> object:
    """Returns the features from the JSON that Hugging Face's datasets write; None if `metadata` has none."""
    try:
        return json.loads(metadata)["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def is_among(name: str, columns: Sequence[str]) -> bool:
    """Whether a field of this name is one of the columns, or a part of one; True if there are no columns."""
    return not columns or any(name == column or name.startswith(f"{column}.") for column in columns)


def list_fields(root: SchemaNode, features: object) -> list[ColumnField]:
    """Returns the fields that samples can have, in the order of the columns.

    Args:
        root: Root of the schema.
        features: Result of `features_of`.
    """
    return [found for child in root.children for found in _fields(child, _part(features, child.element.name))]


def select_fields(root: SchemaNode, features: object, columns: Sequence[str]) -> list[ColumnField]:
    """Returns those fields of `list_fields` that are wanted; `columns` are their names, empty for all."""
    return [field for field in list_fields(root, features) if field.is_among(columns)]


def _fields(node: SchemaNode, feature: object) -> list[ColumnField]:
    """Returns the fields of a node: one, or those of the parts of a struct. `feature` describes the node."""
    name = ".".join(node.path)
    details = feature if isinstance(feature, dict) else {}
    kind = details.get("_type")
    if kind in _BYTES_FEATURES and (content := node.child("bytes")) and _is_bytes(content):
        path = node.child("path")
        has_path = path is not None and _is_bytes(path) and path.element.meaning == "text"
        paths = [ColumnField(f"{name}.path", "txt", path.path, is_named_only=True)] if path and has_path else []
        return [ColumnField(name, "image" if kind == "Image" else "bytes", content.path), *paths]
    if node.items() or node.is_map:
        of_list = _list_kind(node, _lengths(feature)) if node.items() else NESTED
        return [
            ColumnField(name, of_list, node.path, meanings=tuple(_meanings(node, feature)) if of_list == NESTED else ())
        ]
    if not node.children:
        # A text in such a column is the path of a file, and no content.
        if kind in _BYTES_FEATURES and _is_bytes(node) and node.element.meaning != "text":
            return [ColumnField(name, "image" if kind == "Image" else "bytes", node.path)]
        if kind == "Json" and _is_bytes(node):
            return [ColumnField(name, "json", node.path)]
        names = details.get("names") if kind == "ClassLabel" else None
        classes = tuple(map(str, names)) if isinstance(names, list) else ()
        texts = {"text": "txt", "json": "json"}
        of_bytes = texts.get(node.element.meaning, "") if node.element.type == BYTE_ARRAY else "bytes"
        return [ColumnField(name, number_dtype(node.element) or of_bytes, node.path, classes)]
    return [found for child in node.children for found in _fields(child, _part(feature, child.element.name))]


def _meanings(node: SchemaNode, feature: object, inside: bool = False) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields the path and the meaning of each node of bytes in a nested value that the features describe.

    With `inside`, `node` is a repeated node, and one of its items is meant.
    """
    details = feature if isinstance(feature, dict) else {}
    kind = details.get("_type")
    content = node.child("bytes") if node.children else node
    if found := node.items(inside):
        item = feature[0] if isinstance(feature, list) and feature else details.get("feature")
        yield from _meanings(found[0], item, found[1])
    elif kind in {*_BYTES_FEATURES, "Json"} and content and _is_bytes(content, inside):
        yield node.path, {"Image": "image", "Json": "json"}.get(kind, "bytes")
    else:
        for child in node.children:
            yield from _meanings(child, _part(feature, child.element.name))


def _is_bytes(node: SchemaNode, inside: bool = False) -> bool:
    return node.element.type == BYTE_ARRAY and (inside or not node.is_repeated)


def has_children(spec: FieldSpec, node: SchemaNode) -> bool:
    """Whether the values of a field are nested. In manifests of version 0.1 the kind of nested fields is "json"."""
    return spec.kind == NESTED or (spec.kind == "json" and node.is_nested)


def _list_kind(node: SchemaNode, lengths: tuple[int, ...]) -> str:
    """Returns the kind of a field of lists: an array ("<f4[]", "<f4[-1,4]") or "nested".

    It is an array if the items are numbers, and at most one length varies.

    Args:
        node: node of the field.
        lengths: lengths that the features give for each level of lists; -1 if a length varies.
    """
    depth = 0
    inside = False
    shaped = tensor_shape(node)
    if shaped and (found := node.items()) and not found[0].is_nested and (dtype := number_dtype(found[0].element)):
        return f"{dtype}[{','.join(map(str, shaped))}]"
    while found := node.items(inside):
        node, inside = found
        depth += 1
    dtype = "" if node.children or node.has_no_values else number_dtype(node.element)
    shape = lengths if len(lengths) == depth else (-1,) * depth
    if not dtype or shape.count(-1) > 1:
        return NESTED
    return f"{dtype}[]" if shape == (-1,) else f"{dtype}[{','.join(map(str, shape))}]"


def _lengths(feature: object) -> tuple[int, ...]:
    """Returns the length of each level of lists as the features describe them; -1 for a length that varies."""
    if not isinstance(feature, dict):
        return ()
    shape = feature.get("shape")
    if str(feature.get("_type")).startswith("Array") and isinstance(shape, list):
        return tuple(_length(length) for length in shape)
    if feature.get("_type") in {"List", "LargeList", "Sequence"}:
        return (_length(feature.get("length")), *_lengths(feature.get("feature")))
    return ()


def _length(given: object) -> int:
    return given if type(given) is int and given >= 0 else -1


def _part(feature: object, name: str) -> object:
    """Returns the feature of a part of a struct; None if there is none."""
    if not isinstance(feature, dict):
        return None
    inner = feature.get("feature")
    if feature.get("_type") == "Sequence" and isinstance(inner, dict) and "_type" not in inner:
        # The feature is a list of structs, which is written as a struct of lists.
        return {"_type": "List", "feature": inner.get(name), "length": feature.get("length")}
    return feature.get(name)


def classes_of(fields: Sequence[ColumnField]) -> tuple[str, ...]:
    """Returns the names of the dataset's classes: those of the field "label", or of the only field that has classes.

    Returns () if there is no such field.
    """
    labels = [found for found in fields if found.classes]
    chosen = [found for found in labels if found.name == "label"] or labels
    return chosen[0].classes if len(chosen) == 1 else ()
