"""Unifies the schemas of two files to one that has the columns of both, or raises an error about two that differ.

Parquet (`facts.py`) and Arrow (`tables/arrow_ipc`) use it for the files of a dataset. A column may be missing in a
file, have no values there (Arrow's type null), or be required in one file and optional in another. Items of lists may
have different names. Types, units and shapes may not differ. The order of the files only decides the order of the
columns: those of the first file come first, then the others by their names.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from streamer.tables.parquet.schema import (
    FIXED,
    OPTIONAL,
    Element,
    SchemaNode,
    number_dtype,
    tree,
)


class DifferentError(ValueError):
    """Raised for a column that two files describe in different ways.

    Attributes:
        name: path of the column, or of the part that differs.
        types: the types in the two files, for messages.
    """

    def __init__(self, name: str, types: tuple[str, str]) -> None:
        super().__init__(f"column {name!r} is {types[0]} and {types[1]}")
        self.name = name
        self.types = types


def unify(first: SchemaNode, other: SchemaNode, leading: int | None = None) -> SchemaNode:
    """Returns a new schema that has the columns of two.

    Args:
        first: schema whose columns come first.
        other: the other schema.
        leading: number of columns of `first` that keep their places; all others are sorted by name. With None all
            columns of `first` keep their places.

    Raises:
        DifferentError: a column has two types.
    """
    merged = _merge(first, other)
    kept = len(first.children) if leading is None else leading
    rest = sorted(merged.children[kept:], key=lambda node: node.element.name)
    merged.children = [*merged.children[:kept], *rest]
    return renumber(merged)


def renumber(root: SchemaNode) -> SchemaNode:
    """Returns a new tree with the same nodes, in which paths, numbers of children and of primitives are right again."""
    elements = [
        msgspec.structs.replace(node.element, children=len(node.children)) if node.children else node.element
        for node in root.walk()
    ]
    return tree(elements, root.logicals())


def check_same(known: SchemaNode, own: SchemaNode) -> None:
    """Raises DifferentError if two descriptions of one column cannot be unified; either may lack parts of structs."""
    _merge(known, own)


def describe_type(node: SchemaNode) -> str:
    """Returns the name of a node's type, for messages."""
    if node.items() is not None:
        return f"list ({node.logical})" if node.logical else "list"
    if node.is_map:
        return "map"
    if node.children:
        return "struct"
    return f"{node.element} ({node.logical})" if node.logical else str(node.element)


def _merge(first: SchemaNode, other: SchemaNode) -> SchemaNode:
    """Returns one node for two nodes of one column, with paths and numbers as they were; raises DifferentError."""
    if first.has_no_values or other.has_no_values:
        chosen = other if first.has_no_values else first
        element = chosen.element
        return _copy(
            chosen, msgspec.structs.replace(element, repetition=OPTIONAL) if not element.repetition else element
        )
    lists = first.items(), other.items()
    if lists[0] or lists[1]:
        return _merge_lists(first, other)
    if first.is_map or other.is_map:
        if not (first.is_map and other.is_map):
            raise _different(first, other)
        entries = first.children[0]
        others = other.children[0]
        if len(entries.children) != len(others.children):
            raise _different(first, other)
        merged = []
        for own, each in zip(entries.children, others.children, strict=True):
            part = _merge(own, each)
            merged.append(_copy(part, msgspec.structs.replace(part.element, name=own.element.name)))
        return _copy(first, _widest(first, other), [_copy(entries, entries.element, merged)])
    if bool(first.children) != bool(other.children):
        raise _different(first, other)
    if first.children:
        parts = {child.element.name: child for child in other.children}
        children = [
            _merge(child, parts.pop(child.element.name)) if child.element.name in parts else child
            for child in first.children
        ]
        return _copy(first, _widest(first, other), [*children, *parts.values()])
    if _layout(first) != _layout(other):
        raise _different(first, other)
    return _copy(first, _widest(first, other))


def _merge_lists(first: SchemaNode, other: SchemaNode, inside: bool = False) -> SchemaNode:
    """Merges two lists as `_merge` does; the groups around the items are those of one of the lists.

    With `inside`, the nodes are repeated nodes, and their items are meant.
    """
    own, others = first.items(inside), other.items(inside)
    if own is None or others is None or first.logical != other.logical:
        raise _different(first, other)
    is_null = own[0].has_no_values or others[0].has_no_values
    if not is_null and (own[0].items(own[1]) or others[0].items(others[1])):
        if own[1] or others[1]:
            # The lists consist of repeated groups that are lists themselves. Such are only equal if all names are.
            if _names(own[0]) != _names(others[0]):
                raise _different(own[0], others[0])
            item = own[0]
        else:
            item = _merge_lists(own[0], others[0])
    else:
        item = _merge(_bare(own), _bare(others))
    if own[1] == others[1] and [each.element.name for each in _around(first)] == [
        each.element.name for each in _around(other)
    ]:
        base, bare = first, own[1]
    else:
        # The names decide, so that the result does not depend on the order of the files.
        base, bare = min(((first, own[1]), (other, others[1])), key=lambda each: _names(each[0]))
    # The merged item is put into the list `base`. With `bare`, its repeated node is the item itself.
    if base.is_repeated:
        return _copy(item, msgspec.structs.replace(item.element, name=base.element.name, repetition=2))
    repeated = base.children[0]
    if bare:
        element = msgspec.structs.replace(item.element, name=repeated.element.name, repetition=2)
        return _copy(base, base.element, [_copy(item, element)])
    name = repeated.children[0].element.name
    inner = _copy(item, msgspec.structs.replace(item.element, name=name))
    return _copy(base, base.element, [_copy(repeated, repeated.element, [inner])])


def _bare(item: tuple[SchemaNode, bool]) -> SchemaNode:
    """Returns the node of a list's items (see `SchemaNode.items`) as one that is not repeated."""
    node, repeated = item
    return _copy(node, msgspec.structs.replace(node.element, repetition=0)) if repeated else node


def _around(node: SchemaNode) -> list[SchemaNode]:
    """Returns the nodes between a list and its items."""
    return [node.children[0]] if node.children and not node.is_repeated else []


def _copy(node: SchemaNode, element: Element, children: Sequence[SchemaNode] | None = None) -> SchemaNode:
    kept = node.children if children is None else list(children)
    return SchemaNode(element=element, path=node.path, primitive=node.primitive, children=kept, logical=node.logical)


def _widest(first: SchemaNode, other: SchemaNode) -> Element:
    """Returns one of the elements of two nodes with the same layout, optional if one of them is.

    The choice does not depend on the order of the two.
    """
    one = first.element
    two = other.element
    repetition = max(one.repetition, two.repetition)
    chosen = min(one, two, key=lambda each: (each.type, each.length, each.meaning, each.scale, each.precision))
    return msgspec.structs.replace(chosen, repetition=repetition)


def _layout(node: SchemaNode) -> tuple[object, ...]:
    """Returns what must be equal in two descriptions of a primitive."""
    element = node.element
    if dtype := number_dtype(element):
        return dtype, element.meaning == "decimal", node.logical
    length = element.length if element.type == FIXED else 0
    return element.type, length, element.meaning if element.meaning in {"text", "json"} else "", node.logical


def _names(node: SchemaNode) -> list[str]:
    return [each.element.name for each in node.walk()]


def _different(first: SchemaNode, other: SchemaNode) -> DifferentError:
    return DifferentError(".".join(first.path), (describe_type(first), describe_type(other)))
