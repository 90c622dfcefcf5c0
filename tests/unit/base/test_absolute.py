"""Local paths from the root on."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamer.base.paths import absolute


def test_local_paths_start_at_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The engine runs in another folder; the last slash tells a folder from an object."""
    monkeypatch.chdir(tmp_path)
    assert absolute("data/") == f"{tmp_path}/data/"
    assert absolute("data") == f"{tmp_path}/data"
    assert absolute("/a/b.tar") == "/a/b.tar"


def test_urls_stay() -> None:
    assert absolute("s3://b/c") == "s3://b/c"
    assert absolute("S3://B/c/") == "s3://B/c/"
