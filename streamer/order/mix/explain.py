"""Describes a mix in words before a byte is read: the amount of each member, what is open, the hits of a cache.

`loader/kinds/mix.py` calls it for `MixedDataset.explain`, and for the warnings at the start of a run.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from streamer.config import format_bytes
from streamer.order.mix.spec import MixSpec, Unit
from streamer.order.quality import lane_spread

# Most members that a line names.
_NAMED = 12


class MemberSize(msgspec.Struct, frozen=True):
    """The size of a member.

    Attributes:
        chunks: number of chunks with samples.
        bytes: total length of these chunks.
    """

    chunks: int
    bytes: int


def share_cache(values: Sequence[float], sizes: Sequence[int], cache_bytes: int) -> list[int]:
    """Returns how many bytes of each member are best kept: all of the one with the most passes, then of the next one.

    A byte that stays saves as many bytes of fetches in an epoch as its member makes passes, so filling a cache is a
    fractional knapsack.

    Args:
        values: passes over each member in an epoch.
        sizes: bytes of each member.
        cache_bytes: limit of the cache.
    """
    kept = [0] * len(sizes)
    left = cache_bytes
    for member in sorted(range(len(sizes)), key=lambda member: -values[member]):
        kept[member] = min(sizes[member], left) if values[member] > 0 else 0
        left -= kept[member]
    return kept


def hit_bound(values: Sequence[float], sizes: Sequence[int], cache_bytes: int) -> float:
    """Returns the largest part (0 to 1) of used bytes that a cache can supply; arguments as for `share_cache`."""
    kept = share_cache(values, sizes, cache_bytes)
    used = sum(value * size for value, size in zip(values, sizes, strict=True))
    return sum(value * part for value, part in zip(values, kept, strict=True)) / used if used else 0.0


def explain(
    spec: MixSpec,
    sizes: Sequence[MemberSize],
    global_batch: int,
    *,
    epoch: int | None = None,
    cache_bytes: int | None = None,
    nodes: int = 1,
    unit: Unit = "samples",
) -> str:
    """Describes an epoch of the mix in words, a line for each member.

    Args:
        spec: what fixes the order.
        sizes: sizes of the members, in their order.
        global_batch: samples of a batch over all ranks.
        epoch: number of the epoch. None means the first one.
        cache_bytes: limit of one machine's cache. None leaves out the line about it.
        nodes: number of machines; a line says which lanes they share if there are several.
        unit: unit of the shares.

    Raises:
        ConfigError: `nodes` machines cannot share the batch equally, or the epoch is before the mix's first one.
    """
    epoch = spec.origin_epoch if epoch is None else epoch
    quotas = spec.quotas(epoch)
    passes = spec.passes(epoch)
    width = max(8, *(len(member.name) for member in spec.members))
    samples = spec.samples(epoch)
    batches = -(-samples // global_batch)
    order = (
        f"{spec.batching}, {spec.lanes} lanes, {batches:,} batches of {global_batch:,} in an epoch of {samples:,} "
        f"samples, order {spec.order_id}"
    )
    rows = [("mix", order)]
    parts = quotas if unit == "samples" else [each * size.bytes for each, size in zip(passes, sizes, strict=True)]
    of_unit = "" if unit == "samples" else f" of the {unit}"
    for number, member in enumerate(spec.members):
        amount = f"{quotas[number]:>13,} samples = {passes[number]:.2f} passes"
        share = f"{parts[number] / sum(parts):8.2%}{of_unit}  {amount}"
        size = sizes[number]
        opened = min(member.order.lane_window * member.order.lanes, size.chunks)
        open_bytes = format_bytes(opened * size.bytes / max(1, size.chunks))
        rows.append((member.name, f"{share}  {opened:>6,} chunks open  {open_bytes}"))
    if cache_bytes is not None:
        rows.append(("cache", _cache_row(spec, passes, [size.bytes for size in sizes], cache_bytes)))
    rows.append(("batch", _batch_row(spec, quotas, global_batch)))
    if nodes > 1:
        rows.append(("nodes", str(lane_spread(spec.members[0].order, global_batch, nodes))))
    return "\n".join(f"{name:<{width}} {text}" for name, text in rows)


def cautions(spec: MixSpec, global_batch: int, asked_samples: int = 0) -> list[str]:
    """Returns what the user of a mix might not expect of it, a sentence each.

    Args:
        spec: what fixes the order.
        global_batch: samples of a batch over all ranks.
        asked_samples: samples of an epoch that the user asked for; 0 if none were given.
    """
    quotas = spec.quotas(spec.origin_epoch)
    samples = spec.samples(spec.origin_epoch)
    found = []
    if asked_samples and asked_samples != samples:
        found.append(f"epoch_samples={asked_samples:,} is rounded to {samples:,}, a multiple of {_even_batch(spec):,}")
    for member, quota, places in zip(spec.members, quotas, spec.places(spec.origin_epoch), strict=True):
        if places > quota:
            found.append(
                f"the last {'batch' if spec.groups == 1 else 'groups'} of member {member.name} in an epoch "
                f"{'is' if spec.groups == 1 else 'are'} filled up with {places - quota:,} repeats, which are marked"
            )
    for member, quota, weight in zip(spec.members, quotas, spec.stages[0].weights, strict=True):
        if quota == 0:
            cause = "its share is too small" if weight else "its weight is 0"
            found.append(f"member {member.name} gives no sample to epoch {spec.origin_epoch}: {cause}")
        elif quota * global_batch > samples * member.samples:
            found.append(
                f"member {member.name} has {member.samples:,} samples, fewer than a batch takes of it: some come more "
                "than once in a batch"
            )
    return found


def _cache_row(spec: MixSpec, passes: Sequence[float], sizes: Sequence[int], cache_bytes: int) -> str:
    """Describes the hits that a cache of `cache_bytes` can give at most, and how much of each member it keeps."""
    kept = share_cache(passes, sizes, cache_bytes)
    parts = ", ".join(
        f"{member.name} {'all' if part == size else f'{part / size:.0%}'}"
        for member, part, size in zip(spec.members, kept, sizes, strict=True)
        if part
    )
    return (
        f"{format_bytes(cache_bytes)} of {format_bytes(sum(sizes))}: hits at most "
        f"{hit_bound(passes, sizes, cache_bytes):.0%} ({parts or 'nothing kept'})"
    )


def _batch_row(spec: MixSpec, quotas: Sequence[int], global_batch: int) -> str:
    """Describes how many samples of each member a batch has."""
    if spec.batching == "homogeneous":
        group = _even_batch(spec) // spec.groups
        return f"every {'batch' if spec.groups == 1 else f'group of {group:,} samples'} is of one member"
    even = _even_batch(spec)
    shares = [(even * quota / sum(quotas), m.name) for quota, m in zip(quotas, spec.members, strict=True) if quota]
    named = ", ".join(f"{share:.4g} {name}" for share, name in shares[:_NAMED])
    more = f" and {len(shares) - _NAMED} more" if len(shares) > _NAMED else ""
    if spec.batching == "random":
        return f"every {spec.window} batches have their share, {named}{more} per batch; one batch as drawn at random"
    # Measured: 1.8 with 100 members, 6 with 1,000 in 256 lanes (benchmarks/mix_order.py, 2026-11-23).
    what = f"{named}{more}, within {2 if len(shares) <= 100 else 6} samples"
    if even == global_batch:
        return f"every batch has {what}"
    return f"each run of {even:,} samples has {what}; batches of {global_batch:,} lie across the runs"


def _even_batch(spec: MixSpec) -> int:
    """Returns the batch for which the mix was made.

    The global batch differs from it if the lanes do not divide it, or if a state had another one.
    """
    return spec.lanes * spec.slots
