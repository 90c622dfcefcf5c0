"""The picture of `streamer top` in the documentation: every figure on it is one of /metrics."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path

import pytest

from streamer.cli.status_view import StatusView

SCRIPT = Path(__file__).parents[2] / "docs" / "deploy" / "screenshot.py"
FIGURES = ("memory", "MB/s", "requests of", "chunks", "so far, the cache keeps", "hedges", "retries", "800", "80.0 MB")


@pytest.fixture(scope="module")
def screenshot():
    spec = importlib.util.spec_from_file_location("screenshot", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# What a rank waits for is judged by its clock: on a machine that is busy enough a slow sample, not the transform.
@pytest.mark.slow
@pytest.mark.timing
def test_top_shows_what_metrics_say(screenshot, tmp_path):
    """A job of two ranks at work: drawn from the engine's statistics and from a scrape, the picture is the same."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shown = screenshot.drawn(screenshot.picture_of(screenshot.Service(tmp_path, port)))
    assert [figure for figure in FIGURES if figure not in shown] == []
    for rank in range(2):
        (row,) = [line for line in shown.splitlines() if line.startswith(f"rank {rank}")]
        waiting, hits, loader = [cell for cell in row.split() if cell.endswith("%")][:3]
        assert loader != waiting
        assert float(hits.rstrip("%")) > 0
    assert "transform" in shown


def test_a_figure_that_differs_is_found(screenshot):
    """Nothing but names is taken from elsewhere: another number in /metrics is another picture."""
    names = {"job": "j", "consumer": "rank 0", "dataset": "d", "failed": "", "advice": "more workers"}
    words = {
        "pid": 1,
        "version": "0.1",
        "host": "n",
        "cache_dir": "/c",
        "datasets": [],
        "sessions": [names],
        "members": [],
    }
    text = (
        "streamer_cache_kept_bytes {kept}\n"
        'streamer_session_loader_waiting_ratio{{job="j",consumer="rank 0",dataset="d"}} {share}\n'
        'streamer_session_bottleneck_info{{job="j",consumer="rank 0",dataset="d",bottleneck="decode"}} 1.0\n'
    )
    drawn = [
        screenshot.drawn(
            StatusView(screenshot.plain(screenshot.from_metrics(text.format(kept=kept, share=share), words)))
        )
        for kept, share in ((1e6, 0.25), (2e6, 0.25), (1e6, 0.5))
    ]
    assert len(set(drawn)) == 3
    assert "25.0%" in drawn[0]
    assert "decode: more workers" in drawn[0]
