"""Decodes chunks of HDF5 with h5py, for filters that `tables/hdf5/chunks.py` does not undo.

`tables/hdf5/format.py` imports it, in recoders only, when a dataset has such filters.
"""

from __future__ import annotations

from itertools import count

import h5py
import numpy as np

from streamer.base.extras import explain_import_error
from streamer.errors import RecodeError
from streamer.tables.hdf5.chunks import filters_of
from streamer.tables.tiles import Array, ColumnHint

_missing: ImportError | None = None
try:
    # The import registers blosc, bitshuffle, Zstandard and other filters.
    import hdf5plugin  # noqa: F401
except ImportError as error:
    _missing = error

# Number of parameters that LZF and bitshuffle put before the user's when a dataset is made, by number of the filter.
_MADE = {32000: 3, 32008: 3}
# Number of the filter scale-offset, and the place of its parameter that says whether the dataset has a fill value.
# Items that have the fill value are not scaled.
_SCALE_OFFSET = 6
_HAS_FILL = 7
_names = count()


class HDF5ChunkDecoder:
    """Decodes the chunks of one column, by reading them from datasets in memory that have a single chunk.

    Args:
        dtype: dtype of the items.
        column: hint with shape, fill value and filters of the chunks.

    Raises:
        RecodeError: no library has a filter, or scale-offset was applied without a fill value.
        ConfigError: hdf5plugin is not installed, which has a filter that h5py lacks.
    """

    def __init__(self, dtype: np.dtype[np.generic], column: ColumnHint) -> None:
        self._dtype = dtype
        self._shape = column.tile
        self._fill = column.fill
        self._filters = filters_of(column)
        for each in self._filters:
            if each.number == _SCALE_OFFSET and each.values[_HAS_FILL : _HAS_FILL + 1] != (1,):
                raise RecodeError(
                    "chunks are packed by scale-offset in a dataset whose fill value is undefined; write it with one"
                )
            if not h5py.h5z.filter_avail(each.number):
                if _missing is not None:
                    raise explain_import_error(f"decoding HDF5 filter {each.number}", _missing, field="format")
                raise RecodeError(
                    f"chunks have HDF5 filter {each.number}, which h5py and hdf5plugin lack where the engine runs"
                )
        self._file = h5py.File(f"chunks-{next(_names)}", "w", driver="core", backing_store=False)
        # Datasets in memory by mask: bit i says that filter i was left out.
        self._datasets: dict[int, h5py.h5d.DatasetID] = {}

    def __call__(self, stored: memoryview, mask: int) -> Array:
        """Returns the items of a chunk, in its shape. h5py raises its own errors for damaged chunks.

        Args:
            stored: bytes of the chunk in the file.
            mask: bit i says that filter i was left out for this chunk.
        """
        if mask not in self._datasets:
            # The dataset is made without the filters that were left out. HDF5 2.0 would ignore a mask given with the
            # chunk, and read it with all filters.
            filters = [each for place, each in enumerate(self._filters) if not mask >> place & 1]
            settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            settings.set_chunk(self._shape)
            for each in filters:
                values = each.values[_MADE.get(each.number, 0) :]
                settings.set_filter(each.number, each.flags, values)
            if self._fill:
                settings.set_fill_value(np.frombuffer(self._fill, self._dtype, 1).reshape(()))
            datatype = h5py.h5t.py_create(self._dtype, logical=True)
            space = h5py.h5s.create_simple(self._shape)
            self._datasets[mask] = h5py.h5d.create(self._file.id, str(mask).encode(), datatype, space, settings)
        dataset = self._datasets[mask]
        dataset.write_direct_chunk((0,) * len(self._shape), bytes(stored))
        items: Array = np.empty(self._shape, self._dtype)
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, items)
        return items
