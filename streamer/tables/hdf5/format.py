"""The format "hdf5": rows of datasets are samples, and the index comes from the metadata of each file.

`formats/registry.py` makes it for engine, recoders and workers. Rows of a single dataset without filters are read where
they lie if each is in one piece. Other rows are decoded and joined by a recoder, once. Here a dataset is an
array in an HDF5 file, and a chunk is a box of its items, stored as a whole; `chunk_bytes` is that of streamer's chunks.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import msgspec
import numpy as np

from streamer.base.extras import require_extra
from streamer.errors import ConfigError
from streamer.formats.base import Block, Facts, Opener, Recoder
from streamer.formats.failures import DamagedError, UnreadError, make_damage_error, make_refusal
from streamer.formats.reading import Asking, Reading, read_together
from streamer.formats.windows import RowFormat, RowPiece, RowPieces
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing, Source, Survey, Surveying
from streamer.tables import tiles
from streamer.tables.hdf5 import messages
from streamer.tables.hdf5.chunks import UNDO, FilteredChunks, filters_of, find_chunks
from streamer.tables.hdf5.messages import UNDEFINED, HeldBytes
from streamer.tables.hdf5.objects import Header, Links, Path, read_group, read_header, read_root
from streamer.tables.tiles import NO_TILES, ArraysError, ColumnHint, Decode, TileColumn, TileRecoder, Tiles

_CHOOSE = 'name the datasets that you want: HDF5(datasets={"image": "/images"})'
# Max datasets that a message names, and max objects that are looked at to find them.
_MAX_NAMED = 20
_MAX_LOOKED_AT = 100
# Max looks along one path, of which each but the last follows one soft link.
_MAX_LINKS = 16
# Number of groups whose structures are read at once.
_GROUPS_AT_ONCE = 64
_NUMBERED = re.compile(r"/[^/]*\d(?=/)")
_PARTS = re.compile(r"\d+|\D+").findall
# Estimates of the bytes that an index reads for a chunk, and for a dataset.
_BYTES_PER_CHUNK = 200
_BYTES_PER_DATASET = 16 << 10


class _HDF5Dataset(msgspec.Struct, frozen=True):
    """What the header of a dataset says.

    Attributes:
        dtype: dtype of an item.
        shape: shape of the dataset, or () for a scalar, or if it has no data.
        layout: where and how the items are stored.
        filters: filters of its chunks, in the order in which they were applied.
        fill: bytes of an item that was never written, or empty for zeros.
    """

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    layout: messages.Layout
    filters: tuple[messages.Filter, ...]
    fill: bytes

    def column(self, tiles: Tiles = NO_TILES, base: int = 0) -> TileColumn:
        """Returns the rows of the dataset as a column.

        Args:
            tiles: places of its chunks, if it has chunks.
            base: byte of the file that has address 0.
        """
        if not self.layout.chunk:
            start = base + self.layout.address
            return TileColumn(self.dtype, self.shape, self.shape, tiles, start=start, fill=self.fill)
        return TileColumn(self.dtype, self.shape, self.layout.chunk, tiles, codecs=self.filters, fill=self.fill)


class HDF5(RowFormat, frozen=True, forbid_unknown_fields=True):
    """Reads HDF5 files: a sample is a row along axis 0 of one dataset, or of several ones of the same length.

    Attributes:
        datasets: paths of datasets by the name of their field, {"image": "/images"}; empty for all datasets of the root
            group but scalars. One part of a path may be a pattern with `*`: each group that it matches is an episode.
            Files of robomimic have {"image": "data/*/obs/image", "action": "data/*/actions"}.
    """

    name = "hdf5"
    numbered_keys = True
    # NetCDF 4 and MATLAB 7.3 also write HDF5 files.
    endings = (".h5", ".hdf5", ".hdf", ".he5", ".nc", ".nc4", ".mat")
    datasets: dict[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ConfigError if paths have different patterns, or more than one part that is a pattern."""
        super().__post_init__()
        groups = {_split_pattern(path)[0] for path in self.datasets.values()}
        if len(groups) > 1 or any(_split_pattern(path)[1].count("*") for path in self.datasets.values()):
            raise ConfigError(
                f"HDF5: datasets={self.datasets!r} name datasets of different groups: one part of a path may be a "
                "pattern, the same of all, as in {'image': 'data/*/obs/image', 'action': 'data/*/actions'}",
                field="format",
            )

    def survey_rows(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Reads the headers of the datasets of the first file, which give the fields of all files.

        Raises:
            ManifestError: the file is damaged, or a dataset is missing, not read, or has another number of rows.
        """
        if not accepted:
            return Survey([])
        first = accepted[0]
        there: list[str] = []
        with _errors_of(first, there):
            count, (found,) = yield from self._read_groups(HeldBytes(first), there, limit=1)
            columns = {name: dataset.column() for name, dataset in found.items()}
            tiles.common_rows(columns)
        sizes = sum(record.size for record in accepted)
        chunks = sum(dataset.layout.chunks(dataset.shape) for dataset in found.values())
        of_first = _BYTES_PER_DATASET * len(found) + _BYTES_PER_CHUNK * chunks
        expected = max(of_first * len(accepted), of_first * count * sizes // first.size)
        sources = [Source(record) for record in accepted]
        return Survey(sources, tiles.facts_of_columns(columns), read_bytes=min(sizes, expected))

    def index_rows(self, source: Source, facts: Facts, start: int) -> Indexing:
        """Finds the rows of one file or of all its episodes as `Format.index`; `start` leaves out spans, but no blocks.

        Raises:
            ManifestError: the file is damaged, or a dataset is not read or has other rows than in the first file.
        """
        groups = yield from self._find_columns(source, facts)
        with _errors_of(source.record, ()):
            if len(groups) > 1:
                # Episodes lie in any order in a file, and spans must be in order: therefore rows are in blocks.
                for columns in groups:
                    yield from tiles.blocks_of(columns, (0, tiles.common_rows(columns)), source.chunk_bytes)
                return
            for item in tiles.samples_of(groups[0], source.chunk_bytes):
                if isinstance(item, Block) or item.start >= start:
                    yield item

    def read_runs(self, source: Source, facts: Facts) -> Asking[list[list[RowPiece]]]:
        """Finds the rows of each episode as a run, because no window goes over its end; raises as `index_rows`."""
        runs = []
        for columns in (yield from self._find_columns(source, facts)):
            pieces = RowPieces(source.chunk_bytes)
            with _errors_of(source.record, ()):
                for item in tiles.samples_of(columns, source.chunk_bytes):
                    pieces.add(item)
            runs.append(pieces.all())
        return runs

    def _find_columns(self, source: Source, facts: Facts) -> Reading[list[dict[str, TileColumn]]]:
        """Finds the columns of the file, or those of each episode, with the places of their chunks.

        Raises:
            ManifestError: they do not have the kinds of the facts, or cannot be read.
        """
        held = HeldBytes(source.record)
        there: list[str] = []
        groups = []
        with _errors_of(source.record, there):
            _, found = yield from self._read_groups(held, there)
            for first in range(0, len(found), _GROUPS_AT_ONCE):
                some = found[first : first + _GROUPS_AT_ONCE]
                groups += yield from read_together(_read_columns(held, datasets) for datasets in some)
            kinds = [(field.name, field.kind) for field in facts.fields]
            for columns in groups:
                if (own := [(name, column.kind) for name, column in columns.items()]) != kinds:
                    raise make_refusal(
                        source.record,
                        f"has rows of {own}, the first file of {kinds}; name the others as another dataset",
                    )
                tiles.common_rows(columns)
        return groups

    def narrow(self, facts: Facts, fields: Collection[str]) -> HDF5:
        """Returns the format with these datasets only, never None: each dataset is in ranges of its own."""
        return msgspec.structs.replace(self, datasets={name: self.datasets.get(name, name) for name in sorted(fields)})

    def open_rows(self, facts: Facts) -> Opener:
        """Returns what opens rows."""
        return tiles.opener_of(facts)

    def recode_rows(self, facts: Facts) -> Recoder:
        """Returns what decodes chunks; it imports h5py only for filters that need it."""
        return TileRecoder(facts, _decoder)

    def _read_groups(
        self, held: HeldBytes, there: list[str], limit: int | None = None
    ) -> Reading[tuple[int, list[dict[str, _HDF5Dataset]]]]:
        """Reads the headers of the wanted datasets, for each group that the pattern matches if paths have one.

        Args:
            held: the file.
            there: gets the paths of the file's datasets if something is not read, or has no rows.
            limit: number of groups to read; None for all.

        Returns:
            The number of groups that match (1 without a pattern), and for each group that was read its datasets, by
            the name of their field.

        Raises:
            DamagedError: the file is damaged.
            UnreadError: the file has something that is not read.
            ArraysError: a path has no dataset.
        """
        root = yield from read_root(held)
        header = yield from read_header(held, root)
        links = yield from read_group(held, header)
        if links is None:
            raise DamagedError("its root is not a group", root)
        try:
            pattern = _split_pattern(next(iter(self.datasets.values()), ""))[0]
            if not pattern:
                return 1, [(yield from self._choose(held, links))]
            # The groups that match the pattern are sorted by number: demo_2 comes before demo_10.
            above, _, last = pattern.rpartition("/")
            inside = links
            if above:
                inside = (yield from _walk(held, links, above))[1] or {}
            names = fnmatch.filter(inside, last)
            if not names:
                raise ArraysError(f"it has no group {pattern!r}")
            names.sort(
                key=lambda name: [(not part.isdigit(), int(part) if part.isdigit() else part) for part in _PARTS(name)]
            )
            found: list[dict[str, _HDF5Dataset]] = []
            for first in range(0, len(names[:limit]), _GROUPS_AT_ONCE):
                some = names[:limit][first : first + _GROUPS_AT_ONCE]
                found += yield from read_together(self._read_group(held, links, inside, name) for name in some)
            return len(names), found
        except (UnreadError, ArraysError):
            there += yield from _paths(held, links)
            raise

    def _read_group(self, held: HeldBytes, root: Links, inside: Links, group: str) -> Reading[dict[str, _HDF5Dataset]]:
        """Reads the headers of the wanted datasets in one of the groups that the pattern matches."""
        found: dict[str, _HDF5Dataset] = {}
        for name, path in self.datasets.items():
            pattern, rest = _split_pattern(path)
            header, nested = yield from _walk(held, root, f"{group}/{rest}", inside)
            if nested is not None:
                raise ArraysError(f"at {path!r} of the group {group!r} it has no dataset, but a group")
            found[name] = _dataset(f"{pattern.rpartition('/')[0]}/{group}/{rest}", header)
        return found

    def _choose(self, held: HeldBytes, links: Links) -> Reading[dict[str, _HDF5Dataset]]:
        """Reads the headers of the datasets that are named without a pattern, or of all in the root group."""
        found: dict[str, _HDF5Dataset] = {}
        if self.datasets:
            for name, path in self.datasets.items():
                header, inside = yield from _walk(held, links, path)
                if inside is not None:
                    raise ArraysError(f"at {path!r} it has no dataset, but a group{_episodes(path, inside)}")
                found[name] = _dataset(path, header)
            return found
        for name in sorted(links):
            try:
                header, _ = yield from _walk(held, links, name)
            except _MissingError:
                # The name is a soft link to nothing.
                continue
            space = header.find(messages.DATASPACE)
            if space is not None and messages.read_dataspace(space):
                found[name] = _dataset(name, header)
        if not found:
            raise ArraysError("it has no arrays in its root group")
        return found


class _MissingError(ArraysError):
    """Raised for a path that a file does not have."""


def _split_pattern(path: str) -> tuple[str, str]:
    """Splits a path behind the part that is a pattern; without a pattern it returns "" and the path."""
    parts = _parts(path)
    place = next((place for place, part in enumerate(parts) if "*" in part), None)
    return ("", path) if place is None else ("/".join(parts[: place + 1]), "/".join(parts[place + 1 :]))


def _read_columns(held: HeldBytes, datasets: Mapping[str, _HDF5Dataset]) -> Reading[dict[str, TileColumn]]:
    columns: dict[str, TileColumn] = {}
    for name, dataset in datasets.items():
        columns[name] = yield from _column(held, dataset)
    return columns


def _walk(held: HeldBytes, root: Links, path: str, first: Links | None = None) -> Reading[tuple[Header, Links | None]]:
    """Reads the header of the object at a path, and its links if it is a group (else None); follows soft links.

    Args:
        held: the file.
        root: links of the root group.
        path: the path.
        first: links of the group at which the path begins, or None for the root group.

    Raises:
        _MissingError, ArraysError: there is no such object, or it is the root group.
        UnreadError, DamagedError: there is a link to another file, or `read_group` raises it.
    """
    parts = _parts(path)
    begin = root if first is None else first
    for _ in range(_MAX_LINKS):
        inside: Links | None = begin
        header = None
        for place, part in enumerate(parts):
            target = None if inside is None else inside.get(part)
            if target is None:
                raise _MissingError(f"it has no dataset {path!r}")
            if isinstance(target, Path):
                if not target.path:
                    raise UnreadError(f"at {path!r} a link to another file (an external link)")
                is_absolute = target.path.startswith("/")
                before = [] if is_absolute else parts[:place]
                begin = root if is_absolute else begin
                parts = [*before, *_parts(target.path), *parts[place + 1 :]]
                break
            header = yield from read_header(held, target)
            inside = yield from read_group(held, header)
        else:
            if header is None:
                raise ArraysError(f"at {path!r} it has no dataset, but its root group")
            return header, inside
    raise _MissingError(f"at {path!r} it has soft links that lead to each other")


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]


def _episodes(path: str, inside: Links) -> str:
    """Returns the end of a message about groups that are episodes (data/demo_0, ...); "" if there are not two."""
    numbered = [name for name in inside if name[-1:].isdigit()]
    if len(numbered) < 2:
        return ""
    return (
        f" of {len(numbered)} numbered objects ({numbered[0]!r}, ...); groups that are episodes are named by a "
        f"pattern: HDF5(datasets={{'action': '{path.strip('/')}/*/actions'}})"
    )


def _paths(held: HeldBytes, links: Links) -> Reading[list[str]]:
    """Returns the paths of some datasets of a file, for a message; group by group, from the root on."""
    found: list[str] = []
    queue = _addresses("", links)
    left = _MAX_LOOKED_AT
    while queue and left and len(found) < _MAX_NAMED:
        (path, address) = queue.pop(0)
        left = left - 1
        with suppress(DamagedError):
            header = yield from read_header(held, address)
            if header.find(messages.DATASPACE) is not None:
                found.append(path)
            inside = (yield from read_group(held, header)) or {}
            queue += _addresses(path, inside)[:_MAX_LOOKED_AT]
    return found


def _addresses(path: str, inside: Links) -> list[tuple[str, int]]:
    return [(f"{path}/{name}", target) for name, target in sorted(inside.items()) if isinstance(target, int)]


def _dataset(path: str, header: Header) -> _HDF5Dataset:
    """Parses the header of a dataset; raises DamagedError, or UnreadError that names the dataset."""
    space, kind, layout = (header.find(each) for each in (messages.DATASPACE, messages.DATATYPE, messages.LAYOUT))
    if space is None or kind is None or layout is None:
        raise DamagedError(f"dataset {path!r} has no shape, type or layout", header.address)
    try:
        if header.find(messages.EXTERNAL) is not None:
            raise UnreadError("its data in other files")
        shape = messages.read_dataspace(space)
        dtype = messages.read_datatype(kind)
        filters = header.find(messages.FILTERS)
        fill = header.find(messages.FILL)
        return _HDF5Dataset(
            dtype=dtype,
            shape=shape or (),
            layout=messages.read_layout(layout, dtype.itemsize),
            filters=messages.read_filters(filters) if filters else (),
            fill=messages.read_fill(fill, dtype.itemsize) if fill else b"",
        )
    except UnreadError as error:
        raise UnreadError(f"dataset {path!r} with {error}", header.address) from error


def _column(held: HeldBytes, dataset: _HDF5Dataset) -> Reading[TileColumn]:
    """Returns the rows of a dataset as a column, with the places of its chunks.

    Raises:
        ArraysError: it has no rows that can be read, or is cut off.
        DamagedError: its index of chunks is damaged.
    """
    column = dataset.column(base=held.base)
    layout = dataset.layout
    column.check()
    if not layout.chunk:
        length = column.shape[0] * column.row_bytes
        if length and layout.address == UNDEFINED:
            # Nothing was written, so all items are the fill value, as in h5py.
            return TileColumn(
                dataset.dtype, dataset.shape, dataset.shape, tiles.no_tiles(len(dataset.shape)), fill=dataset.fill
            )
        # The address may be missing if there are no rows.
        if length and column.start + length > held.record.size:
            raise ArraysError(f"its {length} bytes are behind the end of the file, which is cut off")
        return column
    if len(layout.chunk) != len(dataset.shape):
        raise DamagedError(f"chunks of shape {layout.chunk} in a dataset of shape {dataset.shape}", layout.address)
    found = yield from find_chunks(held, layout, dataset.shape, dataset.dtype.itemsize, filtered=bool(dataset.filters))
    return dataset.column(found)


def _decoder(dtype: np.dtype[np.generic], column: ColumnHint) -> Decode:
    """Returns what decodes the chunks of a column; raises ConfigError if that needs h5py and it is not installed."""
    if all(each.number in UNDO for each in filters_of(column)):
        return FilteredChunks(dtype, column)
    with require_extra("decoding the filters of this HDF5 dataset", field="format"):
        from streamer.tables.hdf5.recode import HDF5ChunkDecoder
    return HDF5ChunkDecoder(dtype, column)


@contextmanager
def _errors_of(record: ObjectRecord, there: Sequence[str]) -> Iterator[None]:
    """Turns UnreadError, DamagedError and ArraysError into a ManifestError that names the file and its datasets.

    `there` has the paths of datasets to name, and may be filled within the context.
    """
    try:
        yield
    except UnreadError as error:
        what = f"has {error}, which streamer does not read"
        raise make_refusal(record, f"{what}; {_choice_of(there)}", error.offset) from error
    except DamagedError as error:
        raise make_damage_error(record, str(error), error.offset) from error
    except ArraysError as error:
        raise make_refusal(record, f"cannot be read by rows: {error}; {_choice_of(there)}") from error


def _choice_of(there: Sequence[str]) -> str:
    """Returns the end of a message that says which datasets there are, and how to name them."""
    if not there:
        return _CHOOSE
    patterns = Counter(_NUMBERED.sub("/*", path, count=1) for path in there)
    episodes = [pattern for pattern, count in patterns.items() if count > 1]
    example = {pattern.rpartition("/")[2]: pattern for pattern in episodes[:2]}
    advice = f"; groups that are episodes are named by a pattern: HDF5(datasets={example})" if episodes else ""
    return f"{_CHOOSE}; there are {', '.join(there)}{advice}"
