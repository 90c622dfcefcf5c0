"""Reads the schema of a Parquet file into a tree of nodes, and prunes it.

`tables/parquet` uses the tree, and `tables/arrow_ipc` describes Arrow's schemas with it. A node is a primitive,
which has values, or a group of nodes. The nodes right below the root are the columns. In a file the bytes of each
primitive are apart.

Source: https://github.com/apache/parquet-format/blob/master/LogicalTypes.md
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from streamer.formats.failures import DamagedError, UnreadError
from streamer.tables.parquet.thrift import Struct

BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = range(8)
REQUIRED, OPTIONAL, REPEATED = range(3)

# Bytes of a value in a record, by type; byte arrays have no fixed width.
_WIDTHS = {BOOLEAN: 1, INT32: 4, INT64: 8, INT96: 8, FLOAT: 4, DOUBLE: 8}
_TYPES = ("boolean", "int32", "int64", "int96", "float", "double", "bytes", "bytes of fixed length")
_DTYPES = {BOOLEAN: "?", INT32: "<i4", INT64: "<i8", INT96: "<i8", FLOAT: "<f4", DOUBLE: "<f8"}
_DEEPEST = 32
# Meanings (`Element.meaning`) by number of a ConvertedType, and of a LogicalType.
_CONVERTED = {
    **dict(enumerate(["text", "map", "map", "list", "text", "decimal"])),
    **dict(enumerate(["u1", "<u2", "<u4", "<u8", "i1", "<i2"], start=11)),
    19: "json",
}
_LOGICAL = {1: "text", 2: "map", 3: "list", 4: "text", 5: "decimal", 12: "json", 15: "<f2"}
# Meanings that a LogicalType or ConvertedType has besides the layout of values (`SchemaNode.logical`), by number.
_TIME = 7
_TIMESTAMP = 8
_LOGICAL_NAMES = {6: "date", 11: "null", 14: "uuid", 16: "variant", 17: "geometry", 18: "geography"}
_UNITS = {1: "ms", 2: "us", 3: "ns"}
_CONVERTED_LOGICAL = {6: "date", 7: "time[ms]", 8: "time[us]", 9: "timestamp[ms, UTC]", 10: "timestamp[us, UTC]"}
_CONVERTED_LOGICAL[21] = "interval"
NO_VALUES = "null"
# Type of integers that have 128 bits in Arrow's schema; in Parquet they are bytes.
WIDE_INTEGER = "int128"
_INTEGERS = {(8, True): "i1", (16, True): "<i2", (8, False): "u1", (16, False): "<u2", (32, False): "<u4"}
_INTEGERS[64, False] = "<u8"


class Element(msgspec.Struct, frozen=True, array_like=True):
    """What a schema says of one node, as far as it concerns the values.

    Attributes:
        name: name of the column, or of a part of it.
        children: number of nodes right below this one, or 0 for a primitive.
        type: type of a primitive's values (BOOLEAN to FIXED), or -1 for a group.
        length: bytes of each value of the type FIXED; else 0.
        repetition: REQUIRED, OPTIONAL or REPEATED.
        meaning: "text", "json", "list", "map", "decimal", a dtype for integers and float16, or "".
        scale: digits of a decimal behind the point.
        precision: digits of a decimal.
    """

    name: str
    children: int = 0
    type: int = -1
    length: int = 0
    repetition: int = REQUIRED
    meaning: str = ""
    scale: int = 0
    precision: int = 0

    @property
    def width(self) -> int:
        """Bytes of a value in a record; 0 if values differ in length."""
        return 8 if self.meaning == "decimal" else self.length or _WIDTHS.get(self.type, 0)

    def __str__(self) -> str:
        what = _TYPES[self.type] if self.type >= 0 else "group"
        details = [("required", "optional", "repeated")[self.repetition], what]
        if self.meaning:
            details.append(f"({self.meaning})")
        return " ".join(details)


@dataclass
class SchemaNode:
    """A node of the tree, with those below it.

    Attributes:
        element: what the schema says of the node.
        path: names of the nodes from the column down to this one; empty for the root.
        primitive: number of the first primitive at or below the node.
        children: the nodes right below it.
        logical: the meaning of its values that their layout does not tell, such as "timestamp[us, UTC]". "null" is
            Arrow's type without values, "tensor[2,3]" gives the shape of the numbers in a list. "" if there is no such
            meaning. The files of a dataset must agree in it.
    """

    element: Element
    path: tuple[str, ...]
    primitive: int
    children: list[SchemaNode] = field(default_factory=list)
    logical: str = ""

    @property
    def primitives(self) -> int:
        """Number of primitives at or below the node."""
        return sum(child.primitives for child in self.children) if self.children else 1

    def child(self, name: str) -> SchemaNode | None:
        """Returns the child with this name; None if there is none."""
        return next((child for child in self.children if child.element.name == name), None)

    def items(self, inside: bool = False) -> tuple[SchemaNode, bool] | None:
        """Returns the node of a list's items, and whether it is the repeated node itself; None if this is no list.

        A repeated node stands for a list and for each of its items. With `inside` the node is taken as one item, not as
        the list.
        """
        if self.is_repeated and not inside:
            return self, True
        repeated = self.children[0] if self.element.meaning == "list" and self._has_repeated_child else None
        if repeated is None:
            return None
        name = repeated.element.name
        inner = repeated.children
        if len(inner) != 1 or name == "array" or name.endswith("_tuple") or inner[0].is_repeated:
            return repeated, True
        return inner[0], False

    def at(self, path: Sequence[str]) -> SchemaNode:
        """Returns the node at a path below this one; raises KeyError if there is none."""
        node: SchemaNode | None = self
        for name in path:
            node = node.child(name) if node else None
        if node is None:
            raise KeyError(".".join(path))
        return node

    def elements(self) -> list[Element]:
        """Returns the elements of the tree, in the order of a footer."""
        return [node.element for node in self.walk()]

    def logicals(self) -> dict[int, str]:
        """Returns `logical` of the nodes that have one, by their place in `elements`."""
        return {number: node.logical for number, node in enumerate(self.walk()) if node.logical}

    def walk(self) -> Iterator[SchemaNode]:
        """Yields the node and all below it, in the order of a footer: each before its children."""
        yield self
        for child in self.children:
            yield from child.walk()

    def find_paths(self) -> list[tuple[SchemaNode, ...]]:
        """Returns, for each primitive, the nodes from below this one down to the primitive."""
        return [(child, *rest) for child in self.children for rest in child.find_paths()] if self.children else [()]

    @property
    def is_repeated(self) -> bool:
        """Whether the node can occur any number of times."""
        return self.element.repetition == REPEATED

    @property
    def is_nested(self) -> bool:
        """Whether a value of the node is more than one value of a primitive."""
        return bool(self.children) or self.is_repeated

    @property
    def has_no_values(self) -> bool:
        """Whether the node has Arrow's type null."""
        return self.logical == NO_VALUES and not self.children

    @property
    def is_list_of_nulls(self) -> bool:
        """Whether the node is a list whose items have Arrow's type null, or a list of such lists."""
        node: SchemaNode = self
        inside = False
        while found := node.items(inside):
            node, inside = found
        return node is not self and node.has_no_values

    @property
    def is_map(self) -> bool:
        """Whether a value of the node is a map."""
        return self.element.meaning == "map" and self._has_repeated_child and bool(self.children[0].children)

    @property
    def _has_repeated_child(self) -> bool:
        return len(self.children) == 1 and self.children[0].is_repeated


