"""Gives each kind of stream (one dataset, a mix, a growing dataset) an object that makes its orders and codes.

Used by `batches/samples/`, which asks `find_orders` and never which kind it is; `loader/kinds/` has the other half.
Pure, no I/O.

kind.py      what any of them answers: orders of epochs, codes of samples, rounds
one.py       one dataset
mix.py       several datasets, in shares, and codes that have the member and the use of a sample
growing.py   one dataset, in rounds
leveling.py  samples that change places, so that ranks cost the same

A spec says of which kind it is (`OrderSpec.kind`), as a state does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamer.order.growing.spec import GrowingSpec
    from streamer.order.kinds.kind import Orders
    from streamer.order.mix.spec import MixSpec
    from streamer.order.spec import OrderSpec

# These are names, so that one dataset does not load the modules of a mix.
_KINDS = {
    "": ("streamer.order.kinds.one", "OneOrders"),
    "mix": ("streamer.order.kinds.mix", "MixOrders"),
    "growing": ("streamer.order.kinds.growing", "GrowingOrders"),
}


def find_orders(spec: OrderSpec | MixSpec | GrowingSpec) -> Orders:
    """Returns the object that makes the orders of a spec; imports the modules of its kind."""
    module, name = _KINDS[spec.kind]
    orders: Orders = getattr(import_module(module), name)(spec)
    return orders
