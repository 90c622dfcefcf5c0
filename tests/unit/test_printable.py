"""Control characters in names that others choose do not reach terminals and logs."""

from __future__ import annotations

import io
import logging
import os
import pickle
import re
import sys

import pytest

from streamer.base.logs import TextFormatter
from streamer.batches.skipping import Skipped
from streamer.cli.terminal import Terminal
from streamer.errors import ManifestError, StoreError, describe_undecodable, from_wire
from streamer.store.addresses.urls import shown

NAMES = ["\x1b]0;pwned\x07", "\x1b[31m", "\x9b31m", "a\rb", "a\x7f", "\u202egpj.exe", "\x00", "\u061c", "\ufff9\ufffb"]
FORGED = "x\n2026-01-01 00:00:00,000 streamer.service INFO forged line"


@pytest.mark.parametrize("name", NAMES)
def test_messages_write_control_characters_out(name):
    """Errors and terminal lines escape control characters in names, and stay the same over a socket and a pipe."""
    error = ManifestError(f"s3://b/{name}.tar is damaged")
    assert error.message.isprintable()
    assert str(error) == str(pickle.loads(pickle.dumps(error))) == str(from_wire("ManifestError", error.message, {}))
    assert shown(f"s3://b/{name}").isprintable()
    out, err = io.StringIO(), io.StringIO()
    terminal = Terminal(out, err)
    for write in (terminal.line, terminal.note, terminal.error):
        write(name)
    assert all(line.isprintable() for line in (out.getvalue() + err.getvalue()).splitlines())


def test_a_name_makes_no_line_of_a_log():
    """A line break in a name makes no unindented line of an error, and none in a url."""
    assert not [line for line in str(StoreError(FORGED)).splitlines()[1:] if not line.startswith("    ")]
    assert len(shown(f"s3://b/{FORGED}").splitlines()) == 1


@pytest.mark.parametrize("name", [*NAMES, FORGED, "[/bold]", "[link=file:///etc/passwd]x[/link]"])
@pytest.mark.parametrize("is_tty", [False, True])
def test_tables_and_bars_write_control_characters_out(name, is_tty):
    """Tables and bars escape control characters and brackets, which rich takes for escapes and markup."""

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return is_tty

    out, err = Screen(), Screen()
    terminal = Terminal(out, err)
    terminal.table(["name", "bytes"], [[name, "1"], ["other", name]], words=["bytes"])
    with terminal.progress("read", "bytes") as bar:
        for done in range(3):
            bar.update(done, 3, f"of {name}")
    with terminal.progress(name, "bytes") as bar:
        bar.update(1, 1, "")
    # What moves the bar is rich's own.
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Zhlm]|\r", "", err.getvalue()) if is_tty else err.getvalue()
    assert not [line for line in (out.getvalue() + drawn).splitlines() if line.startswith("2026-01-01")]
    marks = set("\x1b\x07\x9b\r\x7f\u202e\x00\u061c\ufff9\ufffb")
    assert not marks & set(drawn)
    assert not marks & set(re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()) if is_tty else out.getvalue())
    if "[31m" in name:
        assert "\x1b[31m" not in out.getvalue() + err.getvalue()


@pytest.mark.parametrize("name", [*NAMES, FORGED])
def test_records_of_a_log_write_control_characters_out(name, tmp_path):
    """Records of a log escape control characters in arguments and in errors of other libraries."""
    formatter = TextFormatter("%(asctime)s %(name)s %(levelname)s %(message)s")
    record = logging.makeLogRecord({"name": "streamer.store", "msg": "%s is no file", "args": (name,)})
    try:
        raise ValueError(name)
    except ValueError:
        record.exc_info = sys.exc_info()
    text = formatter.format(record)
    assert "ValueError" in text
    assert all(line.isprintable() for line in text.splitlines())
    assert not [line for line in text.splitlines()[1:] if not line.startswith("  ")]
    assert str(Skipped(1, name, name)).replace("\n", "").isprintable()


def test_other_texts_stay():
    """Accents, tabs and lines that are indented already are printed unchanged."""
    text = "f\u00fcr\tzwei:\n  a\n  b \udcff"
    assert str(StoreError(text)) == text


def test_the_name_or_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text about an undecodable name blames the name or the locale, whichever is at fault.
    (In the locale C a name in UTF-8 was told to be none.)"""
    assert describe_undecodable(os.fsdecode(b"/d/\xff")) == "'/d/\\udcff' is not UTF-8"
    monkeypatch.setattr("sys.getfilesystemencoding", lambda: "ascii")
    found = describe_undecodable("/d/\udcc3\udca9")
    assert found.startswith("/d/\xe9 is UTF-8, but the locale of this process reads names as ascii: set LC_ALL=C.UTF-8")
