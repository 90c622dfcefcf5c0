"""A mix of several datasets: which member, and which of its samples, comes at which position. Pure functions, no I/O.

shares.py   proportions as a user says them
request.py  from these and the members' sizes to the spec
spec.py     what fixes the order of a mix
quotas.py   how much of each member an epoch takes
codes.py    one number for member, pass and sample
order.py    positions to samples
state.py    where a run is; going on with a changed mix
"""

from streamer.order.mix.adopt import Adopted, adopt
from streamer.order.mix.codes import SampleCodes
from streamer.order.mix.order import MixOrder
from streamer.order.mix.quotas import Stage
from streamer.order.mix.request import MixRequest, MixSource
from streamer.order.mix.shares import Shares
from streamer.order.mix.spec import Batching, MixMember, MixSpec
from streamer.order.mix.state import MixState
from streamer.order.mix.streams import MemberChunks

__all__ = [
    "Adopted",
    "Batching",
    "MemberChunks",
    "MixMember",
    "MixOrder",
    "MixRequest",
    "MixSource",
    "MixSpec",
    "MixState",
    "SampleCodes",
    "Shares",
    "Stage",
    "adopt",
]
