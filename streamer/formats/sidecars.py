"""Index files beside objects: those that say where samples begin are read instead of the objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from itertools import pairwise

from streamer.errors import ShortReadError
from streamer.formats.failures import contradicts
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Answer, Need, Source, Span, Survey

# Lines of 20 to 40 bytes for each sample: 10^7 samples in one object.
LONGEST_SIDECAR = 512 << 20


def with_sidecars(
    accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord], endings: Sequence[str], probe_bytes: int
) -> Survey:
    """The objects with the index files beside them, and how much an index reads.

    Args:
        accepted: the objects.
        others: what is beside them.
        endings: put behind the name of an object, or, where they begin with a slash, in place of its extension.
        probe_bytes: read of an object whose samples an index file lists.
    """
    found = [_beside(record.url, others, endings) for record in accepted]
    # Of "a.tfrecord-00000-of-00002" and its like all shards would have the index file "a.idx".
    uses = Counter(sidecar.url for sidecar in found if sidecar is not None)
    own = [sidecar if sidecar is not None and uses[sidecar.url] == 1 else None for sidecar in found]
    sources = [Source(record, sidecar=sidecar) for record, sidecar in zip(accepted, own, strict=True)]
    if all(source.sidecar is None for source in sources):
        return Survey(sources)
    read = (source.record.size if source.sidecar is None else source.sidecar.size + probe_bytes for source in sources)
    return Survey(sources, read_bytes=sum(read))


def read_sidecar(source: Source) -> Generator[Need, Answer, bytes]:
    """The bytes of the index file of a source.

    Raises:
        ManifestError: longer than any index.
    """
    sidecar = source.sidecar
    assert sidecar is not None
    if not 0 < sidecar.size <= LONGEST_SIDECAR:
        raise contradicts(sidecar, source.record, f"it has {sidecar.size} bytes")
    content = yield Need(0, sidecar.size, sidecar)
    return bytes(single(content))


def read_heads(source: Source, starts: Sequence[int], length: int) -> Generator[tuple[Need, ...], Answer, list[bytes]]:
    """The first bytes of samples: whether an index file belongs to its object."""
    size = source.record.size
    contents = yield tuple(Need(start, min(start + length, size), source.record) for start in starts)
    assert isinstance(contents, tuple)
    return [bytes(content) for content in contents]


def spans_between(edges: Sequence[int], start: int) -> Generator[Span, Answer, None]:
    """Samples that follow each other, from the one that begins at `start` on."""
    for first, stop in pairwise(edges):
        if first >= start:
            yield Span(first, stop)


def _beside(url: str, others: Mapping[str, ObjectRecord], endings: Sequence[str]) -> ObjectRecord | None:
    folder, slash, name = url.rpartition("/")
    stem = f"{folder}{slash}{name.rpartition('.')[0] or name}"
    names = (f"{stem}{ending[1:]}" if ending.startswith("/") else f"{url}{ending}" for ending in endings)
    return next((others[each] for each in names if each in others), None)


def single(content: Answer) -> memoryview:
    """The answer to one need.

    Raises:
        ShortReadError: it is something else.
    """
    if not isinstance(content, memoryview):
        raise ShortReadError(f"one range was asked for, the answer is {content!r}")
    return content
