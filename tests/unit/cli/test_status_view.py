"""What `stat` and `top` make of an engine's statistics, which are given as numbers."""

import json

import pytest

from streamer.cli.status_view import StatusView, duration, printable


def statistics(**changes):
    """Makes the statistics of an engine in the middle of epoch 1, as its service reports them."""
    values = {
        "pid": 7,
        "version": "0.1",
        "uptime_seconds": 100.0,
        "connections": 2,
        "anonymous_bytes": 90_000_000,
        "store_bytes": 5_000_000_000,
        "store_requests": 600,
        "hit_bytes": 2_000_000_000,
        "in_flight": 12,
        "window": 64,
        "loop_cpu_seconds": 35.0,
        "fetch_processes": 2,
        "fetches": 9,
        "first_byte_p50_seconds": 0.03,
        "first_byte_p99_seconds": 0.0,
        "kept_bytes": 8_000_000_000,
        "transit_bytes": 1_000_000_000,
        "limit_bytes": 10_000_000_000,
        "hit_bound": 0.45,
        "hedges": 3,
        "hedge_wins": 2,
        "datasets": [
            {"dataset": "ab" * 16, "url": "s3://b/" + "x" * 90, "samples": 10**6, "total_bytes": 2e10, "sessions": 2}
        ],
        "sessions": [session("rank 0", 10.0), session("rank 1", 40.0)],
        **changes,
    }
    return json.loads(json.dumps(values))


def session(consumer, waiting, age=100.0, **more):
    return {
        "consumer": consumer,
        "job": "j",
        "dataset": "ab" * 16,
        "epoch": 1,
        "done": 1234,
        "waiting_seconds": waiting,
        "age_seconds": age,
        "epoch_needed_bytes": 1000,
        "epoch_hit_bytes": 412,
        "failed": "",
        **more,
    }


def text(picture):
    return dict(picture.lines())


def cells(picture):
    """Returns the rows of the table of sessions, each as header -> cell."""
    return [picture.session_cells(entry) for entry in picture.sessions]


def test_one_look_is_over_the_engines_life():
    """One look gives rates over the engine's uptime and waiting over the session's age, the longest waiting first."""
    picture = StatusView(statistics())
    assert (picture.rates.store_bytes, picture.rates.cache_bytes, picture.rates.requests) == (5e7, 2e7, 6.0)
    assert [row["consumer"] for row in cells(picture)] == ["rank 1", "rank 0"]
    assert [row["waiting"] for row in cells(picture)] == ["40.0%", "10.0%"]
    assert (cells(picture)[0]["epoch"], cells(picture)[0]["step"]) == ("1", "1,234")


def test_two_looks_are_over_the_time_between():
    """Two looks give rates and waiting over the time between them."""
    later = statistics(
        uptime_seconds=102.0,
        store_bytes=5_100_000_000,
        sessions=[session("rank 0", 10.5, 102.0), session("rank 1", 40.0, 102.0)],
    )
    picture = StatusView(later, statistics())
    assert picture.rates.store_bytes == 5e7
    assert [picture.wait_share(entry) for entry in picture.sessions] == [0.25, 0.0]


def test_another_engine_starts_anew():
    """After a restart of the engine rates are over its new uptime and never negative."""
    restarted = statistics(pid=8, uptime_seconds=2.0, store_bytes=100, hit_bytes=0, sessions=[session("rank 0", 1, 2)])
    picture = StatusView(restarted, statistics())
    assert picture.rates.store_bytes == 50
    assert picture.wait_share(picture.sessions[0]) == 0.5


def test_a_session_that_was_opened_again_starts_anew():
    """A session that was opened again under its name has its waiting share over its own age."""
    picture = StatusView(statistics(sessions=[session("rank 0", 1.0, 4.0)]), statistics())
    assert picture.wait_share(picture.sessions[0]) == 0.25


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        ("hits", "41.2% so far, the cache keeps 45.0% of the data"),
        ("fill", "9.0 GB of 10.0 GB (90%)"),
        ("in flight", "12 requests of 64, 9 chunks"),
        ("loop", "35% of a core, 2 fetch processes"),
        ("first byte", "p50 30 ms, p99 -"),
        ("tail", "3 hedges, 2 of them first"),
        ("trouble", "0 retries, 0 throttled, 0 failures, 0 errors, 0 rejected chunks"),
    ],
)
def test_the_figures_as_text(what, shown):
    """Each figure is a text with units; unknown latencies and missing counters are shown as such."""
    assert text(StatusView(statistics()))[what] == shown


