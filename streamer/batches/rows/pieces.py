"""The documents of some rows: which tokens of each are in which row, and their counts."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.batches.rows.options import Packing


class PackedCounts(msgspec.Struct, frozen=True, array_like=True):
    """Counts of a batch of rows.

    Attributes:
        documents: documents and pieces of documents. cut: pieces.
        tokens: tokens of all of them.
        places: tokens that the rows have room for.
        cost: of all rows, as `Balance` has it.
        estimated: tokens that were estimated of the documents; 0: the tokens are exact.
        overflowed: tokens that had no room in their rows.
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
    """The documents of some rows, row after row.

    Attributes:
        document: (T,) numbers of the documents in the dataset.
        begin, size: (T,) the tokens of the document that are in the row.
        tokens: (T,) all tokens of the document.
        first: (rows + 1,) where the documents of each row begin.
        estimated: tokens that were estimated of the documents that were made; 0: the tokens are exact.
        overflowed: of those that the same documents have, tokens that have no room in their rows.
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
            made: places of the documents that were made.
            places: tokens that the rows have room for.
            cost: Cost of the tokens of a document in a row, and of their square.
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
        """Returns the pieces of documents whose tokens were estimated, now that these are known.

        A piece is the same share of its document. What has no room in its row is left out; documents that were not
        made leave theirs to others.

        Args:
            tokens: Tokens of the documents that were made, by their places.
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
        """Joins those of several runs of rows, one run after the other."""
        document, begin, size, tokens = (
            np.concatenate([getattr(part, name) for part in parts]) for name in cls.__struct_fields__[:4]
        )
        counts = np.concatenate([np.diff(part.first) for part in parts])
        return cls(document=document, begin=begin, size=size, tokens=tokens, first=np.append(0, np.cumsum(counts)))
