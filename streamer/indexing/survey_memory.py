"""Keeps what a survey leaves for the next one beside the manifest: `<digest>.survey`.

It is no part of the manifest, whose digest does not depend on it: without it the next survey reads all files.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from streamer.manifest.kept import KeptFiles
from streamer.manifest.table import Manifest

_SUFFIX = ".survey"


def keep_memory(manifest: Manifest, memory: bytes) -> None:
    """Writes the memory of a survey; raises ManifestError if it cannot be written."""
    path = _place(manifest)
    KeptFiles(path.parent).write(path.name, lambda made: made.write_bytes(memory))


def read_memories(manifests: Sequence[Manifest]) -> list[bytes]:
    """Returns what the surveys of these manifests have left; those that have left nothing are passed over."""
    found = []
    for manifest in manifests:
        # It may be removed with its manifest at any time.
        with suppress(OSError):
            found.append(_place(manifest).read_bytes())
    return found


def _place(manifest: Manifest) -> Path:
    return manifest.path.parent / f"{manifest.digest}{_SUFFIX}"
