"""Files of this package and values of users that are damaged or of other types: read, or refused with its own errors.

What formats, decoders and the protocol read is fuzzed by `targets.py`.
"""

from __future__ import annotations

import inspect
import io
import json
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamer
import streamer.decode
import streamer.formats
from streamer.annotations.options import Annotations
from streamer.annotations.table import HEAD_NAME, ROWS_NAME, AnnotationHead, AnnotationTable, hash_of
from streamer.batches.rows.costs import _map_file
from streamer.batches.rows.options import Packing
from streamer.batches.rows.table import Documents, RowTable
from streamer.cache.folder import MARKER, ROOT_ID, open_folder, open_layer
from streamer.cli.dataset import JoinOptions
from streamer.config import Environment, read_token, read_toml
from streamer.errors import ConfigError, StreamerError
from streamer.formats import BUILT_IN
from streamer.formats.registry import find_format
from streamer.formats.table.schema_memory import SchemaMemory
from streamer.indexing.index_log import IndexLog
from streamer.loader.measure import _fill_in
from streamer.manifest.arrow_ipc.writer import write_table
from streamer.manifest.columns import BinaryColumn
from streamer.manifest.joined import JoinHead, JoinTable, Matched
from streamer.manifest.keys import KeyTable, build_keys, hash_values
from streamer.manifest.model import ObjectRecord
from streamer.order.audit import Record, read_records, write_records
from streamer.order.growing.spec import GrowingSpec
from streamer.order.spec import OrderSpec
from streamer.order.state import State
from streamer.service.configuration import read_service_config
from streamer.service.history.history import History
from streamer.service.history.recorder import read_history
from streamer.shards.receipts import Receipt, decode_receipt, encode_numbers, encode_receipt
from streamer.store import open_store
from streamer.store.credentials.google_tokens import _read_type
from streamer.tools.audit_states import states_in
from streamer.wire.store_options import decode_options
from tests.golden.test_mix_order import STATE as MIX_STATE

# ---------------------------------------------------------------- damaged bytes

DEEP = b"[" * 20_000
EDGES = [b"\xff", b"\xff" * 8, b"\0" * 8, b"\n", b"{", b'"', b"]", DEEP, b'{"a":' * 20_000, b"1e400", b"9" * 5000]


def damage(content: bytes, drawn: random.Random) -> bytes:
    """Returns bytes near the content: cut off, with bytes that are changed, left out or put in, or other ones."""
    out = bytearray(content)
    for _ in range(drawn.randint(1, 3)):
        at = drawn.randrange(len(out) + 1)
        edge = drawn.choice(EDGES)
        match drawn.randrange(6):
            case 0:
                del out[at:]
            case 1 if at < len(out):
                out[at] = drawn.randrange(256)
            case 2:
                del out[at : at + drawn.randint(1, 16)]
            case 3:
                out[at:at] = edge
            case 4:
                out[at : at + len(edge)] = edge
            case 5:
                out[:] = edge
    return bytes(out)


def npy(array: np.ndarray) -> bytes:
    """Returns an array as a .npy file."""
    sink = io.BytesIO()
    np.save(sink, array)
    return sink.getvalue()


CHUNKS = np.array([(b"k" * 16, 3), (b"l" * 16, 2)], [("key", "V16"), ("samples", np.int64)])
LENGTHS = np.arange(5, dtype=np.int32)


class Measured:
    """Stands for a manifest of two chunks with five samples."""

    chunks = 2
    samples = 5
    chunk_keys = np.frombuffer(b"k" * 16 + b"l" * 16, np.uint8).reshape(2, 16)
    chunk_samples = np.array([3, 2])
    chunk_first = np.array([0, 3, 5])


def documents() -> Documents:
    """Returns five documents in two chunks."""
    first = np.array([0, 3, 5])
    return Documents("", "", np.diff(first), first, lambda numbers: np.full(len(numbers), 9), shuffle=True)


def resume(path: Path, lengths: bytes, chunks: bytes) -> None:
    """Reads files of lengths as `measure_lengths` does to go on with them."""
    path.write_bytes(lengths)
    path.with_name(f"{path.name}.chunks.npy").write_bytes(chunks)
    _fill_in(np.zeros(5, np.int32), Measured(), path, str(path))  # type: ignore[arg-type]


