"""Keeps the findings of an unfinished index on disk, so that a restarted engine continues at the chunks that were open.

The engine gives `IndexLogs` to a build (`indexing/build.py`), and `indexing/container_rows.py` reads and continues the
log of each container, in threads.

    <folder>/<name>      the samples of the closed chunks of one container

The name is a digest of all that determines the samples. A file is a sequence of records, each written at once and with
a checksum. If a kill or a full disk cuts the last one short, it is removed when the file is read. An object without a
log is read again, which is always correct, so an error of the disk never ends an index.
"""

from __future__ import annotations

import logging
import os
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.manifest.kept import hash_question
from streamer.manifest.model import Facts
from streamer.manifest.protocols import Indexer, Source

logger = logging.getLogger(__name__)

_CHECKSUM = Struct("<I")
# A record begins with the samples before it, those in it, the first byte of the next one, and whether there is none.
_HEAD = Struct("<QQQ?")
_SAMPLE_BYTES = 16


class LoggedSamples(msgspec.Struct):
    """The samples of the closed chunks of one container.

    Attributes:
        starts, stops: half-open byte ranges of the samples in the object, in order.
        position: byte at which the next sample begins.
        finished: whether there is no next sample.
    """

    starts: list[int] = msgspec.field(default_factory=list)
    stops: list[int] = msgspec.field(default_factory=list)
    position: int = 0
    finished: bool = False


class LogWriting(msgspec.Struct):
    """Says whether the logs of an index are written; all logs of the index share one such object.

    Attributes:
        goes_on: whether records are written. It becomes False when the disk refuses one, since space is short then.
    """

    goes_on: bool = True


class IndexLog:
    """The log of one container: `read` it once, then `append` to it. The first record creates file and folder.

    Args:
        path: the file.
        writing: says whether records are written, for all logs of an index. None means that they are.
    """

    def __init__(self, path: Path, writing: LogWriting | None = None) -> None:
        self._path = path
        self._writing = writing or LogWriting()
        self._samples = 0

    def read(self) -> LoggedSamples:
        """Reads the records up to the first that is damaged or out of order, and cuts the rest off the file.

        The result has no samples if there is no file, or if it cannot be read or cut (logged).
        """
        found = LoggedSamples()
        good = 0
        try:
            content = self._path.read_bytes()
            while True:
                # A record that is damaged, or does not follow the one before, ends what is read.
                head_stop = good + _CHECKSUM.size + _HEAD.size
                if head_stop > len(content) or found.finished:
                    break
                (checksum,) = _CHECKSUM.unpack_from(content, good)
                before, count, position, finished = _HEAD.unpack_from(content, good + _CHECKSUM.size)
                stop = head_stop + int(count) * _SAMPLE_BYTES
                if stop > len(content) or before != len(found.starts):
                    break
                if crc32(content[good + _CHECKSUM.size : stop]) != checksum:
                    break
                starts, stops = np.frombuffer(content, "<i8", 2 * count, head_stop).reshape(2, count).tolist()
                found.starts += starts
                found.stops += stops
                found.position = position
                found.finished = finished
                good = stop
            if good < len(content):
                os.truncate(self._path, good)
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.warning("the index log %s cannot be read: %s", self._path, error)
            return LoggedSamples()
        self._samples = len(found.starts)
        return found

    def append(self, starts: NDArray[np.int64], stops: NDArray[np.int64], position: int, *, finished: bool) -> None:
        """Adds a record with the samples of closed chunks. An error of the disk is logged and ends all writing.

        Args:
            starts: int64, shape (n,): first byte of each sample in the object.
            stops: int64, shape (n,): byte behind each sample.
            position: byte at which the next sample begins.
            finished: whether there is no next sample.
        """
        head = _HEAD.pack(self._samples, len(starts), position, finished)
        self._samples += len(starts)
        if self._writing.goes_on:
            record = head + np.stack([starts, stops]).astype("<i8").tobytes()
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("ab", buffering=0) as file:
                    file.write(_CHECKSUM.pack(crc32(record)) + record)
            except OSError as error:
                logger.warning("the index log %s cannot be written, and no further one is: %s", self._path, error)
                self._writing.goes_on = False


class IndexLogs:
    """Opens the logs of one index.

    Args:
        folder: folder of the logs.
        writes: whether records are written, not only read.
    """

    def __init__(self, folder: Path, *, writes: bool = True) -> None:
        self._folder = folder
        self._writing = LogWriting(writes)
        self._facts: Facts | None = None
        self._facts_digest = ""

    def __repr__(self) -> str:
        return f"IndexLogs({str(self._folder)!r})"

    def open_log(self, source: Source, indexer: Indexer, facts: Facts, chunk_bytes: int) -> IndexLog:
        """Returns the log of a container.

        It is another one for each version of the object, format with its revision and options, result of the survey
        (notes, sidecar and facts), and size of chunks, because any of these may find other samples.
        """
        if facts is not self._facts:  # all containers of an index have the same, which may be long
            self._facts = facts
            self._facts_digest = hash_question(msgspec.json.encode(facts, order="sorted"))
        found = (source.record, source.notes, source.sidecar, self._facts_digest)
        inputs = repr((found, indexer.name, indexer.revision, indexer.options, chunk_bytes))
        name = blake2b(inputs.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        return IndexLog(self._folder / name, self._writing)
