"""HDF5: rows of datasets are samples, the index is the metadata of each file.

Rows of one dataset without filters are read where they lie. Those of several datasets, and of filtered ones, are put
together once, before the cache.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import msgspec
import numpy as np

from streamer.formats.arrays.hdf5 import messages
from streamer.formats.arrays.hdf5.chunks import find_chunks
from streamer.formats.arrays.hdf5.filters import FilteredChunks, filters_of, is_known
from streamer.formats.arrays.hdf5.held import UNDEFINED, Hdf5Error, Hdf5UnreadError, Held
from streamer.formats.arrays.hdf5.objects import Header, read_group, read_header, read_root
from streamer.formats.arrays.recode import Decode, TileRecoder
from streamer.formats.arrays.tiles import (
    NO_TILES,
    ArraysError,
    Column,
    ColumnHint,
    Tiles,
    common_rows,
    facts_of_columns,
    opener_of,
    samples_of,
)
from streamer.formats.base import (
    Answer,
    Block,
    Facts,
    Format,
    Indexing,
    Need,
    ObjectRecord,
    Opener,
    Recoder,
    Source,
    Survey,
    Surveying,
)
from streamer.formats.failures import damaged, not_importable, refused
from streamer.formats.names import is_hidden

SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5", ".nc", ".nc4", ".mat")
_CHOOSE = 'name the datasets that you want: HDF5(datasets={"image": "/images"})'
# For a message.
_MOST_NAMED, _MOST_LOOKED_AT = 20, 100
# Of the index of a chunk, with room for what is read beside it.
_BYTES_PER_CHUNK = 200
_BYTES_PER_DATASET = 16 << 10

Reading = Generator[Need | tuple[Need, ...], Answer, dict[str, "_Dataset"]]


class _Dataset(msgspec.Struct, frozen=True):
    """What the header of a dataset says."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    layout: messages.Layout
    filters: tuple[messages.Filter, ...]
    fill: bytes

    def column(self, tiles: Tiles = NO_TILES, base: int = 0) -> Column:
        """Its rows."""
        if not self.layout.chunk:
            return Column(self.dtype, self.shape, self.shape, tiles, base + self.layout.address, fill=self.fill)
        return Column(self.dtype, self.shape, self.layout.chunk, tiles, codecs=self.filters, fill=self.fill)


class HDF5(Format, frozen=True, forbid_unknown_fields=True):
    """HDF5 files: a sample is a row along axis 0 of one dataset, or of several ones of the same length.

    Attributes:
        datasets: paths by the name of their field, {"image": "/images"}; empty: all datasets of the root group but
            scalars, by their names.
    """

    name = "hdf5"
    datasets: dict[str, str] = msgspec.field(default_factory=dict)

    def accepts(self, key: str) -> bool:
        """HDF5 files, those of NetCDF 4 and of MATLAB 7.3 among them."""
        return key.lower().endswith(SUFFIXES) and not is_hidden(key)

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Reads the headers of the first file's datasets.

        Raises:
            ManifestError: a file that is damaged, or has no such datasets.
        """
        if not accepted:
            return Survey([])
        first = accepted[0]
        there: list[str] = []
        with _errors_of(first, there):
            found = yield from self._datasets(Held(first), there)
            columns = {name: dataset.column() for name, dataset in found.items()}
            common_rows(columns)
        sizes = sum(record.size for record in accepted)
        chunks = sum(dataset.layout.chunks(dataset.shape) for dataset in found.values())
        expected = _BYTES_PER_DATASET * len(found) * len(accepted) + _BYTES_PER_CHUNK * chunks * sizes // first.size
        sources = [Source(record) for record in accepted]
        return Survey(sources, facts_of_columns(columns), read_bytes=min(sizes, expected))

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the rows of one file.

        Raises:
            ManifestError: it is damaged, or has rows of another kind than the first file.
        """
        record, held = source.record, Held(source.record)
        there: list[str] = []
        with _errors_of(record, there):
            found = yield from self._datasets(held, there)
            columns: dict[str, Column] = {}
            for name, dataset in found.items():
                columns[name] = yield from _column(held, dataset)
            kinds = [(field.name, field.kind) for field in facts.fields]
            if (own := [(name, column.kind) for name, column in columns.items()]) != kinds:
                raise refused(
                    record, f"has rows of {own}, the first file of {kinds}; name the others as another dataset"
                )
            for item in samples_of(columns, source.chunk_bytes):
                if isinstance(item, Block) or item.start >= start:
                    yield item

    def opener(self, facts: Facts) -> Opener:
        """Opens rows."""
        return opener_of(facts)

    def recoder(self, facts: Facts) -> Recoder:
        """Decodes chunks."""
        return TileRecoder(facts, _decoder)

    def _datasets(self, held: Held, there: list[str]) -> Reading:
        """The datasets that are wanted, by the name of their field; if one is not read, all paths are put `there`."""
        root = yield from read_root(held)
        header = yield from read_header(held, root)
        links = yield from read_group(held, header)
        if links is None:
            raise Hdf5Error("its root is no group", root)
        try:
            return (yield from self._chosen(held, links))
        except (Hdf5UnreadError, ArraysError):
            there += yield from _paths(held, links)
            raise

    def _chosen(self, held: Held, links: dict[str, int]) -> Reading:
        found: dict[str, _Dataset] = {}
        if self.datasets:
            for name, path in self.datasets.items():
                found[name] = _dataset(path, (yield from _walk(held, links, path)))
            return found
        for name in sorted(links):
            header = yield from read_header(held, links[name])
            space = header.of(messages.DATASPACE)
            if space is not None and messages.read_dataspace(space):
                found[name] = _dataset(name, header)
        if not found:
            raise ArraysError("it has no arrays in its root group")
        return found


