"""Defines the messages between client and engine: one frozen type per message, checked when it is decoded.

`client/` sends requests and reads events, `service/` the other way round; `frames.py` encodes both as msgpack arrays.
`loader/`, `batches/` and `cli/` make some requests, and `engine/` serves them. A field of the wrong type or out of
range is a ProtocolError; nothing is unpickled. A new field goes at the end, with a default for messages of older
senders. It is always sent, and an older reader refuses the longer message. Any other change needs a higher PROTOCOL.
"""

from __future__ import annotations

from typing import Annotated, Self

import msgspec
from msgspec import Meta

from streamer.errors import Discreet
from streamer.wire.store_options import NO_OPTIONS, StoreOptions

# This number is increased when the meaning of a message changes. Client and engine must have the same one.
PROTOCOL = 3

# The bottlenecks that a loader may report (`streamer.loader.stall.advice.Bottleneck`). They are labels of /metrics, so
# they are not free text. The service counts any other word as the last one.
BOTTLENECKS = (
    *("nothing measured", "not input-bound", "the store throttles", "slow store", "slow peers", "recoding"),
    *("the engine's loop", "slow SSD (writing)", "no room in the cache", "slow SSD (reading)", "decode", "transform"),
    *("loading", "collate", "copy into the ring", "no workers", "one slow worker", "single slow samples", "full ring"),
    *("prefetch_batches", "starting workers", "crashing workers", "handoff", "copy to the device", "other"),
)

Count = Annotated[int, Meta(ge=0, le=2**62)]
Step = Annotated[int, Meta(ge=-1, le=2**62)]
Name = Annotated[str, Meta(max_length=4096)]
# Passes over a dataset in one epoch. Beyond this bound the bytes of a part times its value are not an exact float.
Value = Annotated[float, Meta(ge=0, le=2**32)]
MAX_PARTS = 4096
Scalar = str | int | float | bool | None


