"""What the rows of a batch were made of."""

from __future__ import annotations

import msgspec


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
