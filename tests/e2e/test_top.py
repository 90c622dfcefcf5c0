"""`streamer top` beside real jobs and services: in a terminal, and as the picture of the documentation, top.svg."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from streamer.cli.sparklines import ASCII, BLOCKS, RecentLooks
from streamer.cli.status_view import StatusView
from streamer.cli.top_command import render
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from tests.e2e.services import Service, SlowService, from_metrics, plain, wait_for

LINES = 40
WIDTH = 132
FIGURES = ("memory", "MB/s", "requests of", "chunks", "so far, the cache keeps", "hedges", "retries", "800", "80.0 MB")
Looks = tuple[dict[str, object], dict[str, object]]


def _draw(view: StatusView, recent: RecentLooks | None = None) -> Console:
    console = Console(file=io.StringIO(), width=WIDTH, record=True)
    console.print(render(view, WIDTH, LINES, recent))
    return console


def _draw_text(view: StatusView) -> str:
    return _draw(view).export_text()


def _agree(service: Service, client: EngineClient, before: Looks | None) -> Looks:
    """Looks until the engine's statistics and /metrics draw the same picture, because clocks run on between the two."""
    for _ in range(200):
        now = service.look(client)
        told, scraped = (_draw_text(StatusView(*look)) for look in zip(now, before or (None, None), strict=True))
        if told == scraped:
            return now
    pytest.fail(f"top shows\n{told}\nbut /metrics says\n{scraped}")


def _stop(ranks: list[subprocess.Popen[str]], look: Callable[[], Looks]) -> Looks:
    """Looks while all ranks are stopped."""
    for rank in ranks:
        os.killpg(rank.pid, signal.SIGSTOP)
    found = look()
    for rank in ranks:
        os.killpg(rank.pid, signal.SIGCONT)
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# What a rank waits for is judged by its clock: on a machine that is busy enough a slow sample, not the transform.
@pytest.mark.slow
@pytest.mark.timing
def test_top_shows_what_metrics_say(service_folder: Path, pictures: Path) -> None:
    """`streamer top` draws the same picture from the engine's statistics and from /metrics while a job is at work."""
    service = Service(service_folder, _free_port())
    settings = ClientSettings(cache_dir=service_folder, runtime_dir=service_folder, engine=f"unix:{service_folder}/s")
    recent = RecentLooks()
    with ExitStack() as stack:
        stack.enter_context(service.running())
        ranks = [stack.enter_context(service.rank(number)) for number in range(2)]
        client = stack.enter_context(EngineClient(settings))
        wait_for(ranks, 1, 20)
        early = _stop(ranks, lambda: _agree(service, client, None))
        before = early[0]
        for _ in range(60):
            time.sleep(0.1)  # between two looks of `top`
            now = client.statistics()
            recent.add(StatusView(now, before))
            before = now
        late = _stop(ranks, lambda: _agree(service, client, early))
    view = StatusView(late[0], early[0])
    _draw(view, recent).save_svg(str(pictures / "top.svg"), title="streamer top")
    shown = _draw_text(view)
    assert [figure for figure in FIGURES if figure not in shown] == []
    for rank in range(2):
        (row,) = [line for line in shown.splitlines() if line.startswith(f"rank {rank}")]
        waiting, hits, loader = [cell for cell in row.split() if cell.endswith("%")][:3]
        assert loader != waiting
        assert float(hits.rstrip("%")) > 0
    assert "transform" in shown


def test_a_figure_that_differs_is_found() -> None:
    """Another number in /metrics draws another picture of `streamer top`, because only names come from elsewhere."""
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
        _draw_text(StatusView(plain(from_metrics(text.format(kept=kept, share=share), words))))
        for kept, share in ((1e6, 0.25), (2e6, 0.25), (1e6, 0.5))
    ]
    assert len(set(drawn)) == 3
    assert "25.0%" in drawn[0]
    assert "decode: more workers" in drawn[0]


def _run_in_terminal(command: list[str], columns: int, until: Callable[[list[str]], bool], **more: str) -> list[str]:
    """Runs a program in a terminal of that width until its lines meet a condition, and then presses q."""
    keyboard, screen = pty.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
    env = {**os.environ, "TERM": "xterm", **more}
    for name in {"LANG", "LC_ALL", "LC_CTYPE", "COLUMNS", "LINES", "NO_COLOR"} - set(more):
        env.pop(name, None)
    process = subprocess.Popen(command, stdin=screen, stdout=screen, stderr=screen, env=env)
    os.close(screen)
    written = b""
    deadline = time.monotonic() + 60
    try:
        while not until(lines := _read_lines(written)):
            assert time.monotonic() < deadline, lines
            if select.select([keyboard], [], [], 1.0)[0]:
                written += os.read(keyboard, 65536)
        os.write(keyboard, b"q")
        with contextlib.suppress(OSError):  # which is the end of what a terminal has to say
            while os.read(keyboard, 65536):
                pass
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(keyboard)
    return lines


def _read_lines(written: bytes) -> list[str]:
    """Returns the whole lines that were drawn, without what moves the cursor and colours."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode("utf-8", "replace"))
    return [line.rstrip() for line in re.split(r"[\r\n]+", text)[:-1]]


@pytest.mark.slow
def test_bars_of_a_job_that_waits(tmp_path: Path) -> None:
    """`streamer top` draws the store's rate and each rank's waiting as bars, of blocks or of ASCII characters.

    The terminal with ASCII is narrower.
    """
    service = SlowService(tmp_path, _free_port())
    command = [sys.executable, "-m", "streamer", "top", "--socket", f"{tmp_path}/s", "--interval", "0.1"]

    def find_last(lines: list[str], start: str, levels: str) -> str:
        """Returns the last bars of the newest line that has some, or ""."""
        for line in reversed(lines):
            runs = re.findall(f"[{re.escape(levels)} ]{{5,}}", line) if line.startswith(start) else []
            if bars := [run.strip() for run in runs if run.strip()]:
                return bars[-1]
        return ""

    with service.at_work(train=2):
        for columns, levels, environment in ((100, BLOCKS, {"LANG": "C.UTF-8"}), (60, ASCII, {"LC_ALL": "C"})):
            lines = _run_in_terminal(
                command,
                columns,
                lambda lines, levels=levels: (
                    len(find_last(lines, "store", levels)) >= 8
                    and all(set(find_last(lines, f"rank {rank}", levels)) - {levels[0]} for rank in range(2))
                ),
                **environment,
            )
            assert max(map(len, lines)) <= columns
            assert any(line.startswith("consumer") and "60 looks" in line for line in lines)
            assert set(find_last(lines, "store", levels)) <= set(levels)
            assert all(line.isascii() for line in lines) == (levels is ASCII)
            assert any(line.startswith("refusals") for line in lines)
