"""Containers, one file per format: where the samples lie, and what is in one. No I/O."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamer.formats.base import Field as Field
    from streamer.formats.base import Format as Format
    from streamer.formats.base import SampleName as SampleName
    from streamer.formats.choosing import FORMATS as FORMATS
    from streamer.formats.choosing import chooser as chooser
    from streamer.formats.choosing import detect as detect
    from streamer.formats.choosing import find_format as find_format

# Lazy: an engine needs `chunkfile` at its start, and no format before it builds a manifest.
_HOMES = {
    **dict.fromkeys(("Field", "Format", "SampleName"), "base"),
    **dict.fromkeys(("FORMATS", "chooser", "detect", "find_format"), "choosing"),
}
__all__ = ["FORMATS", "Field", "Format", "SampleName", "chooser", "detect", "find_format"]


def __getattr__(name: str) -> object:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
