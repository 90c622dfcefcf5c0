"""The format "zarr", of versions 2 and 3: rows of arrays are samples.

`formats/registry.py` makes it for engine, recoders and workers. The index comes from the metadata of a store, the
listing of its objects, and the indexes of shards. Rows of a single array without codecs, in chunks of whole rows, are
read where they lie. All other rows are in blocks, which consist of chunks from many objects: a recoder decodes and
joins them, once. Here a chunk is a box of items that zarr stores as a whole; but `chunk_bytes` is the size of
streamer's chunks.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise

import msgspec

from streamer.errors import ManifestError
from streamer.formats.base import Facts, Opener, Recoder
from streamer.formats.failures import make_refusal
from streamer.formats.names import base_name
from streamer.formats.reading import Reading, read_ranges
from streamer.formats.windows import RowFormat
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing, LeftOut, Need, Source, Survey, Surveying
from streamer.tables.npy import FIELD, ArrayRows
from streamer.tables.tiles import ArraysError, TileRecoder, blocks_of, common_rows, facts_of_columns, opener_of
from streamer.tables.zarr.codecs import Stored, ZarrChunkDecoder
from streamer.tables.zarr.metadata import CHUNK_NAME, NAMES, ZarrArray, nodes_of, read_metadata

_CHOOSE = 'name the arrays that you want: Zarr(arrays={"image": "images"})'
_MAX_METADATA_BYTES = 16 << 20
# Number of objects, of the array with the longest rows, whose rows are indexed with the first of them.
_TOGETHER = 1024


# Fields of `_ZarrNotes` that are only encoded if they are not empty.
_BESIDE = ("before", "after")


class _ZarrNotes(msgspec.Struct, frozen=True):
    """What the survey tells the index of an object: which rows are indexed with it.

    Attributes:
        plain: the rows of the object, if they are samples as they are stored; else None.
        rows: first row, and the row behind the last one, that are indexed with this object.
        stored: the objects of the store that have these rows, by field.
        before: notes of stores without objects, whose rows come before those of this object.
        after: notes of stores without objects, whose rows come after those of this object.
    """

    plain: ArrayRows | None = None
    rows: tuple[int, int] = (0, 0)
    stored: dict[str, Stored] = msgspec.field(default_factory=dict)
    before: list[_ZarrNotes] = msgspec.field(default_factory=list)
    after: list[_ZarrNotes] = msgspec.field(default_factory=list)

    def encode(self) -> bytes:
        """Returns the notes as JSON, by the standard library, because a url may have bytes that are not UTF-8."""
        # The JSON is that of earlier versions if there are no stores before or after.
        found = {name: value for name, value in msgspec.to_builtins(self).items() if value or name not in _BESIDE}
        return json.dumps(found).encode()


class Zarr(RowFormat, frozen=True, forbid_unknown_fields=True):
    """Reads zarr stores: a sample is a row along axis 0 of one array, or of several arrays of the same length.

    Attributes:
        arrays: paths of arrays in the store by the name of their field, {"image": "images"}; empty for all arrays of
            the store's group but scalars. If the store is a single array, its rows are the field "array".
    """

    name = "zarr"
    numbered_keys = True
    arrays: dict[str, str] = msgspec.field(default_factory=dict)

    def accepts(self, key: str) -> bool:
        """Whether an object has the name of a chunk or shard."""
        return CHUNK_NAME.fullmatch(base_name(key)) is not None

    def explain_empty(self, keys: Sequence[str]) -> str:
        """Returns a text that says that a store has metadata and no chunks; "" if there is no metadata."""
        if not any(base_name(key) in NAMES for key in keys):
            return ""
        return (
            ": the store has metadata and no chunk, so that all of its values are the fill value; write at least one "
            "chunk (config={'write_empty_chunks': True}), or give the urls of other stores beside it"
        )

    def survey_rows(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Reads the metadata of all stores; the listing says which of their chunks exist.

        Raises:
            ManifestError: there is no store, an array is missing or not read, metadata are empty or too long, stores or
                lengths of arrays differ, or no chunk was written.
        """
        nodes = nodes_of(others)
        if not nodes:
            raise ManifestError(
                f"there is no zarr store: none of {', '.join(NAMES)} is among the objects", objects=len(accepted)
            )
        objects = sorted(accepted, key=_url)
        stores: list[tuple[dict[str, Stored], ObjectRecord]] = []
        facts = Facts()
        # The nodes that are inside of no other node are the roots of stores.
        roots: list[str] = []
        for node in sorted(nodes):
            if not roots or not node.startswith(roots[-1]):
                roots.append(node)
        for root in roots:
            sidecar = others[root + nodes[root]]
            with _errors_of(sidecar):
                found = yield from self._arrays(root, nodes, others)
                stored = {name: _find_objects(objects, node, array) for name, (node, array) in found.items()}
                own = facts_of_columns({name: each.column() for name, each in stored.items()})
                if stores and own != facts:
                    raise ArraysError(f"it has rows of {own.fields}, a store before it of {facts.fields}")
                common_rows({name: each.column() for name, each in stored.items()})
                facts = own
                stores.append((stored, sidecar))
        sources, left_out = _sources_of(stores, windows=self.window is not None)
        # The index of a shard may be read twice, if its array has shorter rows than another one.
        shards = [each.array.index_bytes * len(each.objects) for stored, _ in stores for each in stored.values()]
        return Survey(sources, facts, read_bytes=2 * sum(shards), left_out=left_out)

    def index_rows(self, source: Source, facts: Facts, start: int) -> Indexing:
        """Finds the rows that are indexed with this object; none for most objects.

        Raises:
            ManifestError: an object or the index of a shard is damaged, or long runs of rows were never written.
            ConfigError: as `Stored.chunks`.
        """
        if not source.notes:
            return
        notes = msgspec.convert(json.loads(source.notes), _ZarrNotes)
        if notes.plain:
            yield from notes.plain.spans(start)
            return
        with _errors_of(source.record):
            for each in (*notes.before, notes, *notes.after):
                columns = {}
                for name, stored in each.stored.items():
                    columns[name] = stored.column((yield from stored.chunks()))
                yield from blocks_of(columns, each.rows, source.chunk_bytes)

    def narrow(self, facts: Facts, fields: Collection[str]) -> Zarr:
        """Returns the format with these arrays only, never None; itself if there is a single one."""
        if len(facts.fields) == 1:
            # The only array may be the root of the store, which has no path.
            return self
        return msgspec.structs.replace(self, arrays={name: self.arrays.get(name, name) for name in sorted(fields)})

    def open_rows(self, facts: Facts) -> Opener:
        """Returns what opens rows."""
        return opener_of(facts)

    def recode_rows(self, facts: Facts) -> Recoder:
        """Returns what decodes chunks."""
        return TileRecoder(facts, ZarrChunkDecoder)

    def _arrays(
        self, root: str, nodes: Mapping[str, str], others: Mapping[str, ObjectRecord]
    ) -> Reading[dict[str, tuple[str, ZarrArray]]]:
        """Reads the metadata of the wanted arrays of a store.

        Args:
            root: url of the store, with a slash at the end.
            nodes: names of the metadata of all nodes, by their urls (`nodes_of`).
            others: the objects that are no chunks, by url.

        Returns:
            For each field, the url of the array's node and the array.

        Raises:
            ArraysError: there is no such array, or it is not read.
            ManifestError: the metadata of an array are empty or too long.
        """
        if self.arrays:
            wanted = {name: f"{root}{path.strip('/')}/" for name, path in self.arrays.items()}
        else:
            inside = {node[len(root) : -1]: node for node in sorted(nodes) if node.startswith(root)}
            wanted = {name or FIELD: node for name, node in inside.items() if "/" not in name}
        if missing := next((node for node in wanted.values() if node not in nodes), None):
            there = ", ".join(
                sorted(node[len(root) :] for node in nodes if node.startswith(root) and node != root)[:20]
            )
            raise ArraysError(f"it has no array {missing[len(root) :]!r}, but {there}")
        records = [others[node + nodes[node]] for node in wanted.values()]
        if large := next((record for record in records if not 0 < record.size <= _MAX_METADATA_BYTES), None):
            raise make_refusal(large, f"has {large.size} bytes; metadata have up to {_MAX_METADATA_BYTES}")
        answers = yield from read_ranges([Need(0, record.size, record) for record in records])
        found = {}
        for (name, node), record, content in zip(wanted.items(), records, answers, strict=True):
            with _errors_of(record):
                array = read_metadata(nodes[node], content)
            if array is not None and (array.shape or self.arrays):
                found[name] = (node, array)
        if not found:
            raise ArraysError("it has no arrays but in groups of its own")
        return found


