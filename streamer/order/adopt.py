"""Continues a saved run with a changed mix: every member goes on where the run left it.

`loader/kinds/mix.py` calls it for `load_state_dict(state, strict=False)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from streamer.errors import StateError
from streamer.order.kinds.leveling import find_level
from streamer.order.mix.places import epoch_places, lane_ends, lane_quotas
from streamer.order.mix.request import MixRequest, MixSource, MixStart, StreamPlace
from streamer.order.mix.spec import MixSpec
from streamer.order.spec import OrderSpec
from streamer.order.state import State


class Adopted(msgspec.Struct, frozen=True):
    """A changed mix that goes on from a saved state, see `adopt`.

    Attributes:
        spec: the new mix; it begins with epoch `spec.origin_epoch`, at position 0.
        notes: what was taken over and what was not, one sentence each, for the log.
    """

    spec: MixSpec
    notes: tuple[str, ...]


class _Left(msgspec.Struct, frozen=True):
    """The place at which a run left a member.

    Attributes:
        order: order of the member's passes.
        samples: number of the member's samples.
        place: position in the member's stream up to which every sample was used, and the turn of the stream.
        beyond: number of samples behind that position that were used, too, and will come again.
    """

    order: OrderSpec
    samples: int
    place: StreamPlace
    beyond: int = 0

    @property
    def inside(self) -> bool:
        """Whether the member is inside a pass."""
        return self.place.origin % self.samples > 0


def adopt(saved: Mapping[str, object], request: MixRequest, sources: Sequence[MixSource], batch_size: int) -> Adopted:
    """Continues a run with other weights, members, batching or length of epochs.

    The next epoch begins, or if the state is at the start of an epoch, that one. A member with the same name goes on
    where it was, or with its next pass if its data or its order has changed. A new member begins with its first pass.
    At the end of an epoch that is exact: uses of two samples of a member differ by one at most. Inside an epoch, the
    lanes of a member are not at the same place: in that pass up to 4 samples per lane of a stratified mix come twice,
    else more (see the notes).

    Args:
        saved: state of a mix, or of a dataset that is a member now.
        request: what the user says of the new mix.
        sources: members of the new mix.
        batch_size: global batch of the new mix.

    Raises:
        StateError: the state cannot be read, is of a growing dataset or of a dataset that is no member, or it is inside
            an epoch with `balance=`.
        ConfigError, ManifestError: see `MixRequest.spec`.
    """
    state = State.from_dict(saved)
    epoch = state.epoch + (state.position > 0)
    lanes = state.spec.lanes
    left = _LEFT_BY.get(state.spec.kind, _left_by_dataset)(state, sources)
    # Inside a pass the order must stay as it is; from the next one on a member may have another window.
    windows = {name: one.order.window for name, one in left.items() if one.inside}
    start = MixStart(epoch, lanes, windows=windows)
    orders = {member.name: member.order for member in request.spec_from(sources, batch_size, start).members}
    places = {}
    notes = []
    for source in sources:
        places[source.name], note = _continue_member(source, left.get(source.name), orders[source.name])
        notes.append(f"member {source.name} {note}")
    notes += [f"member {name} is left out from now on" for name in left if name not in orders]
    start = msgspec.structs.replace(start, places=places)
    return Adopted(request.spec_from(sources, batch_size, start), tuple(notes))


def _continue_member(source: MixSource, left: _Left | None, order: OrderSpec) -> tuple[StreamPlace, str]:
    """Returns where a member goes on or begins in its stream, and words about that for a note."""
    if left is None:
        return StreamPlace(), "is new: it begins with its first pass"
    if left.inside and order != left.order:
        number = left.place.origin // left.samples + 1
        changed = [part for part, value in order.parts().items() if value != left.order.parts()[part]]
        return StreamPlace(number * source.samples), f"begins pass {number} anew: {', '.join(changed)} changed"
    number, place = divmod(left.place.origin, left.samples)
    again = f"; {left.beyond} samples come again" if left.beyond else ""
    if not left.inside:
        return StreamPlace(number * source.samples), f"goes on with pass {number}{again}"
    return left.place, f"goes on in pass {number} after {place} of {left.samples} samples{again}"


def _left_by_mix(state: State, sources: Sequence[MixSource]) -> dict[str, _Left]:
    """Returns where the run of a mix has left each of its members, by name; raises StateError.

    `sources` are not looked at.
    """
    spec = state.spec_of(MixSpec)
    epoch = state.epoch
    drawn = spec.stream_starts(epoch)
    quotas = spec.quotas(epoch)
    if state.position >= spec.samples(epoch):
        least = used = list(quotas)
    elif state.position == 0:
        least = used = [0] * len(drawn)
    else:
        find_level(spec.balance).check_inside()
        places = epoch_places(spec, epoch).counts(lane_ends(state.position, spec.lanes))
        counts = np.minimum(places, lane_quotas(spec, epoch))
        least = (spec.lanes * counts.min(axis=1)).tolist()
        used = counts.sum(axis=1).tolist()
    turns = spec.turns(epoch)
    return {
        member.name: _Left(member.order, member.samples, StreamPlace(start + low, turn), many - low)
        for member, start, turn, low, many in zip(spec.members, drawn, turns, least, used, strict=True)
    }


def _left_by_dataset(state: State, sources: Sequence[MixSource]) -> dict[str, _Left]:
    """Returns where the run of a dataset alone has left it, by the name of that member; raises StateError.

    A dataset alone is a stream in which every epoch begins in lane 0.
    """
    spec = state.spec_of(OrderSpec)
    for source in sources:
        if (source.manifest_digest, source.seed) == (spec.manifest_digest, spec.seed):
            if 0 < state.position < source.samples:
                find_level(spec.balance).check_inside()
            origin = state.epoch * source.samples + min(state.position, source.samples)
            place = StreamPlace(origin, -state.epoch * source.samples % spec.lanes)
            return {source.name: _Left(spec, source.samples, place)}
    raise StateError(
        f"the state is of a dataset with manifest {spec.manifest_digest} and seed {spec.seed}, which is no "
        f"member of the mix: {[source.name for source in sources]}",
        field="manifest",
    )


# The functions by kind of the state; `_left_by_dataset` refuses states of other kinds.
_LEFT_BY = {"mix": _left_by_mix, "": _left_by_dataset}
