"""What exists: objects, chunks and samples of a dataset. Built once, memory-mapped ever after."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamer.manifest.build import build as build
    from streamer.manifest.selection import Selection as Selection
    from streamer.manifest.table import Manifest as Manifest
    from streamer.manifest.transfer import export_files as export_files
    from streamer.manifest.transfer import install_files as install_files

# Lazy: the types of `model` are wanted in places that must not pay for numpy and nanoarrow.
_HOMES = {
    "Manifest": "table",
    "Selection": "selection",
    "build": "build",
    "export_files": "transfer",
    "install_files": "transfer",
}
__all__ = ["Manifest", "Selection", "build", "export_files", "install_files"]


def __getattr__(name: str) -> object:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
