"""Describes the members of a mix to its order (`order/mix/`), and explains and checks what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import UNSET

from streamer.batches.samples.opened import OpenedDataset
from streamer.loader.options.dataset_options import DatasetOptions
from streamer.loader.options.mix_options import MixOptions
from streamer.order.mix import MemberSize, MixSource, MixSpec
from streamer.order.mix.explain import cautions, explain
from streamer.order.quality import shared_lanes
from streamer.order.spec import shuffle_mode


class Mixing:
    """Joins the options of a mix with its opened members."""

    def __init__(self, options: MixOptions, members: Sequence[DatasetOptions]) -> None:
        self.options = options
        self._members = members

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the members."""
        return self.options.names

    def sources(self, opened: Sequence[OpenedDataset]) -> tuple[MixSource, ...]:
        """The members as the order sees them."""
        in_bytes = self.options.shares.unit == "bytes"
        return tuple(
            MixSource(
                name,
                data.digest,
                data.order_samples,
                member.seed,
                shuffle_mode(member.shuffle),
                size=data.exact_bytes if in_bytes else None,
                rows=UNSET if data.rows is None else data.rows.recipe.spec,
            )
            for name, data, member in zip(self.names, opened, self._members, strict=True)
        )

    def in_words(
        self,
        spec: MixSpec,
        opened: Sequence[OpenedDataset],
        global_batch: int,
        nodes: int,
        cache_bytes: int | None = None,
    ) -> str:
        """The order and its cost; see `MixedDataset.explain`."""
        sizes = [MemberSize(int(np.count_nonzero(one.order_samples)), one.stored_bytes) for one in opened]
        unit = self.options.shares.unit
        return explain(spec, sizes, global_batch, cache_bytes=cache_bytes, nodes=nodes, unit=unit)

    def cautions(self, spec: MixSpec, global_batch: int, local_batch: int, nodes: int) -> list[str]:
        """Returns sentences about effects that the user may not expect."""
        return [
            *cautions(spec, global_batch, self.options.shares.epoch_samples),
            *_in_step(spec),
            *_across_groups(spec, global_batch, local_batch),
            *filter(None, [shared_lanes(spec.members[0].order, global_batch, nodes)]),
        ]


def _in_step(spec: MixSpec) -> list[str]:
    """The members that have the same samples and the same seed."""
    first: dict[tuple[str, int], str] = {}
    found = []
    for member in spec.members:
        name = first.setdefault((member.order.manifest_digest, member.order.seed), member.name)
        if name != member.name:
            found.append(
                f"members {name} and {member.name} have the same samples and the same seed: both come in the same "
                "order; give one of them another seed"
            )
    return found


def _across_groups(spec: MixSpec, global_batch: int, own: int) -> list[str]:
    """Whether a rank's batch has parts of several groups."""
    group = global_batch // spec.groups
    if spec.groups == 1 or group % own == 0 or own % group == 0:
        return []
    return [f"a rank's batch of {own} samples has parts of several groups of {group}, each of one member"]
