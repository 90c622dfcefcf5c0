"""`streamer top`: views of intervals, as lines and as a screen; statistics are given, the screen is rich's."""

import contextlib
import io
import itertools
import os
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from streamer.cli import top_command
from streamer.cli.main import build_parser, main
from streamer.cli.sparklines import ASCII, BLOCKS, RecentLooks
from streamer.cli.status_view import StatusView
from streamer.cli.terminal import Terminal


class Engine:
    """Stands for an engine's client: its counters grow by 1 MB a second with each look; it has no sessions."""

    def __init__(self):
        self._look = itertools.count(1)

    def statistics(self):
        seconds = next(self._look)
        return {"pid": 3, "uptime_seconds": seconds, "store_bytes": seconds * 10**6, "sessions": []}


def test_each_picture_is_of_the_interval_before_it():
    """Each view is of the interval before it, with a sleep between two; the first one is of the engine's life."""
    slept = []
    pictures = list(top_command.looks(Engine(), 0.5, 3, lambda seconds: slept.append(seconds) is None))
    assert [picture.rates.store_bytes for picture in pictures] == [1e6] * 3
    assert slept == [0.5, 0.5]


def test_elsewhere_each_look_is_a_line():
    """Without a terminal each look is one line, as for a log."""
    out = io.StringIO()
    top_command._plain(top_command.looks(Engine(), 0, 2, lambda seconds: True), Terminal(out, out))
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("store 1.0 MB/s  cache 0.0 MB/s")
    assert "hits nothing was needed yet" in lines[1]


def test_the_screen_shows_every_figure_and_no_markup_of_clients():
    """The screen shows every figure of `stat`, and markup in a client's name stays text."""
    entry = {"consumer": "[red]rank 0[/red]", "job": "j", "epoch": 0, "done": 5, "age_seconds": 2, "waiting_seconds": 1}
    picture = StatusView({"pid": 3, "sessions": [entry]})
    console = Console(file=io.StringIO(), width=120)
    console.print(top_command.render(picture, 120, 40))
    shown = console.file.getvalue()
    assert all(text in shown for _, text in picture.lines())
    assert "[red]rank 0[/red]" in shown
    assert "50.0%" in shown


@pytest.mark.parametrize(("lines", "ranks"), [(18, 8), (12, 2)])
def test_a_small_terminal_shows_every_rank(lines, ranks):
    """On 80 x 18 characters each of 8 ranks has a line; at 12 lines those that wait least are counted."""
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
    console = Console(file=io.StringIO(), width=80, height=lines)
    console.print(top_command.render(picture, 80, lines))
    shown = console.file.getvalue().splitlines()
    assert len(shown) <= lines
    assert [line.split()[1] for line in shown if line.startswith("rank ") and "123,456" in line] == [
        str(7 - i) for i in range(ranks)
    ]
    assert shown[-1] == "waits most: rank 7: decode: more workers would keep up: num_workers=12"
    assert ("and 6 more that wait less" in shown) == (ranks == 2)


def _recent_looks(ranks, levels=BLOCKS, looks=60):
    """Makes looks at an engine whose ranks wait, and returns the last of them with their bars."""

    def sample(second):
        report = {"loader_waiting_share": 0.43, "bottleneck": "decode", "advice": "more workers would keep up"}
        sessions = [
            {"consumer": f"rank {rank}", "job": "train", "epoch": 3, "done": 100_000 + second**2}
            | {"age_seconds": second, "waiting_seconds": second / 2, "batch_samples": 64.0, **report}
            for rank in range(ranks)
        ]
        counts = {"pid": 3, "uptime_seconds": second, "store_bytes": second**2 * 10**6, "sessions": sessions}
        return counts | {"needed_bytes": 4 * second, "hit_bytes": second, "limit_bytes": 9, "throttled": second}

    recent = RecentLooks(levels)
    views = [StatusView(sample(second), sample(second - 1)) for second in range(2, looks + 2)]
    for view in views:
        recent.add(view)
    return views[-1], recent


def _draw(view, recent, columns, lines=40):
    console = Console(file=io.StringIO(), width=columns, height=lines)
    console.print(top_command.render(view, columns, lines, recent))
    return console.file.getvalue().splitlines()


