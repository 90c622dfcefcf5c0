"""Tables that are made of the keys of a dataset, in the folder of manifests: where they are, and how a key is found.

    <manifest>.<hash>.keys            its keys, sorted
    <manifest>.<hash>.listed-keys     its keys, in its order
    <left>-<right>.<hash>.join        the rows of each sample

Each is kept beside the manifests as `streamer.manifest.kept` says.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from streamer.batches.scan import KEY
from streamer.errors import ConfigError
from streamer.loader.members.joins.keys import KeyReader
from streamer.manifest.kept import hash_question
from streamer.manifest.keys import KeyTable, Kind, build_keys

logger = logging.getLogger(__name__)

Opened = TypeVar("Opened")

# Raised when other files are written for the same manifests.
_REVISION = 3
_NUMBER = re.compile("-?[0-9]{1,100}")


def name_table(what: str, *sides: KeyReader, arranged: bool = False) -> str:
    """Returns the name of the folder of what is made of one side or of both."""
    content = [_REVISION, arranged, *(each for side in sides for each in side.identity)]
    return f"{'-'.join(side.manifest.digest for side in sides)}.{hash_question(msgspec.json.encode(content))}.{what}"


def keep(what: str, side: KeyReader, open_path: Callable[[Path], Opened], write: Callable[[Path], object]) -> Opened:
    """Opens a table of one side, which is written if it is not there.

    Raises:
        ManifestError: keys that are neither texts nor whole numbers, or it cannot be written.
    """

    def make(folder: Path) -> None:
        logger.info("reads the keys of %s", ", ".join(side.manifest.urls[:4]))
        folder.mkdir()
        with side.named():
            write(folder)

    return side.kept.open_or_make(name_table(what, side), open_path, make)


def keep_keys(side: KeyReader) -> KeyTable:
    """Opens the sorted keys of one side; see `keep`."""
    return keep("keys", side, KeyTable.open, lambda folder: build_keys(side.batches(), folder))


def find_key(side: KeyReader, key: str, *, reads: bool = True) -> int:
    """The manifest ordinal of the first sample with a key, by the table of keys where there is one.

    Args:
        side: the keys; samples outside its selection do not count.
        key: its "__key__"; of samples without one their number.
        reads: whether the data are read where keys are nowhere else.

    Raises:
        KeyError: there is none.
        ConfigError: the data would have to be read.
    """
    table = side.kept.open(name_table("keys", side.unselected), KeyTable.open)
    if table is not None:
        rows = table.rows_of(_of_kind(key, table.head.kind))
        chosen = rows if side.selection is None else rows[np.isin(rows, side.selection.ordinals)]
        if len(chosen):
            return int(chosen[0])
    elif side.reads_data and not reads:
        raise ConfigError(
            f"find({key!r:.100}): the keys of these samples are in the samples: `streamer index "
            f"{' '.join(side.manifest.urls[:1])} --columns {KEY}` reads them once; get(key) reads until it finds one",
            field="key",
        )
    else:
        with closing(side.batches()) as batches:
            for first, keys in batches:
                if len(found := keys.places_of(_of_kind(key, keys.kind))):
                    return first + int(found[0])
    raise KeyError(f"no sample has the key {key!r}")


def _of_kind(key: str, kind: Kind) -> str | int:
    """A key of digits among numbers is one."""
    return int(key) if kind == "number" and _NUMBER.fullmatch(key) else key
