"""Items: what is placed in rows. A document that fits into a row is one item, a longer one is cut."""

from __future__ import annotations

import msgspec
import numpy as np

from streamer.errors import ConfigError
from streamer.order.hashing import Integers
from streamer.order.rows.spec import RowSpec


class Items(msgspec.Struct, frozen=True, eq=False):
    """Runs of tokens of documents.

    Attributes:
        document: (T,) number of the document in its set.
        begin: (T,) its first token in the document.
        size: (T,) its tokens.
    """

    document: Integers
    begin: Integers
    size: Integers

    def take(self, places: Integers) -> Items:
        """Returns the items at these places."""
        return Items(self.document[places], self.begin[places], self.size[places])


def kept_costs(costs: Integers, spec: RowSpec) -> Integers:
    """Returns the tokens of each document that go to rows, after `overflow`: (D,).

    Args:
        costs: (D,) tokens of each document, or -1 if it cannot be read, and is in no row.
        spec: Spec of the rows.

    Raises:
        ConfigError: overflow="error", and a document is longer than a row.
    """
    costs = np.maximum(costs, 0).astype(np.int64)
    longer = costs > spec.length
    if spec.overflow == "split" or not longer.any():
        return costs
    if spec.overflow == "error":
        remedy = 'a larger length, or overflow="split", "truncate" or "drop"'
        if spec.policy == "buckets":
            remedy = 'a larger budget, or overflow="drop"'
        raise ConfigError(
            f'overflow="error": {int(longer.sum())} documents are longer than {spec.room}, the longest has '
            f"{int(costs.max())}; give {remedy}",
            field="overflow",
        )
    return np.where(longer, spec.length if spec.overflow == "truncate" else 0, costs)


def padded(sizes: Integers, spec: RowSpec) -> Integers:
    """Returns the tokens that items take in their rows: rounded up to `multiple_of`."""
    return sizes if spec.multiple_of == 1 else -(-sizes // spec.multiple_of) * spec.multiple_of


def items_of(kept: Integers, length: int) -> Items:
    """Cuts documents at multiples of `length`; a document without tokens makes no item."""
    pieces = -(-kept // length)
    document = np.repeat(np.arange(len(kept)), pieces)
    begin = (np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * length
    return Items(document, begin, np.minimum(kept[document] - begin, length))