def read_element(struct: Struct) -> Element:
    """Parses a SchemaElement of a footer; raises DamagedError if a field is missing or has no possible value."""
    children = struct.integer(5, 0)
    kind = struct.integer(1, -1)
    if children:
        kind = -1
    elif not BOOLEAN <= kind <= FIXED:
        raise DamagedError(f"a column of type {kind}, which is not known")
    repetition = struct.integer(3, REQUIRED)
    length = struct.integer(2, 0) if kind == FIXED else 0
    if not REQUIRED <= repetition <= REPEATED or length < 0 or children < 0:
        raise DamagedError(f"repetition {repetition}, length {length}, {children} children")
    meaning = None
    if 10 in struct:
        number, logical = struct.struct(10).only()
        is_integer = number == 10
        meaning = _INTEGERS.get((logical.integer(1), logical.flag(2)), "") if is_integer else _LOGICAL.get(number)
    if meaning is None:
        meaning = _CONVERTED.get(struct.integer(6, -1), "")
    scale, precision = (struct.integer(7, 0), struct.integer(8, 0)) if meaning == "decimal" else (0, 0)
    name = struct.binary(4).decode("utf-8", "replace")
    return Element(
        name=name,
        children=children,
        type=kind,
        length=length,
        repetition=repetition,
        meaning=meaning,
        scale=scale,
        precision=precision,
    )


