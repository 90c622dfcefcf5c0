"""Makes batches of rows, or of a bucket: the documents are read and made, and then assembled to rows.

`find_units` (`batches/samples/units.py`) chooses it for a dataset with `packing=`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from streamer.batches.batch.placement import NO_SLOT, Rows
from streamer.batches.rows.assemble import Document
from streamer.batches.rows.bucket import Assembler, make_assembler
from streamer.batches.rows.collate import collate_row_buffers, collate_rows
from streamer.batches.rows.options import Buckets, Packing
from streamer.batches.rows.pieces import PackedCounts
from streamer.batches.samples.recipe import StreamReader
from streamer.batches.samples.units import BatchUnits, Collate, Integers, UnitMaker


class RowsOfBatch(BatchUnits):
    """The documents of the rows, or of the bucket, of one batch.

    Args:
        assembler: makes rows of documents.
        source: reads and makes the documents.
        epoch: epoch of the batch.
        codes: (rows,) codes of the rows.
    """

    are_compared = False

    def __init__(self, assembler: Assembler, source: StreamReader, epoch: int, codes: Integers) -> None:
        self._assembler = assembler
        self._source = source
        self._epoch = epoch
        self._count = len(codes)
        self.ordinals, self._pieces = source.documents(epoch, codes)

    def begin(self, rows: Rows, at: Callable[[int], None], *, singly: bool) -> None:
        """Reads the documents to memory of their own, unless `singly` is set; see `BatchUnits`.

        Rows of the slot are not used here: `complete` writes tokens to them.
        """
        self._source.begin(self._epoch, self.ordinals, NO_SLOT, at, documents=not singly)

    def keep(self, sample: object, place: int) -> Document:
        """Returns the sample as a `Document`; see `BatchUnits`."""
        return self._assembler.document(sample, int(self._pieces.tokens[place]))

    def complete(
        self, made: dict[int, object], rows: Rows, fill: Callable[[], dict[int, object]]
    ) -> tuple[dict[int, object], PackedCounts]:
        """Returns the rows by number. Documents that are missing are left out of theirs; `fill` is not called.

        Raises:
            WorkerError, DecodeError: as `rows` of the assembler.
        """
        out = rows.all(self._count)
        documents, pieces = self._assembler.settle(cast("dict[int, Document]", made), self._pieces)
        packed = self._assembler.rows(documents, pieces, out)
        counts = pieces.counts(list(documents), self._assembler.places(packed), self._source.row_cost)
        return dict(enumerate(packed)), counts

    def collate(self, samples: list[object], ragged: Sequence[str]) -> object:
        """See `BatchUnits`."""
        return collate_row_buffers(samples)  # type: ignore[arg-type]


class RowUnitMaker(UnitMaker):
    """Makes batches of rows, or of a bucket, by the options of `packing=`."""

    take_rows = True

    def __init__(self, packing: Packing | Buckets) -> None:
        super().__init__(packing)
        self._assembler = make_assembler(packing)

    def begin_batch(self, source: StreamReader, epoch: int, codes: Integers) -> RowsOfBatch:
        """See `UnitMaker`."""
        return RowsOfBatch(self._assembler, source, epoch, codes)

    def torch_collate(self, ragged: Sequence[str]) -> Collate:
        """See `UnitMaker`."""
        return cast("Collate", collate_rows)
