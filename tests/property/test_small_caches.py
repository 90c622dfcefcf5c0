"""Small caches of whole jobs, in virtual time: the hits that are left beside the chunks that must be open."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from streamer.engine.link_need import LinkNeed
from tests.simulation.ranks import SimulatedEngine, SimulatedJob

# A link that needs 1.4 of these chunks on their way, and readers that it bounds.
JOB = SimulatedJob(
    chunks=100, cache_share=0.5, chunk_bytes=1 << 20, bytes_per_second=50e6, delay_seconds=0.01, epochs=2
)
CELLS = [
    pytest.param(chunks, ranks, share, marks=[] if chunks == 100 or (chunks, ranks) == (300, 8) else pytest.mark.slow)
    for chunks, ranks, share in itertools.product((100, 300, 1000, 3000), (1, 2, 4, 8), (0.1, 0.25, 0.5, 0.75))
    # Where the open chunks of all ranks do not fit side by side, the job is refused.
    if not (chunks == 100 and (ranks, share) in {(2, 0.1), (4, 0.1), (8, 0.1), (4, 0.25), (8, 0.25), (8, 0.5)})
    and (chunks, ranks, share) != (300, 8, 0.1)
]


@pytest.mark.parametrize(("chunks", "ranks", "share"), CELLS)
def test_the_second_epoch_hits_what_fits_beside_the_open_chunks(chunks: int, ranks: int, share: float) -> None:
    """The second epoch of a small cache hits at least (cache - bytes that must be open) / data, less two points."""
    job = msgspec.structs.replace(JOB, chunks=chunks, ranks=ranks, cache_share=share)
    engine = SimulatedEngine(job).run()
    assert engine.hits(1) >= engine.bound(1) - 0.02


@pytest.mark.parametrize("delay_seconds", [0.01, 0.1])
@pytest.mark.parametrize("share", [0.25, 0.5])
def test_no_epoch_is_slower_than_with_all_look_ahead(
    delay_seconds: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Look-ahead limited to what the link needs slows the cold epoch by 1 % and a probe at most, the warm one by 3 %.
    The link needs up to 11 chunks on their way; a probe takes five chunks, two at a time.
    """
    job = SimulatedJob(
        chunks=600, cache_share=share, ranks=4, bytes_per_second=100e6, delay_seconds=delay_seconds, epochs=2
    )
    lent = SimulatedEngine(job).run()
    assert lent.scheduler._link.need_bytes is not None
    monkeypatch.setattr(LinkNeed, "need_bytes", None)
    monkeypatch.setattr(LinkNeed, "holds_back", lambda self, now, urgent: False)
    whole = SimulatedEngine(job).run()
    cold, warm = lent.epoch_seconds
    assert cold <= 1.01 * whole.epoch_seconds[0] + 5 * delay_seconds
    assert warm <= 1.03 * whole.epoch_seconds[1]
    assert lent.hits(1) >= whole.hits(1)
