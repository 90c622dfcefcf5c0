"""What the engine and a fetch process tell each other: one msgpack datagram each way per chunk.

Credentials travel here and nowhere else: neither in arguments nor in the variables that a process begins with.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from streamer.cache.folder import Folder, Permissions
from streamer.config import FetchConfig
from streamer.errors import Detail, StreamerError, from_wire

# Of a datagram: environment and storage options have a few KB; an error's text is cut.
MOST_BYTES = 128 << 10
MOST_TEXT = 8000


class Setup(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The first message.

    Attributes:
        environment: variables of the engine, where stores find credentials.
        folder: of the cache.
        root_id: of the cache.
        permissions: of the files in it.
        fetch: bounds and budgets; see `Limits`.
        guarded: see `UrlAllowlist`.
    """

    environment: dict[str, str]
    folder: str
    root_id: str
    permissions: Permissions
    fetch: FetchConfig
    guarded: bool

    def __repr__(self) -> str:
        # Not the environment: it may be secret.
        return f"Setup({self.folder!r})"

    def opened_folder(self) -> Folder:
        """The folder, which the engine has opened."""
        return Folder(Path(self.folder), self.root_id, self.permissions)


class Limits(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """This process's part of the bounds from now on; see `FetchConfig`."""

    window_max: int
    memory_bytes: int


class OpenDataset(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A dataset whose chunks follow, or other options for it.

    Attributes:
        dataset: its digest.
        path: of the manifest's folder.
        options: storage options.
    """

    dataset: str
    path: str
    options: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"OpenDataset({self.dataset!r})"


class Bring(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A chunk to fetch.

    Attributes:
        number: of the request.
        dataset: its digest.
        chunk: its number in the dataset.
        due: when its first reader needs it, on the clock that all processes of a machine share.
        owner: the job whose share it takes.
        publish: write its file; false: it is sent as a file in memory.
    """

    number: int
    dataset: str
    chunk: int
    due: float
    owner: str
    publish: bool


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A request is not needed any more; it is answered still."""

    number: int


class GiveBack(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The file in memory of a request is not used any more."""

    number: int


class PaceAnew(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """What was found of the rates that stores permit does not hold any more: other processes took part in it."""


class Brought(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A chunk is published, or in the file in memory whose descriptor comes with this message.

    Attributes:
        number: of the request.
        length: of the chunk file, or of the bytes in memory.
        counts: of the process since its start, in the order of `COUNTS`.
        window: requests that it may have at once.
    """

    number: int
    length: int
    counts: list[int]
    window: int


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A chunk could not be brought.

    Attributes:
        number: of the request.
        kind: name of the error's class.
        message: why.
        details: the facts.
        local: the disk, the folder or the manifest is at fault: the engine tries itself, and deals with that.
        counts: as in `Brought`.
    """

    number: int
    kind: str
    message: str
    details: dict[str, Detail]
    local: bool
    counts: list[int]

    @classmethod
    def of(cls, number: int, error: BaseException, counts: list[int], *, local: bool) -> Failed:
        """The message for an error."""
        details = error.details if isinstance(error, StreamerError) else {}
        return cls(number, type(error).__name__, str(error)[:MOST_TEXT], details, local, counts)

    def error(self) -> StreamerError:
        """The typed error again."""
        return from_wire(self.kind, self.message, self.details)


class Report(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """How a process does; sent once a second while it has work, and when it is ready.

    Attributes:
        statistics: `FetchStatistics` by name.
        first_byte_counts: of its histogram.
        first_byte_seconds: the sum there.
        cpu_seconds: that it took.
        window: as in `Brought`.
    """

    statistics: dict[str, float]
    first_byte_counts: list[int]
    first_byte_seconds: float
    cpu_seconds: float
    window: int


class Notice(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A store has served nothing for a while.

    Attributes:
        options_key: of the storage options of those who wait.
        text: a sentence for them.
    """

    options_key: str
    text: str


ToProcess: TypeAlias = Setup | Limits | OpenDataset | Bring | Cancel | GiveBack | PaceAnew
Answer: TypeAlias = Brought | Failed
ToEngine: TypeAlias = Answer | Report | Notice

_ENCODER = msgspec.msgpack.Encoder()
_TO_PROCESS: msgspec.msgpack.Decoder[ToProcess] = msgspec.msgpack.Decoder(ToProcess)
_TO_ENGINE: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)


def encode(message: ToProcess | ToEngine) -> bytes:
    """As it is sent."""
    return _ENCODER.encode(message)


def decode_to_process(raw: bytes) -> ToProcess:
    """What the engine sends."""
    return _TO_PROCESS.decode(raw)


def decode_to_engine(raw: bytes) -> ToEngine:
    """What a process sends.

    Raises:
        msgspec.MsgspecError: something else.
    """
    return _TO_ENGINE.decode(raw)
