"""A mix in words: what the log and `MixedDataset.explain` show."""

from __future__ import annotations

from streamer.config import format_bytes
from streamer.loader.mix.plans import Members
from streamer.order.mix import MixSpec
from streamer.order.plan import batch_count
from streamer.order.quality import lane_spread


def explain_mix(spec: MixSpec, members: Members, global_batch: int, limit_bytes: int = 0, nodes: int = 1) -> str:
    """The order of a mix and its cost, one line per member.

    Args:
        spec: the order.
        members: opened.
        global_batch: samples of a batch over all ranks.
        limit_bytes: of the machine's cache; 0: unknown.
        nodes: number of machines.
    """
    epoch = spec.origin_epoch
    samples, quotas, passes = spec.samples(epoch), spec.quotas(epoch), spec.passes(epoch)
    width = max(8, *(len(member.name) for member in spec.members))
    batches = batch_count(samples, global_batch, False)
    rows = [
        f"{'mix':<{width}} {spec.batching}, {spec.lanes} lanes, {batches:,} batches of "
        f"{global_batch:,} in an epoch of {samples:,} samples, order {spec.order_id}"
    ]
    sizes = [int(member.manifest.chunk_local_bytes.sum()) for member in members.each]
    for number, member in enumerate(spec.members):
        chunks = max(1, members.each[number].manifest.chunks)
        opened = min(chunks, max(spec.lanes, member.order.window))
        rows.append(
            f"{member.name:<{width}} {quotas[number] / samples:7.2%} {quotas[number]:>15,} samples = "
            f"{passes[number]:.2f} passes {opened:>6} chunks open {format_bytes(opened * sizes[number] / chunks):>10}"
        )
    if limit_bytes:
        rows.append(f"{'cache':<{width}} {_cache(limit_bytes, sizes, passes, [m.name for m in spec.members])}")
    if spec.batching == "stratified":
        shares = ", ".join(
            f"{global_batch * quota / samples:.1f} {member.name}"
            for quota, member in zip(quotas, spec.members, strict=True)
        )
        rows.append(f"{'batch':<{width}} every full batch within 2 samples of {shares}")
    if nodes > 1 and global_batch % nodes == 0:
        rows.append(f"{'nodes':<{width}} {lane_spread(spec.members[0].order, global_batch, nodes)}")
    return "\n".join(rows)


def cautions(spec: MixSpec, global_batch: int) -> list[str]:
    """Parts of a mix that a user may not expect, one sentence each.

    Args:
        spec: the order.
        global_batch: samples of a batch over all ranks.
    """
    epoch, found = spec.origin_epoch, []
    samples = spec.samples(epoch)
    first: dict[tuple[str, int], str] = {}
    for quota, member in zip(spec.quotas(epoch), spec.members, strict=True):
        if quota == 0:
            found.append(f"member {member.name}: no sample of it in epoch {epoch}")
        elif global_batch * quota / samples > member.samples:
            found.append(
                f"member {member.name}: its {member.samples} samples are fewer than its part of a batch, so samples "
                "repeat inside a batch"
            )
        identity = (member.order.manifest_digest, member.order.seed)
        if identity in first:
            found.append(
                f"members {first[identity]} and {member.name} have the same samples and the same seed, so both come in "
                "the same order; give one of them another seed"
            )
        first.setdefault(identity, member.name)
    return found


def _cache(limit_bytes: int, sizes: list[int], passes: tuple[float, ...], names: list[str]) -> str:
    """The largest share of hits: members are kept in the order of their passes per epoch."""
    left, saved = limit_bytes, 0.0
    kept = []
    for number in sorted(range(len(sizes)), key=lambda number: -passes[number]):
        taken = min(left, sizes[number]) if passes[number] > 0 else 0
        left -= taken
        saved += passes[number] * taken
        if taken:
            kept.append(f"{names[number]} {taken / sizes[number]:.0%}")
    needed = sum(size * used for size, used in zip(sizes, passes, strict=True))
    return (
        f"{format_bytes(limit_bytes)} of {format_bytes(sum(sizes))}: hits at most {saved / max(needed, 1.0):.0%} "
        f"({', '.join(kept)})"
    )
