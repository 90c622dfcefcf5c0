"""Names LitData's leaves and columns, and says how they are decoded; raises ValueError for what is not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from streamer.formats.base import FieldSpec

# Dtypes by their numbers; behind the last one are objects and texts.
NUMPY_DTYPES = ("|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16", "|b1")
# 10 is bfloat16.
TORCH_DTYPES = (
    *("<f4", "<f4", "<f8", "<f8", "<c8", "<c8", "<c16", "<c16", "<f2", "<f2", None, "|u1", "|i1", "<i2", "<i2"),
    *("<i4", "<i4", "<i8", "<i8", "|b1", "<u2"),
)
# An item that is not a dict, list or tuple has one leaf, without a name.
ONLY_FIELD = "item"
_MAPPINGS = frozenset({"builtins.dict", "collections.OrderedDict"})
_SEQUENCES = frozenset({"builtins.list", "builtins.tuple"})
# Others, also those of serializers that a user has made, are bytes: a `decode` rule reads them.
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
# The columns of Arrow chunks, by LitData's words for them.
_COLUMNS = {"str": "txt", "int": "<i8", "float": "<f8", "bool": "?", "bytes": "bytes"}
NESTED = "litdata-value"


class _TreeNode(msgspec.Struct):
    """A node of torch's pytree as JSON."""

    type: str | None
    context: str | None
    children_spec: list[_TreeNode]


_TREE = msgspec.json.Decoder(tuple[int, _TreeNode])
_NAMES = msgspec.json.Decoder(list[str | int])


def item_specs(tree: str, formats: Sequence[str]) -> tuple[FieldSpec, ...]:
    """Returns name and kind of each leaf from the index's tree; a name is the path to it: "image", "boxes.0"."""
    names = [path or ONLY_FIELD for path in _paths(_TREE.decode(tree)[1], "")]
    if len(names) != len(formats):
        raise ValueError(f"an item has {len(names)} leaves, and {len(formats)} formats of leaves")
    return tuple(FieldSpec(name, field_kind(word)) for name, word in zip(names, formats, strict=True))


def field_kind(word: str) -> str:
    """Returns the kind of a leaf."""
    name, _, detail = word.partition(":")
    if name in _HEADLESS:
        return f"{dtype_of(_HEADLESS[name], int(detail))}[]"
    return _KINDS.get(word) or _KINDS.get(name, "bytes")


def column_specs(types: object, tree: str, formats: Sequence[str]) -> tuple[FieldSpec, ...]:
    """Returns name and kind of each column of Arrow chunks, from the types, or from the tree if there are none."""
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
    if node.type is None:
        yield path
        return
    for name, child in zip(_child_names(node), node.children_spec, strict=True):
        yield from _paths(child, f"{path}.{name}" if path else name)


def _child_names(node: _TreeNode) -> list[str]:
    if node.type in _MAPPINGS:
        return [str(name) for name in _NAMES.decode(node.context or "")]
    if node.type in _SEQUENCES:
        return [str(number) for number in range(len(node.children_spec))]
    raise ValueError(f"an item has a {node.type}; dicts, lists and tuples are read")


def dtype_of(dtypes: tuple[str | None, ...], number: int) -> str:
    """Returns the dtype of a number; raises ValueError if it has none."""
    found = dtypes[number] if 0 <= number < len(dtypes) else None
    if found is None:
        raise ValueError(f"dtype {number} has no numbers that numpy can read without a pickle")
    return found
