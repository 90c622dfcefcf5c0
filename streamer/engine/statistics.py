"""Collects the statistics of an engine: counters that only rise and present levels, as plain values by name.

`service/server.py` sends them to clients, and `service/metrics.py` and `service/web.py` show them. The names:

store_bytes, store_requests                   what came over the network for chunks and reads, in how many requests
index_bytes, index_requests                   the same for building manifests, counted apart
needs, hits, needed_bytes, hit_bytes          uses of chunks by sessions; a hit costs no store byte
retries, hedges, hedge_wins                   what the fetcher did about a slow or failing store
first_byte_buckets, first_byte_sum_seconds    requests whose first byte came within "le" seconds, and their sum
kept_bytes, transit_bytes, limit_bytes        bytes of the two parts of the cache, and the limit of both
staging_bytes, open_bytes, kept_chunks        size that is planned for transit; bytes that are open; chunks in kept
cache_dir, disk_free_bytes, disk_bytes        folder of the cache; free space and size of its filesystem, lately
evicted_chunks, rejected_chunks               chunks that left the cache; chunks that were found corrupt on the disk
unfounded_rejects                             chunks that a reader found corrupt and the engine intact
refused_writes, written_bytes                 chunks that the disk refused, and bytes that it took
hit_bound                                     highest hit rate of one reader under any fixed choice of chunks: bytes
                                              that are kept / bytes of the live data, in a mix weighted by passes per
                                              epoch; several ranks may have more, since they fetch a chunk once
fetches                                       chunks between store and SSD
recoded_chunks, recoded_bytes, record_bytes   chunks of blocks that were recoded; bytes fetched for them, and of records
recode_cpu_seconds, recode_busy_seconds       CPU time of the recoders; time that they had a job
recode_failures, recode_waiting               tries without records; chunks that wait for a recoder now
recoders, most_recoders                       recoders that run now; how many there may be
fetch_processes, most_fetch_processes         fetch processes that take chunks now; how many there may be
fetch_process_cpu_seconds, ..._crashes        CPU time of all of them; how many ended by themselves
loop_cpu_seconds, loop_share                  CPU time of the engine's loop; of a core, in the last half second
peer_chunks, peer_bytes                       chunks that peers sent, and bytes of their samples; not in store_bytes
errors, error_kinds                           errors that reached a consumer, in all and by kind
draining                                      the engine is leaving: it starts no fetches any more
datasets                                      one entry per dataset in use in the last minutes: url, sizes, sessions
sessions                                      one entry per session: consumer, epoch, progress (steps that are "done",
                                              of batch_samples for this consumer), hits per epoch,
                                              waiting_seconds of age_seconds; what its loader reports of itself:
                                              loader_waiting_share, bottleneck, advice, report_age_seconds (or None);
                                              of packed rows row_padding, row_cost_spread, row_tokens, row_left_out
sessions_left_out                             sessions beyond 2,000: the first ones of every job are listed
members                                       one entry per member of the mix of a session: its name (member) and
                                              digest, the session's consumer, job and dataset; needs, hits,
                                              needed_bytes, hit_bytes since the session began; hit_bound; only of
                                              listed sessions, at most 4,096 in all
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, islice

import msgspec

from streamer.engine.engine import Engine
from streamer.engine.session import EngineSession
from streamer.fetch.statistics import FIRST_BYTE_BOUNDS, Histogram, sum_statistics
from streamer.manifest.table import Manifest
from streamer.store.addresses.urls import shown
from streamer.wire.messages import PackedRows

Scalar = str | int | float | bool | None
Table = dict[str, Scalar]
Values = dict[str, Scalar | list[Table]]

# Most letters of a client's name, or of a url, that are shown.
_SHOWN_LETTERS = 120
# Most members of all sessions that are listed, at 0.4 KB each: an answer that a client leaves unread may take 4 MiB.
_SHOWN_MEMBERS = 4096
# Most sessions that are listed, of each job about equally many, so that a job with 10,000 does not hide the others.
_SHOWN_SESSIONS = 2000
# Fields of `ReportFinding`, and those of its `PackedRows`, with their names among the statistics of a session.
_REPORT_NAMES = {"waiting_share": "loader_waiting_share", "bottleneck": "bottleneck", "advice": "advice"}
_ROW_NAMES = {name: f"row_{name}" for name in PackedRows.__struct_fields__}


def engine_statistics(engine: Engine) -> Values:
    """Returns all statistics of an engine at this moment."""
    policy = engine.policy.statistics()
    live = {dataset.manifest.digest for one in engine.sessions.values() for dataset in one.collection.datasets}
    fetch = sum_statistics([engine.fetchers.statistics(), engine.fetch_pool.statistics()])
    cache = engine.cache.statistics()
    shown_sessions = _first_of_jobs(list(engine.sessions.values()))
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
        "cache_dir": str(engine.config.cache.directory),
        "disk_free_bytes": engine.cache.space.free_bytes,
        "disk_bytes": engine.cache.space.disk_bytes,
        "kept_chunks": policy.kept_chunks,
        "evicted_chunks": policy.evicted_chunks,
        "rejected_chunks": engine.corruption_reports.dropped,
        "unfounded_rejects": engine.corruption_reports.unfounded,
        "refused_writes": cache.refused_writes,
        "written_bytes": cache.written_bytes,
        "hit_bound": engine.policy.hit_bound(live),
        "fetches": len(engine.in_flight),
        **msgspec.structs.asdict(engine.recoders.count),
        "recode_waiting": engine.recoders.waiting,
        "recoders": len(engine.recoders.pids),
        "most_recoders": engine.recoders.most,
        "errors": engine.errors.total(),
        "error_kinds": [{"kind": kind, "count": count} for kind, count in sorted(engine.errors.items())],
        "draining": engine.scheduler.draining,
        "datasets": [_dataset(engine, manifest) for manifest in engine.datasets.manifests()],
        "sessions": [_session(session) for session in shown_sessions],
        "sessions_left_out": max(0, len(engine.sessions) - _SHOWN_SESSIONS),
        "members": list(islice((row for one in shown_sessions for row in _members(engine, one)), _SHOWN_MEMBERS)),
        **_store(engine, fetch),
        **engine.fetch_pool.process_statistics(),
        **_first_bytes(engine.fetchers.first_bytes().plus(engine.fetch_pool.first_bytes())),
        **(engine.peer_statistics() if engine.peer_statistics is not None else {}),
    }


def _first_of_jobs(sessions: list[EngineSession]) -> list[EngineSession]:
    """Returns all sessions, or the first ones of every job if there are more than `_SHOWN_SESSIONS`."""
    if len(sessions) <= _SHOWN_SESSIONS:
        return sessions
    seen: Counter[str] = Counter()
    places: list[tuple[int, int]] = []
    for number, session in enumerate(sessions):
        places.append((seen[session.owner], number))
        seen[session.owner] += 1
    return [sessions[number] for _, number in sorted(places)[:_SHOWN_SESSIONS]]


def _store(engine: Engine, fetch: dict[str, int | float]) -> Table:
    """Returns what came from the stores, without what indexes read; takes these entries out of `fetch`."""
    index = engine.manifests.traffic
    return {
        "store_bytes": fetch.pop("received_bytes", 0) - index.read_bytes,
        "store_requests": fetch.pop("requests", 0) - index.requests,
        "index_bytes": index.read_bytes,
        "index_requests": index.requests,
        **fetch,
    }


def _first_bytes(found: Histogram) -> Values:
    """Returns the times to the first byte as counts of requests that took at most "le" seconds, and their sum."""
    bounds = (*map(str, FIRST_BYTE_BOUNDS), "+Inf")
    buckets: list[Table] = [
        {"le": bound, "count": count} for bound, count in zip(bounds, accumulate(found.counts), strict=True)
    ]
    return {"first_byte_buckets": buckets, "first_byte_sum_seconds": round(found.sum_seconds, 6)}


def _dataset(engine: Engine, manifest: Manifest) -> Table:
    """Returns the entry of a dataset, whatever storage options its sessions have."""
    of_sessions = [session.collection.datasets for session in engine.sessions.values()]
    opened = [dataset for dataset in engine.datasets.all() if dataset.manifest is manifest]
    return {
        "dataset": manifest.digest,
        # Neither signatures nor passwords, and not more than a line of a table can show.
        "url": shown(manifest.urls[0])[:_SHOWN_LETTERS] if manifest.urls else "",
        "urls": len(manifest.urls),
        "samples": manifest.samples,
        "chunks": manifest.chunks,
        "total_bytes": opened[0].total_bytes,
        "sessions": sum(any(dataset in datasets for dataset in opened) for datasets in of_sessions),
    }


def _session(session: EngineSession) -> Table:
    """Returns the entry of a session; `epoch` is -1 before its first epoch."""
    now = session.engine_now()
    request = session.request
    epoch = session.running_epoch if session.running_epoch is not None else -1
    count = session.counts.get(epoch)
    return {
        "consumer": request.consumer[:_SHOWN_LETTERS],
        "job": request.job[:_SHOWN_LETTERS],
        "dataset": request.dataset,
        "waiting_seconds": round(session.waiting.seconds(now), 6),
        "age_seconds": round(session.waiting.age_seconds(now), 6),
        **_describe_report(session, now),
        "failed": type(session.failed).__name__ if session.failed else "",
        "epoch": epoch,
        "done": session.progress.done,
        # 0 where the client has not said how large it is.
        "batch_samples": request.global_batch / request.world_size if request.world_size else 0.0,
        "through": session.progress.last_ready_step(),
        "want": session.progress.want,
        "epoch_needs": count.needs if count else 0,
        "epoch_hits": count.hits if count else 0,
        "epoch_needed_bytes": count.needed_bytes if count else 0,
        "epoch_hit_bytes": count.hit_bytes if count else 0,
    }


def _members(engine: Engine, session: EngineSession) -> Iterator[Table]:
    """Yields the entry of each member of a session over a mix."""
    for part, count in zip(session.request.parts, session.parts.counts, strict=False):
        yield {
            "consumer": session.request.consumer[:_SHOWN_LETTERS],
            "job": session.request.job[:_SHOWN_LETTERS],
            "dataset": session.request.dataset,
            "member": part.name[:_SHOWN_LETTERS],
            "digest": part.dataset,
            "needs": count.needs,
            "hits": count.hits,
            "needed_bytes": count.needed_bytes,
            "hit_bytes": count.hit_bytes,
            "hit_bound": engine.policy.hit_bound({part.dataset}),
        }


def _describe_report(session: EngineSession, now: float) -> Table:
    """Returns what the session's loader last reported of itself; all values are None before its first report."""
    finding = session.finding
    rows = None if finding is None else finding.rows
    return {
        **{shown: getattr(finding, name, None) for name, shown in _REPORT_NAMES.items()},
        "report_age_seconds": None if finding is None else round(now - session.finding_at, 3),
        **{shown: getattr(rows, name, None) for name, shown in _ROW_NAMES.items()},
    }
