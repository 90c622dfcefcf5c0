"""Makes the `MixSpec` of what a user says and what the members' manifests say: a pure function, equal on all ranks.

`loader/options/mix_options.py` makes a `MixRequest`; `loader/kinds/mix.py` asks it for the spec, and `order/adopt.py`
for that of a changed mix. L is the number of lanes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from streamer.errors import ConfigError, ManifestError
from streamer.order.hashing import Integers
from streamer.order.level import BalanceSpec, check_lanes, level_of
from streamer.order.mix.shares import Amount, Shares, whole_passes_as_weights
from streamer.order.mix.spec import MOST_MEMBERS, Batching, MixMember, MixSpec, Stage
from streamer.order.rows.spec import RowSpec
from streamer.order.spec import Cut, OrderSpec, Shuffle, auto_lanes, auto_window

# Batches that are mixed together. With 16, counts of 100 members differ from their shares by less than 2 in a batch
# (2026-11-22).
_WINDOW = 16
# Most counts of a window, 8 bytes each; a window with more has fewer batches.
_WINDOW_CELLS = 1 << 20


class MixSource(msgspec.Struct, frozen=True, eq=False):
    """One dataset that is to be mixed.

    Attributes:
        name: name that the user gives it.
        manifest_digest: digest of its manifest or selection.
        chunk_samples: (M,) selected samples of each chunk; where documents are packed, (S,) rows of each set.
        seed, shuffle, cut: parts of its own order, see `OrderSpec`.
        size: size in the unit of the shares. None means the number of its samples.
        rows: what fixes its rows, where documents are packed, else `UNSET`.
    """

    name: str
    manifest_digest: str
    chunk_samples: Integers
    seed: int
    shuffle: Shuffle = "block"
    cut: Cut = "fixed"
    size: int | None = None
    rows: RowSpec | msgspec.UnsetType = msgspec.UNSET

    @property
    def samples(self) -> int:
        """Number of samples, or rows."""
        return int(self.chunk_samples.sum())

    @property
    def chunks(self) -> int:
        """Number of chunks with samples, or of sets with rows."""
        return int(np.count_nonzero(self.chunk_samples))


class StreamPlace(msgspec.Struct, frozen=True):
    """The place of a member in its stream.

    Attributes:
        origin: stream position.
        turn: stream position Q is in lane (Q + turn) mod L.
    """

    origin: int = 0
    turn: int = 0


class MixStart(msgspec.Struct, frozen=True):
    """The values that a mix takes over from a run that it continues.

    Attributes:
        epoch: the first epoch.
        lanes: number of lanes, or 0 if it is to be chosen.
        slots: places of a lane in a batch, or 0 if they are to be chosen.
        windows: number of open chunks of members, by name. For others it is chosen.
        places: places of members in their streams, by name; others begin anew.
        weighted: names of members that had weights in place of whole passes. A run that began before homogeneous
            batches were filled up goes on so.
    """

    epoch: int = 0
    lanes: int = 0
    slots: int = 0
    windows: dict[str, int] = {}
    places: dict[str, StreamPlace] = {}
    weighted: frozenset[str] = frozenset()

    @classmethod
    def from_spec(cls, spec: MixSpec) -> MixStart:
        """Returns the start that continues a mix unchanged."""
        return cls(
            epoch=spec.origin_epoch,
            lanes=spec.lanes,
            slots=spec.slots,
            windows={member.name: member.order.window for member in spec.members},
            places={member.name: StreamPlace(member.origin, member.turn) for member in spec.members},
            weighted=frozenset(member.name for member in spec.members if not member.passes),
        )


class MixRequest(msgspec.Struct, frozen=True):
    """The user's arguments of a mix.

    Attributes:
        shares: the proportions.
        seed: seed of the mixing.
        batching: see `MixSpec`.
        lanes: number of lanes. None chooses it from the members and the batch.
        window: number of chunks that are open together, of all members over all nodes. None chooses it.
        group: samples of a homogeneous batch that are of one member together. None means the whole batch.
        balance: which costs are made level, whatever its batch is, or `UNSET` if none are.
    """

    shares: Shares
    seed: int
    batching: Batching = "stratified"
    lanes: int | None = None
    window: int | None = None
    group: int | None = None
    balance: BalanceSpec | msgspec.UnsetType = msgspec.UNSET

    def spec(self, sources: Sequence[MixSource], batch_size: int, *, like: MixSpec | None = None) -> MixSpec:
        """Returns the spec: chooses lanes and windows that the user leaves open, and rounds the shares.

        Args:
            sources: the members.
            batch_size: samples of the global batch, over all ranks.
            like: spec of a saved state with which the run goes on. None begins anew. What the request leaves open
                (lanes, windows, batch), and how far the members are, is taken from it. `State.check` compares the rest.

        Raises:
            ConfigError: a value outside its rule; members that cannot be mixed.
            ManifestError: a member has no samples.
        """
        return self.spec_from(sources, batch_size, MixStart() if like is None else MixStart.from_spec(like))

    def spec_from(self, sources: Sequence[MixSource], batch_size: int, start: MixStart) -> MixSpec:
        """Does what `spec` does, with what a run that goes on has left; raises as `spec`."""
        _check_sources(sources, batch_size)
        unshuffled = [source.name for source in sources if source.shuffle == "none"]
        if unshuffled and len(unshuffled) < len(sources):
            raise ConfigError(
                f"members {unshuffled} are not shuffled and the others are: a mix shuffles all of its members or none",
                field="shuffle",
            )
        ordered = bool(unshuffled)
        lanes = self._lanes(sources, batch_size, start, ordered)
        slots = start.slots if start.slots and start.lanes == lanes else max(1, batch_size // lanes)
        if self.batching == "homogeneous":
            check_lanes('batching="homogeneous"', lanes, batch_size)
        level = level_of(self.balance)
        level.check_lanes(lanes, slots * lanes if start.slots else batch_size)
        balance = level.resize(slots * lanes)
        unit = lanes * (slots if self.batching == "homogeneous" else 1)
        all_amounts = self._amounts(sources, start)
        # The running stage and those after it.
        begun = max(i for i, stage in enumerate(all_amounts) if stage.epoch <= start.epoch)
        amounts = [msgspec.structs.replace(all_amounts[begun], epoch=start.epoch), *all_amounts[begun + 1 :]]
        stages = tuple(_stage(amount, unit, lanes * slots) for amount in amounts)
        windows = (
            [1] * len(sources)
            if ordered
            else self._windows(sources=sources, amounts=all_amounts, batch_size=batch_size, lanes=lanes, start=start)
        )
        members = (
            _member(
                source=source,
                lanes=lanes,
                window=window,
                passes=passes,
                place=start.places.get(source.name, StreamPlace()),
            )
            for source, window, passes in zip(sources, windows, amounts[0].passes, strict=True)
        )
        window = _WINDOW
        while window > 1 and len(sources) * lanes * window > _WINDOW_CELLS:
            window //= 2
        groups = self._groups(lanes * slots)
        place = window, start.epoch, groups, balance
        return MixSpec(tuple(members), stages, self.seed, self.batching, lanes, slots, *place)

    def _lanes(self, sources: Sequence[MixSource], batch_size: int, start: MixStart, ordered: bool) -> int:
        """Returns the number of lanes: the given one, that of the start, or a chosen one; raises ConfigError."""
        if ordered and (self.lanes, self.window) != (None, None):
            raise ConfigError(
                f"lanes={self.lanes} and shuffle_window={self.window} have no meaning with shuffle=False; leave them "
                "out",
                field="lanes",
            )
        if ordered:
            return 1
        for field, value in (("lanes", self.lanes), ("shuffle_window", self.window)):
            if value is not None and value < 1:
                raise ConfigError(f"{field}={value} must be at least 1", field=field)
        if chosen := self.lanes or start.lanes:
            return chosen
        # The number is chosen as for one dataset, but as a multiple of the groups of a batch.
        groups = self._groups(batch_size)
        units = level_of(self.balance).count_units(batch_size)
        lanes = auto_lanes(sum(source.chunks for source in sources), units)
        return max((d for d in range(groups, lanes + 1, groups) if units % d == 0), default=groups)

    def _groups(self, batch_size: int) -> int:
        """Returns the number of groups of a homogeneous batch; raises ConfigError if they do not divide it."""
        groups, rest = divmod(batch_size, self.group or batch_size)
        if rest or groups == 0:
            raise ConfigError(
                f"group={self.group} does not divide the global batch, {batch_size}; without a StreamingDataLoader the "
                "mix needs batch_size=",
                field="group",
            )
        return groups

    def _amounts(self, sources: Sequence[MixSource], start: MixStart) -> list[Amount]:
        """Returns the amounts of all stages; a member inside a pass gets a weight in place of whole passes."""
        stages = self.shares.amounts(
            {source.name: source.samples for source in sources},
            {source.name: source.samples if source.size is None else source.size for source in sources},
        )
        partial = [
            start.places.get(source.name, StreamPlace()).origin % source.samples > 0
            or (self.batching == "homogeneous" and source.name in start.weighted)
            for source in sources
        ]
        sizes = [source.samples for source in sources]
        return [whole_passes_as_weights(stage, sizes, partial) for stage in stages]

    def _windows(
        self, sources: Sequence[MixSource], amounts: Sequence[Amount], batch_size: int, lanes: int, start: MixStart
    ) -> list[int]:
        """Returns how many chunks of each member are open: its share of those of the mix, at least one per lane.

        A member keeps its window for the run. So its largest share of all stages counts, past ones, too.
        """
        whole = self.window or auto_window(sum(source.chunks for source in sources), batch_size)
        shares = [max(of_stages) for of_stages in zip(*(_shares(amount, sources) for amount in amounts), strict=True)]
        windows = []
        for source, share in zip(sources, shares, strict=True):
            limit = whole if self.window else source.chunks // 16
            window = max(lanes, min(int(whole * share), limit) // lanes * lanes)
            windows.append(window if self.window else start.windows.get(source.name, window))
        return windows


def _shares(amount: Amount, sources: Sequence[MixSource]) -> list[float]:
    """Returns each member's part (0 to 1) of the samples of an epoch, as floats: a state keeps what depends on them."""
    weights = max(1, sum(amount.weights))
    own = [
        passes * source.samples + amount.samples * weight // weights
        for source, passes, weight in zip(sources, amount.passes, amount.weights, strict=True)
    ]
    return [samples / max(1, sum(own)) for samples in own]


