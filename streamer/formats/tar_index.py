"""Parses index files of tars, which say where samples are.

    x.tar.idx, x.idx    Megatron Energon's: uint64, where each sample begins and where the last one ends
    x.idx               DALI's (`wds2idx`): "v1.2 <samples>", then for each sample a line of "ending offset size name"
                        for each of its entries; the offset is that of an entry's content

The `wids` index of webdataset says how many samples a tar has, but not where: it does not help.
"""

from __future__ import annotations

from itertools import pairwise
from struct import iter_unpack

from streamer.formats.failures import DamagedError
from streamer.formats.tar import BLOCK, padded, parse_header

ENDINGS = (".idx", "/.idx")
# The headers of the first and of the last sample.
PROBE_BYTES = 2 * BLOCK
_DALI = b"v1."


def sample_edges(content: bytes, size: int) -> list[int]:
    """Returns where the samples of a tar of `size` bytes begin, and the end; raises ValueError for another index."""
    if content.startswith(_DALI):
        edges = _dali_edges(content)
    elif len(content) % 8:
        raise ValueError("it has neither offsets (Energon) nor lines (DALI)")
    else:
        edges = [edge for (edge,) in iter_unpack("<Q", content)]
    apart = all(stop - first >= BLOCK for first, stop in pairwise(edges))
    if len(edges) < 2 or edges[0] < 0 or edges[-1] > size or not apart:
        raise ValueError("its offsets do not ascend within the tar")
    if any(edge % BLOCK for edge in edges):
        raise ValueError(f"its offsets are not multiples of {BLOCK}")
    return edges


def begins_entry(head: memoryview) -> bool:
    """Whether an entry of a tar may begin with these bytes."""
    try:
        parse_header(bytes(head), 0)
    except DamagedError:
        return False
    return True


def _dali_edges(content: bytes) -> list[int]:
    """Returns where samples begin, and the end: a sample begins where the last entry of the one before it ends."""
    edges = [0]
    try:
        for line in content.splitlines()[1:]:
            # Each entry has four words; names may contain blanks, which are not read.
            if (words := line.split()) and len(words) % 4:
                raise ValueError("a name with a blank in it")
            if words:
                ends = zip(words[1::4], words[2::4], strict=True)
                edges.append(max(int(offset) + padded(int(size)) for offset, size in ends))
    except ValueError as error:
        raise ValueError(f"it has neither offsets (Energon) nor lines (DALI): {error}") from error
    return edges
