"""What an engine tells about itself: monotone counters and present levels, plain values by name.

store_bytes, store_requests, store_lists      what came over the network for chunks and reads, and how often asked
index_bytes, index_requests                   the same for building manifests, counted apart
needs, hits, needed_bytes, hit_bytes          uses of chunks by sessions; a hit costs no store byte
retries, hedges, hedge_wins                   what the fetcher did about a slow or failing store
kept_bytes, transit_bytes, limit_bytes        what the cache holds
evicted_chunks, rejected_chunks               what left it, and what its readers found wrong
sessions                                      one entry per session: consumer, epoch, where it stands, hits per epoch
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamer.engine.session import EngineSession

if TYPE_CHECKING:
    from streamer.engine.engine import Engine

Scalar = str | int | float | bool | None
Table = dict[str, Scalar]
Values = dict[str, Scalar | list[Table]]


def engine_statistics(engine: Engine) -> Values:
    """All of it, at this moment."""
    policy = engine.policy.statistics()
    fetch = engine.fetchers.statistics()
    return {
        "needs": policy.needs,
        "hits": policy.hits,
        "needed_bytes": policy.needed_bytes,
        "hit_bytes": policy.needed_bytes - policy.admitted_bytes,
        "kept_bytes": policy.kept_bytes,
        "transit_bytes": policy.transit_bytes,
        "staging_bytes": policy.staging_bytes,
        "open_bytes": policy.open_bytes,
        "limit_bytes": policy.limit_bytes,
        "kept_chunks": policy.kept_chunks,
        "evicted_chunks": policy.evicted_chunks,
        "rejected_chunks": engine.rejects.total(),
        "in_flight": len(engine.flights),
        "sessions": [_session(session) for session in engine.sessions.values()],
        **_store(engine, fetch),
    }


def _store(engine: Engine, fetch: dict[str, int | float]) -> Table:
    index = engine.indexing
    return {
        "store_bytes": fetch.pop("received_bytes", 0) - index.read_bytes,
        "store_requests": fetch.pop("requests", 0) - index.requests,
        "index_bytes": index.read_bytes,
        "index_requests": index.requests,
        **fetch,
    }


def _session(session: EngineSession) -> Table:
    epoch = session.running_epoch if session.running_epoch is not None else -1
    count = session.counts.get(epoch)
    return {
        "consumer": session.request.consumer,
        "dataset": session.request.dataset,
        "epoch": epoch,
        "done": session.track.done,
        "through": session.track.through(),
        "want": session.track.want,
        "epoch_needs": count.needs if count else 0,
        "epoch_hits": count.hits if count else 0,
        "epoch_needed_bytes": count.needed_bytes if count else 0,
        "epoch_hit_bytes": count.hit_bytes if count else 0,
    }