def test_bars_stand_beside_figures_and_sessions():
    """A wide screen has bars of 60 letters beside figures, a letter a second, and of ten beside sessions."""
    view, recent = _recent_looks(2)
    shown = _draw(view, recent, 140)
    store = next(line for line in shown if line.startswith("store"))
    assert len(store) == 123
    assert store.endswith("▇" + "█" * 9)
    assert next(line for line in shown if line.startswith("hits")).endswith("▃" * 60)
    assert next(line for line in shown if line.startswith("refusals")).split()[1] == "1.0/s"
    header = next(line for line in shown if line.startswith("consumer"))
    assert header.split() == [
        *("consumer", "job", "epoch", "step", "samples/s", "60", "looks", "waiting", "60", "looks", "hits", "loader"),
        "bottleneck",
    ]
    rank = next(line for line in shown if line.startswith("rank 0"))
    assert rank.split()[5] == "7,168"
    assert rank.count("▅") >= 10


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (101, "consumer job epoch step samples/s bars waiting bars hits loader bottleneck"),
        (100, "consumer job epoch step samples/s bars waiting bars loader bottleneck"),
        (80, "consumer job samples/s bars waiting bars loader bottleneck"),
        (60, "consumer job samples/s waiting bars loader"),
        (50, "consumer job samples/s waiting bars"),
        (45, "consumer job waiting bars"),
        (30, "consumer job waiting"),
    ],
)
def test_columns_go_in_this_order_where_there_is_no_room(columns, names):
    """On narrow screens columns leave in a fixed order, and each rank keeps its name.
    Hits, epoch, step, bars of samples/s, bottleneck, loader, samples/s, bars of waiting."""
    view, recent = _recent_looks(2)
    shown = _draw(view, recent, columns)
    header = next(line for line in shown if line.startswith("consumer"))
    assert header.replace("60 looks", "bars").split() == names.split()
    assert all(any(line.startswith(f"rank {rank} ") for line in shown) for rank in range(2))
    assert ("waits most: rank 0: decode: more workers would keep up" in " ".join(shown)) == (columns < 105)


@given(st.integers(20, 200), st.integers(8, 60), st.sampled_from([BLOCKS, ASCII]), st.integers(0, 9))
def test_bars_fit_every_terminal(columns, lines, levels, ranks):
    """No line is longer than the terminal or broken in two, and without blocks every line is ASCII."""
    view, recent = _recent_looks(ranks, levels, looks=3)
    shown = _draw(view, recent, columns, lines)
    assert max(map(len, shown)) <= columns
    fitted = top_command.fit_view(view, columns, lines, recent)
    assert len(shown) == fitted.height
    if levels is ASCII:
        assert all(line.isascii() for line in shown)


def test_long_texts_take_the_oldest_bars():
    """Where texts are long, the newest bars stay, at the same place in all lines."""
    view, recent = _recent_looks(1)
    shown = {line.split("  ")[0]: line for line in _draw(view, recent, 70)}
    assert len(shown["store"]) == len(shown["hits"]) == 70
    assert shown["store"].endswith(recent.draw(("store",), 10))
    assert not shown["store"].endswith(" " + recent.draw(("store",), 10)[1:])


def test_one_look_has_no_bars(monkeypatch):
    """`top --count 1` draws no bars, since its figures are those of the engine's life; later counts do."""
    drawn = []
    monkeypatch.setattr(top_command, "engine_client", lambda arguments: contextlib.nullcontext(Engine()))
    monkeypatch.setattr(top_command, "_keys", lambda: contextlib.nullcontext(lambda seconds: True))
    monkeypatch.setattr(top_command, "render", lambda view, columns, lines, recent: drawn.append(recent) or "")
    terminal = Terminal(TerminalFile(), TerminalFile())
    for count in (1, 2):
        top_command.run(build_parser().parse_args(["top", "--count", str(count)]), terminal)
    assert [recent is None for recent in drawn] == [True, False, False]


class TerminalFile(io.StringIO):
    """Stands for a terminal: a text stream of UTF-8 that says it is one."""

    encoding = "utf-8"

    def isatty(self):
        return True


def test_q_ends_it_at_once():
    """The key q ends the wait between two looks at once, and another key does not."""
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
    """Ctrl-C ends `top` with exit code 0."""

    def interrupted():
        raise KeyboardInterrupt

    engine = contextlib.closing(types.SimpleNamespace(statistics=interrupted, close=lambda: None))
    monkeypatch.setattr(top_command, "engine_client", lambda arguments: engine)
    assert main(["top"]) == 0


@pytest.mark.parametrize("interval", ["0", "-1", "soon"])
def test_an_interval_is_above_zero(interval, capsys):
    """`--interval` must be above zero."""
    with pytest.raises(SystemExit):
        build_parser().parse_args(["top", "--interval", interval])
    assert "above 0" in capsys.readouterr().err
