"""What client and engine say to each other: one frozen type per message, validated when decoded.

Encoded as msgpack arrays by msgspec: a field of the wrong type or out of range is a ProtocolError, and nothing is
ever unpickled. New fields go at the end, with a default; any other change needs a higher PROTOCOL.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

# Increased when the meaning of a message changes. Client and engine must agree on it exactly.
PROTOCOL = 3

# The bottlenecks that a loader may report (`streamer.loader.stall.advice.Bottleneck`). They are labels of /metrics,
# therefore no free text; any other word counts as the last one.
BOTTLENECKS = (
    *("nothing measured", "not input-bound", "the store throttles", "slow store", "slow peers", "recoding"),
    *(
        "slow SSD (writing)",
        "no room in the cache",
        "slow SSD (reading)",
        "decode",
        "transform",
        "loading",
        "collate",
        "copy into the ring",
    ),
    *("no workers", "one slow worker", "single slow samples", "full ring", "prefetch_batches", "starting workers"),
    *("crashing workers", "handoff", "copy to the device", "other"),
)

Count = Annotated[int, Meta(ge=0, le=2**62)]
Step = Annotated[int, Meta(ge=-1, le=2**62)]
Name = Annotated[str, Meta(max_length=4096)]
# Passes over a dataset in one epoch. Beyond the bound the bytes of a part times its value are no exact float any more.
Value = Annotated[float, Meta(ge=0, le=2**32)]
MAX_PARTS = 4096
Detail = str | int | float | bool | None
Scalar = str | int | float | bool | None


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Root of all messages."""


# ---------------------------------------------------------------- client to engine


class Hello(Message, tag=1, frozen=True):
    """The first frame of a connection; may carry the token that the engine asks for."""

    protocol: Count
    version: Name
    pid: Count
    job: Name = ""
    token: Name = ""


class GetManifest(Message, tag=2, frozen=True):
    """Find the manifest of a dataset, or build it; answered by ManifestReady, with IndexProgress on the way.

    Attributes:
        request: number that the answers repeat.
        urls: prefixes or objects.
        format: its name, or "auto"; "annotations": the table of one file of annotations, with its options.
        options: storage options as fsspec takes them, as JSON text (they may be secret: never logged).
        manifest: url or path of a built manifest; "" to list the urls.
        build: this node may build; otherwise it waits for `manifest` to appear.
        limit_seconds: an index that would take longer is refused.
        wait_seconds: how long to wait for a manifest that another node builds.
        extensions: of the raw files that are samples; None: chosen by what is there.
        skip_damaged: leave out tars that cannot be read, instead of an error.
        in_key_order: raw files in the order of their keys, for reading without shuffle.
        format_options: of the format, a JSON mapping.
    """

    request: Count
    urls: Annotated[list[Name], Meta(min_length=1, max_length=100_000)]
    format: Name
    options: bytes = b"{}"
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
    """One dataset of a session over several.

    Attributes:
        dataset: digest of the manifest.
        name: for people, in errors and statistics.
        options: its own storage options, as in OpenSession.
        value: how many passes over this dataset an epoch makes: what one of its bytes saves while it is kept. Only the
            ratios within one session matter. 0: never kept.
        open_bytes: the most bytes of this part that are open at once.
    """

    dataset: Name
    name: Name = ""
    options: bytes = b"{}"
    value: Value = 1.0
    open_bytes: Count = 0


class OpenSession(Message, tag=3, frozen=True):
    """One consumer's session; answered by Opened.

    With `parts` the session reads several datasets. Its chunk numbers count through them: those of a part come after
    those of the parts before it. Parts of the same dataset have numbers of their own; their files are shared.

    Attributes:
        session: number chosen by the client, unique in its connection.
        dataset: digest of the manifest; with `parts` a name for all of them together, by which sessions of one job and
            reports are matched.
        consumer: who it is, for people: "rank 3" or "rank 3 worker 1 of 4".
        order_id, global_batch, world_size, start: what sessions of one job and stream must agree on ("" and 0: not
            compared).
        open_bytes: the most bytes that are open at once in this session's schedule.
        stream: tells the loaders of one job apart (training and validation on the same data).
        sharers: how many consumers of the job this machine will have (0: unknown), for advice.
        parts: the datasets of a session over several; empty: the one named by `dataset`.
    """

    session: Count
    job: Name
    dataset: Name
    consumer: Name
    options: bytes = b"{}"
    order_id: Name = ""
    global_batch: Count = 0
    world_size: Count = 0
    start: Count = 0
    open_bytes: Count = 0
    stream: Name = ""
    sharers: Count = 0
    parts: Annotated[list[Part], Meta(max_length=MAX_PARTS)] = []


