"""Where a run of a mix is: the parts of its order, the epoch, and the position delivered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from streamer.order.mix.request import MixRequest, MixSource
from streamer.order.mix.spec import MixSpec
from streamer.order.state import Resume


class MixState(msgspec.Struct, frozen=True):
    """The state of a run, the same on all ranks, for any number of them.

    Attributes:
        spec: the order.
        epoch: the running epoch.
        position: samples of the epoch's order delivered to the trainer, over all ranks, padding included.
        global_batch: B of the run.

    Raises:
        StateError: a negative number, or no batch.
    """

    spec: MixSpec
    epoch: int
    position: int
    global_batch: int

    def to_dict(self) -> dict[str, object]:
        """Plain values, for any checkpoint format; `kind` is "mix"."""

    @classmethod
    def from_dict(cls, saved: Mapping[str, object]) -> MixState:
        """Reads what `to_dict` wrote; unknown fields are ignored within one format.

        Raises:
            StateError: of a single dataset, another format, a field missing or of another type, parts that do not
                agree with the order_id.
        """

    def check(self, spec: MixSpec) -> None:
        """Makes sure that the mix in hand has the order of this state.

        Raises:
            StateError: names the first part that differs, its member, both values and what to do.
        """

    def resume(self, global_batch: int, drop_last: bool = False) -> Resume:
        """Where to go on: exactly the samples not delivered, in batches of `global_batch`."""


class Adopted(msgspec.Struct, frozen=True):
    """A changed mix that goes on from a saved state, see `adopt`.

    Attributes:
        spec: the new mix; its first epoch is `spec.origin_epoch`, and begins at position 0.
        notes: what was taken over and what was not, one sentence each, for the log.
    """

    spec: MixSpec
    notes: tuple[str, ...]


def adopt(saved: Mapping[str, object], request: MixRequest, sources: Sequence[MixSource], batch_size: int) -> Adopted:
    """Continues with other weights, members, batching or epoch length: `load_state_dict(state, strict=False)`.

    Members with the same name, manifest and seed go on where they were; new ones begin at 0. The epoch after the saved
    one begins. At an epoch's end that is exact: no sample of a member was used more than once more than any other.
    In the middle of an epoch at most 4 samples per lane and member come twice.

    Args:
        saved: the state of a mix, or of a single dataset, which is then that member's.
        request: the new mix.
        sources: its members.
        batch_size: its global batch.

    Raises:
        StateError: no state of a mix or dataset; a single dataset's that is no member.
    """
