"""`streamer top`: pictures of intervals, as lines and as a screen."""

import io
import itertools

import pytest
from rich.console import Console

from streamer.cli import top_command
from streamer.cli.main import build_parser
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
    pictures = list(top_command.looks(Engine(), 0.5, 3, slept.append))
    assert [picture.rates.store_bytes for picture in pictures] == [1e6] * 3
    assert slept == [0.5, 0.5]


def test_elsewhere_each_look_is_a_line():
    """For a log."""
    out = io.StringIO()
    top_command._plain(top_command.looks(Engine(), 0, 2, lambda seconds: None), Terminal(out, out))
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("store 1.0 MB/s  cache 0.0 MB/s")
    assert "hits 0.0% so far, the cache keeps 0.0%" in lines[1]


def test_the_screen_shows_every_figure_and_no_markup_of_clients():
    """Everything that `stat` prints; a client called [red] stays text."""
    entry = {"consumer": "[red]rank 0[/red]", "job": "j", "epoch": 0, "done": 5, "age_seconds": 2, "waiting_seconds": 1}
    picture = StatusView({"pid": 3, "sessions": [entry]})
    console = Console(file=io.StringIO(), width=120)
    console.print(top_command.render(picture))
    shown = console.file.getvalue()
    assert all(text in shown for _, text in picture.lines())
    assert "[red]rank 0[/red]" in shown
    assert "50.0%" in shown


@pytest.mark.parametrize("interval", ["0", "-1", "soon"])
def test_an_interval_is_above_zero(interval, capsys):
    """Otherwise it would do nothing but look."""
    with pytest.raises(SystemExit):
        build_parser().parse_args(["top", "--interval", interval])
    assert "above 0" in capsys.readouterr().err
