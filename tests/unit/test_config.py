"""Settings that the environment gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamer.config import Environment


@pytest.mark.parametrize(
    "variables",
    [
        {"STREAMER_CACHE_DIR": "here/streamer", "STREAMER_RUNTIME_DIR": "here/streamer"},
        {"XDG_CACHE_HOME": "here", "XDG_RUNTIME_DIR": "here"},
    ],
)
def test_folders_are_the_same_ones_from_everywhere(variables: dict[str, str], tmp_path: Path, monkeypatch) -> None:
    """Relative cache and runtime folders are made absolute where they are read.
    An engine is started in another folder than the trainer, and has to listen where the trainer connects."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    environment = Environment.read(variables)
    assert environment.cache_dir == environment.runtime_dir == tmp_path / "here/streamer"
