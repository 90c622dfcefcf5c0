"""Finds a format by its name: one of this package, or one of another package by entry point.

    [project.entry-points."streamer.formats"]
    dicom = "streamer_dicom:Dicom"

Such a package must be installed where the engine runs as well as in the trainer. Engine and recoders find a format by
the name that was asked for (`find_format`), and readers of a dataset (workers, the loader, `annotations/`, `shards/`,
commands) by its manifest (`open_format`, `restore_format`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module

import msgspec
import numpy as np

from streamer.errors import ConfigError, ManifestVersionError
from streamer.formats import AUTO, BUILT_IN
from streamer.formats.base import Format, Opener
from streamer.manifest.blocks import decode_hints
from streamer.manifest.table import Manifest

ENTRY_POINTS = "streamer.formats"
# Max chunks whose codecs are looked up when a dataset is opened: 30 us each (2026-11-26). A codec that only other
# chunks have is found when their samples are decoded.
_MAX_CHUNKS = 1000


def find_format(name: str, options: Mapping[str, object] | None = None) -> Format:
    """Returns the format of that name with these options.

    Args:
        name: name of a built-in format, or of an entry point; "auto" is none.
        options: values as JSON has them, by the names that users write or those that are stored (`Format.options`).

    Raises:
        ConfigError: there is no such format, it cannot be imported or is no `Format`, or it does not have such options.
    """
    place = BUILT_IN[name].place if name in BUILT_IN else None
    if place is None:
        # The import takes 10 ms, and only names that are not built in need it.
        from importlib.metadata import entry_points

        place = next((point.value for point in entry_points(group=ENTRY_POINTS) if point.name == name), None)
    if place is None:
        raise ConfigError(
            f"format={name!r} is not installed for {sys.executable}; there are {', '.join(sorted(BUILT_IN))}, "
            f"{AUTO}, and those of packages with an entry point {ENTRY_POINTS!r}, which must be installed where the "
            "trainer and its engine run",
            field="format",
        )
    module, _, attribute = place.partition(":")
    try:
        kind = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"format={name!r}: {place} cannot be imported: {error}", field="format") from error
    if not (isinstance(kind, type) and issubclass(kind, Format)):
        raise ConfigError(f"format={name!r}: {place} is not a subclass of streamer.formats.base.Format", field="format")
    names = {stored: option for option, stored in kind.stored_names.items()}
    try:
        return msgspec.convert({names.get(key, key): value for key, value in (options or {}).items()}, kind)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"format {name!r}: {error}", field="format") from error


def open_format(manifest: Manifest) -> Opener:
    """Returns what opens the samples of a dataset.

    Raises:
        ConfigError: the format is not installed, or does not have the options of the manifest.
        ManifestVersionError: the dataset was indexed by another revision of the format.
    """
    return restore_format(manifest).opener(manifest.facts)


def restore_format(manifest: Manifest) -> Format:
    """Returns the format that has indexed a dataset, with its options; raises the errors of `open_format`."""
    content = manifest.content
    found = find_format(content.format, content.options)
    check_revision(manifest, found)
    return found


def find_codecs(manifest: Manifest) -> frozenset[str]:
    """Returns FFmpeg's names of the codecs of a dataset's samples; empty for plain formats, whose index has no codecs.

    At most 1,000 chunks are looked at, spread over the dataset. Raises the errors of `open_format`.
    """
    if not manifest.recoded:
        return frozenset()
    found = restore_format(manifest)
    numbers = np.unique(np.linspace(0, manifest.chunks - 1, _MAX_CHUNKS).astype(int)).tolist()
    hints = (block.hint for number in numbers for block in decode_hints(manifest.chunk(number).hint))
    return frozenset(name for hint in hints for name in found.find_codecs(hint))


def is_current(manifest: Manifest) -> bool:
    """Returns whether the installed revision of the format would index the objects of a dataset in the same way.

    Raises:
        ConfigError: the format is not installed, or does not have the options of the manifest.
    """
    content = manifest.content
    # A built-in format whose manifests can have version 1 has revision 0, and its import takes up to 12 ms.
    if content.version == 1 and content.format in BUILT_IN:
        return True
    return content.revision == find_format(content.format, content.options).revision


def check_revision(manifest: Manifest, found: Format) -> None:
    """Raises ManifestVersionError if another revision of the format than the installed one has indexed the dataset."""
    if manifest.content.revision != found.revision:
        raise ManifestVersionError(
            f"{manifest.path}: indexed by revision {manifest.content.revision} of format {found.name!r}, this is "
            f"revision {found.revision}; index again",
            path=str(manifest.path),
            found=manifest.content.revision,
            expected=found.revision,
        )
