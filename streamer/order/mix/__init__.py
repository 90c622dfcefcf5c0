"""Orders a mix of several datasets: says which member, and which of its samples, comes at which position.

`order/kinds/mix.py` makes the orders of a mix. `loader/mixed_dataset.py`, `loader/options/mix_options.py` and
`loader/kinds/mix.py` make its spec of what the user says, and `order/adopt.py` changes it. Pure functions, no I/O.

shares.py   proportions as a user says them
request.py  from the proportions and the members' sizes to the spec
spec.py     what fixes the order of a mix, and how much of each member an epoch takes
tree.py     how the places of a lane are shared between the members
places.py   the places of an epoch, by batching: member, and count in the lane
streams.py  a member's passes: from a stream position to the sample; one number for member, pass and sample
order.py    positions to samples, chunks to batches
explain.py  the mix in words
"""

from streamer.order.mix.explain import MemberSize, cautions, explain, hit_bound, share_cache
from streamer.order.mix.order import MixOrder
from streamer.order.mix.request import MixRequest, MixSource
from streamer.order.mix.shares import Shares, Weights
from streamer.order.mix.spec import Batching, Homogeneous, MixMember, MixSpec, Stage
from streamer.order.mix.streams import MemberChunks, SampleCodes

__all__ = [
    "Batching",
    "Homogeneous",
    "MemberChunks",
    "MemberSize",
    "MixMember",
    "MixOrder",
    "MixRequest",
    "MixSource",
    "MixSpec",
    "SampleCodes",
    "Shares",
    "Stage",
    "Weights",
    "cautions",
    "explain",
    "hit_bound",
    "share_cache",
]
