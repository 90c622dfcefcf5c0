"""Reads index files beside objects: if one says where the samples begin, the object itself need not be read.

WebDataset, TFRecord, RecordIO and tokens use it, in `survey` (`pair_sidecars`) and in `index` (`read_sidecar`,
`walk_sidecar`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from streamer.errors import ManifestError
from streamer.formats.reading import Reading, read_range, read_ranges, spans_between
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing, Need, Source, Survey

# Max bytes of an index file. With 20 to 40 bytes for each sample it is that of an object of 10^7 samples.
LONGEST_SIDECAR = 512 << 20
# Max bytes of an index file for each byte of its object, besides 64 KiB that every index file may have. Documents of
# one token have 20 bytes there for 2 bytes of tokens.
_BYTES_PER_BYTE = 16
_FREE_BYTES = 64 << 10


def pair_sidecars(
    accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord], endings: Sequence[str], probe_bytes: int
) -> Survey:
    """Makes a survey that pairs objects with the index files beside them, and takes all objects.

    An index file whose name fits two objects is used for neither.

    Args:
        accepted: the objects that contain samples.
        others: all other objects, by url.
        endings: what is put behind the name of an object to get that of its index file. One that begins with a slash
            stands, without it, in place of the extension.
        probe_bytes: bytes that are read of an object that has an index file.

    Returns:
        The survey. Its `read_bytes` count the index files, `probe_bytes` of each of their objects, and all bytes of
        the other objects; None if there is no index file.
    """
    found = []
    for record in accepted:
        folder, slash, name = record.url.rpartition("/")
        stem = f"{folder}{slash}{name.rpartition('.')[0] or name}"
        names = [f"{stem}{ending[1:]}" if ending.startswith("/") else f"{record.url}{ending}" for ending in endings]
        found.append(next((others[each] for each in names if each in others), None))
    # All shards like "a.tfrecord-00000-of-00002" would have the index file "a.idx".
    uses = Counter(sidecar.url for sidecar in found if sidecar is not None)
    own = [sidecar if sidecar is not None and uses[sidecar.url] == 1 else None for sidecar in found]
    sources = [Source(record, sidecar=sidecar) for record, sidecar in zip(accepted, own, strict=True)]
    if all(source.sidecar is None for source in sources):
        return Survey(sources)
    read = (source.record.size if source.sidecar is None else source.sidecar.size + probe_bytes for source in sources)
    return Survey(sources, read_bytes=sum(read))


def read_sidecar(source: Source) -> Reading[bytes]:
    """Reads the whole index file of a source, which must have one.

    Raises:
        ManifestError: the index file is empty, or longer than an index of its object can be.
    """
    sidecar = source.sidecar
    assert sidecar is not None
    if not 0 < sidecar.size <= min(LONGEST_SIDECAR, _FREE_BYTES + _BYTES_PER_BYTE * source.record.size):
        raise contradicts(source, f"it has {sidecar.size} bytes")
    return bytes((yield from read_range(0, sidecar.size, sidecar)))


def walk_sidecar(
    source: Source,
    start: int,
    edges_of: Callable[[bytes, int], list[int]],
    head_bytes: int,
    is_head: Callable[[memoryview], bool],
) -> Indexing:
    """Finds the samples that an index file lists, from the one that begins at byte `start` on.

    The heads of the first and of the last sample tell whether the file belongs to its object.

    Args:
        source: the object and its index file.
        start: byte of the object at which a sample begins. Samples before it are left out.
        edges_of: finds the starts of the samples and the end of the last one, from the content of the index file and
            the size of the object; raises ValueError for another content.
        head_bytes: length of the head of a sample.
        is_head: tells whether a sample can begin with these bytes.

    Raises:
        ManifestError: the index file is of another object, lists no samples, or cannot be read.
    """
    size = source.record.size
    content = yield from read_sidecar(source)
    try:
        edges = edges_of(content, size)
    except ValueError as error:
        raise contradicts(source, str(error)) from error
    if len(edges) < 2:
        raise contradicts(source, "it lists no samples")
    ends = sorted({edges[0], edges[-2]})
    heads = yield from read_ranges([Need(at, min(at + head_bytes, size), source.record) for at in ends])
    for at, head in zip(ends, heads, strict=True):
        if not is_head(head):
            raise contradicts(source, f"no sample begins at byte {at}")
    yield from spans_between(edges, start)


def contradicts(source: Source, what: str) -> ManifestError:
    """Makes the error of an index file that does not belong to the object beside it; `what` says what is wrong."""
    sidecar = source.sidecar
    record = source.record
    assert sidecar is not None
    return ManifestError(
        f"{sidecar.url} is not an index of {record.url} ({record.size} bytes): {what}; write it again, or delete it",
        url=sidecar.url,
        object=record.url,
        size=record.size,
    )
