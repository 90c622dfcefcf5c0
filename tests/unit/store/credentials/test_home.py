"""The home folder of a user, and users who have none."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from streamer.store.credentials import find_in_home


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without HOME and an entry of the user, as in a container with any uid, no file of the home folder is found."""
    monkeypatch.setenv("HOME", "/home/someone")
    assert find_in_home(".aws", "config") == Path("/home/someone/.aws/config")
    monkeypatch.delenv("HOME")

    def unknown(_uid: int) -> pwd.struct_passwd:
        """Stands for a user database without an entry for the uid."""
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert os.path.expanduser("~") == "~"
    assert find_in_home(".netrc") is None