def _url(record: ObjectRecord) -> str:
    return record.url


def _find_objects(objects: Sequence[ObjectRecord], node: str, array: ZarrArray) -> Stored:
    """Returns the objects of an array.

    Args:
        objects: all objects of the dataset, sorted by url.
        node: url of the array, with a slash at the end.
        array: metadata of the array.
    """
    below = objects[bisect_left(objects, node, key=_url) : bisect_left(objects, node[:-1] + "0", key=_url)]
    found = [(origin, record) for record in below if (origin := array.origin(record.url[len(node) :])) is not None]
    found.sort(key=lambda pair: pair[0])
    return Stored(array, [origin for origin, _ in found], [record for _, record in found])


def _sources_of(
    stores: Sequence[tuple[dict[str, Stored], ObjectRecord]], *, windows: bool
) -> tuple[list[Source], list[LeftOut]]:
    """Returns the sources of all stores, in the order of the rows, and the stores that are left out.

    The rows of a store without objects are all fill values. They are indexed with an object of the store before it, or
    of the one behind it. Such a store is left out if samples are windows, which must not go over the end of a store.

    Args:
        stores: arrays by field, and object of the metadata, of each store.
        windows: whether samples are windows.

    Raises:
        ManifestError: no store has an object, or the arrays of a store cannot be read by rows.
    """
    # The sources by store; in each list those with which rows are indexed come first.
    found: list[list[Source]] = []
    first: list[_ZarrNotes] = []
    left_out: list[LeftOut] = []
    has_unwritten = any(_is_unwritten(stored) for stored, _ in stores)
    for stored, sidecar in stores:
        if not _is_unwritten(stored):
            with _errors_of(sidecar):
                own = _sources(stored, sidecar, together=windows, plain=not has_unwritten)
            if first:
                own[0] = _add_stores(own[0], first, [])
                first = []
            found.append(own)
            continue
        if windows:
            what = f"{sidecar.url}: none of its chunks was written, and windows are read of stores that have some"
            left_out.append(LeftOut(what))
            continue
        rows = common_rows({name: each.column() for name, each in stored.items()})
        notes = _ZarrNotes(None, (0, rows), dict(stored))
        if not found:
            first.append(notes)
            continue
        place = max(place for place, source in enumerate(found[-1]) if source.notes)
        found[-1][place] = _add_stores(found[-1][place], [], [notes])
    if not found:
        with _errors_of(stores[0][1]):
            raise ArraysError("its chunks were never written, nor those of another store")
    return [source for own in found for source in own], left_out