Reader = Callable[[bytes], object]


def reader(path: Path, read: Callable[[Path], object]) -> tuple[bytes, Reader]:
    """Returns the content of a file, and a function that reads other bytes in its place."""
    good = path.read_bytes()

    def read_bytes(content: bytes) -> None:
        path.write_bytes(content)
        try:
            read(path)
        finally:
            path.write_bytes(good)

    return good, read_bytes


def tables(folder: Path) -> Iterator[tuple[str, bytes, Reader]]:
    """Yields files beside manifests as `files` does: keys, joins, annotations, rows, and memories of schemas."""
    keys = folder / "keys"
    keys.mkdir()
    build_keys([(0, hash_values(["a", "b"]))], keys)
    for path in sorted(keys.iterdir()):
        yield f"keys {path.name}", *reader(path, lambda path: KeyTable.open(path.parent))
    join = folder / "join"
    join.mkdir()
    head = JoinHead(left="l", right="r", part="r", samples=0, chunks=0, uses=0, matched=Matched())
    (join / "head.json").write_bytes(msgspec.json.encode(head))
    for name in ("first.i64", "use_first.i64"):
        (join / name).write_bytes(bytes(8))
    yield "join", *reader(join / "head.json", lambda path: JoinTable.open(path.parent))
    table = folder / "table"
    table.mkdir()
    (table / HEAD_NAME).write_bytes(AnnotationHead("x", ()).encode())
    names = [b"a", b"b"]
    hashes = np.sort(np.array([hash_of(name) for name in names], np.int64))
    write_table(table / ROWS_NAME, {"hash": hashes, "key": BinaryColumn.of(names), "row": BinaryColumn.of(names)})
    yield "annotations", *reader(table / HEAD_NAME, lambda path: AnnotationTable.open(path.parent))
    yield "annotation rows", *reader(table / ROWS_NAME, lambda path: AnnotationTable.open(path.parent))
    memory = SchemaMemory("rule")
    memory.add(ObjectRecord("s3://b/a", 1, "v"), b"schema")
    yield "memory", memory.encode(), lambda content: SchemaMemory("rule", [content])
    rows = folder / "rows.arrows"
    RowTable.make(Packing(16, rows_per_set=2).spec(), documents()).write(rows)
    yield "rows", *reader(rows, lambda path: RowTable.open(path, documents()))


def files(folder: Path) -> Iterator[tuple[str, bytes, Reader]]:
    """Yields for each kind of files its name, a good content, and a function that reads bytes as such a file."""
    yield from tables(folder)
    lengths = folder / "lengths.npy"
    lengths.write_bytes(npy(LENGTHS))
    yield "lengths", *reader(lengths, lambda path: _map_file(str(path), Measured()))  # type: ignore[arg-type]
    yield "measured", npy(LENGTHS), lambda content: resume(folder / "m.npy", content, npy(CHUNKS))
    yield "measured chunks", npy(CHUNKS), lambda content: resume(folder / "m.npy", npy(LENGTHS), content)
    receipt = Receipt(shard=1, version="v", size=9, blocks=encode_numbers([1]), sums=encode_numbers([1]))
    yield "receipt", encode_receipt(receipt), decode_receipt
    cache = folder / "cache"
    open_folder(cache)
    yield "marker", *reader(cache / MARKER, lambda path: (open_layer(path.parent), open_folder(path.parent)))
    yield "root id", *reader(cache / ROOT_ID, lambda path: (open_layer(path.parent), open_folder(path.parent)))
    history = folder / "history"
    history.write_bytes(History().encode())
    yield "history", *reader(history, lambda path: read_history(path, History()))
    log = folder / "index.log"
    log.write_bytes(b"")
    yield "index log", *reader(log, lambda path: IndexLog(path).read())
    for name, content, read in (
        ("toml", b'[cache]\ndirectory = "/x"\nlimit_bytes = "1GB"\n', read_toml),
        ("token", b"secret\n", read_token),
        ("google", b'{"type": "authorized_user"}', lambda path: _read_type(str(path))),
        ("states", json.dumps(MIX_STATE).encode(), lambda path: [*map(State.from_dict, states_in(path))]),
    ):
        (folder / name).write_bytes(content)
        yield name, *reader(folder / name, read)
    yield "options", b'{"key": "k", "anon": false}', lambda content: decode_options(content, "storage_options")


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[bytes, Reader]]:
    """Returns a good content and a reader by the name of a kind of files."""
    found = {name: (content, read) for name, content, read in files(tmp_path_factory.mktemp("files"))}
    for content, read in found.values():
        read(content)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_damaged_files_are_read_or_refused(readers: Mapping[str, tuple[bytes, Reader]], seed: int) -> None:
    """A damaged file of this package is read, or raises one of its own errors."""
    drawn = random.Random(seed)
    logging.disable(logging.CRITICAL)
    try:
        for content, read in readers.values():
            with suppress(StreamerError):
                read(damage(content, drawn))
    finally:
        logging.disable(logging.NOTSET)


