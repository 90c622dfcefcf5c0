"""Defines every metric of `/metrics`, and makes that page from the statistics of a service.

`service/web.py` calls `make_exposition`. No other file defines a metric. A *stable* name keeps its meaning in all
versions with the same first number; an *experimental* one may change in any version. Of the labels, `dataset` is the
manifest's digest; `job`, `consumer` and `member` (of a mix) are names that clients give, cut after 120 characters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import msgspec

from streamer.engine.statistics import Scalar, Table, Values

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Kind = Literal["counter", "gauge", "histogram"]
Stability = Literal["stable", "experimental"]

# Sessions, and members of mixes, that have series of their own. Further ones are summed under job="others" and
# consumer="others", so that a scrape stays small.
MAX_SESSIONS = 1000
OTHERS = "others"


class Definition(msgspec.Struct, frozen=True):
    """One metric.

    Attributes:
        name: name with its unit; a counter's ends in _total.
        kind: type of the metric in Prometheus.
        stability: whether a later version may change it.
        source: key of the value, in the statistics or in an entry of `table`. A histogram's is that of the sum; an info
            metric, which is always 1, has "".
        help: meaning of the metric, as /metrics shows it.
        table: key of the list in the statistics that has an entry for each series, or the buckets of a histogram; ""
            if the metric has one value.
        labels: keys that distinguish the series: of an entry, or of the statistics if there is no table.
    """

    name: str
    kind: Kind
    stability: Stability
    source: str
    help: str
    table: str = ""
    labels: tuple[str, ...] = ()


# Metrics with one value: name without "streamer_", key in the statistics, and meaning. The tables below are alike.
_SINGLE = (
    ("store_received_bytes_total", "store_bytes", "Bytes of chunks and reads that came from the store."),
    ("store_requests_total", "store_requests", "Ranged reads sent for chunks and reads, with retries and hedges."),
    ("index_received_bytes_total", "index_bytes", "Bytes read to build manifests."),
    ("index_requests_total", "index_requests", "Reads sent to build manifests."),
    ("store_retries_total", "retries", "Reads tried again after a failure."),
    ("store_throttled_total", "throttled", "Answers 429 and 503."),
    ("store_hedges_total", "hedges", "Duplicates sent because no first byte came."),
    ("store_hedge_wins_total", "hedge_wins", "Duplicates that were first."),
    ("store_failures_total", "failures", "Ranges given up after all retries."),
    ("store_stalled_total", "stalled", "Bodies abandoned for lack of progress."),
    ("store_requests_in_flight", "in_flight", "Requests sent and not ended."),
    ("store_requests_window", "window", "Requests allowed at once."),
    ("store_first_byte_p50_seconds", "first_byte_p50_seconds", "Median time to first byte of the last 512 requests."),
    ("store_first_byte_p99_seconds", "first_byte_p99_seconds", "99th percentile of the same."),
    ("fetch_buffer_bytes", "reserved_bytes", "Memory given to chunks on their way."),
    ("cache_needs_total", "needs", "Uses of chunks by sessions."),
    ("cache_hits_total", "hits", "Uses that cost no store byte."),
    ("cache_needed_bytes_total", "needed_bytes", "Bytes of the uses."),
    ("cache_hit_bytes_total", "hit_bytes", "Bytes of the uses that cost no store byte."),
    ("cache_hit_bound_ratio", "hit_bound", "Share of the live data that is kept: the most hits of one reader."),
    ("cache_limit_bytes", "limit_bytes", "What chunk files may take."),
    ("cache_disk_free_bytes", "disk_free_bytes", "Free space of the file system of the cache, lately."),
    ("cache_disk_bytes", "disk_bytes", "Size of that file system."),
    ("cache_kept_bytes", "kept_bytes", "Chunks that stay after their use."),
    ("cache_transit_bytes", "transit_bytes", "Chunks that leave after their use."),
    ("cache_open_bytes", "open_bytes", "Chunks that are being read now."),
    ("cache_kept_chunks", "kept_chunks", "Number of kept chunks."),
    ("cache_evicted_chunks_total", "evicted_chunks", "Chunks that left the cache."),
    ("cache_rejected_chunks_total", "rejected_chunks", "Chunks that were wrong on the disk and fetched again."),
    ("cache_unfounded_rejects_total", "unfounded_rejects", "Chunks that a reader found wrong and the engine right."),
    ("cache_written_bytes_total", "written_bytes", "Bytes of chunk files written to the disk."),
    ("cache_refused_writes_total", "refused_writes", "Chunks that the disk would not take; they pass through memory."),
    ("fetches", "fetches", "Chunks between store and SSD."),
    ("recoded_chunks_total", "recoded_chunks", "Chunks of compressed or columnar data that were made into records."),
    ("recode_input_bytes_total", "recoded_bytes", "Fetched bytes of these chunks."),
    ("recode_output_bytes_total", "record_bytes", "Bytes of their records."),
    ("recode_cpu_seconds_total", "recode_cpu_seconds", "CPU time of the recoders."),
    ("recode_busy_seconds_total", "recode_busy_seconds", "Time that recoders had a chunk."),
    ("recode_failures_total", "recode_failures", "Tries to recode a chunk that failed."),
    ("recode_waiting_chunks", "recode_waiting", "Chunks that wait for a recoder."),
    ("recoders", "recoders", "Recoders that run."),
    ("fetch_processes", "fetch_processes", "Processes that fetch beside the engine's loop."),
    ("fetch_process_cpu_seconds_total", "fetch_process_cpu_seconds", "CPU time of them."),
    ("fetch_process_failures_total", "fetch_process_crashes", "Those of them that ended by themselves."),
    ("loop_cpu_seconds_total", "loop_cpu_seconds", "CPU time of the engine's loop, which has one core at most."),
    ("connections", "connections", "Clients connected now."),
    ("connections_total", "connections_total", "Clients that have connected."),
    ("connections_refused_total", "connections_refused", "Clients that may not connect, or were too many."),
    ("dropped_protocol_total", "dropped_protocol", "Connections ended for frames that the protocol does not allow."),
    ("dropped_unread_total", "dropped_unread", "Connections ended for not reading."),
    ("dropped_silent_total", "dropped_silent", "Connections ended for saying nothing."),
    ("dropped_unfinished_total", "dropped_unfinished", "Connections ended for a frame without an end."),
    ("uptime_seconds", "uptime_seconds", "Time since the service listens."),
    ("cpu_seconds_total", "cpu_seconds", "User and system time of the process."),
    ("usable_cores", "usable_cores", "CPUs that it may use: its cgroup's quota, rounded up, or those of the machine."),
    ("threads", "threads", "Threads of the process."),
    ("anonymous_bytes", "anonymous_bytes", "Resident memory that is not of files."),
    ("resident_bytes", "resident_bytes", "All resident memory."),
    ("open_descriptors", "open_descriptors", "Open files and sockets."),
    ("draining", "draining", "1 while the service is stopping."),
)
# Metrics of an engine that shares its cache.
_OF_PEERS = (
    ("peers", "peer_members", "Other engines that share their caches with this one."),
    ("down_peers", "peer_members_down", "Those of them that do not answer now."),
    ("home_ratio", "home_share", "Share of all chunks that this engine is to keep."),
    ("peer_requests_total", "peer_requests", "Requests for chunks sent to peers."),
    ("peer_received_bytes_total", "peer_received_bytes", "Bytes that came from peers."),
    ("peer_chunks_total", "peer_chunks", "Chunks that came from peers."),
    ("peer_chunk_bytes_total", "peer_bytes", "Bytes of their samples."),
    ("peer_hedges_total", "peer_hedges", "Requests to peers that were late, so that the store was asked as well."),
    ("peer_hedge_losses_total", "peer_hedge_losses", "Late requests whose chunk came from the store."),
    ("peer_failures_total", "peer_failures", "Connections to peers that failed or broke."),
    ("peer_refused_requests_total", "peer_refused", "Requests that found a peer busy."),
    ("peer_wrong_requests_total", "peer_wrong", "Requests whose answer was not the chunk."),
    ("served_requests_total", "served_requests", "Chunks sent to peers."),
    ("served_bytes_total", "served_bytes", "Bytes of them."),
    ("served_refused_requests_total", "served_refused", "Requests of peers that found this engine busy."),
    ("served_unauthorized_requests_total", "served_unauthorized", "Requests without the token of the peers."),
    ("served_chunks", "sends", "Chunks that are being sent to peers."),
    ("fetched_for_peers_bytes_total", "fetched_for_peers_bytes", "Bytes of chunk files fetched because a peer asked."),
)
_OF_FIRST_BYTES = (("store_first_byte_seconds", "first_byte_sum_seconds", "Time to first byte of ranged reads."),)
_OF_BUILDS = (("build_info", "", "1: the version that runs."),)
_OF_URLS = (("dataset_info", "", "1: the first url of the dataset, without query and user."),)
_OF_ERRORS = (("errors_total", "count", "Errors that ended a session."),)
_OF_DATASETS = (
    ("dataset_samples", "samples", "Samples of the dataset."),
    ("dataset_bytes", "total_bytes", "Bytes of its chunk files."),
    ("dataset_sessions", "sessions", "Sessions that read it."),
)
_OF_SESSIONS = (
    ("session_waiting_seconds_total", "waiting_seconds", "Time the consumer stood still for the engine."),
    (
        "session_loader_waiting_ratio",
        "loader_waiting_share",
        "Share of its time that the trainer waited for its loader, whatever for; as the loader last said.",
    ),
    ("session_row_padding_ratio", "row_padding", "Share of the places of its packed rows that is empty, lately."),
    ("session_row_cost_spread_ratio", "row_cost_spread", "Spread of the costs of its batches by their mean, lately."),
    ("session_row_tokens_total", "row_tokens", "Tokens in the rows that its loader has made."),
    ("session_row_left_out_tokens", "row_left_out", "Tokens of every epoch that are in no row."),
    ("session_age_seconds", "age_seconds", "Time since the session was opened."),
    ("session_done_steps", "done", "Steps that are consumed."),
    ("session_epoch", "epoch", "The running epoch; -1 before the first."),
    ("session_epoch_needed_bytes", "epoch_needed_bytes", "Bytes needed in the running epoch."),
    ("session_epoch_hit_bytes", "epoch_hit_bytes", "Bytes of it that were there."),
)
_OF_MEMBERS = (
    ("member_needed_bytes_total", "needed_bytes", "Bytes of a member of a mix that the session needed."),
    ("member_hit_bytes_total", "hit_bytes", "Bytes of it that cost no store byte."),
    ("member_hit_bound_ratio", "hit_bound", "Share of the member that is kept: the most hits of one reader."),
)
_OF_BOTTLENECKS = (("session_bottleneck_info", "", "1: what the loader of the session last said holds it up."),)
# All metrics: key of the list in the statistics, labels, and the metrics that come from it.
_TABLES: tuple[tuple[str, tuple[str, ...], tuple[tuple[str, str, str], ...]], ...] = (
    ("", (), _SINGLE),
    ("", (), _OF_PEERS),
    ("", ("version",), _OF_BUILDS),
    ("first_byte_buckets", ("le",), _OF_FIRST_BYTES),
    ("error_kinds", ("kind",), _OF_ERRORS),
    ("datasets", ("dataset",), _OF_DATASETS),
    ("datasets", ("dataset", "url"), _OF_URLS),
    ("sessions", ("job", "consumer", "dataset"), _OF_SESSIONS),
    ("sessions", ("job", "consumer", "dataset", "bottleneck"), _OF_BOTTLENECKS),
    ("members", ("job", "consumer", "member"), _OF_MEMBERS),
)
_BUCKETS = "first_byte_buckets"
# Endings of metrics of which the largest value counts where several entries have equal labels.
_NOT_SUMMED = ("_ratio", "_info")
_EXPERIMENTAL = frozenset(
    [
        *(name for name, _, _ in _OF_PEERS),
        "store_stalled_total",
        "store_requests_window",
        "store_first_byte_p50_seconds",
        "store_first_byte_p99_seconds",
        "cache_hit_bound_ratio",
        "fetches",
        "session_loader_waiting_ratio",
        "session_bottleneck_info",
        "session_row_padding_ratio",
        "session_row_cost_spread_ratio",
        "session_row_tokens_total",
        "session_row_left_out_tokens",
        "session_done_steps",
        "session_epoch",
        "session_epoch_needed_bytes",
        "session_epoch_hit_bytes",
        "member_needed_bytes_total",
        "member_hit_bytes_total",
        "member_hit_bound_ratio",
    ]
)


def _definitions() -> Iterator[Definition]:
    for table, labels, rows in _TABLES:
        for name, source, text in rows:
            kind: Kind = "counter" if name.endswith("_total") else "gauge"
            kind = "histogram" if table == _BUCKETS else kind
            stability: Stability = "experimental" if name in _EXPERIMENTAL else "stable"
            yield Definition(
                name=f"streamer_{name}",
                kind=kind,
                stability=stability,
                source=source,
                help=text,
                table=table,
                labels=labels,
            )


DEFINITIONS = tuple(_definitions())


def make_exposition(values: Values) -> tuple[bytes, str]:
    """Returns the body of `/metrics` for the statistics of a service, and its content type; needs prometheus_client."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(values))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Collected:
    """Hands one reading of the statistics to prometheus_client, as a collector of its registry."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for definition in DEFINITIONS:
            family = CounterMetricFamily if definition.kind == "counter" else GaugeMetricFamily
            text = f"{definition.help} ({definition.stability})"
            if definition.kind == "histogram":
                buckets = [(labels[0], count) for labels, count in make_series(definition, self._values)]
                total = _number(self._values.get(definition.source, 0))
                yield HistogramMetricFamily(definition.name, text, buckets or [("+Inf", 0.0)], total)
                continue
            metric = family(definition.name.removesuffix("_total"), text, labels=definition.labels)
            for labels, value in make_series(definition, self._values):
                metric.add_metric(labels, value)
            yield metric


def make_series(definition: Definition, values: Values) -> list[tuple[tuple[str, ...], float]]:
    """Returns the series of one metric, each as the values of its labels and its own value.

    Values of equal labels are summed, except ratios, of which the largest counts, and the 1 of an info metric. There is
    no series for an info metric whose last label is not known, and none for a statistic
    that this engine does not have, such as those of peers, or that an entry has as None.

    Args:
        definition: The metric. A histogram's series are its buckets.
        values: Statistics of the service.
    """
    if not definition.table and definition.labels:
        return (
            [(tuple(str(values[label]) for label in definition.labels), 1.0)] if definition.labels[0] in values else []
        )
    if not definition.table:
        return [((), _number(values[definition.source]))] if definition.source in values else []
    entries = values.get(definition.table, [])
    found: dict[tuple[str, ...], float] = {}
    for count, entry in enumerate(entries if isinstance(entries, list) else []):
        labels = [str(entry.get(label, "")) for label in definition.labels]
        if "consumer" in definition.labels and count >= MAX_SESSIONS:
            labels[definition.labels.index("consumer")] = OTHERS
            labels[definition.labels.index("job")] = OTHERS
        # The value is None if the loader of a session has not sent a report yet.
        if definition.source:
            raw = entry.get("count" if definition.kind == "histogram" else definition.source, 0)
            value = None if raw is None else _number(raw)
        else:
            value = 1.0 if all(entry.get(label) for label in definition.labels[-1:]) else None
        if value is not None:
            key = tuple(labels)
            known = found.get(key, 0.0)
            found[key] = max(known, value) if definition.name.endswith(_NOT_SUMMED) else known + value
    return list(found.items())


def _number(value: Scalar | list[Table]) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
