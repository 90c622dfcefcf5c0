"""B-trees of version 1, which have the links of groups, and the chunks of datasets.

Source: HDF5 File Format Specification Version 3.0, III.A.1.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from streamer.formats.arrays.hdf5.held import Cursor, Hdf5Error, Held
from streamer.formats.base import Answer, Need

GROUPS, CHUNKS = 0, 1
_HEAD_BYTES = 24
# Entries that are read of a node at first: as many as it has if nothing else was asked for.
_USUAL = 64


def read_btree(
    held: Held, root: int, kind: int, key: np.dtype[np.generic]
) -> Generator[Need | tuple[Need, ...], Answer, NDArray[np.void]]:
    """The entries of all leaves, each a "key" and the address of a "child"; a level is read at once.

    Raises:
        Hdf5Error: damaged.
    """
    entry = np.dtype([("key", key), ("child", "<u8")])
    nodes, level = [root], -1
    while True:
        contents = yield from held.read_all([(node, _HEAD_BYTES + _USUAL * entry.itemsize) for node in nodes])
        heads = [_head(Cursor(content, node), kind) for node, content in zip(nodes, contents, strict=True)]
        levels = {found for found, _ in heads}
        if len(levels) > 1 or (level >= 0 and levels != {level - 1}):
            raise Hdf5Error(f"nodes of levels {sorted(levels)} below one of level {level}", root)
        level = levels.pop()
        if any(count > _USUAL for _, count in heads):
            whole = [
                (node, _HEAD_BYTES + count * entry.itemsize) for node, (_, count) in zip(nodes, heads, strict=True)
            ]
            contents = yield from held.read_all(whole)
        found = [
            np.frombuffer(Cursor(content[_HEAD_BYTES:], node).take(count * entry.itemsize), entry)
            for node, content, (_, count) in zip(nodes, contents, heads, strict=True)
        ]
        entries = np.concatenate(found)
        if level == 0:
            return entries
        nodes = entries["child"].tolist()
        if not nodes or len(set(nodes)) < len(nodes):
            raise Hdf5Error(f"{len(nodes)} nodes below a level, of which some are the same", root)


def _head(node: Cursor, kind: int) -> tuple[int, int]:
    """The level of a node, and how many entries it has."""
    node.expect(b"TREE")
    if (found := node.number(1)) != kind:
        raise Hdf5Error(f"a node of another kind, {found}", node.offset)
    return node.number(1), node.number(2)
