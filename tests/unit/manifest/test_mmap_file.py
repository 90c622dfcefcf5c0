"""Mapped files: how long a mapping lives, and that it is read-only."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from streamer.base.linux import map_file


def mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def test_views_keep_the_mapping_alive(tmp_path):
    """A mapping lives until its last view is gone, and keeps no descriptor open."""
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 100)
    before = len(os.listdir("/proc/self/fd"))
    view = map_file(path)
    array = np.frombuffer(view, np.uint8, 256, 256)
    assert len(os.listdir("/proc/self/fd")) == before
    del view
    gc.collect()
    assert mapped(path)
    assert array.tolist() == list(range(256))
    del array
    gc.collect()
    assert not mapped(path)


def test_read_only(tmp_path):
    """A mapped file is read-only, so that a write is an exception and not a signal."""
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    view = map_file(path)
    assert view.readonly
    assert not np.frombuffer(view, np.uint8).flags.writeable


@pytest.mark.parametrize(("name", "said"), [("missing", "No such file"), ("empty", "Invalid argument")])
def test_what_cannot_be_mapped(tmp_path, name, said):
    """A missing or empty file raises OSError when it is mapped."""
    (tmp_path / "empty").touch()
    with pytest.raises(OSError, match=f"{said}.*{name}"):
        map_file(tmp_path / name)
