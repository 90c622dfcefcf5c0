"""Mixes for the tests of the order: members of given sizes, whose chunks are numbered one member after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from streamer.order.mix import MemberChunks, MixOrder, MixRequest, MixSource, MixSpec, Shares, Weights

Array = NDArray[np.int64]


def chunk_sizes(samples: int, chunk: int) -> Array:
    """Returns the samples in each of the chunks of about this size."""
    chunks = max(1, samples // chunk)
    return np.full(chunks, samples // chunks) + (np.arange(chunks) < samples % chunks)


def sources(sizes: Mapping[str, int], chunk: int = 20) -> list[MixSource]:
    """Makes members by name and samples; each has its own seed."""
    return [
        MixSource(name, f"{i:032x}", chunk_sizes(samples, chunk), 5 + i)
        for i, (name, samples) in enumerate(sizes.items())
    ]


def request(names: Sequence[str], **said: object) -> MixRequest:
    """Makes what a user says: the arguments of `Shares.of`, of `Weights` and of `MixRequest`."""
    length = {name: said.pop(name) for name in ("temperature", "unit", "epoch_samples", "stop") if name in said}
    if length:
        said["weights"] = Weights(said.get("weights"), **length)  # type: ignore[arg-type]
    own = {name: said.pop(name) for name in ("batching", "lanes", "window", "group") if name in said}
    seed = said.pop("seed", 17)
    return MixRequest(Shares.from_arguments(names, **said), seed, **own)  # type: ignore[arg-type]


def member_chunks(members: Sequence[MixSource]) -> list[MemberChunks]:
    """Numbers the chunks of the members through."""
    found, base = [], 0
    for source in members:
        first = np.concatenate([np.zeros(1, np.int64), np.cumsum(source.chunk_samples)])
        found.append(MemberChunks(source.chunk_samples, first, base))
        base += len(source.chunk_samples)
    return found


def order(spec: MixSpec, members: Sequence[MixSource], epoch: int = 0) -> MixOrder:
    """Returns one epoch of a mix."""
    return MixOrder(spec, member_chunks(members), epoch)


def mix(sizes: Mapping[str, int], batch: int, *, chunk: int = 20, **said: object) -> MixOrder:
    """Returns the first epoch of a mix of members of these sizes."""
    members = sources(sizes, chunk)
    return order(request(list(sizes), **said).spec(members, batch), members)


def shares(weights: Sequence[float]) -> dict[str, float]:
    """Returns weights by the names m0, m1, ..."""
    return {f"m{i}": float(weight) for i, weight in enumerate(weights)}


def weighted(weights: Sequence[float], batch: int, batches: int, **said: object) -> MixOrder:
    """Returns a mix by weights, of members of a million samples each."""
    names = shares(weights)
    return mix(
        dict.fromkeys(names, 1_000_000), batch, chunk=10_000, weights=names, epoch_samples=batch * batches, **said
    )


def members_of(mixed: MixOrder, begin: int = 0, end: int | None = None) -> Array:
    """Returns the member at each position of a run."""
    return mixed.codes.members(mixed.ordinals(np.arange(begin, mixed.samples if end is None else end)))


def counts_by_batch(mixed: MixOrder, batch: int) -> Array:
    """Returns (batches, M) samples of each member in each whole batch."""
    members = members_of(mixed)
    whole = len(members) // batch
    found = np.zeros((whole, len(mixed.spec.members)), np.int64)
    np.add.at(found, (np.arange(whole * batch) // batch, members[: whole * batch]), 1)
    return found