def _stage(amount: Amount, unit: int, batch: int) -> Stage:
    """Returns the stage of these amounts, with the epoch rounded to whole batches so that it ends without padding."""
    if not any(amount.weights):
        return Stage(amount.epoch, amount.weights, 0)
    batches = max(1, (2 * amount.samples + batch) // (2 * batch))
    return Stage(amount.epoch, amount.weights, batches * batch // unit)


def _member(source: MixSource, lanes: int, window: int, passes: int, place: StreamPlace) -> MixMember:
    """Returns a member whose stream goes on at `place`; raises ConfigError, which names the member."""
    try:
        order = OrderSpec(
            manifest_digest=source.manifest_digest,
            seed=source.seed,
            shuffle=source.shuffle,
            lanes=lanes,
            window=window,
            cut=source.cut,
            rows=source.rows,
        )
    except ConfigError as error:
        raise ConfigError(f"member {source.name}: {error}", **error.details) from error
    return MixMember(
        name=source.name,
        order=order,
        samples=source.samples,
        passes=passes,
        origin=place.origin,
        turn=0 if passes else place.turn,
    )


def _check_sources(sources: Sequence[MixSource], batch_size: int) -> None:
    """Raises ConfigError or ManifestError for members of equal names, none, too many, or one without samples."""
    if batch_size < 1:
        raise ConfigError(f"batch_size={batch_size} must be at least 1", field="batch_size")
    names = [source.name for source in sources]
    if not 1 <= len(names) <= MOST_MEMBERS or len(set(names)) < len(names):
        raise ConfigError(f"a mix has 1 to {MOST_MEMBERS} members of different names, not {names[:9]}", field="members")
    for source in sources:
        if source.samples == 0:
            raise ManifestError(
                f"member {source.name}: manifest {source.manifest_digest} has no samples in "
                f"{len(source.chunk_samples)} chunks; check its url and selection, or leave it out",
                manifest=source.manifest_digest,
            )
