"""The table of metrics and the series that it makes of statistics."""

import re

from streamer.service import metrics
from streamer.service.metrics import DEFINITIONS, MAX_SESSIONS, OTHERS, make_exposition, make_series

NAMED = {definition.name: definition for definition in DEFINITIONS}
UNITS = (
    "bytes",
    "seconds",
    "ratio",
    "requests",
    "chunks",
    "samples",
    "sessions",
    "connections",
    "recoders",
    "processes",
    "steps",
    "descriptors",
    "cores",
    "info",
    "threads",
    "peers",
    "tokens",
)
# Counts whose unit is their name, as Prometheus has it (streamer_errors_total).
COUNTS = re.compile(
    r"streamer_(errors|connections\w*|dropped_\w+|\w*_(retries|throttled|hedges|wins|losses|failures|stalled|needs|hits|rejects|writes))_total"
)


def test_names_are_unique_and_carry_their_unit():
    """Names of metrics are unique, begin with streamer_ and end with their unit."""
    assert len(NAMED) == len(DEFINITIONS)
    for name in NAMED:
        assert re.fullmatch(r"streamer_[a-z0-9_]+", name)
        unit = name.removesuffix("_total").rsplit("_", 1)[-1]
        known = unit in (*UNITS, "flight", "window", "fetches", "draining", "epoch") or COUNTS.fullmatch(name)
        assert known, name


def test_kind_follows_from_the_name():
    """A metric is a counter if and only if its name ends in _total."""
    assert all((definition.kind == "counter") == name.endswith("_total") for name, definition in NAMED.items())


def test_stable_names_are_frozen():
    """Stable metrics keep their names, because dashboards use them; one that goes needs a new major version."""
    stable = {name for name, definition in NAMED.items() if definition.stability == "stable"}
    assert {
        "streamer_store_received_bytes_total",
        "streamer_store_requests_total",
        "streamer_store_requests_in_flight",
        "streamer_cache_needed_bytes_total",
        "streamer_cache_hit_bytes_total",
        "streamer_cache_limit_bytes",
        "streamer_cache_kept_bytes",
        "streamer_connections",
        "streamer_errors_total",
        "streamer_session_waiting_seconds_total",
        "streamer_dataset_samples",
        "streamer_draining",
    } <= stable


def test_equal_labels_are_summed():
    """Entries with equal labels are summed, such as two loaders of one rank."""
    entry = {"job": "j", "consumer": "rank 0", "dataset": "d", "waiting_seconds": 1.5}
    found = make_series(NAMED["streamer_session_waiting_seconds_total"], {"sessions": [entry, entry]})
    assert found == [(("j", "rank 0", "d"), 3.0)]


def test_what_loaders_say_is_there_once_they_have_said_it():
    """The report of a loader has series once there is one: the largest share of equal labels, and the bottleneck."""
    entry = {"job": "j", "consumer": "rank 0", "dataset": "d", "loader_waiting_share": 0.6, "bottleneck": "decode"}
    silent = {**entry, "consumer": "rank 1", "loader_waiting_share": None, "bottleneck": None}
    values = {"sessions": [entry, {**entry, "loader_waiting_share": 0.7}, silent]}
    assert make_series(NAMED["streamer_session_loader_waiting_ratio"], values) == [(("j", "rank 0", "d"), 0.7)]
    assert make_series(NAMED["streamer_session_bottleneck_info"], values) == [(("j", "rank 0", "d", "decode"), 1.0)]


def test_rows_of_documents_have_series_once_a_loader_makes_some():
    """Rows of documents have series for padding, costs, tokens and tokens left out; a loader of samples has none."""
    rows = {"row_padding": 0.01, "row_cost_spread": 0.2, "row_tokens": 5000, "row_left_out": 7}
    entry = {"job": "j", "consumer": "rank 0", "dataset": "d", **rows}
    values = {"sessions": [entry, {**entry, "consumer": "rank 1", **dict.fromkeys(rows)}]}
    names = ("padding_ratio", "cost_spread_ratio", "tokens_total", "left_out_tokens")
    found = [make_series(NAMED[f"streamer_session_row_{name}"], values) for name in names]
    assert found == [[(("j", "rank 0", "d"), value)] for value in rows.values()]


