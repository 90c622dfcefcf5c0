"""Where a run of a mix is: the parts of its order, the epoch, and the position delivered."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from streamer.errors import StateError
from streamer.order.mix.spec import MixSpec
from streamer.order.plan import LastBatch
from streamer.order.state import STATE_FORMAT, Resume, check_format, check_place, resume_at

_CURES = {
    "members": "pass the members the run began with, in their order",
    "manifest": "resume on the manifest the run began with (manifest=)",
    "seed": "pass the seed the run began with",
    "shuffle": "pass the shuffle the run began with",
    "window": "pass shuffle_window= as the run had it",
    "lanes": "pass lanes= as the run had it",
    "batching": "pass the batching the run began with",
    "groups": "pass the group= the run began with",
}


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

    def __post_init__(self) -> None:
        check_place(self.epoch, self.position, self.global_batch)

    def to_dict(self) -> dict[str, object]:
        """Plain values, for any checkpoint format."""
        return {
            "format": STATE_FORMAT,
            "kind": "mix",
            "order_id": self.spec.order_id,
            "mix": self.spec.parts(),
            "epoch": self.epoch,
            "position": self.position,
            "global_batch": self.global_batch,
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, object]) -> MixState:
        """Reads what `to_dict` wrote; unknown fields are ignored within one format.

        Raises:
            StateError: of a single dataset, another format, a field missing or of another type, parts that do not
                agree with the order_id.
        """
        check_format(saved)
        if saved.get("kind") != "mix":
            raise StateError(
                "the state is of a single dataset, not of a mix; load_state_dict(state, strict=False) lets its member "
                "go on from there",
                field="kind",
            )
        fields = {name: saved.get(name) for name in ("epoch", "position", "global_batch")}
        try:
            state = msgspec.convert({"spec": saved.get("mix"), **fields}, cls)
        except msgspec.ValidationError as error:
            raise StateError(f"state of a mix: {error}", field="mix") from error
        if saved.get("order_id") != state.spec.order_id:
            raise StateError(
                f"state: order_id {saved.get('order_id')!r} does not belong to its parts ({state.spec.order_id}); "
                "the state was changed, or its order is of another version",
                field="order_id",
            )
        return state

    def check(self, spec: MixSpec) -> None:
        """Makes sure that the mix in hand has the order of this state.

        Raises:
            StateError: names the first part that differs, its member, both values and what to do.
        """
        saved, found = self.spec.facts(), spec.facts()
        for name in [*saved, *found]:
            if saved.get(name) != found.get(name):
                raise StateError(
                    f"state does not fit: {name} was {_shown(saved.get(name))} when it was saved and is "
                    f"{_shown(found.get(name))} now; {_cure(name)}",
                    field=name,
                    saved=saved.get(name),
                    found=found.get(name),
                )

    def resume(self, global_batch: int, last_batch: LastBatch = "fill") -> Resume:
        """Where to go on: exactly the samples not delivered, in batches of `global_batch`; see `State.resume`."""
        place = (self.epoch, self.position, self.global_batch)
        return resume_at(place, self.spec.samples(self.epoch), global_batch, last_batch)


def _shown(value: object) -> str:
    return "not set" if value is None else repr(value)


def _cure(name: str) -> str:
    part = name.rsplit(": ", 1)[-1]
    cure = _CURES.get(part, "pass the members and proportions the run began with")
    return f"{cure}, or continue with the changed mix: load_state_dict(state, strict=False)"
