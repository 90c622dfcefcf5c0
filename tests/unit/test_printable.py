"""Names that strangers choose do not reach terminals and logs as they are."""

from __future__ import annotations

import io
import os
import pickle

import pytest

from streamer.cli.terminal import Terminal
from streamer.errors import ManifestError, StoreError, describe_undecoded, from_wire
from streamer.store.addresses.urls import shown

NAMES = ["\x1b]0;pwned\x07", "\x1b[31m", "\x9b31m", "a\rb", "a\x7f", "\u202egpj.exe", "\x00"]
FORGED = "x\n2026-01-01 00:00:00,000 streamer.service INFO forged line"


@pytest.mark.parametrize("name", NAMES)
def test_messages_write_control_characters_out(name):
    """The error stays readable, and the same over a socket and a pipe."""
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
    """Further lines of a message are indented; a url is on one line."""
    assert not [line for line in str(StoreError(FORGED)).splitlines()[1:] if not line.startswith("    ")]
    assert len(shown(f"s3://b/{FORGED}").splitlines()) == 1


def test_other_texts_stay():
    """Accents, tabs, and lines that are indented already."""
    text = "f\u00fcr\tzwei:\n  a\n  b \udcff"
    assert str(StoreError(text)) == text


def test_the_name_or_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the locale C a name in UTF-8 was told to be none."""
    assert describe_undecoded(os.fsdecode(b"/d/\xff")) == "'/d/\\udcff' is not UTF-8"
    monkeypatch.setattr("sys.getfilesystemencoding", lambda: "ascii")
    found = describe_undecoded("/d/\udcc3\udca9")
    assert found.startswith("/d/\xe9 is UTF-8, but the locale of this process reads names as ascii: set LC_ALL=C.UTF-8")