class Extend(Message, tag=4, frozen=True):
    """The chunks of one epoch, in order of first need.

    Attributes:
        epoch: its number.
        chunk: little-endian uint32 each.
        first, last: little-endian int64 each: the steps, both inclusive, in which the chunk is read.
        complete: no more entries follow for this epoch.
        passes: little-endian uint32 each: the pass over its part that the entry belongs to. A chunk is used once in a
            pass, but for those that the boundary of two epochs cuts. Empty: each epoch is one pass.
        values: of the parts from this epoch on (see Part); empty: as before.
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
    """Steps below `done` are consumed; everything for steps up to and including `want` is asked for."""

    session: Count
    done: Count
    want: Step


class Reject(Message, tag=6, frozen=True):
    """A reader found wrong bytes, or no file, where a chunk should be."""

    session: Count
    chunk: Count
    reason: Name


class CloseSession(Message, tag=7, frozen=True):
    """The session's leases end."""

    session: Count


class Read(Message, tag=8, frozen=True):
    """The bytes [start, stop) of one chunk, for looking at a sample; answered by Content. At most 64 MiB.

    With `boundaries`, the boundaries of the samples of a recoded chunk instead: little-endian uint32, samples + 1 of
    them; then `stop` is their length in bytes.
    """

    request: Count
    dataset: Name
    chunk: Count
    start: Count
    stop: Count
    options: bytes = b"{}"
    boundaries: bool = False


class GetStatistics(Message, tag=9, frozen=True):
    """Answered by Statistics."""

    request: Count


class ReportFinding(Message, tag=10, frozen=True):
    """The result of a loader's stall report, for `streamer top` and /metrics; it gets no reply.

    Attributes:
        job, dataset, consumer: of its session, as in OpenSession; only sessions of the same user are meant.
        waiting_share: of the trainer's time since its last report.
        bottleneck: one of BOTTLENECKS. advice: in the report's words.
    """

    job: Name
    dataset: Name
    consumer: Name
    waiting_share: Annotated[float, Meta(ge=0, le=1)]
    bottleneck: Annotated[str, Meta(max_length=64)]
    advice: Annotated[str, Meta(max_length=240)] = ""


class Sharer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One of the engines that share their caches.

    Attributes:
        id: of its cache folder.
        address: host:port.
        limit_bytes: of its cache.
    """

    id: Name
    address: Name
    limit_bytes: Count


class ShareCache(Message, tag=11, frozen=True):
    """Answer the other engines of the job, and ask them before the store; answered by CacheShared.

    Attributes:
        dataset: digest of the manifest.
        token: that the engines show each other; never logged.
        host: of this machine, as the others reach it.
        sharers: all of them, sorted by id; empty: they are not known yet.
        name: of the selection of the dataset whose lanes follow.
        lanes: the lane of each chunk, little-endian int16 each, -1 for none; empty: homes by the chunks' keys.
        readers: of each lane the (index of a sharer, samples in a batch) that read it.
        former: of each lane the (index of a sharer, bytes) of others that hold chunks of it.
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
    options: bytes = b"{}"

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
    | ShareCache
)

# ---------------------------------------------------------------- engine to client


class Welcome(Message, tag=64, frozen=True):
    """Answers Hello: where the chunks are (the client may see the folder elsewhere; root_id tells).

    Attributes:
        limit_bytes: what chunk files may take now.
        cache_bytes: the limit of the whole folder, as it was given or chosen.
        overhead_bytes: what manifests and the catalog take of it.
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
    """How far a manifest has come."""

    request: Count
    text: Name
    done: Count
    total: Count


class ManifestReady(Message, tag=66, frozen=True):
    """The manifest lies in `manifests/<digest>` below the root.

    Attributes:
        notes: what the user is to know of objects that were left out; a line each.
    """

    request: Count
    digest: Name
    notes: list[str] = []


class Opened(Message, tag=67, frozen=True):
    """The session exists."""

    session: Count


class Ready(Message, tag=68, frozen=True):
    """Every chunk needed in steps up to and including `through` is local and stays until it is consumed.

    `rejects` counts the Rejects of this session that the engine has taken in: an older Ready says nothing about them.
    """

    session: Count
    through: Step
    rejects: Count = 0


class Content(Message, tag=69, frozen=True):
    """Answers Read."""

    request: Count
    content: bytes


class Statistics(Message, tag=70, frozen=True):
    """Answers GetStatistics: plain numbers and texts by name, and lists of such tables."""

    request: Count
    values: dict[str, Scalar | list[dict[str, Scalar]]]


class Failed(Message, tag=71, frozen=True):
    """An error, for the request or session that it belongs to (-1: the connection)."""

    kind: Name
    message: Annotated[str, Meta(max_length=65536)]
    details: dict[str, Detail]
    request: Annotated[int, Meta(ge=-1)] = -1
    session: Annotated[int, Meta(ge=-1)] = -1


class Notice(Message, tag=72, frozen=True):
    """A sentence for the peer's log: about a store that does not answer, or the cache. `number` counts them."""

    number: Count
    text: Annotated[str, Meta(max_length=4096)]


class CacheShared(Message, tag=73, frozen=True):
    """Answers ShareCache: the address where the other engines are answered."""

    request: Count
    address: Name


Event = Welcome | IndexProgress | ManifestReady | Opened | Ready | Content | Statistics | Failed | Notice | CacheShared
