"""From what a user says, and what the members' manifests say, to the `MixSpec`: a pure function, equal on all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from streamer.order.hashing import Integers
from streamer.order.mix.shares import Shares
from streamer.order.mix.spec import Batching, MixSpec
from streamer.order.spec import Cut, Shuffle


class MixSource(msgspec.Struct, frozen=True, eq=False):
    """One dataset that is to be mixed.

    Attributes:
        name: as the user calls it.
        manifest_digest: identity of its manifest or selection.
        chunk_samples: (M,) samples per chunk, of the selection.
        seed: of its own order.
        shuffle: of its own order.
        cut: of its own order.
    """

    name: str
    manifest_digest: str
    chunk_samples: Integers
    seed: int
    shuffle: Shuffle = "block"
    cut: Cut = "fixed"


class MixRequest(msgspec.Struct, frozen=True):
    """What a user says about a mix.

    Attributes:
        shares: the proportions.
        seed: of the mixing.
        batching: see `MixSpec`.
        lanes: None: chosen from the members and the batch.
        window: chunks open together, of all members over all nodes; None: chosen.
    """

    shares: Shares
    seed: int
    batching: Batching = "stratified"
    lanes: int | None = None
    window: int | None = None

    def spec(self, sources: Sequence[MixSource], batch_size: int, *, like: MixSpec | None = None) -> MixSpec:
        """Resolves lanes, windows and shares.

        Args:
            sources: the members.
            batch_size: the global batch, samples over all ranks.
            like: of a saved state that goes on: what the request leaves open (lanes, windows, batch), and how far the
                members are, is taken from it; `MixState.check` compares the rest.

        Raises:
            ConfigError: a value outside its rule; names the member.
            ManifestError: a member without samples.
        """
