"""Positions past the end of an epoch: they fill up the last batch with samples that a rank has open anyway."""

from __future__ import annotations

import numpy as np

from streamer.errors import ConfigError
from streamer.order.hashing import Integers


def real_positions(positions: Integers, samples: int | Integers, lanes: int) -> Integers:
    """Maps padding onto the positions it repeats: p >= n to p - L ceil((p-n+1)/L).

    That is the end of the same lane, whose chunk the same rank has open. With fewer samples than lanes most lanes have
    no such place: then p mod n.

    Args:
        positions: (N,) of an epoch.
        samples: n of the epoch, at least 1; or (N,) n of what each position is in.
        lanes: L.

    Raises:
        ConfigError: a negative position.
    """
    if positions.size and positions.min() < 0:
        raise ConfigError(f"position {positions.min()} is negative", field="position")
    beyond = positions - samples + 1
    if positions.size == 0 or beyond.max() <= 0:
        return positions
    repeated = positions - lanes * -(-beyond // lanes)
    repeated = np.where(repeated < 0, positions % samples, repeated)
    return np.where(beyond > 0, repeated, positions)
