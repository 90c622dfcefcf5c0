"""`streamer top`: pictures of intervals, as lines and as a screen."""

import contextlib
import io
import itertools
import os
import types

import pytest
from rich.console import Console

from streamer.cli import top_command
from streamer.cli.main import build_parser, main
from streamer.cli.status_view import StatusView
from streamer.cli.terminal import Terminal


class Engine:
    """Answers with counters that grow by 1 MB a second."""

    def __init__(self):
        self._look = itertools.count(1)

    def statistics(self):
        seconds = next(self._look)
        return {"pid": 3, "uptime_seconds": seconds, "store_bytes": seconds * 10**6, "sessions": []}


def test_each_picture_is_of_the_interval_before_it():
    """The first one is of the engine's life; between them it sleeps."""
    slept = []
    pictures = list(top_command.looks(Engine(), 0.5, 3, lambda seconds: slept.append(seconds) is None))
    assert [picture.rates.store_bytes for picture in pictures] == [1e6] * 3
    assert slept == [0.5, 0.5]


def test_elsewhere_each_look_is_a_line():
    """For a log."""
    out = io.StringIO()
    top_command._plain(top_command.looks(Engine(), 0, 2, lambda seconds: True), Terminal(out, out))
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("store 1.0 MB/s  cache 0.0 MB/s")
    assert "hits nothing was needed yet" in lines[1]


def test_the_screen_shows_every_figure_and_no_markup_of_clients():
    """Everything that `stat` prints; a client called [red] stays text."""
    entry = {"consumer": "[red]rank 0[/red]", "job": "j", "epoch": 0, "done": 5, "age_seconds": 2, "waiting_seconds": 1}
    picture = StatusView({"pid": 3, "sessions": [entry]})
    console = Console(file=io.StringIO(), width=120)
    console.print(top_command.render(picture, 120, 40))
    shown = console.file.getvalue()
    assert all(text in shown for _, text in picture.lines())
    assert "[red]rank 0[/red]" in shown
    assert "50.0%" in shown


def test_a_small_terminal_shows_every_rank():
    """80 x 18 and 8 ranks: a line each, numbers whole; at 12 lines those that wait least are counted."""
    report = {
        "loader_waiting_share": 0.43,
        "bottleneck": "decode",
        "advice": "more workers would keep up: num_workers=12",
    }
    entries = [
        {"consumer": f"rank {i}", "job": "train", "done": 123456, "age_seconds": 10, "waiting_seconds": i, **report}
        for i in range(8)
    ]
    picture = StatusView(
        {"pid": 3, "sessions": entries, "datasets": [{"dataset": "d" * 32, "url": "s3://" + "b" * 90}]}
    )
    for lines, ranks in ((18, 8), (12, 2)):
        console = Console(file=io.StringIO(), width=80, height=lines)
        console.print(top_command.render(picture, 80, lines))
        shown = console.file.getvalue().splitlines()
        assert len(shown) <= lines
        assert [line.split()[1] for line in shown if line.startswith("rank ") and "123,456" in line] == [
            str(7 - i) for i in range(ranks)
        ]
        assert shown[-1] == "waits most: rank 7: decode: more workers would keep up: num_workers=12"
        assert ("and 6 more that wait less" in shown) == (ranks == 2)


def test_q_ends_it_at_once():
    """Another key does not."""
    keyboard, typed = os.pipe()
    try:
        os.write(typed, b"x")
        assert top_command._no_q(keyboard, 0.01)
        os.write(typed, b"q")
        assert not top_command._no_q(keyboard, 60)
    finally:
        os.close(keyboard)
        os.close(typed)


def test_ctrl_c_is_no_error(monkeypatch):
    """It is one of the two ways to end it."""

    def interrupted():
        raise KeyboardInterrupt

    engine = contextlib.closing(types.SimpleNamespace(statistics=interrupted, close=lambda: None))
    monkeypatch.setattr(top_command, "engine_client", lambda arguments: engine)
    assert main(["top"]) == 0


@pytest.mark.parametrize("interval", ["0", "-1", "soon"])
def test_an_interval_is_above_zero(interval, capsys):
    """Otherwise it would do nothing but look."""
    with pytest.raises(SystemExit):
        build_parser().parse_args(["top", "--interval", interval])
    assert "above 0" in capsys.readouterr().err
