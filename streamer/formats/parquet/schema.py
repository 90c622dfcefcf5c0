"""The schema of Parquet: a tree of columns, and the fields that samples get from it.

A column is a primitive, which has values, or a group of columns; the bytes of each primitive are apart.

| column | field |
| --- | --- |
| number, boolean, date, time, timestamp | number; dates and times as the integers that the file has |
| decimal | number of 64 bits |
| text | text |
| bytes | bytes; a picture where they begin like one |
| list of numbers | array |
| struct | its parts, as "a.b" |
| another list, or a map | JSON |

Columns that Hugging Face's datasets describe in the file: `Image` is a picture, `Audio` and `Video` bytes, `ClassLabel`
a number whose names are the dataset's classes, a list of lists of fixed length an array of that shape.

Source: https://github.com/apache/parquet-format/blob/master/LogicalTypes.md
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from streamer.formats.base import FieldSpec
from streamer.formats.parquet.thrift import Struct, ThriftError

BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = range(8)
REQUIRED, OPTIONAL, REPEATED = range(3)

# Bytes of a value; byte arrays have none.
WIDTHS = {BOOLEAN: 1, INT32: 4, INT64: 8, INT96: 8, FLOAT: 4, DOUBLE: 8}
_TYPES = ("boolean", "int32", "int64", "int96", "float", "double", "bytes", "bytes of fixed length")
_DTYPES = {BOOLEAN: "?", INT32: "<i4", INT64: "<i8", INT96: "<i8", FLOAT: "<f4", DOUBLE: "<f8"}
_DEEPEST = 32
# ConvertedType and LogicalType, as one word.
_CONVERTED = {
    **dict(enumerate(["text", "map", "map", "list", "text", "decimal"])),
    **dict(enumerate(["u1", "<u2", "<u4", "<u8", "i1", "<i2"], start=11)),
    19: "json",
}
_LOGICAL = {1: "text", 2: "map", 3: "list", 4: "text", 5: "decimal", 12: "json", 15: "<f2"}
_INTEGERS = {(8, True): "i1", (16, True): "<i2", (8, False): "u1", (16, False): "<u2", (32, False): "<u4"}
_INTEGERS[64, False] = "<u8"
_BYTES_FEATURES = ("Audio", "Image", "Nifti", "Pdf", "Video")


class Element(msgspec.Struct, frozen=True, array_like=True):
    """A node of the schema, as far as it concerns the values.

    Attributes:
        name: of the column, or of the part of it.
        children: how many of the elements after it are below it; 0: it has values.
        type: of the values; -1: none.
        length: of values of fixed length.
        repetition: REQUIRED, OPTIONAL or REPEATED.
        meaning: "text", "json", "list", "map", "decimal", a dtype, or "".
        scale, precision: of decimals.
    """

    name: str
    children: int = 0
    type: int = -1
    length: int = 0
    repetition: int = REQUIRED
    meaning: str = ""
    scale: int = 0
    precision: int = 0

    def __str__(self) -> str:
        what = _TYPES[self.type] if self.type >= 0 else "group"
        details = [("required", "optional", "repeated")[self.repetition], what]
        if self.meaning:
            details.append(f"({self.meaning})")
        return " ".join(details)


@dataclass
class Node:
    """An element and what is below it.

    Attributes:
        element: this one.
        path: names from the column down to it.
        children: below it.
        primitive: number of the first primitive at or below it.
        primitives: how many primitives are at or below it.
    """

    element: Element
    path: tuple[str, ...]
    primitive: int
    children: list[Node] = field(default_factory=list)

    @property
    def primitives(self) -> int:
        """How many primitives there are at or below it."""
        return sum(child.primitives for child in self.children) if self.children else 1

    def child(self, name: str) -> Node | None:
        """The child of that name."""
        return next((child for child in self.children if child.element.name == name), None)

    def items(self, inside: bool = False) -> tuple[Node, bool] | None:
        """The node of a list's items, and whether that is a repeated node whose items they are; None: it is no list.

        Args:
            inside: of a repeated node: one of its items is meant.
        """
        if self.is_repeated and not inside:
            return self, True
        repeated = self.children[0] if self.element.meaning == "list" and self._has_repeated_child else None
        if repeated is None:
            return None
        name, inner = repeated.element.name, repeated.children
        if len(inner) != 1 or name == "array" or name.endswith("_tuple") or inner[0].is_repeated:
            return repeated, True
        return inner[0], False

    @property
    def is_repeated(self) -> bool:
        """Whether it occurs several times."""
        return self.element.repetition == REPEATED

    @property
    def is_nested(self) -> bool:
        """Whether its value is more than one value of a primitive."""
        return bool(self.children) or self.is_repeated

    @property
    def is_map(self) -> bool:
        """Whether its value is a map."""
        return self.element.meaning == "map" and self._has_repeated_child and bool(self.children[0].children)

    @property
    def _has_repeated_child(self) -> bool:
        return len(self.children) == 1 and self.children[0].is_repeated


def read_element(struct: Struct) -> Element:
    """Reads a SchemaElement.

    Raises:
        ThriftError: another struct.
    """
    children = struct.integer(5, 0)
    kind = struct.integer(1, -1)
    if children:
        kind = -1
    elif not BOOLEAN <= kind <= FIXED:
        raise ThriftError(f"a column of type {kind}, which is not known")
    repetition = struct.integer(3, REQUIRED)
    length = struct.integer(2, 0) if kind == FIXED else 0
    if not REQUIRED <= repetition <= REPEATED or length < 0 or children < 0:
        raise ThriftError(f"repetition {repetition}, length {length}, {children} children")
    meaning = _meaning(struct)
    scale, precision = (struct.integer(7, 0), struct.integer(8, 0)) if meaning == "decimal" else (0, 0)
    name = struct.binary(4).decode("utf-8", "replace")
    return Element(name, children, kind, length, repetition, meaning, scale, precision)


def _meaning(struct: Struct) -> str:
    if 10 in struct:
        number, logical = struct.struct(10).only()
        if number == 10:
            return _INTEGERS.get((logical.integer(1), logical.flag(2)), "")
        if number in _LOGICAL:
            return _LOGICAL[number]
    return _CONVERTED.get(struct.integer(6, -1), "")


def tree(elements: Sequence[Element]) -> Node:
    """The schema as a tree: the root.

    Raises:
        ThriftError: the elements are no tree.
    """
    rest = iter(elements)
    try:
        root, _ = _subtree(rest, (), 0, 0)
    except StopIteration:
        raise ThriftError("the schema is cut off") from None
    if (extra := sum(1 for _ in rest)) or not root.children:
        raise ThriftError(f"{extra} elements of the schema are below nothing, of {len(elements)}")
    return root


def _subtree(rest: Iterator[Element], path: tuple[str, ...], primitive: int, depth: int) -> tuple[Node, int]:
    if depth > _DEEPEST:
        raise ThriftError(f"columns nested more than {_DEEPEST} deep")
    node = Node(element := next(rest), path + (element.name,) * bool(depth), primitive)
    for _ in range(element.children):
        child, primitive = _subtree(rest, node.path, primitive, depth + 1)
        node.children.append(child)
    names = [child.element.name for child in node.children]
    if len(set(names)) < len(names):
        raise ThriftError(f"two columns of the same name among {', '.join(names)}")
    return node, primitive if element.children else primitive + 1


def elements_of(node: Node) -> list[Element]:
    """The elements of a tree, in the order of a footer."""
    return [node.element, *(element for child in node.children for element in elements_of(child))]


def primitives_of(node: Node) -> list[tuple[Node, ...]]:
    """The ways from below `node` to each primitive."""
    if not node.children:
        return [()]
    return [(child, *rest) for child in node.children for rest in primitives_of(child)]


def node_at(root: Node, path: Sequence[str]) -> Node:
    """The node of a path.

    Raises:
        KeyError: there is none.
    """
    for name in path:
        found = root.child(name)
        if found is None:
            raise KeyError(".".join(path))
        root = found
    return root


def pruned(node: Node, paths: Sequence[tuple[str, ...]]) -> Node:
    """The tree of the nodes on the way to `paths`, and all below those."""
    root, _ = _pruned(node, set(paths), 0)
    return root


def _pruned(node: Node, paths: set[tuple[str, ...]], primitive: int) -> tuple[Node, int]:
    kept = Node(node.element, node.path, primitive)
    for child in node.children:
        whole = child.path in paths
        if whole or any(path[: len(child.path)] == child.path for path in paths):
            below, primitive = _pruned(child, {each.path for each in child.children} if whole else paths, primitive)
            kept.children.append(below)
    kept.element = msgspec.structs.replace(node.element, children=len(kept.children))
    return kept, primitive if kept.children else primitive + 1


class Field(msgspec.Struct, frozen=True):
    """A field of the samples, and the column that it is made of.

    Attributes:
        name, kind: see `streamer.formats.base.Field`.
        path: of the node that has its values.
        classes: names of the classes, where it is a label.
    """

    name: str
    kind: str
    path: tuple[str, ...]
    classes: tuple[str, ...] = ()

    @property
    def spec(self) -> FieldSpec:
        """As the manifest has it."""
        return FieldSpec(self.name, self.kind)


def fields_of(root: Node, features: object) -> list[Field]:
    """The fields of the samples, in the order of the columns.

    Args:
        root: the schema.
        features: Hugging Face's description of the columns by name, or anything else.
    """
    return [found for child in root.children for found in _fields(child, _part(features, child.element.name))]


def _fields(node: Node, feature: object) -> list[Field]:
    name = ".".join(node.path)
    details = feature if isinstance(feature, dict) else {}
    kind = details.get("_type")
    if kind in _BYTES_FEATURES and (content := node.child("bytes")) and _is_bytes(content):
        return [Field(name, "image" if kind == "Image" else "bytes", content.path)]
    if node.items():
        return [Field(name, _list_kind(node, _lengths(feature)), node.path)]
    if node.is_map:
        return [Field(name, "json", node.path)]
    if not node.children:
        if kind in _BYTES_FEATURES and _is_bytes(node):
            return [Field(name, "image" if kind == "Image" else "bytes", node.path)]
        classes = _names(details) if kind == "ClassLabel" else ()
        return [Field(name, _primitive_kind(node.element), node.path, classes)]
    return [found for child in node.children for found in _fields(child, _part(feature, child.element.name))]


def _is_bytes(node: Node) -> bool:
    return node.element.type == BYTE_ARRAY and not node.is_repeated


def _primitive_kind(element: Element) -> str:
    if dtype := number_dtype(element):
        return dtype
    if element.type == BYTE_ARRAY:
        return {"text": "txt", "json": "json"}.get(element.meaning, "")
    return "bytes"


def number_dtype(element: Element) -> str:
    """The dtype of a primitive of numbers; "" for others."""
    if element.meaning == "decimal":
        return "<f8"
    if element.meaning == "<f2":
        return "<f2" if element.type == FIXED and element.length == 2 else ""
    physical = _DTYPES.get(element.type, "")
    return element.meaning if physical in {"<i4", "<i8"} and element.meaning[-1:].isdigit() else physical


def _list_kind(node: Node, lengths: tuple[int, ...]) -> str:
    """Of numbers: "<f4[]", or "<f4[-1,4]" where all lengths but one are known; else JSON."""
    depth, inside = 0, False
    while found := node.items(inside):
        node, inside = found
        depth += 1
    dtype = "" if node.children else number_dtype(node.element)
    shape = lengths if len(lengths) == depth else (-1,) * depth
    if not dtype or shape.count(-1) > 1:
        return "json"
    return f"{dtype}[]" if shape == (-1,) else f"{dtype}[{','.join(map(str, shape))}]"


def _lengths(feature: object) -> tuple[int, ...]:
    """The lengths of nested lists as datasets describe them; -1: not the same for all."""
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
    """The description of a part of a struct."""
    if not isinstance(feature, dict):
        return None
    inner = feature.get("feature")
    if feature.get("_type") == "Sequence" and isinstance(inner, dict) and "_type" not in inner:
        # A list of structs, written as a struct of lists.
        return {"_type": "List", "feature": inner.get(name), "length": feature.get("length")}
    return feature.get(name)


def _names(feature: dict[object, object]) -> tuple[str, ...]:
    names = feature.get("names")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def classes_of(fields: Sequence[Field]) -> tuple[str, ...]:
    """The names of the classes: those of the field "label", or of the only field that has any."""
    labels = [found for found in fields if found.classes]
    chosen = [found for found in labels if found.name == "label"] or labels
    return chosen[0].classes if len(chosen) == 1 else ()
