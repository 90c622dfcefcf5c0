"""Keeps the state of a run, a few numbers: the parts of its order, the epoch, and the position delivered.

`loader/` saves it in a user's checkpoint and goes on from it, `order/adopt.py` goes on with a changed mix, and
`streamer audit` (`tools/audit_command.py`) compares states.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from streamer.errors import ConfigError, StateError
from streamer.order.level import BalanceSpec
from streamer.order.plan import LastBatch, batch_count
from streamer.order.rows.spec import RowSpec
from streamer.order.spec import OrderSpec, read_cut
from streamer.version import VERSION

if TYPE_CHECKING:
    from streamer.order.growing.spec import GrowingSpec
    from streamer.order.mix.spec import MixSpec

_log = logging.getLogger(__name__)

AnySpec: TypeAlias = "OrderSpec | MixSpec | GrowingSpec"
S = TypeVar("S", bound=msgspec.Struct)
K = TypeVar("K", bound="AnySpec")

STATE_FORMAT = 1

# Remedies that the message about a part that differs gives the user.
_FIXES = {
    "members": "pass the members the run began with, in their order",
    "manifest": "resume on the manifest the run began with (manifest=), or begin anew",
    "seed": "pass the seed the run began with",
    "shuffle": "pass the shuffle the run began with",
    "lanes": "pass Order(lanes=...) as the run had it",
    "window": "pass Order(shuffle_window=...) as the run had it",
    "lanes_by": "pass Order(lanes_by=...) as the run had it",
    "batching": "pass the batching the run began with",
    "groups": "pass the Homogeneous(group=...) the run began with",
    "reuse": "pass the reuse the run began with",
    "epoch_samples": "pass the epoch_samples the run began with",
    "packing": "pass packing= as the run had it",
    "balance": "pass balance= as the run had it",
}
_PARTS: dict[str, type] = {"manifest": str, "seed": int, "shuffle": str, "lanes": int, "window": int, "cut": str}
# Limits below which numbers of a state, and what is computed of them, fit into 64 bits.
_TOO_LARGE = {"epoch": 1 << 32, "position": 1 << 56, "global_batch": 1 << 32}
_PLACE: dict[str, type] = {"epoch": int, "position": int, "global_batch": int}


class Resume(msgspec.Struct, frozen=True):
    """The place at which batches go on.

    Attributes:
        epoch: number of the epoch.
        start: position of batch 0, counted from the start of the epoch; 0 unless the global batch has changed.
        batch: number of the first batch not yet delivered.
    """

    epoch: int
    start: int
    batch: int


class State(msgspec.Struct, frozen=True):
    """The state of a run, the same on all ranks, for any number of them.

    Attributes:
        spec: what fixes the order, of any kind, for a growing dataset with its log of admissions.
        epoch: number of the running epoch.
        position: number of samples of the epoch that were delivered to trainers (not only prefetched), over all ranks,
            padding included.
        global_batch: samples of the run's global batch; another one may go on from here.

    Raises:
        StateError: a number that is negative or too large, or a batch of 0.
    """

    spec: AnySpec
    epoch: int
    position: int
    global_batch: int

    def __post_init__(self) -> None:
        least = {"epoch": 0, "position": 0, "global_batch": 1}
        for name, low in least.items():
            if (value := getattr(self, name)) < low:
                raise StateError(f"state: {name}={value} is less than {low}", field=name)
            if value >= _TOO_LARGE[name]:
                raise StateError(f"state: {name}={value} is larger than any can be: the state is damaged", field=name)

    def to_dict(self) -> dict[str, object]:
        """Returns the state as plain values, for any checkpoint format."""
        before, after = self.spec.to_state_parts()
        place = {name: getattr(self, name) for name in _PLACE}
        return {"format": STATE_FORMAT, "order_id": self.spec.order_id, **before, **place, **after}

    @classmethod
    def from_dict(cls, saved: Mapping[str, object]) -> State:
        """Reads what `to_dict` wrote; unknown fields are ignored within one format.

        Raises:
            StateError: another format or kind, a field that is missing, of another type or outside its limits, or parts
                that do not agree with the order_id.
        """
        check_format(saved)
        spec: AnySpec
        # Modules that one dataset does not need are only loaded for others.
        match saved.get("kind"):
            case None:
                spec = _order(saved)
            case "mix":
                from streamer.order.mix.spec import MixSpec

                spec = _convert(saved.get("mix"), MixSpec, "a mix", "mix")
            case "growing":
                from streamer.order.growing.spec import LOG, GrowingSpec

                parts = {"order": _order(saved), **{name: saved.get(name) for name in LOG}}
                spec = _convert(parts, GrowingSpec, "a growing dataset", "admitted")
            case other:
                raise StateError(f"the state is of {other!r}, which streamer {VERSION} does not know", field="kind")
        state = cls(spec, *(int(str(_field(saved, name, kind))) for name, kind in _PLACE.items()))
        if saved.get("order_id") != state.spec.order_id:
            raise StateError(
                f"state: order_id {saved.get('order_id')!r} does not belong to its parts "
                f"({state.spec.order_id}); the state was changed, or its order is of another version",
                field="order_id",
            )
        return state

    def spec_of(self, kind: type[K]) -> K:
        """Returns the spec, which must be of the class of what is resumed.

        Raises:
            StateError: the spec is of another class.
        """
        if not isinstance(self.spec, kind):
            remedy = kind.remedies.get(self.spec.kind, "load it there")
            raise StateError(f"the state is of {self.spec.words}, not of {kind.words}; {remedy}", field="kind")
        return self.spec

    def check(self, spec: AnySpec, *, left_out: Collection[str] = ()) -> None:
        """Makes sure that an order is the one of this state.

        Args:
            spec: what fixes the order.
            left_out: names of parts that may differ.

        Raises:
            StateError: a part differs; names the first one, both values and what to do.
        """
        saved = self.spec.facts()
        found = spec.facts()
        for name in dict.fromkeys((*saved, *found)):
            if name not in left_out:
                self.check_value(name, saved.get(name), found.get(name))

    def check_value(self, name: str, saved: str | int | None, found: str | int | None) -> None:
        """Makes sure that a part has the same value as in the state.

        Args:
            name: name of the part.
            saved: value in the state, or None if it has none.
            found: value now, or None if there is none.

        Raises:
            StateError: the values differ; the same as for `check`.
        """
        if saved == found:
            return
        part = name.rsplit(": ", 1)[-1]
        fix = _FIXES.get(part.partition(".")[0], "pass the members and proportions the run began with")
        fix += self.spec.advice
        raise StateError(
            f"state does not fit: {name} was {_show_part(saved)} when it was saved and is {_show_part(found)} now; "
            f"{fix}",
            field=name,
            saved=saved,
            found=found,
        )

    def resume(self, samples: int, global_batch: int, last_batch: LastBatch = "fill") -> Resume:
        """Returns where to go on: with exactly the samples not delivered, in batches of `global_batch`.

        Any number of ranks may go on. Another global batch than that of the state is logged. If no batch of the epoch
        is left, the next epoch begins.

        Args:
            samples: number of samples of the epoch.
            global_batch: samples of a batch in the run that goes on.
            last_batch: what becomes of the last batch, as in `RankPlan`.
        """
        if global_batch != self.global_batch:
            _log.warning(
                "resuming epoch %d at position %d with a global batch of %d instead of %d: the "
                "samples left are the same, the batches are not",
                self.epoch,
                self.position,
                global_batch,
                self.global_batch,
            )
        if batch_count(samples - self.position, global_batch, last_batch) <= 0:
            return Resume(self.epoch + 1, 0, 0)
        batch, start = divmod(self.position, global_batch)
        return Resume(self.epoch, start, batch)


def check_format(saved: Mapping[str, object]) -> None:
    """Refuses a saved state of another format.

    Raises:
        StateError: the format is not `STATE_FORMAT`.
    """
    if (found := saved.get("format")) != STATE_FORMAT:
        raise StateError(
            f"state: format {found!r} cannot be read; streamer {VERSION} reads format {STATE_FORMAT}: load it with the "
            "version that saved it (docs/compatibility.md lists the formats of versions)",
            field="format",
        )


def _show_part(part: str | int | None) -> str:
    """Returns the value of a part as users write it."""
    return "not set" if part is None else {"block": "True", "none": "False"}.get(str(part), repr(part))


def _convert(parts: object, kind: type[S], words: str, field: str) -> S:
    """Makes a spec of plain values; raises StateError about `field` if they do not fit it."""
    try:
        return msgspec.convert(parts, kind)
    except (ValueError, RecursionError) as error:
        raise StateError(f"state of {words}: {error}", field=field) from error


def _order(saved: Mapping[str, object]) -> OrderSpec:
    """Reads the spec of one dataset from a saved state; raises StateError."""
    fields = {name: _field(saved, name, kind) for name, kind in _PARTS.items()}
    fields["cut"] = read_cut(str(fields["cut"]))
    try:
        more = {"rows": _spec(saved, "packing", RowSpec), "balance": _spec(saved, "balance", BalanceSpec)}
        return OrderSpec(*fields.values(), **more)  # type: ignore[arg-type]
    except ConfigError as error:
        raise StateError(f"state: {error}", **error.details) from error


def _spec(saved: Mapping[str, object], prefix: str, kind: type[S]) -> S | msgspec.UnsetType:
    """Reads the spec whose parts have names that begin with `prefix`; returns UNSET if the state has none of them."""
    parts = {name: saved[key] for name in kind.__struct_fields__ if (key := f"{prefix}.{name}") in saved}
    if not parts:
        return msgspec.UNSET
    return _convert(parts, kind, f"a dataset with {prefix}=", prefix)


def _field(saved: Mapping[str, object], name: str, kind: type) -> object:
    value = saved.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise StateError(f"state: {name}={value!r} is not {'a number' if kind is int else 'a text'}", field=name)
    return value