def test_an_idle_engine_has_a_picture():
    """An engine without sessions or counters is shown without an error."""
    picture = StatusView({"pid": 1})
    assert text(picture)["hits"] == "nothing was needed yet"
    assert picture.tables() == []


def test_between_jobs_the_hits_are_those_of_the_engines_life():
    """Between jobs the hits are those since the engine started."""
    picture = StatusView(statistics(sessions=[], needed_bytes=10_000, hit_bytes=8_000, hit_bound=0.0))
    assert text(picture)["hits"] == "80.0% since the engine started; no epoch runs now"


def test_names_of_clients_cannot_steer_the_terminal():
    """Escape sequences in clients' names are shown as question marks, and long urls are cut in the middle."""
    assert printable("rank\x1b[2J\n0") == "rank?[2J?0"
    picture = StatusView(statistics(sessions=[session("\x1b]0;x\x07", 0.0, job="\r")]))
    assert (cells(picture)[0]["consumer"], cells(picture)[0]["job"]) == ("?]0;x?", "?")
    assert len(picture.dataset_rows()[0][1]) == 48


def test_a_failed_session_shows_its_error_instead_of_its_waiting():
    """A failed session shows its error in place of its waiting share."""
    picture = StatusView(statistics(sessions=[session("rank 0", 1.0, failed="ObjectChangedError")]))
    assert cells(picture)[0]["waiting"] == "ObjectChangedError"


def test_the_loaders_word_is_shown_beside_the_engines():
    """A loader's waiting share and advice are shown beside the engine's, and "-" before its first report."""
    said = {"loader_waiting_share": 0.43, "bottleneck": "decode", "advice": "4 more\x1b[2J workers"}
    picture = StatusView(
        statistics(sessions=[session("rank 0", 40.0, **said), session("rank 1", 10.0, bottleneck=None)])
    )
    assert [(row["waiting"], row["loader"], row["bottleneck"]) for row in cells(picture)] == [
        ("40.0%", "43.0%", "decode: 4 more?[2J workers"),
        ("10.0%", "-", ""),
    ]
    assert [row["hits"] for row in cells(picture)] == ["41.2%", "41.2%"]


def test_a_line_names_the_loader_that_waits_most():
    """The line for a log names the loader that waits most, and nothing before the first report."""
    said = {"loader_waiting_share": 0.1, "bottleneck": "not input-bound"}
    worst = {"loader_waiting_share": 0.43, "bottleneck": "decode"}
    picture = StatusView(statistics(sessions=[session("rank 0", 0.0, **said), session("rank 1", 0.0, **worst)]))
    assert picture.worst_loader() == "  loader 43.0% (rank 1: decode)"
    assert StatusView(statistics()).worst_loader() == ""


def test_rows_of_documents_have_a_line():
    """Packed rows have a line with the worst padding and spread of all loaders and their tokens together."""
    rows = {"row_padding": 0.01, "row_cost_spread": 0.2, "row_tokens": 5000, "row_left_out": 0}
    said = [session("rank 0", 0.0, **rows), session("rank 1", 0.0, **{**rows, "row_padding": 0.02, "row_left_out": 7})]
    full = "98.00% full, 10,000 tokens, costs of batches spread by 20.0%"
    assert dict(StatusView(statistics(sessions=said)).lines())["rows"] == f"{full}, 7 tokens of an epoch left out"
    silent = [session("rank 0", 0.0, **dict.fromkeys(rows))]
    assert "rows" not in dict(StatusView(statistics(sessions=silent)).lines())


def test_durations():
    """Durations are shown as hours, minutes and seconds."""
    assert [duration(s) for s in (0, 59.9, 3661, 360000)] == ["0:00:00", "0:00:59", "1:01:01", "100:00:00"]


def test_members_of_a_mix_are_summed_over_the_ranks_of_a_job():
    """Members of a mix are summed over the ranks of a job, the most fetched first, the rest in one row."""
    members = [
        {
            "member": name,
            "job": "j",
            "consumer": f"rank {rank}",
            "needed_bytes": read,
            "hit_bytes": hit,
            "hit_bound": 0.5,
        }
        for rank in range(2)
        for name, read, hit in (("books", 4e9, 4e9), ("code", 2e9, 1e9), ("web", 30e9, 6e9))
    ]
    picture = StatusView(statistics(members=members))
    web, code, books = picture.member_rows()
    assert web == ("web", "j", "60.0 GB", "48.0 GB", "20.0%", "50.0%")
    assert code[2:5] == ("4.0 GB", "2.0 GB", "50.0%")
    assert books[0] == "books"
    assert picture.member_rows(2) == [web, ("2 more", "", "12.0 GB", "2.0 GB", "83.3%", "-")]
    assert StatusView(statistics()).member_rows() == []