# ---------------------------------------------------------------- values of other types

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 3),
    st.sampled_from([2**31, 2**63, 2**64, -(2**63), 10**30]),
    st.floats(),
    st.text(st.characters(codec="utf-8"), max_size=5),
    st.sampled_from(["", "../x", "\0", "a" * 300, "1GB", "-1", "nan", "s3://", "\udce9"]),
    st.lists(st.integers(-1, 3), max_size=3),
    st.just([[]]),
    st.just({}),
    st.dictionaries(st.sampled_from(["", "a", "url"]), st.integers(-1, 3), max_size=2),
)


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """Draws a value in which one value of a mapping or list, at any depth, is another, missing or one more."""
    if isinstance(value, Mapping) and value and draw(st.integers(0, 9)):
        name = draw(st.sampled_from(sorted(value)))
        match draw(st.integers(0, 9)):
            case 0:
                return {key: each for key, each in value.items() if key != name}
            case 1:
                return {**value, draw(st.sampled_from(["", f"{name}x"])): draw(ODD)}
        return {**value, name: draw(changed(value[name]))}
    if isinstance(value, list) and value and draw(st.integers(0, 9)):
        place = draw(st.integers(0, len(value) - 1))
        match draw(st.integers(0, 9)):
            case 0:
                return value[:place] + value[place + 1 :]
            case 1:
                return [*value, draw(ODD)]
        return [*value[:place], draw(changed(value[place])), *value[place + 1 :]]
    return draw(ODD)


ORDER = OrderSpec.auto("0" * 32, np.array([5, 5, 5, 5]), batch_size=4, seed=1)
GROWN = State(GrowingSpec(ORDER, reuse=3, epoch_samples=1280, least=4, admitted=(4, 2, 0)), 2, 640, 64)
PACKED = State(msgspec.structs.replace(ORDER, rows=Packing(512).spec()), 1, 48, 16)
STATES = [State(ORDER, 0, 4, 4).to_dict(), GROWN.to_dict(), PACKED.to_dict(), dict(MIX_STATE)]
CONFIG = {
    "cache": {"directory": "/x", "limit_bytes": "1GB", "free_floor_share": 0.1, "layers": ["/a"], "group": "root"},
    "fetch": {"memory_bytes": "1GB"},
    "engine": {"fetch_processes": 1, "socket_path": "/s"},
    "service": {"http": "127.0.0.1:1", "allow_uids": [1], "drain_seconds": 3.5, "max_connections": 4},
    "peers": {"members": "off", "listen": "0.0.0.0:1", "sends": 3},
    "datasets": [{"url": "s3://b/", "storage_options": {"key": "k"}, "writable": True}],
}
JOIN = {"url": "s3://b/", "on": ["a", "b"], "columns": ["x"], "missing": "drop", "validate": "many_to_one"}
JOIN |= {"format": "parquet", "format_options": {}, "manifest": "m", "storage_options": {}}
S3 = {"key": "k", "secret": "s", "token": "t", "endpoint_url": "http://h:1", "anon": False, "requester_pays": True}
S3 |= {"client_kwargs": {"region_name": "r", "verify": True}, "config_kwargs": {"s3": {"addressing_style": "path"}}}
STORES: dict[str, dict[str, object]] = {
    "s3://b/x": S3,
    "gs://b/x": {"token": "anon", "project": "p", "endpoint_url": "http://h"},
    "az://b/x": {"account_name": "k", "account_key": "cw==", "sas_token": "x", "anon": False},
    "https://h/x": {"headers": {"a": "b"}, "client_kwargs": {"headers": {"a": "b"}, "auth": ["a", "b"]}},
}
RECORD = Record(epoch=0, start=0, stop=4, samples=9, dense=True, rank=0, world_size=1)
FORMATS = {name: {**msgspec.structs.asdict(find_format(name, {}))} for name in BUILT_IN}


