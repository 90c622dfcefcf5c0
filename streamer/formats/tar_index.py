"""Index files of tars: which bytes are a sample, without reading the tar.

    x.tar.idx, x.idx    Megatron Energon's: uint64, where each sample begins and where the last one ends
    x.idx               DALI's (`wds2idx`): "v1.2 <samples>", then for each sample a line of "ending offset size name"
                        for each of its entries; the offset is that of an entry's content

The `wids` index of webdataset says how many samples a tar has, but not where: it does not help.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise
from struct import iter_unpack

from streamer.formats.failures import contradicts
from streamer.formats.sidecars import read_heads, read_sidecar, spans_between
from streamer.formats.tar import BLOCK, TarError, padded, parse_header
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Answer, Need, Source, Span

ENDINGS = (".idx", "/.idx")
# The headers of the first and of the last sample.
PROBE_BYTES = 2 * BLOCK
_DALI = b"v1."


def listed_samples(source: Source, start: int) -> Generator[Need | tuple[Need, ...] | Span, Answer, None]:
    """The samples that the index file of a tar lists, from the one that begins at `start` on.

    Raises:
        ManifestError: it is of another tar.
    """
    sidecar = source.sidecar
    assert sidecar is not None
    content = yield from read_sidecar(source)
    edges = _checked(_dali_edges(content) if content.startswith(_DALI) else _energon_edges(content), source, sidecar)
    ends = sorted({edges[0], edges[-2]})
    for at, head in zip(ends, (yield from read_heads(source, ends, BLOCK)), strict=True):
        try:
            parse_header(head, at)
        except TarError as error:
            raise contradicts(sidecar, source.record, f"no entry begins at byte {at}") from error
    yield from spans_between(edges, start)


def _checked(edges: list[int] | None, source: Source, sidecar: ObjectRecord) -> list[int]:
    """The edges, if samples can be between them."""
    if edges is None:
        raise contradicts(sidecar, source.record, "it has neither offsets (Energon) nor lines (DALI)")
    apart = all(stop - first >= BLOCK for first, stop in pairwise(edges))
    if len(edges) < 2 or edges[0] < 0 or edges[-1] > source.record.size or not apart:
        raise contradicts(sidecar, source.record, "its offsets do not ascend within the tar")
    if any(edge % BLOCK for edge in edges):
        raise contradicts(sidecar, source.record, f"its offsets are no multiples of {BLOCK}")
    return edges


def _energon_edges(content: bytes) -> list[int] | None:
    return None if len(content) % 8 else [edge for (edge,) in iter_unpack("<Q", content)]


def _dali_edges(content: bytes) -> list[int] | None:
    """Where samples begin, and the end: a sample begins where the last entry of the one before it ends."""
    edges = [0]
    try:
        for line in content.splitlines()[1:]:
            words = line.split()
            if words:
                # Names may contain blanks: the last entry is found by its number, not from the end.
                edges.append(_end_of_line(words))
    except (ValueError, IndexError):
        return None
    return edges


def _end_of_line(words: list[bytes]) -> int:
    """Where the last of the entries of a line ends: each has four words."""
    if len(words) % 4:
        raise ValueError("a name with a blank in it")
    return max(int(offset) + padded(int(size)) for offset, size in zip(words[1::4], words[2::4], strict=True))
