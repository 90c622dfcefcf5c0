"""Writes what this version writes, for later versions to load: python tests/golden/releases.py

tests/golden/releases/VERSION/ gets states with the batches that follow them, a manifest, a cache folder and the frames
of all messages. Made by the version that is imported (PYTHONPATH=CLONE for another one); a folder that exists is kept.
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from streamer import Growing, MixedDataset, Order, StreamingDataLoader, StreamingDataset, Weights
from streamer.version import VERSION
from streamer.wire import messages
from streamer.wire.frames import encode
from streamer.wire.store_options import StoreOptions

RELEASES = Path(__file__).parent / "releases"
GLOBAL_BATCH = 8
# Delivered before the state is taken: in the middle of the second epoch.
STOPS = {"dataset": (1, 5), "mix": (1, 4), "homogeneous": (1, 4), "growing": (0, 3)}
KINDS = tuple(STOPS)


def tar_file(number: int, samples: int = 16) -> bytes:
    """A ustar of samples of different sizes, with nothing in it that depends on a library."""
    out = b""
    for i in range(samples):
        content = bytes([number * 16 + i]) * (700 * (i % 5 + 1))
        header = bytearray(512)
        header[:100] = f"{number}/{i:02}.bin".encode().ljust(100, b"\0")
        header[124:136] = b"%011o\0" % len(content)
        header[156:157], header[257:265], header[148:156] = b"0", b"ustar\x0000", b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        out += bytes(header) + content + bytes(-len(content) % 512)
    return out + bytes(1024)


OBJECTS = {
    **{f"tars/{number}.tar": tar_file(number) for number in range(6)},
    **{f"files/{name}/{i:02}.bin": bytes([i]) * (i * 40) for name in ("cat", "dog") for i in range(21)},
}


class _Handler(http.server.BaseHTTPRequestHandler):
    """Stands for S3: lists and serves objects and ranges with ETags; checks no signature and takes no writes."""

    reads: list[str]

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        key = unquote(url.path).lstrip("/").partition("/")[2]
        if not key:
            self._answer(200, _listing(parse_qs(url.query).get("prefix", [""])[0]), "")
        elif key not in OBJECTS:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>", "")
        else:
            self.reads.append(key)
            self._read(OBJECTS[key])

    def do_HEAD(self) -> None:
        self.do_GET()

    def _read(self, content: bytes) -> None:
        if (asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))) is None:
            self._answer(200, content, _etag(content))
            return
        start, stop = int(asked[1]), min(int(asked[2] or len(content)) + 1, len(content))
        self._answer(206, content[start:stop], _etag(content), f"bytes {start}-{stop - 1}/{len(content)}")

    def _answer(self, status: int, body: bytes, etag: str, place: str = "") -> None:
        self.send_response(status)
        for name, value in (("ETag", f'"{etag}"'), ("Content-Range", place), ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None: ...


def _etag(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _listing(prefix: str) -> bytes:
    entries = (
        f"<Contents><Key>{key}</Key><Size>{len(content)}</Size><ETag>&quot;{_etag(content)}&quot;</ETag>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        for key, content in sorted(OBJECTS.items())
        if key.startswith(prefix)
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(entries)}</ListBucketResult>".encode()


class Bucket:
    """The bucket s3://golden on that server, the same in every run.

    Attributes:
        options: storage options for it.
        reads: the keys that were read, in order.
    """

    def __init__(self, port: int, reads: list[str]) -> None:
        self.options: dict[str, object] = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{port}"}
        self.reads = reads


@contextmanager
def bucket() -> Iterator[Bucket]:
    """Serves the bucket in a thread of this process."""
    reads: list[str] = []
    handler = type("Handler", (_Handler,), {"reads": reads})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield Bucket(server.server_port, reads)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def opened(kind: str, options: Mapping[str, object], cache: Path, **more: object) -> StreamingDataset | MixedDataset:
    """The data of one kind of state.

    Args:
        kind: of `KINDS`.
        options: of the bucket.
        cache: the cache folder.
        more: arguments of the dataset, or of the mix.
    """
    common = {"cache_dir": str(cache), "storage_options": dict(options)}
    if kind in ("mix", "homogeneous"):
        tars = StreamingDataset("s3://golden/tars/", **common)
        files = StreamingDataset("s3://golden/files/", seed=5, **common)
        members = {"tars": tars, "files": files}
        if kind == "homogeneous":
            return MixedDataset(members, batching="homogeneous", **more)
        return MixedDataset(members, weights=Weights({"tars": 0.75, "files": 0.25}, epoch_samples=96), **more)
    if kind == "growing":
        more["growing"] = Growing(reuse=3, epoch_samples=48)
    else:
        more["order"] = Order(lanes=2, shuffle_window=4)
    return StreamingDataset("s3://golden/tars/", **common, **more)


def keys_of(samples: Sequence[Mapping[str, object]]) -> list[str]:
    """A batch is the keys of its samples."""
    return [str(sample["__key__"]) for sample in samples]


def batches(
    kind: str, data: StreamingDataset | MixedDataset, batch: int, state: Mapping[str, object] | None
) -> Iterator:
    """Keys of each batch of a rank and the state behind it, for ever."""
    with StreamingDataLoader(data, batch_size=batch, num_workers=0, collate_fn=keys_of) as loader:
        if state is not None:
            loader.load_state_dict(state)
        while True:
            for one in loader:
                yield list(one), loader.state_dict()


def written(kind: str, options: Mapping[str, object], cache: Path, **more: object) -> dict[str, object]:
    """A state, and the sorted keys of the batches behind it: the rest of its epoch and another one."""
    epoch, step = STOPS[kind]
    count = {"dataset": 12, "mix": 12, "homogeneous": 17, "growing": 6}[kind]
    stream = batches(kind, opened(kind, options, cache, **more), GLOBAL_BATCH, None)
    state: Mapping[str, object] = {}
    for _ in range(epoch * count + step):
        _, state = next(stream)
    follow = [sorted(next(stream)[0]) for _ in range(2 * count - step)]
    stream.close()
    return {"state": json.loads(json.dumps(state)), "batches": follow}


def example(kind: object, name: str = "") -> object:
    """A value of a type, the same for every version."""
    described = kind if isinstance(kind, msgspec.inspect.Type) else msgspec.inspect.type_info(kind)
    if isinstance(described, msgspec.inspect.Metadata):
        return example(described.type, name)
    if isinstance(described, msgspec.inspect.UnionType):
        return example(next(one for one in described.types if not isinstance(one, msgspec.inspect.NoneType)), name)
    if isinstance(described, msgspec.inspect.ListType):
        return [example(described.item_type, name)]
    if isinstance(described, msgspec.inspect.VarTupleType):
        return (example(described.item_type, name),)
    if isinstance(described, msgspec.inspect.TupleType):
        return tuple(example(one, name) for one in described.item_types)
    if isinstance(described, msgspec.inspect.DictType):
        return {"key": example(described.value_type, name)}
    if isinstance(described, msgspec.inspect.StructType):
        values = {field.name: example(field.type, field.name) for field in described.fields}
        return described.cls(**(values | ({"protocol": messages.PROTOCOL} if "protocol" in values else {})))
    if isinstance(described, msgspec.inspect.CustomType) and described.cls is StoreOptions:
        return StoreOptions(b"\x00\x01")  # bytes on the wire
    plain: dict[type, object] = {
        msgspec.inspect.IntType: 7,
        msgspec.inspect.FloatType: 0.5,
        msgspec.inspect.BoolType: True,
        msgspec.inspect.StrType: "text",
        msgspec.inspect.BytesType: b"\x00\x01",
        msgspec.inspect.AnyType: 1,
        msgspec.inspect.LiteralType: getattr(described, "values", ("",))[0],
    }
    return plain[type(described)]


def spell_options(options: StoreOptions) -> str:
    """Storage options are bytes on the wire, which are spelled as those of other fields."""
    return base64.b64encode(options.encoded).decode()


def frames() -> dict[str, object]:
    """Of each message: its frame, and its fields in order."""
    kinds = [kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, messages.Message)]
    found = {}
    for kind in kinds:
        if kind is not messages.Message:
            message = example(kind)
            fields = msgspec.to_builtins(message, enc_hook=spell_options)
            found[kind.__name__] = {"frame": encode(message).hex(), "fields": fields}
    return found


def write(folder: Path) -> None:
    """Writes all files of this version."""
    with bucket() as store, tempfile.TemporaryDirectory(prefix="g-") as name:
        cache = Path(name, "cache")
        states: dict[str, object] = {"version": VERSION, "global_batch": GLOBAL_BATCH}
        states |= {kind: written(kind, store.options, cache) for kind in KINDS}
        # Its engine ends, and closes the catalog.
        time.sleep(5)
        folder.mkdir(parents=True)
        (folder / "states.json").write_text(json.dumps(states, indent=1) + "\n")
        (folder / "frames.json").write_text(json.dumps({"protocol": messages.PROTOCOL, **frames()}, indent=1) + "\n")
        with tarfile.open(folder / "cache.tar.gz", "w:gz") as archive:
            archive.add(cache, "cache", filter=_kept)


def _kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return None if entry.name.endswith((".log", ".lock")) else entry


def main() -> None:
    """Writes the folder of this version."""
    folder = RELEASES / VERSION
    if folder.exists():
        raise SystemExit(f"{folder} exists; remove it if {VERSION} is not released yet, else it stays")
    write(folder)
    print(folder, *sorted(path.name for path in folder.iterdir()))


if __name__ == "__main__":
    main()