def test_info_metrics_name_the_version_and_the_urls():
    """Info metrics have the version and the urls of datasets as labels, for dashboards that show urls."""
    values = {"version": "1.2.3", "datasets": [{"dataset": "d", "url": "s3://bucket/train/", "samples": 7}]}
    text = make_exposition(values)[0].decode()
    assert 'streamer_build_info{version="1.2.3"} 1.0' in text
    assert 'streamer_dataset_info{dataset="d",url="s3://bucket/train/"} 1.0' in text
    assert 'streamer_dataset_samples{dataset="d"} 7.0' in text


def test_first_bytes_are_a_histogram():
    """Times to the first byte are a histogram of cumulative buckets, as histogram_quantile() takes them."""
    buckets = [{"le": "0.1", "count": 3}, {"le": "+Inf", "count": 4}]
    text = make_exposition({"first_byte_buckets": buckets, "first_byte_sum_seconds": 2.5})[0].decode()
    assert "# TYPE streamer_store_first_byte_seconds histogram" in text
    assert 'streamer_store_first_byte_seconds_bucket{le="0.1"} 3.0' in text
    assert "streamer_store_first_byte_seconds_count 4.0" in text
    assert "streamer_store_first_byte_seconds_sum 2.5" in text


def test_a_scrape_stays_small():
    """Sessions beyond the first thousand are one series of their dataset, so that a scrape stays small."""
    entries = [{"job": "j", "consumer": f"rank {i}", "dataset": "d", "age_seconds": 1} for i in range(MAX_SESSIONS + 7)]
    found = dict(make_series(NAMED["streamer_session_age_seconds"], {"sessions": entries}))
    assert len(found) == MAX_SESSIONS + 1
    assert found[OTHERS, OTHERS, "d"] == 7


def test_members_of_a_mix_are_series_of_their_session():
    """Members of a mix are series of their session; beyond a thousand each name is one series of all sessions."""
    entries = [
        {"job": "j", "consumer": f"rank {i // 600}", "member": f"m{i % 600}", "needed_bytes": 10, "hit_bound": 0.25}
        for i in range(1800)
    ]
    needed = dict(make_series(NAMED["streamer_member_needed_bytes_total"], {"members": entries}))
    assert needed["j", "rank 0", "m7"] == 10
    assert needed[OTHERS, OTHERS, "m500"] == 20
    assert sum(needed.values()) == 18_000
    bound = dict(make_series(NAMED["streamer_member_hit_bound_ratio"], {"members": entries}))
    assert bound[OTHERS, OTHERS, "m500"] == 0.25


def test_the_exposition_is_prometheus_text():
    """The exposition is Prometheus text with type, help, stability and value; labels of clients are escaped."""
    values = {"store_bytes": 12, "sessions": [{"job": 'a"b\n', "consumer": "c", "dataset": "d", "age_seconds": 2}]}
    body, kind = make_exposition(values)
    text = body.decode()
    assert kind.startswith("text/plain")
    assert "# TYPE streamer_store_received_bytes_total counter" in text
    assert "streamer_store_received_bytes_total 12.0" in text
    assert '{consumer="c",dataset="d",job="a\\"b\\n"} 2.0' in text
    assert "(experimental)" in text


def test_every_source_is_a_statistic(engine_statistics):
    """Every metric has a statistic of the engine as its source. (Those of peers: tests/e2e/test_peers.py.)"""
    of_peers = {f"streamer_{name}" for name, _, _ in metrics._OF_PEERS}
    for definition in metrics.DEFINITIONS:
        if definition.name in of_peers:
            continue
        if definition.table:
            assert definition.table in engine_statistics
        for source in [definition.source] if definition.source and not definition.table else []:
            assert source in engine_statistics, definition.name