def to_toml(value: object) -> str:
    """Returns a value as TOML writes it; None is "auto"."""
    match value:
        case bool():
            return "true" if value else "false"
        case None:
            return '"auto"'
        case str():
            return json.dumps(value.encode("utf-8", "replace").decode())
        case Mapping():
            return "{" + ", ".join(f"{to_toml(str(name))} = {to_toml(each)}" for name, each in value.items()) + "}"
        case list():
            return f"[{', '.join(map(to_toml, value))}]"
    return repr(value)


def read_config(folder: Path, value: Mapping[str, object]) -> None:
    """Reads a configuration of a service from a file."""
    path = folder / "streamer.toml"
    path.write_text("\n".join(f"{to_toml(name)} = {to_toml(each)}" for name, each in value.items()))
    read_service_config(path, Environment.read({"HOME": str(folder), "STREAMER_RUNTIME_DIR": str(folder)}), {})


VALUES: list[tuple[str, Any, Callable[[Any, Path], object]]] = [
    *((f"state {number}", state, lambda value, _: State.from_dict(value)) for number, state in enumerate(STATES)),
    ("records", write_records([RECORD]), lambda value, _: read_records(value)),
    *(
        (f"format {name}", options, lambda value, _, name=name: find_format(name, value))
        for name, options in FORMATS.items()
    ),
    ("join", JOIN, lambda value, _: JoinOptions.parse(value)),
    ("annotations", {"url": "a.csv", "key": "k", "fields": ["a"]}, lambda value, _: Annotations.parse(value)),
    ("configuration", CONFIG, lambda value, folder: read_config(folder, value)),
    *(
        (f"options of {url}", options, lambda value, _, url=url: open_store(url, value))
        for url, options in STORES.items()
    ),
]


@given(st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_values_of_other_types_are_taken_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    """A value that users give by name, of another type or out of its range, is taken, or raises one of our errors."""
    _, value, read = data.draw(st.sampled_from(VALUES))
    odd = data.draw(changed(value))
    if not isinstance(odd, Mapping):
        return
    with suppress(StreamerError):
        read(odd, tmp_path)


# ---------------------------------------------------------------- arguments of other types

# What an argument may be given by mistake.
MISTAKES = [
    *(None, True, -1, 0, 1, 2**63, 10**30, 1.5, float("nan"), float("inf"), "", "x", "a\0b", b"x", [], [1], ["a"], {}),
    *({"a": 1}, (1,), (1, 2), ("a", "b"), object(), np.int64(3), np.float32(1), np.array([1]), {1, 2}, Path("/x")),
]
# Values for arguments that a class needs, besides the one that is tried.
NEEDED = {"urls": "/x/", "url": "a.csv", "length": 512, "dtype": "<f4", "batch_size": 2, "batches": [], "device": "cpu"}
NEEDED |= {"tokens_per_batch": 512, "weights": {"a": 1}, "members": {}, "lengths": [256, 512], "dataset": None}
PUBLIC = {name: getattr(streamer, name) for name in streamer.__all__ if inspect.isclass(getattr(streamer, name))}
PUBLIC |= {name: getattr(streamer.decode, name) for name in ("ArrayDecoder", "AudioClip", "Frames", "ImageDecoder")}
PUBLIC |= {"VideoClip": streamer.decode.VideoClip}
PUBLIC |= {f"formats.{name}": getattr(streamer.formats, name) for name in {row.class_name for row in BUILT_IN.values()}}


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_arguments_of_other_types_are_taken_or_refused(name: str) -> None:
    """Whatever value an argument of a public class has, it is taken, or a ConfigError says which rule it breaks."""
    made = PUBLIC[name]
    parameters = [each for each in inspect.signature(made).parameters.values() if each.kind != each.VAR_KEYWORD]
    needed = {each.name: NEEDED.get(each.name, 1) for each in parameters if each.default is each.empty}
    for each in parameters:
        for value in MISTAKES:
            with suppress(ConfigError):
                made(**{**needed, each.name: value})