def read_logical(struct: Struct) -> str:
    """Returns `SchemaNode.logical` from the LogicalType or ConvertedType of a SchemaElement; "" if it has none."""
    if struct.integer(1, -1) == INT96:
        return "timestamp[INT96]"
    if 10 not in struct:
        return _CONVERTED_LOGICAL.get(struct.integer(6, -1), "")
    number, logical = struct.struct(10).only()
    if number in {_TIME, _TIMESTAMP}:
        unit = _UNITS.get(logical.struct(2).only()[0], "")
        # Times of day have no zone in any library.
        zone = ", UTC" if number == _TIMESTAMP and logical.flag(1) else ""
        return f"{'time' if number == _TIME else 'timestamp'}[{unit}{zone}]"
    return _LOGICAL_NAMES.get(number, "")


def tree(elements: Sequence[Element], logicals: Mapping[int, str] | None = None) -> SchemaNode:
    """Returns the root of the tree of a schema.

    Args:
        elements: the elements, in the order of a footer.
        logicals: `SchemaNode.logical` by the place of the element; None for none.

    Raises:
        DamagedError: the elements do not form a tree, or are nested more than 32 deep.
        UnreadError: two nodes right below one have the same name.
    """
    rest = iter(elements)
    try:
        root, _ = _subtree(rest, (), 0, 0)
    except StopIteration:
        raise DamagedError("the schema is cut off") from None
    if (extra := sum(1 for _ in rest)) or not root.children:
        raise DamagedError(f"{extra} elements of the schema are below nothing, of {len(elements)}")
    for number, node in enumerate(root.walk() if logicals else ()):
        node.logical = (logicals or {}).get(number, "")
    return root


def _subtree(rest: Iterator[Element], path: tuple[str, ...], primitive: int, depth: int) -> tuple[SchemaNode, int]:
    """Takes a node and all below it from `rest`; returns the node, and the number of the next primitive."""
    if depth > _DEEPEST:
        raise DamagedError(f"columns nested more than {_DEEPEST} deep")
    node = SchemaNode(element := next(rest), path + (element.name,) * bool(depth), primitive)
    for _ in range(element.children):
        child, primitive = _subtree(rest, node.path, primitive, depth + 1)
        node.children.append(child)
    names = [child.element.name for child in node.children]
    if len(set(names)) < len(names):
        raise UnreadError(
            f"two columns of the same name among {', '.join(names)}, and a sample has one field of a name"
        )
    return node, primitive if element.children else primitive + 1


def prune(node: SchemaNode, paths: Sequence[tuple[str, ...]]) -> SchemaNode:
    """Returns a new tree with the nodes at `paths`, all below them, and those on the way; numbers its primitives."""
    root, _ = _prune(node, set(paths), 0)
    return root


def _prune(node: SchemaNode, paths: set[tuple[str, ...]], primitive: int) -> tuple[SchemaNode, int]:
    """Copies a node with what `prune` keeps of it; returns the copy, and the number of the next primitive."""
    kept = SchemaNode(node.element, node.path, primitive, logical=node.logical)
    for child in node.children:
        whole = child.path in paths
        if whole or any(path[: len(child.path)] == child.path for path in paths):
            below, primitive = _prune(child, {each.path for each in child.children} if whole else paths, primitive)
            kept.children.append(below)
    kept.element = msgspec.structs.replace(node.element, children=len(kept.children))
    return kept, primitive if kept.children else primitive + 1


def number_dtype(element: Element) -> str:
    """Returns the dtype in which a record has the values of a primitive; "" if they are no numbers."""
    if element.meaning == "decimal":
        return "<f8"
    if element.meaning == "<f2":
        return "<f2" if element.type == FIXED and element.length == 2 else ""
    physical = _DTYPES.get(element.type, "")
    return element.meaning if physical in {"<i4", "<i8"} and element.meaning[-1:].isdigit() else physical


def tensor_shape(node: SchemaNode) -> tuple[int, ...]:
    """Returns the shape of a list that is a tensor; () for other nodes."""
    if not node.logical.startswith("tensor["):
        return ()
    return tuple(map(int, node.logical.removeprefix("tensor[").removesuffix("]").split(",")))
