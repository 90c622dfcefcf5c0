"""What a process that is started gets of its parent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from streamer.base.processes import child_environment, import_paths


def test_paths_of_other_types_are_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs put paths and bytes into `sys.path`; what is neither, the interpreter passes over."""
    monkeypatch.setattr(sys, "path", ["/a", Path("/b"), b"/c", None])
    assert import_paths() == ["/a", "/b", "/c"]
    assert child_environment({})["PYTHONPATH"] == "/a:/b:/c"
