"""Makes a folder of manifests read-only for this process: root may write anywhere, so the errors are made."""

from __future__ import annotations

import errno
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from streamer.errors import ManifestError
from streamer.manifest import kept, staging


def refuse_writes(monkeypatch: pytest.MonkeyPatch, folder: Path, number: int = errno.EROFS) -> None:
    """Lets manifests not be kept in a folder, with an error of the system; other files can still be written there."""

    def workplace(root: Path) -> AbstractContextManager[Path]:
        if root == folder:
            raise ManifestError("cannot write") from OSError(number, "no")
        return staging.workplace(root)

    monkeypatch.setattr(kept, "workplace", workplace)
    monkeypatch.setattr(kept.KeptFiles, "is_writable", False)