class Message(Discreet, msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base class of all messages."""


# ---------------------------------------------------------------- client to engine


class Hello(Message, tag=1, frozen=True):
    """Begins a connection: says which version and job the client has, and shows a token if the engine asks for one."""

    protocol: Count
    version: Name
    pid: Count
    job: Name = ""
    token: Name = ""


class GetManifest(Message, tag=2, frozen=True):
    """Asks for the manifest of a dataset, found or built; answered by ManifestReady, with IndexProgress on the way.

    Attributes:
        request: number that the answers repeat.
        urls: prefixes or objects.
        format: name of the format, or "auto"; "annotations" asks for the table of one file of annotations.
        options: fsspec's storage options.
        manifest: url or path of a built manifest; "" to list the urls.
        build: whether this node may build; otherwise it waits for `manifest` to appear.
        chunk_bytes: size of a chunk; 0 lets the index choose.
        limit_seconds: an index that would take longer than this is refused.
        wait_seconds: time to wait for a manifest that another node builds.
        extensions: extensions of the raw files that are samples, or None to choose from the existing ones.
        skip_damaged: whether to leave out tars that cannot be read; otherwise they are an error.
        in_key_order: whether raw files stay in the order of their keys, for reading without shuffle.
        format_options: options of the format, a JSON mapping.
    """

    request: Count
    urls: Annotated[list[Name], Meta(min_length=1, max_length=100_000)]
    format: Name
    options: StoreOptions = NO_OPTIONS
    manifest: Name = ""
    build: bool = True
    chunk_bytes: Count = 0
    limit_seconds: Annotated[float, Meta(ge=0)] = 600.0
    wait_seconds: Annotated[float, Meta(ge=0)] = 1800.0
    extensions: Annotated[list[Name], Meta(max_length=1000)] | None = None
    skip_damaged: bool = False
    in_key_order: bool = False
    format_options: bytes = b"{}"


class Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Describes one dataset of a session over several. Its chunk numbers follow those of the parts before it.

    Attributes:
        dataset: digest of the manifest.
        name: name for errors and statistics.
        options: its own storage options.
        value: passes over this dataset in an epoch, hence what a kept byte saves. Parts of value 0 are never kept.
        open_bytes: maximum number of bytes of this part that are open at once.
    """

    dataset: Name
    name: Name = ""
    options: StoreOptions = NO_OPTIONS
    value: Value = 1.0
    open_bytes: Count = 0

    def __repr__(self) -> str:
        # The options may be secret.
        return f"Part({self.name!r}, dataset={self.dataset}, value={self.value})"


class OpenSession(Message, tag=3, frozen=True):
    """Opens one consumer's session over one dataset, or over several as `parts`; answered by Opened.

    Parts of the same dataset have separate chunk numbers and share their files.

    Attributes:
        session: number chosen by the client, unique in its connection; it fills in job and options, too.
        dataset: digest of the manifest; with `parts` a common name, the same in sessions of one job and reports.
        consumer: name for people: "rank 3" or "rank 3 worker 1 of 4".
        order_id, global_batch, world_size, start: must be equal in sessions of one job and stream, if not "" or 0.
        open_bytes: maximum number of bytes that are open at once in this session's schedule.
        stream: distinguishes the loaders of one job (training and validation on the same data).
        sharers: number of consumers of the job on this machine, for advice; 0 if it is unknown.
        parts: the datasets of a session over several; if empty, it is the one named by `dataset`.
    """

    session: Count
    job: Name
    dataset: Name
    consumer: Name
    options: StoreOptions = NO_OPTIONS
    order_id: Name = ""
    global_batch: Count = 0
    world_size: Count = 0
    start: Count = 0
    open_bytes: Count = 0
    stream: Name = ""
    sharers: Count = 0
    parts: Annotated[tuple[Part, ...], Meta(max_length=MAX_PARTS)] = ()

    @property
    def all_parts(self) -> tuple[Part, ...]:
        """The parts; a lone dataset is one without a name."""
        return self.parts or (Part(self.dataset, options=self.options, open_bytes=self.open_bytes),)


class Extend(Message, tag=4, frozen=True):
    """Sends the chunks of one epoch, in order of first need.

    Attributes:
        epoch: number of the epoch.
        chunk: little-endian uint32 each: the number of the chunk.
        first, last: little-endian int64 each: the first and the last step that read the chunk.
        complete: whether no more entries follow for this epoch.
        passes: little-endian uint32 each: the pass over its part that the entry belongs to. A chunk is used once in a
            pass, except one that the boundary of two epochs cuts. If it is empty, each epoch is one pass.
        values: values of the parts from this epoch on (see Part), or empty if they are unchanged.
    """

    session: Count
    epoch: Count
    chunk: bytes
    first: bytes
    last: bytes
    complete: bool = True
    passes: bytes = b""
    values: Annotated[list[Value], Meta(max_length=MAX_PARTS)] = []


class Advance(Message, tag=5, frozen=True):
    """Says that steps below `done` are consumed, and asks for all steps up to and including `want` (-1: none yet)."""

    session: Count
    done: Count
    want: Step


# The reason of a `Reject` begins so if the operating system did not read the file.
UNREADABLE = "unreadable: "


class Reject(Message, tag=6, frozen=True):
    """Reports that the file of a leased chunk has wrong bytes, is missing, or is `UNREADABLE`."""

    session: Count
    chunk: Count
    reason: Name


class CloseSession(Message, tag=7, frozen=True):
    """Ends a session and its leases; it gets no reply."""

    session: Count


class Read(Message, tag=8, frozen=True):
    """Requests the bytes [start, stop) of one chunk, at most 64 MiB, for looking at a sample; answered by Content.

    With `boundaries` it requests the boundaries of the samples of a recoded chunk instead: samples + 1 numbers of
    little-endian uint32. Then `stop` is their length in bytes.
    """

    request: Count
    dataset: Name
    chunk: Count
    start: Count
    stop: Count
    options: StoreOptions = NO_OPTIONS
    boundaries: bool = False


class GetStatistics(Message, tag=9, frozen=True):
    """Requests the counters; answered by Statistics."""

    request: Count


class PackedRows(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Reports on the rows of documents that a loader has made.

    Attributes:
        padding: share of their places that was empty since the last report.
        cost_spread: standard deviation of the costs of its batches since then, divided by their mean.
        tokens: number of tokens in all its rows so far.
        left_out: tokens of every epoch that are in no row.
    """

    padding: Annotated[float, Meta(ge=0, le=1)]
    cost_spread: Annotated[float, Meta(ge=0)]
    tokens: Count
    left_out: Count


_MAX_BOTTLENECK_CHARACTERS = 64
_MAX_ADVICE_CHARACTERS = 240
_MAX_ERROR_CHARACTERS = 1200


class ReportFinding(Message, tag=10, frozen=True):
    """Reports a loader's waiting, for `streamer top` and /metrics; it gets no reply.

    The loader makes it (`make`), its connection says whose it is (`assign_to`), the engine keeps it with the session.
    Like ReportError, it has a connection of its own: an engine of another version that refuses it ends only that.

    Attributes:
        job, dataset, consumer: name its session, as in OpenSession; only sessions of the sender's user are meant.
        waiting_share: share of the time since its last report that the trainer has waited.
        bottleneck, advice: one of BOTTLENECKS, and what the user can do about it.
        rows: rows of a loader that packs documents into rows.
    """

    job: Name
    dataset: Name
    consumer: Name
    waiting_share: Annotated[float, Meta(ge=0, le=1)]
    bottleneck: Annotated[str, Meta(max_length=_MAX_BOTTLENECK_CHARACTERS)]
    advice: Annotated[str, Meta(max_length=_MAX_ADVICE_CHARACTERS)] = ""
    rows: PackedRows | None = None

    @classmethod
    def make(cls, waiting_share: float, bottleneck: str, advice: str = "", rows: PackedRows | None = None) -> Self:
        """Makes a report that names no session yet; a share outside of 0..1 is clipped, and long texts are cut."""
        return cls(
            job="",
            dataset="",
            consumer="",
            waiting_share=min(1.0, max(0.0, waiting_share)),
            bottleneck=bottleneck[:_MAX_BOTTLENECK_CHARACTERS],
            advice=advice[:_MAX_ADVICE_CHARACTERS],
            rows=rows,
        )

    def assign_to(self, job: str, dataset: str, consumer: str) -> ReportFinding:
        """Returns a copy that names the session that it is about."""
        return msgspec.structs.replace(self, job=job, dataset=dataset, consumer=consumer)


class ReportError(Message, tag=12, frozen=True):
    """Reports an error that a loader raises, for the log and the page of the service; it gets no reply."""

    job: Name
    dataset: Name
    consumer: Name
    error: Annotated[str, Meta(max_length=_MAX_ERROR_CHARACTERS)]

    @classmethod
    def make(cls, job: str, dataset: str, consumer: str, error: Exception) -> ReportError:
        """Makes the report of an error; its text is cut to the bound of a message."""
        text = f"{type(error).__name__}: {error}"
        return cls(job, dataset, consumer, text[:_MAX_ERROR_CHARACTERS])


class Sharer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Names an engine that shares its cache: id of its cache folder, host:port, limit of its cache in bytes."""

    id: Name
    address: Name
    limit_bytes: Count


class ShareCache(Message, tag=11, frozen=True):
    """Lets the engine share its cache with those of the job, and ask them before the store; answered by CacheShared.

    Attributes:
        dataset: digest of the manifest.
        token: token that the engines show each other; never logged.
        host: this machine's address for the others.
        sharers: all engines that share their caches, sorted by id; empty if they are not known yet.
        name: name of the selection of the dataset to which the lanes belong.
        lanes: the lane of each chunk, little-endian int16 each, -1 for none; empty if the chunks' keys decide.
        readers: the (index of a sharer, samples in a batch) that read each lane.
        former: the (index of a sharer, bytes) of other engines that hold chunks of each lane.
        options: storage options, as in OpenSession: the engine may fetch chunks for others before its own session.
    """

    request: Count
    dataset: Name
    token: Annotated[str, Meta(max_length=256)]
    host: Name
    sharers: Annotated[list[Sharer], Meta(max_length=4096)] = []
    name: Name = ""
    lanes: bytes = b""
    readers: list[list[tuple[Count, Count]]] = []
    former: list[list[tuple[Count, Count]]] = []
    options: StoreOptions = NO_OPTIONS

    def __repr__(self) -> str:
        return f"ShareCache({self.dataset}, {self.host}, {len(self.sharers)} sharers)"


Request = (
    Hello
    | GetManifest
    | OpenSession
    | Extend
    | Advance
    | Reject
    | CloseSession
    | Read
    | GetStatistics
    | ReportFinding
    | ReportError
    | ShareCache
)

# ---------------------------------------------------------------- engine to client


class Welcome(Message, tag=64, frozen=True):
    """Answers Hello: says which version and process the engine is, and where its chunks are.

    Attributes:
        root: folder of the cache, which the client may see at another path; `root_id` identifies it.
        limit_bytes: present limit of chunk files.
        cache_bytes: limit of the whole folder, as given or chosen.
        overhead_bytes: bytes of `cache_bytes` that manifests and the catalog take.
    """

    protocol: Count
    version: Name
    pid: Count
    root: Name
    root_id: Name
    layers: list[Name] = []
    limit_bytes: Count = 0
    cache_bytes: Count = 0
    overhead_bytes: Count = 0


class IndexProgress(Message, tag=65, frozen=True):
    """Reports the progress of building a manifest: `text` says what is being done, `done` of `total` how far."""

    request: Count
    text: Name
    done: Count
    total: Count


class ManifestReady(Message, tag=66, frozen=True):
    """Answers GetManifest: the manifest is in `manifests/<digest>` below the root.

    Attributes:
        notes: lines for the user about objects that were left out.
    """

    request: Count
    digest: Name
    notes: list[str] = []


class Opened(Message, tag=67, frozen=True):
    """Answers OpenSession: the session is open."""

    session: Count


class Ready(Message, tag=68, frozen=True):
    """Says that every chunk needed in steps up to and including `through` is local, and stays until it is consumed.

    `rejects` is the number of Rejects of this session that the engine has processed; `through` ignores later ones.
    """

    session: Count
    through: Step
    rejects: Count = 0


class Content(Message, tag=69, frozen=True):
    """Answers Read with the bytes that were asked for."""

    request: Count
    content: bytes


class Statistics(Message, tag=70, frozen=True):
    """Answers GetStatistics: plain numbers and texts by name, and lists of such tables."""

    request: Count
    values: dict[str, Scalar | list[dict[str, Scalar]]]


class Failed(Message, tag=71, frozen=True):
    """Reports an error, whose class is `kind`, of a request or a session; of the connection if both numbers are -1."""

    kind: Name
    message: Annotated[str, Meta(max_length=65536)]
    details: dict[str, Scalar]
    request: Annotated[int, Meta(ge=-1)] = -1
    session: Annotated[int, Meta(ge=-1)] = -1


class Notice(Message, tag=72, frozen=True):
    """Gives the client a sentence for its log, about a slow store or the cache; `number` distinguishes sentences."""

    number: Count
    text: Annotated[str, Meta(max_length=4096)]


class CacheShared(Message, tag=73, frozen=True):
    """Answers ShareCache: the address at which this engine answers the others."""

    request: Count
    address: Name


Event = Welcome | IndexProgress | ManifestReady | Opened | Ready | Content | Statistics | Failed | Notice | CacheShared