def _walk(held: Held, links: dict[str, int], path: str) -> Generator[Need | tuple[Need, ...], Answer, Header]:
    """The header of the object at a path."""
    inside: dict[str, int] | None = links
    header = None
    for part in [part for part in path.split("/") if part]:
        if inside is None or part not in inside:
            raise ArraysError(f"it has no dataset {path!r}")
        header = yield from read_header(held, inside[part])
        inside = yield from read_group(held, header)
    if header is None or inside is not None:
        raise ArraysError(f"at {path!r} it has no dataset, but a group")
    return header


def _paths(held: Held, links: dict[str, int]) -> Generator[Need | tuple[Need, ...], Answer, list[str]]:
    """The paths of the first datasets of a file, for a message."""
    found: list[str] = []
    queue, left = [(f"/{name}", links[name]) for name in sorted(links)], _MOST_LOOKED_AT
    while queue and left and len(found) < _MOST_NAMED:
        (path, address), left = queue.pop(0), left - 1
        with suppress(Hdf5Error):
            header = yield from read_header(held, address)
            if header.of(messages.DATASPACE) is not None:
                found.append(path)
            inside = (yield from read_group(held, header)) or {}
            queue += [(f"{path}/{name}", inside[name]) for name in sorted(inside)[:_MOST_LOOKED_AT]]
    return found


def _dataset(path: str, header: Header) -> _Dataset:
    """What the header of a dataset says.

    Raises:
        Hdf5UnreadError: a dataset that is not read; names it.
    """
    space, kind, layout = (header.of(each) for each in (messages.DATASPACE, messages.DATATYPE, messages.LAYOUT))
    if space is None or kind is None or layout is None:
        raise Hdf5Error(f"dataset {path!r} has no shape, type or layout", header.address)
    try:
        if header.of(messages.EXTERNAL) is not None:
            raise Hdf5UnreadError("its data in other files")
        shape, dtype = messages.read_dataspace(space), messages.read_datatype(kind)
        filters, fill = header.of(messages.FILTERS), header.of(messages.FILL)
        return _Dataset(
            dtype,
            shape or (),
            messages.read_layout(layout, dtype.itemsize),
            messages.read_filters(filters) if filters else (),
            messages.read_fill(fill, dtype.itemsize) if fill else b"",
        )
    except Hdf5UnreadError as error:
        raise Hdf5UnreadError(f"dataset {path!r} with {error}", header.address) from error


def _column(held: Held, dataset: _Dataset) -> Generator[Need | tuple[Need, ...], Answer, Column]:
    """The rows of a dataset, and where its chunks are."""
    column, layout = dataset.column(base=held.base), dataset.layout
    column.check()
    if not layout.chunk:
        length = column.shape[0] * column.row_bytes
        if length and (layout.address == UNDEFINED or column.start + length > held.record.size):
            raise ArraysError(f"{length} bytes of it were never written, or the file is cut off")
        return column
    if len(layout.chunk) != len(dataset.shape):
        raise Hdf5Error(f"chunks of shape {layout.chunk} in a dataset of shape {dataset.shape}", layout.address)
    tiles = yield from find_chunks(held, layout, dataset.shape, dataset.dtype.itemsize, filtered=bool(dataset.filters))
    return dataset.column(tiles)


def _decoder(dtype: np.dtype[np.generic], column: ColumnHint) -> Decode:
    if is_known(filters_of(column)):
        return FilteredChunks(dtype, column)
    try:
        from streamer.formats.arrays.hdf5.recode import ChunkDecoder
    except ImportError as error:
        raise not_importable("this HDF5 dataset has filters that only h5py decodes", "hdf5", error) from error
    return ChunkDecoder(dtype, column)


@contextmanager
def _errors_of(record: ObjectRecord, there: Sequence[str]) -> Iterator[None]:
    """Says of which file an error is, and which datasets are there."""
    try:
        yield
    except Hdf5UnreadError as error:
        what = f"has {error}, which streamer does not read"
        raise refused(record, f"{what}; {_choice_of(there)}", error.offset) from error
    except Hdf5Error as error:
        raise damaged(record, str(error), error.offset) from error
    except ArraysError as error:
        raise refused(record, f"cannot be read by rows: {error}; {_choice_of(there)}") from error


def _choice_of(there: Sequence[str]) -> str:
    return f"{_CHOOSE}; there are {', '.join(there)}" if there else _CHOOSE
