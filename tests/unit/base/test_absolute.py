"""Local paths are made absolute; urls of other stores are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamer.base.user_urls import absolute


def test_local_paths_start_at_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A relative local path becomes absolute, as the engine runs in another folder, and keeps a slash at its end."""
    monkeypatch.chdir(tmp_path)
    assert absolute("data/") == f"{tmp_path}/data/"
    assert absolute("data") == f"{tmp_path}/data"
    assert absolute("/a/b.tar") == "/a/b.tar"


def test_urls_stay() -> None:
    """The url of a store that is not local stays as it is, capitals included."""
    assert absolute("s3://b/c") == "s3://b/c"
    assert absolute("S3://B/c/") == "s3://B/c/"
