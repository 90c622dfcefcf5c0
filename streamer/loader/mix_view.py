"""What a loader shows of a mix: the members of the last batch, and the statistics of each member."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from streamer.errors import ConfigError
from streamer.loader.contracts import PreparedStream
from streamer.loader.delivery import Delivery
from streamer.loader.skipping import Skipped
from streamer.loader.stall.stats import EngineView, MemberStats


def batch_sources(prepared: PreparedStream, delivery: Delivery | None) -> npt.NDArray[np.int16]:
    """int16 (samples,): number of the member of each sample of a batch; empty before the first one.

    Raises:
        ConfigError: this is no mix.
    """
    if (mix := prepared.mix) is None:
        raise ConfigError("sources is for a MixedDataset; this loader has one dataset", field="sources")
    if delivery is None:
        return np.empty(0, np.int16)
    codes = mix.ordinals(delivery.epoch, delivery.batch)
    sources = mix.sources(delivery.epoch, delivery.batch)
    if not delivery.skipped:
        return sources
    # As `BatchMaker` fills: each missing sample is replaced by the next one that is there.
    missing = np.isin(codes, [code for code, _ in delivery.skipped])
    there = np.flatnonzero(~missing)
    after = np.searchsorted(there, np.flatnonzero(missing)) % len(there)
    sources[missing] = sources[there[after]]
    return sources


def member_stats(
    prepared: PreparedStream | None, position: tuple[int, int], skipped: Sequence[Skipped], engine: EngineView | None
) -> Mapping[str, MemberStats]:
    """The statistics of each member of a mix at a position; {} for one dataset.

    Args:
        prepared: None: nothing is prepared yet.
        position: epoch, and number of its next batch.
        skipped: by this rank.
        engine: the engine's view.
    """
    if prepared is None or (mix := prepared.mix) is None:
        return {}
    drawn = mix.drawn(*position).tolist()
    counts = Counter(entry.member for entry in skipped)
    return {
        name: MemberStats(
            drawn=here,
            passes=here / samples,
            share=here / max(1, sum(drawn)),
            skipped=counts[name],
            engine=None if engine is None else engine.parts.get(name),
        )
        for name, samples, here in zip(mix.names, mix.member_samples, drawn, strict=True)
    }


def resumed(prepared: PreparedStream, state: Mapping[str, object], strict: bool) -> tuple[int, int]:
    """Restores a saved state; returns the epoch and the number of its next batch.

    Raises:
        ConfigError: `strict=False` for one dataset.
        StateError: the state does not fit.
    """
    if strict:
        return prepared.resume(state)
    if prepared.mix is None:
        raise ConfigError("strict=False is for a MixedDataset; the order of one dataset is fixed", field="strict")
    return prepared.mix.adopt(state)
