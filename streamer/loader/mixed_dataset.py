"""Defines `MixedDataset`: several datasets as one, in exact shares. Users make it, and give it to `dataloader.py`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Never

import cloudpickle  # type: ignore[import-untyped]
import numpy as np

from streamer.batches import checks
from streamer.batches.skipping import OnError
from streamer.errors import ConfigError
from streamer.loader.agreement import ParentRank
from streamer.loader.dataset import StreamingDataset
from streamer.loader.epoch_cell import EpochCell
from streamer.loader.epoch_dataset import EpochDataset
from streamer.loader.kinds.mix import Mix
from streamer.loader.options.arguments import Order, Skip, given_or_default
from streamer.loader.options.mix_options import MixOptions, check_members, check_names, refuse_linear
from streamer.loader.rank.opening import StreamOpening
from streamer.order.mix import Batching, Homogeneous, Shares, Weights
from streamer.order.mix.shares import Amounts, WeightStages
from streamer.removed import check_arguments, refuse_method


class MixedDataset(EpochDataset):
    """Iterates over the samples of several datasets in exact shares, in one order, through the machine's cache.

    Works wherever a `StreamingDataset` works. Each member is an endless sequence of passes over its samples: an epoch
    takes the next part of it. After any number of epochs, the numbers of uses of two samples of one member differ by
    one at most. The members may have different stores, credentials, formats, decoders and transforms.

    Give one of `weights`, `repeat` and `choose`; without them each member makes one pass per epoch.

    Args:
        members: Dataset by name, in order.
        weights: Shares of the samples, on any scale, by name; 0 leaves a member out. `[(0, {...}), (10, {...})]` are
            stages, each from its epoch on. `Weights` also sets the length of an epoch, or shares by bytes or by size.
        repeat: Passes per epoch, by name or the same for all; 0.25 uses another quarter in each epoch.
        choose: Samples per epoch, by name.
        batching: "stratified": each batch has each member's share; "random": the shares hold on average;
            "homogeneous": each batch is of one member; with `Homogeneous(group=...)` each group of samples in it is.
        seed: Seed of the mixing; members have their own.
        source_key: Field of each sample with the name of its member, or None for no such field.
        batch_size, order, on_error, rank, world_size: Options of the whole, as of a `StreamingDataset`; the members
            have none of them. The `Order` of a mix has no `lanes_by`.

    Raises:
        ConfigError: an invalid argument, or members that do not go together.
    """

    _members: dict[str, StreamingDataset]
    _options: MixOptions

    @check_arguments("MixedDataset")
    def __init__(
        self,
        members: Mapping[str, StreamingDataset],
        *,
        weights: Amounts | WeightStages | Weights | None = None,
        repeat: Amounts | float | None = None,
        choose: Mapping[str, int] | None = None,
        batching: Batching | Homogeneous = "stratified",
        seed: int = 17,
        source_key: str | None = "__source__",
        batch_size: int | None = None,
        order: Order | None = None,
        on_error: OnError | Skip = "raise",
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        names = check_names(list(_require_datasets(members)))
        refuse_linear(weights.weights if isinstance(weights, Weights) else weights)
        options = MixOptions(
            names=names,
            shares=Shares.from_arguments(names, weights=weights, repeat=repeat, choose=choose),
            batching=batching,
            seed=seed,
            source_key=source_key,
            batch_size=batch_size,
            order=given_or_default("order", order, Order),
            on_error=on_error,
            rank=rank,
            world_size=world_size,
        )
        check_members({name: member._member.options for name, member in members.items()})
        self._start(members, options, f"pid-{os.getpid()}", EpochCell())

    @classmethod
    def from_file(cls, *arguments: object, **options: object) -> Never:
        """Raises ConfigError, which says what to write instead."""
        refuse_method("MixedDataset", "from_file")

    def __repr__(self) -> str:
        return f"MixedDataset({', '.join(self._members)}, batching={self._options.batching!r})"

    # ------------------------------------------------------------ contents

    @property
    def samples(self) -> int:
        """Number of samples of the next epoch, over all ranks; repeats that fill homogeneous batches count."""
        return self._prepare_plain().samples_in(self.epoch)

    @property
    def members(self) -> dict[str, StreamingDataset]:
        """The datasets, by name."""
        return dict(self._members)

    def quotas(self, epoch: int | None = None) -> dict[str, int]:
        """Returns the samples of each member in an epoch, over all ranks. By default in the next one.

        Raises:
            ConfigError: the epoch is before the one in which the mix began.
            StreamerError: a member cannot be opened.
        """
        return dict(self._prepare_plain().quotas(self.epoch if epoch is None else epoch))

    def explain(self, batch_size: int, nodes: int = 1) -> str:
        """Describes the order of the mix and its cost.

        Args:
            batch_size: Samples of a batch over all ranks.
            nodes: Number of machines.

        Raises:
            ConfigError: the machines cannot share a batch equally.
            StreamerError: a member cannot be opened.
        """
        return self._opening.explain(batch_size, nodes)

    def __getitem__(self, index: int | str) -> object:
        """Returns a member by its name, or one sample, by a small ranged read, for inspection.

        Args:
            index: Name, or the number of a sample, counted through the members laid end to end, or from their end.

        Raises:
            KeyError: the mix has no such member.
            IndexError: there is no such sample.
            ConfigError: the index is neither a text nor a whole number.
            Exception: the error of opening the members, of reading or decoding the sample, or of the transform.
        """
        if isinstance(index, str):
            return self._members[index]
        index = checks.index(index)
        counts = [member.samples for member in self._members.values()]
        if not -sum(counts) <= index < sum(counts):
            raise IndexError(f"sample {index} of {sum(counts)}")
        first = np.cumsum([0, *counts])
        number = int(np.searchsorted(first, index % sum(counts), side="right")) - 1
        return self._opening.look(self.epoch, number, index % sum(counts) - int(first[number]))

    def select(
        self,
        *,
        keys: str | Sequence[str] | None = None,
        labels: Sequence[str | int] | None = None,
        min_bytes: int | None = None,
        max_bytes: int | None = None,
        fraction: tuple[float, float] | None = None,
        seed: int = 0,
    ) -> MixedDataset:
        """Returns a mix of selections of the members, each by these conditions; see `StreamingDataset.select`.

        Weights and `repeat` stay as they are. Numbers of samples are for a member: select on it.

        Raises:
            ConfigError: invalid conditions, or a mix by `choose`.
        """
        options = self._options
        if options.shares.choose:
            raise ConfigError(
                "select() of a mix by choose= leaves open how many samples of the selections an epoch has; select on "
                "the members, and mix the selections",
                field="choose",
            )
        chosen = {
            name: member.select(
                keys=keys, labels=labels, min_bytes=min_bytes, max_bytes=max_bytes, fraction=fraction, seed=seed
            )
            for name, member in self._members.items()
        }
        other = MixedDataset.__new__(MixedDataset)
        other._start(chosen, options, self._opening.job, EpochCell())
        return other

    def refresh(self) -> bool:
        """Lists the objects of every member again. Returns True if one has changed. Collective.

        Changed members begin a new pass with the next epoch, the others continue where they are. See
        `StreamingDataset.refresh`.

        Raises:
            StreamerError: the objects cannot be listed or indexed. It is raised on every rank.
        """
        before = self._prepared
        changed = self._opening.refresh()
        if changed and before is not None:
            self._prepare_plain().follow(before[1], self.epoch)
        return changed

    # ------------------------------------------------------------ inside

    def _scan(self) -> Never:
        """Raises ConfigError: a mix cannot be packed."""
        raise ConfigError(
            "pack() of a MixedDataset: an epoch of a mix has samples several times or not at all. Pack each of its "
            "datasets, or what an epoch yields, decoded: pack((sample for sample in mix), ...)",
            field="source",
        )

    def _start(
        self,
        members: Mapping[str, StreamingDataset],
        options: MixOptions,
        job: str,
        shared: EpochCell,
        *,
        parent: ParentRank | None = None,
    ) -> None:
        self._members = dict(members)
        self._options = options
        each = [member._member for member in members.values()]
        self._begin_at_zero(StreamOpening(options, Mix(options, each, job), job, shared, parent=parent))

    def __getstate__(self) -> dict[str, object]:
        """Returns what another process needs: no open resources, but the rank, which workers cannot detect."""
        settings = cloudpickle.dumps((self._options, self._opening.job, self._resume, self._resume_strict))
        place = self._opening.place()
        # Members and epochs are not in the settings: a spawned worker shares epochs and manifests of this process.
        return {"settings": settings, "members": self._members, "epochs": self._epochs, "place": place}

    def __setstate__(self, state: dict[str, object]) -> None:
        settings, members, epochs, place = (state[name] for name in ("settings", "members", "epochs", "place"))
        assert isinstance(settings, bytes)
        assert isinstance(members, dict)
        assert isinstance(epochs, EpochCell)
        assert isinstance(place, tuple)
        options, job, resume, strict = cloudpickle.loads(settings)
        self._start(members, options, job, epochs, parent=ParentRank.from_parent(place))
        self._resume = resume
        self._resume_strict = strict


def _require_datasets(members: object) -> Mapping[object, object]:
    """Returns the members; raises ConfigError if they are no mapping of datasets."""
    if not isinstance(members, Mapping):
        raise ConfigError(f"members={members!r}: give name -> StreamingDataset", field="members")
    for name, member in members.items():
        if not isinstance(member, StreamingDataset):
            raise ConfigError(
                f"member {name}: {type(member).__name__} is not a StreamingDataset; a mix of mixes is one mix of all "
                "their members",
                field="members",
                member=str(name),
            )
    return members
