"""Defines the messages between the engine and a fetch process: one msgpack datagram each way per chunk.

`process.py` sends and reads them in the engine, and `fetching.py` in the process. Credentials are in these messages
only, neither in arguments nor in the variables with which a process begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from streamer.cache.folder import CacheFolder, Permissions
from streamer.config import FetchConfig
from streamer.errors import Detail, StreamerError, from_wire
from streamer.fetch.concurrency import FetchLimits

# Most bytes of a datagram. Environment and storage options have a few KB, and the text of an error is cut.
MAX_MESSAGE_BYTES = 128 << 10
MAX_TEXT_CHARACTERS = 8000


class Setup(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Tells a new process what all its requests share.

    Attributes:
        environment: variables of the engine, in which stores find credentials, as bytes, since not all are UTF-8.
        folder: path of the cache folder.
        root_id: id of the cache folder.
        permissions: modes and group of the chunk files.
        fetch: settings of the fetcher; `SetLimits` changes its limits.
        refuse_local: whether stores refuse what is of this machine (`UrlAllowlist`).
    """

    environment: dict[bytes, bytes]
    folder: str
    root_id: str
    permissions: Permissions
    fetch: FetchConfig
    refuse_local: bool

    def __repr__(self) -> str:
        # The environment may be secret.
        return f"Setup({self.folder!r})"

    def open_folder(self) -> CacheFolder:
        """Returns the cache folder as the engine has opened it; touches no file."""
        return CacheFolder(Path(self.folder), self.root_id, self.permissions)


class SetLimits(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Sets the share of the limits that the process has from now on: requests at once, and bytes of its buffers."""

    limits: FetchLimits


class OpenDataset(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Names a dataset before its first chunk is asked for, or gives it other storage options.

    Attributes:
        dataset: name of the dataset, unique among those with other options.
        path: folder of the manifest.
        options: storage options with which its objects are read.
    """

    dataset: str
    path: str
    options: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"OpenDataset({self.dataset!r})"


class Bring(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Asks for a chunk.

    Attributes:
        number: number of the request.
        dataset: name of the dataset.
        chunk: number of the chunk in the dataset.
        due: time at which the first reader needs it, in seconds on the clock that all processes of a machine share.
        owner: job whose share of requests and bytes it takes.
        publish: whether to write the chunk file; otherwise the bytes are sent as a file in memory.
    """

    number: int
    dataset: str
    chunk: int
    due: float
    owner: str
    publish: bool


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Cancels the request of this number, which is still answered."""

    number: int


class GiveBack(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Says that the engine does not use the file in memory any more that answered the request of this number."""

    number: int


class PaceAnew(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Makes a process find out again which rates stores permit, because other processes disturbed what it measured."""


class Brought(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Says that a chunk is published, or is in the file in memory whose descriptor comes with this message.

    Attributes:
        number: number of the request.
        length: bytes of the chunk file, or of the file in memory.
        counts: counts of the process since its start, in the order of `COUNTS`.
        window: number of requests that the process may have at once.
    """

    number: int
    length: int
    counts: list[int]
    window: int


class BringFailed(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Says that a chunk could not be brought.

    Attributes:
        number: number of the request.
        kind: name of the error's class.
        message: message of the error.
        details: details of the error.
        local: whether the disk, the folder or the manifest is at fault: the engine then brings the chunk itself.
        counts: counts of the process, as in `Brought`.
    """

    number: int
    kind: str
    message: str
    details: dict[str, Detail]
    local: bool
    counts: list[int]

    @classmethod
    def make(cls, number: int, error: BaseException, counts: list[int], *, local: bool) -> BringFailed:
        """Makes the message for an error of the request `number`; cuts the error's text."""
        details = error.details if isinstance(error, StreamerError) else {}
        return cls(
            number=number,
            kind=type(error).__name__,
            message=str(error)[:MAX_TEXT_CHARACTERS],
            details=details,
            local=local,
            counts=counts,
        )

    def error(self) -> StreamerError:
        """Returns the error that is raised in the engine, of the class that `kind` names."""
        return from_wire(self.kind, self.message, self.details)


class Report(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Reports the state of a process: once when it is ready, then once a second while it has work.

    Attributes:
        statistics: values of `FetchStatistics` by name.
        first_byte_counts: counts of the histogram of times to first byte.
        first_byte_seconds: sum of these times.
        cpu_seconds: CPU time of the process.
        window: number of requests that the process may have at once.
        by_chance: whether the process has found that a store refuses requests by chance, and no limit.
    """

    statistics: dict[str, int | float]
    first_byte_counts: list[int]
    first_byte_seconds: float
    cpu_seconds: float
    window: int
    by_chance: bool


class StoreNotice(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Says that a store has served nothing for a while.

    Attributes:
        options_key: key of the storage options whose users wait.
        text: a sentence for these users.
    """

    options_key: str
    text: str


ToProcess: TypeAlias = Setup | SetLimits | OpenDataset | Bring | Cancel | GiveBack | PaceAnew
Answer: TypeAlias = Brought | BringFailed
ToEngine: TypeAlias = Answer | Report | StoreNotice

_ENCODER = msgspec.msgpack.Encoder()
_TO_PROCESS: msgspec.msgpack.Decoder[ToProcess] = msgspec.msgpack.Decoder(ToProcess)
_TO_ENGINE: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)


def encode(message: ToProcess | ToEngine) -> bytes:
    """Returns a message as a datagram."""
    return _ENCODER.encode(message)


def decode_to_process(raw: bytes) -> ToProcess:
    """Returns a message of the engine; raises msgspec.MsgspecError for anything else."""
    return _TO_PROCESS.decode(raw)


def decode_to_engine(raw: bytes) -> ToEngine:
    """Returns a message of a process; raises msgspec.MsgspecError for anything else."""
    return _TO_ENGINE.decode(raw)