def _is_unwritten(stored: Mapping[str, Stored]) -> bool:
    return not any(each.objects for each in stored.values())


def _add_stores(source: Source, before: list[_ZarrNotes], after: list[_ZarrNotes]) -> Source:
    """Returns a source with which the rows of further stores are indexed, before and after its own rows."""
    notes = msgspec.convert(json.loads(source.notes), _ZarrNotes)
    notes = msgspec.structs.replace(notes, before=[*notes.before, *before], after=[*notes.after, *after])
    return msgspec.structs.replace(source, notes=notes.encode())


def _sources(stored: Mapping[str, Stored], sidecar: ObjectRecord, *, together: bool, plain: bool) -> list[Source]:
    """Returns the sources of a store: objects with which runs of rows are indexed, in their order, then the others.

    Args:
        stored: Arrays of the store by field.
        sidecar: Object of the store's metadata.
        together: Whether all rows are indexed with the first object, because samples go on from object to object.
        plain: Whether rows may be samples as they are stored.

    Raises:
        ArraysError: the arrays cannot be read by rows.
        ManifestError: an object is damaged.
    """
    columns = {name: each.column() for name, each in stored.items()}
    rows = common_rows(columns)
    longest = max(stored.values(), key=lambda each: (bool(each.objects), each.column().row_bytes))
    if plain and len(stored) == 1 and not longest.array.shard and not together:
        runs = longest.column(longest.tiles()).plain_rows()
        if runs is not None:
            pairs = zip(longest.objects, runs, strict=True)
            return [Source(record, _ZarrNotes(run).encode(), sidecar) for record, run in pairs]
    firsts: list[int] = []
    before = -1
    for place, origin in enumerate(longest.origins):
        if origin[0] != before and (not firsts or (place - firsts[-1] >= _TOGETHER and not together)):
            firsts.append(place)
        before = origin[0]
    tops = {name: [origin[0] for origin in each.origins] for name, each in stored.items()}
    edges = [0, *(longest.origins[place][0] for place in firsts[1:]), rows]
    sources = [
        Source(longest.objects[place], _ZarrNotes(None, span, _between(stored, tops, *span)).encode(), sidecar)
        for place, span in zip(firsts, pairwise(edges), strict=True)
    ]
    named = {source.record.url for source in sources}
    return sources + [
        Source(record, sidecar=sidecar)
        for each in stored.values()
        for record in each.objects
        if record.url not in named
    ]


def _between(stored: Mapping[str, Stored], tops: Mapping[str, list[int]], first: int, stop: int) -> dict[str, Stored]:
    """Returns, by field, the objects that have a part of the rows `[first, stop)`.

    Args:
        stored: Arrays of the store by field.
        tops: For each field, the first row of each object.
        first: The first row.
        stop: The row behind the last one.
    """
    found = {}
    for name, each in stored.items():
        begin = first - each.array.object_shape[0] + 1
        among = slice(bisect_left(tops[name], begin), bisect_left(tops[name], stop))
        found[name] = Stored(each.array, each.origins[among], each.objects[among])
    return found


@contextmanager
def _errors_of(record: ObjectRecord) -> Iterator[None]:
    """Turns an ArraysError that is raised within the context into a ManifestError about the object."""
    try:
        yield
    except ArraysError as error:
        raise make_refusal(record, f"cannot be read by rows: {error}; {_CHOOSE}") from error
