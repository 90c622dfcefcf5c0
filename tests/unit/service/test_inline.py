"""An engine in a thread of the trainer's process that cannot be started."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamer.client.launcher import connect
from streamer.client.settings import ClientSettings
from streamer.errors import ConfigError
from streamer.service import inline


@pytest.fixture
def no_thread() -> Iterator[None]:
    """Lets no thread start, as the stack of each is to be longer than the address space."""
    before = threading.stack_size(1 << 50)
    yield
    threading.stack_size(before)


@pytest.mark.usefixtures("no_thread")
def test_an_engine_without_a_thread_is_a_config_error(tmp_path: Path) -> None:
    """`engine="inline"` where no further thread may start is a ConfigError with the limit, and leaves no engine."""
    settings = ClientSettings(cache_dir=tmp_path / "cache", runtime_dir=tmp_path / "run", engine="inline")
    with pytest.raises(ConfigError, match="no further process or thread may start") as found:
        connect(settings)
    assert found.value.details["field"] == "RLIMIT_NPROC"
    assert inline._engines == []
    assert list((tmp_path / "run").iterdir()) == []
