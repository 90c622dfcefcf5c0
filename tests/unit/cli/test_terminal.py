"""What the commands write, to a terminal and elsewhere."""

from __future__ import annotations

import io
import re

import pytest

from streamer.cli import terminal as terminal_module
from streamer.cli.terminal import Terminal, amount, plain_table


class _Screen(io.StringIO):
    """Stands for a terminal: a text stream that says it is one, and draws nothing."""

    def isatty(self) -> bool:
        return True


def test_a_plain_table_aligns_words_left_and_numbers_right() -> None:
    """A plain table aligns words left and numbers right, without lines or blanks at the end."""
    assert plain_table(("epoch", "MB"), [("1", "7"), ("2 (killed)", "12")]) == [
        "epoch       MB",
        "1            7",
        "2 (killed)  12",
    ]


def test_without_a_terminal_progress_is_a_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal progress is a line at first, one every five seconds and the last, on standard error."""
    now = iter([0.0, 1.0, 4.9, 5.1, 6.0])
    monkeypatch.setattr(terminal_module.time, "monotonic", lambda: 100.0 + next(now))
    out, err = io.StringIO(), io.StringIO()
    with Terminal(out, err).progress("indexing", "bytes") as bar:
        for done in (1000, 2000, 3000, 4000, 5000):
            bar.update(done, 5000, "2 objects")
    assert out.getvalue() == ""
    assert err.getvalue().splitlines() == [
        "indexing: 1.0 kB of 5.0 kB  2 objects",
        "indexing: 4.0 kB of 5.0 kB  2 objects",
        "indexing: 5.0 kB of 5.0 kB  2 objects",
    ]


def test_on_a_terminal_progress_is_a_bar() -> None:
    """On a terminal progress is a bar, whose end shows the whole amount."""
    err = _Screen()
    with Terminal(io.StringIO(), err).progress("drawing", "images") as bar:
        bar.update(10, None)
        bar.update(20, 20)
    assert "drawing" in err.getvalue()
    assert "20 of 20 images" in err.getvalue()


def test_a_note_beside_a_bar_has_a_line_of_its_own() -> None:
    """A note beside a bar has a line of its own.
    (The demo's note of the killed engine stood at the end of the bar's line.)"""
    err = _Screen()
    terminal = Terminal(io.StringIO(), err)
    with terminal.progress("epoch 3", "images") as bar:
        bar.update(10, 20)
        terminal.note("engine 7 killed with [SIGKILL]")
    terminal.note("after it")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", err.getvalue()).replace("\r", "\n")
    assert [line for line in plain.splitlines() if "killed" in line] == ["engine 7 killed with [SIGKILL]"]
    assert plain.splitlines()[-1] == "after it"


def test_a_table_on_a_terminal_has_the_same_cells() -> None:
    """A table on a terminal has the same cells as a plain one."""
    out = _Screen()
    Terminal(out, io.StringIO()).table(("epoch", "MB"), [("1", "74.4")])
    assert "74.4" in out.getvalue()


def test_amounts_have_their_unit() -> None:
    """Amounts of bytes are in powers of ten, and counts have commas."""
    assert amount(74_403_840, "bytes") == "74.4 MB"
    assert amount(2000, "images") == "2,000 images"


def test_columns_of_words_are_left_aligned():
    """Columns that are named as words are aligned left."""
    rows = [["rank 0", "1", "decode: more workers"], ["rank 1", "10", "full ring"]]
    assert plain_table(["consumer", "step", "bottleneck"], rows, ["bottleneck"]) == [
        "consumer  step  bottleneck",
        "rank 0       1  decode: more workers",
        "rank 1      10  full ring",
    ]


def test_no_secret_of_a_url_is_shown_on_a_terminal() -> None:
    """A login or signature of a url is shown neither in a table nor in a note beside a bar, as in plain lines."""
    out, err = _Screen(), _Screen()
    terminal = Terminal(out, err)
    url = "https://user:hunter2@host/a.tar?X-Amz-Signature=abcdef0123456789"
    terminal.table(["url", "n"], [[url, "1"]])
    with terminal.progress("reading", "bytes") as bar:
        bar.update(1, 2, url)
        terminal.note(f"left out: {url}")
    shown = out.getvalue() + err.getvalue()
    assert "host/a.tar" in shown
    assert "hunter2" not in shown
    assert "abcdef0123456789" not in shown
