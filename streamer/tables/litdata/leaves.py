"""Finds the fields of LitData's items and Arrow chunks: their names, and the kinds by which they are decoded.

`tables/litdata/format.py` uses it in surveys, and `tables/foreign.py` takes the tables of dtypes from here. A leaf is a
value in the nested dict, list or tuple that an item is. What is not read raises ValueError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from streamer.formats.base import FieldSpec

# LitData's dtypes of numpy by their numbers; larger numbers are objects and texts.
NUMPY_DTYPES = ("|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16", "|b1")
# LitData's dtypes of torch by their numbers; number 10, bfloat16, does not exist in numpy.
TORCH_DTYPES = (
    *("<f4", "<f4", "<f8", "<f8", "<c8", "<c8", "<c16", "<c16", "<f2", "<f2", None, "|u1", "|i1", "<i2", "<i2"),
    *("<i4", "<i4", "<i8", "<i8", "|b1", "<u2"),
)
# Name of the only leaf of an item that is no dict, list or tuple.
ONLY_FIELD = "item"
_MAPPINGS = frozenset({"builtins.dict", "collections.OrderedDict"})
_SEQUENCES = frozenset({"builtins.list", "builtins.tuple"})
# Kinds of fields by LitData's words for leaves. Leaves with other words, such as those of a user's own serializers, are
# bytes: a `decode` rule reads them.
_KINDS = {
    **dict.fromkeys(["str", "text"], "txt"),
    "bool": "?",
    "int": "<i8",
    "float": "<f8",
    "jpeg": "jpg",
    "image": "image",
    "pil": "pil",
    "jpeg_array": "jpeg_array",
    "numpy": "litdata-numpy",
    "tensor": "litdata-tensor",
    "json": "litdata-json",
    "pickle": "pickle",
    "graph:pickle": "pickle",
}
_HEADLESS = {"no_header_numpy": NUMPY_DTYPES, "no_header_tensor": TORCH_DTYPES}
# Kinds of fields by LitData's words for the columns of Arrow chunks.
_COLUMNS = {"str": "txt", "int": "<i8", "float": "<f8", "bool": "?", "bytes": "bytes"}
NESTED = "litdata-value"


class _TreeNode(msgspec.Struct):
    """A node of torch's pytree, as its JSON has it.

    Attributes:
        type: type of a dict, list or tuple; None for a leaf.
        context: names of a dict, as JSON in a text.
        children_spec: nodes right below it.
    """

    type: str | None
    context: str | None
    children_spec: list[_TreeNode]


_TREE = msgspec.json.Decoder(tuple[int, _TreeNode])
_NAMES = msgspec.json.Decoder(list[str | int])


def item_specs(tree: str, formats: Sequence[str]) -> tuple[FieldSpec, ...]:
    """Returns name and kind of each leaf of items; the name is the path to the leaf ("image", "boxes.0").

    Args:
        tree: JSON of torch's pytree, from the index file (`data_spec`).
        formats: word for each leaf, from the index file (`data_format`).

    Raises:
        ValueError, msgspec.MsgspecError: the two do not fit, or have something that is not read.
    """
    names = [path or ONLY_FIELD for path in _paths(_TREE.decode(tree)[1], "")]
    if len(names) != len(formats):
        raise ValueError(f"an item has {len(names)} leaves, and {len(formats)} formats of leaves")
    return tuple(FieldSpec(name, field_kind(word)) for name, word in zip(names, formats, strict=True))


def field_kind(word: str) -> str:
    """Returns the kind of a field for LitData's word for a leaf; raises ValueError for a dtype that is not read."""
    name, _, detail = word.partition(":")
    if name in _HEADLESS:
        return f"{dtype_of(_HEADLESS[name], int(detail))}[]"
    return _KINDS.get(word) or _KINDS.get(name, "bytes")


def column_specs(types: object, tree: str, formats: Sequence[str]) -> tuple[FieldSpec, ...]:
    """Returns name and kind of each column of Arrow chunks.

    Args:
        types: the types of columns in the index file; if it has none, the next two are used.
        tree: JSON of torch's pytree, from the index file.
        formats: word for each leaf, from the index file.

    Raises:
        ValueError, msgspec.MsgspecError: the index file has something that is not read.
    """
    words: Mapping[str, Any]
    if isinstance(types, Mapping) and types:
        words = types
    else:
        root = _TREE.decode(tree)[1]
        if root.type not in _MAPPINGS:
            raise ValueError(f"items of type {root.type}, not dicts, in Arrow chunks")
        words = {}
        left = iter(formats)
        for name, child in zip(_child_names(root), root.children_spec, strict=True):
            own = [next(left, "") for _ in _paths(child, "")]
            words[name] = own[0] if child.type is None else ""
    specs = []
    for name, word in words.items():
        kind = word.get("type") if isinstance(word, Mapping) else word
        known = _COLUMNS.get(kind, NESTED) if isinstance(kind, str) else NESTED
        specs.append(FieldSpec(str(name), known))
    return tuple(specs)


def _paths(node: _TreeNode, path: str) -> Iterator[str]:
    """Yields the path to each leaf at or below a node, whose own path is `path`."""
    if node.type is None:
        yield path
        return
    for name, child in zip(_child_names(node), node.children_spec, strict=True):
        yield from _paths(child, f"{path}.{name}" if path else name)


def _child_names(node: _TreeNode) -> list[str]:
    """Returns the names of a dict's values, or the numbers of a list's; raises ValueError for another type."""
    if node.type in _MAPPINGS:
        return [str(name) for name in _NAMES.decode(node.context or "")]
    if node.type in _SEQUENCES:
        return [str(number) for number in range(len(node.children_spec))]
    raise ValueError(f"an item has a {node.type}; dicts, lists and tuples are read")


def dtype_of(dtypes: tuple[str | None, ...], number: int) -> str:
    """Returns the dtype with this number in NUMPY_DTYPES or TORCH_DTYPES; raises ValueError if there is none."""
    found = dtypes[number] if 0 <= number < len(dtypes) else None
    if found is None:
        raise ValueError(f"dtype {number} has no numbers that numpy can read without a pickle")
    return found
