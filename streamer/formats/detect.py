"""Which format: by its name, or by the names of the objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from streamer.errors import ConfigError
from streamer.formats.base import Format
from streamer.formats.folder import Folder
from streamer.formats.webdataset import WebDataset

FORMATS: dict[str, Format] = {kind.name: kind for kind in (Folder(), WebDataset())}
AUTO = "auto"


def find_format(name: str) -> Format:
    """The format of that name.

    Raises:
        ConfigError: there is none; lists those there are.
    """
    if (found := FORMATS.get(name)) is None:
        raise ConfigError(
            f"format={name!r} is not known; it is {', '.join(sorted(FORMATS))} or {AUTO}",
            field="format",
        )
    return found


def chooser(name: str) -> Callable[[Iterable[str]], Format]:
    """The builder's choice of the format: `name` as given, or found from the object names if "auto".

    Raises:
        ConfigError: no such format.
    """
    if name == AUTO:
        return lambda keys: FORMATS[detect(keys)]
    found = find_format(name)
    return lambda keys: found


def detect(keys: Iterable[str]) -> str:
    """Finds the format from object names: only tars are "webdataset", no tars are "folder".

    Hidden files and folder markers do not count.

    Raises:
        ConfigError: tars and other files together; says how many of which.
    """
    folder, tars = FORMATS["folder"], FORMATS["webdataset"]
    endings: Counter[str] = Counter()
    tar_count = 0
    for key in keys:
        if tars.accepts(key):
            tar_count += 1
        elif folder.accepts(key):
            endings[_ending(key)] += 1
    if tar_count and endings:
        found = ", ".join(f"{count} {ending}" for ending, count in endings.most_common(5))
        raise ConfigError(
            f"format='auto' found {tar_count} tars and other files ({found}); "
            "name the format: 'webdataset' takes the tars only, 'folder' takes every file as a sample",
            field="format",
            tars=tar_count,
            others=endings.total(),
        )
    return "webdataset" if tar_count else "folder"


def _ending(key: str) -> str:
    basename = key.rsplit("/", 1)[-1]
    _, dot, ending = basename.rpartition(".")
    return f".{ending.lower()}" if dot else "without extension"
