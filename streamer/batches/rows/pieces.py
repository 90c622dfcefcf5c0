"""Says which documents are in some rows, which of their tokens, and counts them for the statistics.

Plans make `Pieces` (`batches/rows/planned.py`, `batches/samples/plans.py`), and the assemblers of rows and buckets read
them. The counts go with each batch to the trainer (`loader/stall/stats.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.batches.rows.options import Packing


class PackedCounts(msgspec.Struct, frozen=True, array_like=True):
    """Counts of a batch of rows.

    Attributes:
        documents: number of whole documents and of pieces of documents.
        cut: number of these that are pieces.
        tokens: number of their tokens.
        places: number of tokens that the rows have room for.
        cost: cost of all rows, as `Balance` computes it.
        estimated: number of tokens that were estimated for the documents, or 0 if the plan knew the exact number.
        overflowed: number of tokens that had no room in their rows, which is 0 without an estimate.
    """

    documents: int
    cut: int
    tokens: int
    places: int
    cost: int
    estimated: int
    overflowed: int


Integers = npt.NDArray[np.int64]


class Pieces(msgspec.Struct, frozen=True, eq=False):
    """The T pieces of documents in some rows, row after row. A piece is a whole document, or a part of one.

    Attributes:
        document: (T,) number of each piece's document in the dataset.
        begin: (T,) first token of the document that is in the row.
        size: (T,) number of tokens of the document that are in the row.
        tokens: (T,) number of all tokens of the document.
        first: (rows + 1,) index of the first piece of each row, and T.
        estimated: number of tokens that were estimated for the documents that were made, or 0 if they are exact.
        overflowed: number of tokens of these documents that have no room in their rows.
    """

    document: Integers
    begin: Integers
    size: Integers
    tokens: Integers
    first: Integers
    estimated: int = 0
    overflowed: int = 0

    def counts(self, made: list[int], places: int, cost: tuple[int, int]) -> PackedCounts:
        """Returns the counts of the documents that were made.

        Args:
            made: indices of the pieces whose documents were made.
            places: number of tokens that the rows have room for.
            cost: Coefficients (a, b) of a document's cost a x n + b x n**2, where n is its tokens in the row.
        """
        sizes = self.size[made]
        cut = int(np.count_nonzero(sizes < self.tokens[made]))
        total = int((cost[0] * sizes + cost[1] * sizes**2).sum())
        return PackedCounts(
            documents=len(made),
            cut=cut,
            tokens=int(sizes.sum()),
            places=places,
            cost=total,
            estimated=self.estimated,
            overflowed=self.overflowed,
        )

    def settle(self, tokens: Mapping[int, int], packing: Packing) -> Pieces:
        """Returns the pieces of documents whose tokens were estimated, now that their true number is known.

        A piece stays the same share of its document. Its tokens that have no room in the row are left out. A document
        that was not made takes no room.

        Args:
            tokens: True number of tokens of each document that was made, by the index of its piece.
            packing: Packing of the rows.
        """
        made = list(tokens)
        found = np.zeros_like(self.tokens)
        planned = self.tokens
        found[made] = list(tokens.values())
        kept = found
        if packing.overflow == "truncate":
            planned = np.minimum(planned, packing.spec().length)
            kept = np.minimum(found, packing.length)
        begin = self.begin * kept // planned
        size = (self.begin + self.size) * kept // planned - begin
        taken = -(-size // packing.multiple_of) * packing.multiple_of
        before = np.cumsum(taken) - taken
        counts = np.diff(self.first)
        before -= np.repeat(before[self.first[:-1][counts > 0]], counts[counts > 0])
        fits = np.minimum(size, np.maximum(packing.length - before, 0))
        estimated = int(self.size[made].sum())
        overflowed = int((size - fits).sum())
        return Pieces(
            document=self.document,
            begin=begin,
            size=fits,
            tokens=found,
            first=self.first,
            estimated=estimated,
            overflowed=overflowed,
        )

    @classmethod
    def join(cls, parts: list[Pieces]) -> Pieces:
        """Returns the pieces of the rows of all parts, in order. `estimated` and `overflowed` become 0."""
        document, begin, size, tokens = (
            np.concatenate([getattr(part, name) for part in parts]) for name in cls.__struct_fields__[:4]
        )
        counts = np.concatenate([np.diff(part.first) for part in parts])
        return cls(document=document, begin=begin, size=size, tokens=tokens, first=np.append(0, np.cumsum(counts)))
