"""Where a run is: the parts of its order, the epoch, and the position delivered. A few numbers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import msgspec

from streamer.errors import ConfigError, StateError
from streamer.order.plan import LastBatch, batch_count
from streamer.order.spec import OrderSpec
from streamer.version import VERSION

_log = logging.getLogger(__name__)

STATE_FORMAT = 1

# How a user of the library sets each part, for the messages.
_CURES = {
    "manifest": "resume on the manifest the run began with (manifest=), or begin anew",
    "seed": "pass the seed the run began with",
    "shuffle": "pass the shuffle the run began with",
    "lanes": "pass lanes= as the run had it",
    "window": "pass shuffle_window= as the run had it",
    "cut": "pass cut= as the run had it",
}
_PARTS: dict[str, type] = {
    "manifest": str,
    "seed": int,
    "shuffle": str,
    "lanes": int,
    "window": int,
    "cut": str,
}
_PLACE: dict[str, type] = {"epoch": int, "position": int, "global_batch": int}


class Resume(msgspec.Struct, frozen=True):
    """Where batches go on.

    Attributes:
        epoch: the epoch.
        start: position of batch 0, the `start` of `RankPlan`; 0 unless the global batch changed.
        batch: the first batch not yet delivered.
    """

    epoch: int
    start: int
    batch: int


class State(msgspec.Struct, frozen=True):
    """The state of a run, the same on all ranks, for any number of them.

    Attributes:
        spec: the order.
        epoch: the running epoch.
        position: samples of the epoch's order delivered to the trainer (not prefetched), over all
            ranks, padding included.
        global_batch: B of the run; another one may go on from here.

    Raises:
        StateError: a negative number, or no batch.
    """

    spec: OrderSpec
    epoch: int
    position: int
    global_batch: int

    def __post_init__(self) -> None:
        check_place(self.epoch, self.position, self.global_batch)

    def to_dict(self) -> dict[str, str | int]:
        """Plain values, for any checkpoint format."""
        return {
            "format": STATE_FORMAT,
            "order_id": self.spec.order_id,
            **self.spec.parts(),
            "epoch": self.epoch,
            "position": self.position,
            "global_batch": self.global_batch,
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, object]) -> State:
        """Reads what `to_dict` wrote; unknown fields are ignored within one format.

        Raises:
            StateError: another format, a field missing or of another type, parts that do not
                agree with the order_id.
        """
        check_format(saved)
        if (kind := saved.get("kind")) is not None:
            whose = {"mix": "a MixedDataset", "growing": "a StreamingDataset with growing="}.get(str(kind), repr(kind))
            raise StateError(f"the state is of {whose}, not of a single dataset: load it there", field="kind")
        fields = {name: _field(saved, name, kind) for name, kind in (_PARTS | _PLACE).items()}
        spec = _spec(fields)
        if saved.get("order_id") != spec.order_id:
            raise StateError(
                f"state: order_id {saved.get('order_id')!r} does not belong to its parts "
                f"({spec.order_id}); the state was changed, or its order is of another version",
                field="order_id",
            )
        return cls(spec, *(int(str(fields[name])) for name in _PLACE))

    def check(self, spec: OrderSpec) -> None:
        """Makes sure that the dataset in hand has the order of this state.

        Raises:
            StateError: names the first part that differs, both values and what to do.
        """
        self._check(spec, _CURES)

    def check_given(self, spec: OrderSpec) -> None:
        """The same for the parts that are never chosen automatically."""
        self._check(spec, [name for name in _CURES if name not in {"lanes", "window", "cut"}])

    def _check(self, spec: OrderSpec, names: Iterable[str]) -> None:
        mine, theirs = self.spec.parts(), spec.parts()
        for name in names:
            if mine[name] != theirs[name]:
                raise StateError(
                    f"state does not fit: {name} was {_shown(mine[name])} when it was saved and is "
                    f"{_shown(theirs[name])} now; {_CURES[name]}",
                    field=name,
                    saved=mine[name],
                    found=theirs[name],
                )

    def resume(self, samples: int, global_batch: int, last_batch: LastBatch = "fill") -> Resume:
        """Where to go on: exactly the samples not delivered, in batches of `global_batch`.

        Any number of ranks may go on, and another global batch, which is logged. A finished epoch
        goes on with the next.

        Args:
            samples: n.
            global_batch: the batch of the run that goes on.
            last_batch: as in `RankPlan`.
        """
        return resume_at((self.epoch, self.position, self.global_batch), samples, global_batch, last_batch)


def resume_at(place: tuple[int, int, int], samples: int, global_batch: int, last_batch: LastBatch) -> Resume:
    """Where to go on from a saved (epoch, position, global batch); see `State.resume`."""
    epoch, position, saved_batch = place
    if global_batch != saved_batch:
        _log.warning(
            "resuming epoch %d at position %d with a global batch of %d instead of %d: the "
            "samples left are the same, the batches are not",
            epoch,
            position,
            global_batch,
            saved_batch,
        )
    if batch_count(samples - position, global_batch, last_batch) <= 0:
        return Resume(epoch + 1, 0, 0)
    batch, start = divmod(position, global_batch)
    return Resume(epoch, start, batch)


def check_place(epoch: int, position: int, global_batch: int) -> None:
    """Refuses impossible places.

    Raises:
        StateError: a negative number, or no batch.
    """
    for name, value, least in (("epoch", epoch, 0), ("position", position, 0), ("global_batch", global_batch, 1)):
        if value < least:
            raise StateError(f"state: {name}={value} is less than {least}", field=name)


def check_format(saved: Mapping[str, object]) -> None:
    """Refuses states of other versions.

    Raises:
        StateError: another format.
    """
    if (found := saved.get("format")) != STATE_FORMAT:
        raise StateError(
            f"state: format {found!r} cannot be read; streamer {VERSION} reads format {STATE_FORMAT}: load it with the "
            "version that saved it (docs/compatibility.md lists the formats of versions)",
            field="format",
        )


def _shown(part: str | int) -> str:
    """A part as users write it."""
    return {"block": "True", "none": "False"}.get(str(part), repr(part))


def _field(saved: Mapping[str, object], name: str, kind: type) -> object:
    value = saved.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise StateError(f"state: {name}={value!r} is not {'a number' if kind is int else 'a text'}", field=name)
    return value


def _spec(fields: Mapping[str, object]) -> OrderSpec:
    parts = [fields[name] for name in _PARTS]
    try:
        return OrderSpec(*parts)  # type: ignore[arg-type]
    except ConfigError as error:
        raise StateError(f"state: {error}", **error.details) from error
