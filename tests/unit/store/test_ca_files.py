"""Files of certificates that storage options name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamer.errors import AccessDeniedError, ConfigError
from streamer.store import guard
from streamer.store.obstore_clients import certificates
from streamer.store.root import StoreRoot


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "empty", "long", "missing"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    """Only a regular file of 1 byte to 16 MiB is read as certificates.

    A pipe held the thread that read it for ever; sixty of them stopped a service.
    """
    path = tmp_path / "ca"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    elif kind == "long":
        with path.open("wb") as file:
            file.truncate((16 << 20) + 1)
    with pytest.raises(ConfigError, match="cannot be read"):
        certificates(str(path))


@pytest.mark.parametrize("path", ["/etc/shadow", "/no/such/file", "/dev/zero"])
def test_a_client_names_no_files(path: str) -> None:
    """A client of a service cannot name a file of certificates, and the refusal does not tell whether it exists."""
    root = StoreRoot.resolve("s3://bucket/x/", {"key": "a", "secret": "b", "client_kwargs": {"verify": path}})
    with pytest.raises(AccessDeniedError, match="verify in storage_options is a file"):
        guard.check(root, is_curl=True)
