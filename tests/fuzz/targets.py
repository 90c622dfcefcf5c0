"""What is fuzzed: for each own parser, good inputs and a function that reads one; what it may raise is said, too.

A format is fuzzed with the files of its contract (tests/formats), whose classes are found without importing them.
"""

from __future__ import annotations

import functools
import io
import json
import random
import re
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from PIL import Image

from streamer.annotations.options import TableOptions
from streamer.annotations.parse import AnnotationRecoder
from streamer.decode.dispatch import SampleDecoder
from streamer.decode.images import ImageDecoder
from streamer.errors import (
    ConfigError,
    DecodeError,
    IntegrityError,
    ManifestCorruptError,
    ManifestError,
    ProtocolError,
    RecodeError,
)
from streamer.formats.base import Field
from streamer.formats.chunkfile import ChunkHeader, RecordTable, encode_table
from streamer.manifest.arrow_ipc.reader import map_table, read_layout
from streamer.manifest.arrow_ipc.writer import write_table
from streamer.manifest.columns import BinaryColumn
from streamer.manifest.layout import ManifestContent, ManifestPart, TableRun, decode_root, encode_root, file_name
from streamer.manifest.model import Codec
from streamer.store.curl.listing import parse_page, parse_uploads
from streamer.wire.frames import encode, event_decoder, request_decoder
from streamer.wire.messages import Failed, Welcome
from tests.formats.cases import Case, Found, block_bytes, contents_of, facts_of, find, recode
from tests.formats.mutations import mutated
from tests.fuzz import frames

# More than any input of these sizes may need.
MAX_SECONDS = 1.0
MAX_BYTES = 64 << 20
# After so long the input is given up, in seconds of the clock: the machine may be busy.
_HANG_SECONDS = 60
_FORMATS = Path(__file__).parents[1] / "formats"
_RECORDS = (np.array([3, 5]), np.array([3, 4, 5]), np.array([[[0, 2], [2, 2]], [[1, 3], [0, 1]]]))
_TABLE_SCHEMA = {"key": "binary", "size": "int64", "name": "key16", "codec": "uint8"}


class Target(NamedTuple):
    """A parser that is fuzzed.

    Attributes:
        seeds: good inputs, by name.
        read: reads an input to its end; the name is that of its seed.
        refusals: errors that it may raise.
    """

    seeds: Sequence[tuple[str, bytes]]
    read: Callable[[str, bytes], object]
    refusals: tuple[type[Exception], ...]


def format_classes() -> dict[str, str]:
    """Returns the classes of the formats' contracts: name -> module."""
    found = {}
    for path in sorted(_FORMATS.glob("test_*.py")):
        for name in re.findall(r"^class Test(\w+)\(FormatContract\)", path.read_text(), re.MULTILINE):
            found[f"format.{name}"] = f"tests.formats.{path.stem}"
    return found


def format_cases(name: str) -> list[Case]:
    """Returns the datasets of a format's contract."""
    contract = getattr(import_module(format_classes()[name]), f"Test{name.removeprefix('format.')}")
    cases: list[Case] = contract.cases()
    return cases


def make_format(name: str) -> Target:
    """Returns a format: index, recoding and opening of a dataset of which one object is changed."""
    cases = format_cases(name)
    seeds = [(f"{number} {key}", content) for number, case in enumerate(cases) for key, content in case.objects.items()]

    def read(label: str, content: bytes) -> None:
        number, _, key = label.partition(" ")
        case = cases[int(number)]
        objects = {**case.objects, key: content}
        found = find(case.format, objects)
        opener = case.format.opener(facts_of(found))
        for record, sample in contents_of(case.format, found, objects):
            opener.open(memoryview(record), sample)

    # A field whose name is damaged is not the one that an option names.
    return Target(seeds, read, (ManifestError, DecodeError, RecodeError, ConfigError))


def make_hints() -> Target:
    """Returns what the index of a video tells its recoder."""
    cases = {case.name: case for case in format_cases("format.Video")}
    blocks = {}
    for name, case in cases.items():
        for source, items in find(case.format, case.objects).items:
            whole = next(content for key, content in case.objects.items() if source.record.url.endswith(key))
            blocks[name] = (items[0], block_bytes(items[0], whole, case.objects))

    def read(label: str, hint: bytes) -> None:
        block, content = blocks[label]
        recode(cases[label].format, Found(None), msgspec.structs.replace(block, hint=hint), content)

    return Target([(name, block.hint) for name, (block, _) in blocks.items()], read, (RecodeError,))


def make_fields() -> Target:
    """Returns the decoders of fields, by extension."""
    # As large as is allowed by default, an image takes half a gigabyte.
    images = ImageDecoder(max_pixels=1 << 20)
    decode = SampleDecoder(dict.fromkeys(("png", "jpg", "webp", "bmp", "gif", "ppm", "pam", "tiff"), images))
    values = np.arange(64 * 48 * 3, dtype=np.uint8).reshape(48, 64, 3)
    seeds = []
    for extension, more in (
        ("png", {}),
        ("jpg", {}),
        ("webp", {}),
        ("bmp", {}),
        ("gif", {}),
        ("ppm", {}),
        ("tiff", {}),
        ("tiff", {"compression": "tiff_lzw"}),
        ("tiff", {"compression": "tiff_adobe_deflate"}),
        ("tiff", {"compression": "packbits"}),
    ):
        sink = io.BytesIO()
        Image.fromarray(values).save(sink, Image.registered_extensions()["." + extension], **more)
        seeds.append((f"x.{extension}", sink.getvalue()))
    pam = b"P7\nWIDTH 64\nHEIGHT 48\nDEPTH 3\nMAXVAL 255\nTUPLTYPE RGB\nENDHDR\n" + values.tobytes()
    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, values)
    np.savez(npz, a=values, b=np.arange(5))
    head = json.dumps({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    seeds += [
        ("x.pam", pam),
        ("x.npy", npy.getvalue()),
        ("x.npz", npz.getvalue()),
        ("x.safetensors", len(head).to_bytes(8, "little") + head + bytes(4)),
        ("x.json", b'{"a": [1, 2.5, null, "\\u00fc"]}'),
        ("x.jsonl", b'{"a": 1}\n{"a": 2}\n'),
        ("x.cls", b"17"),
        ("x.txt", "Grüße".encode()),
        ("x", msgspec.msgpack.encode({"a": [1, 2.5, None, b"x"]})),
    ]
    # By its kind, as formats of records say it.
    kinds = {"x": "nested"}

    def read(label: str, content: bytes) -> None:
        decode("key", [Field(label, memoryview(content), kinds.get(label, ""))])

    # An image that one library cannot read may be one of another, which is not installed.
    return Target(seeds, read, (DecodeError, ConfigError))


def make_annotations() -> Target:
    """Returns the readers of annotation files."""
    module = import_module("tests.annotations.test_parsing")
    seeds = [
        ("x.csv", module.CSV),
        ("x.tsv", module.CSV.replace(b",", b"\t")),
        ("x.jsonl", module.lines(module.ROWS)),
        ("x.json", json.dumps(module.COCO).encode()),
        ("x.parquet", module.parquet(module.ROWS)),
    ]

    def read(label: str, content: bytes) -> None:
        AnnotationRecoder(TableOptions(label)).recode(memoryview(content), -1, b"")

    return Target(seeds, read, (RecodeError, ConfigError))


def make_frames() -> Target:
    """Returns the protocol between trainers and engine."""
    drawn = random.Random(0)
    messages = [frames.message(drawn, ("0" * 32,)) for _ in range(180)]
    asked = [("request", b"".join(map(encode, messages[number::60]))) for number in range(60)]
    events = [("event", encode(message)) for message in (Welcome(1, "", 2, "", ""), Failed("Error", "text", {}))]

    def read(label: str, content: bytes) -> None:
        decoder = request_decoder() if label == "request" else event_decoder()
        middle = len(content) // 2
        for piece in (content[:middle], content[middle:]):
            list(decoder.feed(piece))
        if len(decoder._buffer) > len(content):
            raise AssertionError(f"{len(decoder._buffer)} bytes are kept of {len(content)}")

    return Target([*asked, *events], read, (ProtocolError,))


def make_manifest() -> Target:
    """Returns the files of a manifest: root.json, and tables of both readers."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    path = folder / "t.arrows"
    table = {
        "key": BinaryColumn.of([b"k%d" % number for number in range(9)]),
        "size": np.arange(9, dtype=np.int64),
        "name": np.arange(16 * 9, dtype=np.uint8).reshape(9, 16),
        "codec": np.zeros(9, np.uint8),
    }
    write_table(path, table)
    sink = io.BytesIO()
    batch = pa.record_batch({"a": pa.array([1, 2]), "b": pa.array([b"x", b"yz"], pa.large_binary())})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    runs = {name: TableRun(0, 1, "00" * 16) for name in ("objects", "chunks", "samples")}
    content = ManifestContent("folder", True, "s3://b/", ["cat"], 8192, 100, [ManifestPart(runs)])
    root = encode_root(content, ["s3://b/"], {file_name(name, 0): 500 for name in runs})

    def read(label: str, raw: bytes) -> None:
        if label == "root":
            found = decode_root(raw, "root.json")
            if found.content.digest() != found.digest:
                raise AssertionError("a content that its digest does not fit")
        elif label == "layout":
            layout = read_layout(raw, "t")
            if not all(0 <= start <= stop <= len(raw) for start, stop in layout.buffers):
                raise AssertionError("a buffer outside of the stream")
        else:
            path.write_bytes(raw)
            for column in map_table(path, _TABLE_SCHEMA).values():
                _ = [column[row] for row in range(len(column))]

    seeds = [("table", path.read_bytes()), ("layout", sink.getvalue()), ("root", root)]
    return Target(seeds, read, (ManifestCorruptError, ManifestError))


def make_chunk_files() -> Target:
    """Returns headers of chunk files, and tables of their records."""
    header = ChunkHeader(key=bytes(16), local_bytes=80, samples=2, table_crc=1, payload_crc=2, codec=Codec.SHARED)
    lengths, part_lengths, ranges = _RECORDS
    shared = bytes(20) + encode_table(lengths, part_lengths, ranges)
    plain = bytes(8) + encode_table(lengths, part_lengths[:0], np.empty((0, 0, 2)))

    def read(label: str, raw: bytes) -> None:
        if label == "header":
            ChunkHeader.decode(raw, "file")
            return
        table = RecordTable.decode(raw, 2, Codec.SHARED if label == "shared" else Codec.RECORDS, len(raw))
        content = memoryview(raw)
        _ = [table.record(sample, content) for sample in range(table.samples)]

    seeds = [("header", header.encode()), ("shared", shared), ("plain", plain)]
    return Target(seeds, read, (IntegrityError, ValueError))


def make_listings() -> Target:
    """Returns what an S3 answers to a list: of objects, and of uploads that were begun."""
    entry = b"<Contents><Key>a%20b</Key><Size>7</Size><ETag>&quot;x&quot;</ETag></Contents>"
    dated = b"<Contents><Key>c</Key><Size>0</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
    upload = b"<Upload><Key>a</Key><UploadId>1</UploadId></Upload>"
    space = b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    more = b"<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
    uploads = (
        b"<NextKeyMarker>k</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker><IsTruncated>true</IsTruncated>"
    )
    seeds = [
        ("objects", space + b"<EncodingType>url</EncodingType>" + entry + dated + more + b"</ListBucketResult>"),
        ("objects", b"<ListBucketResult>" + entry * 20 + b"</ListBucketResult>"),
        ("uploads", b"<ListMultipartUploadsResult>" + upload + uploads + b"</ListMultipartUploadsResult>"),
    ]

    def read(label: str, body: bytes) -> None:
        if label == "objects":
            assert all(0 <= record.size < 1 << 53 for record in parse_page("s3://b", body).records)
        else:
            parse_uploads("s3://b", body)

    return Target(seeds, read, (ConfigError,))


TARGETS: Mapping[str, Callable[[], Target]] = {
    "annotations": make_annotations,
    "chunk_files": make_chunk_files,
    "fields": make_fields,
    "frames": make_frames,
    "hints": make_hints,
    "listings": make_listings,
    "manifest": make_manifest,
    **{name: functools.partial(make_format, name) for name in format_classes()},
}


class HangError(Exception):
    """Raised when an input is not read within a minute."""


def _give_up(_number: int, _frame: FrameType | None) -> None:
    raise HangError(f"not read within {_HANG_SECONDS} s")


def change(target: Target, drawn: random.Random) -> tuple[str, bytes]:
    """Returns a changed seed, and its name."""
    label, content = drawn.choice(target.seeds)
    return label, mutated(content, drawn)


def check(target: Target, label: str, content: bytes) -> bool:
    """Reads an input; returns whether it is refused.

    Raises:
        Exception: whatever it must not raise.
        AssertionError: it takes too much time or memory.
        HangError: it does not end. Not in C, which is not interrupted.
    """
    refused = False
    peak = _peak_bytes()
    begun = time.process_time()
    before = signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(_HANG_SECONDS)
    try:
        target.read(label, content)
    except target.refusals:
        refused = True
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    seconds = time.process_time() - begun
    more = _peak_bytes() - peak
    if seconds > MAX_SECONDS:
        raise AssertionError(f"{label}: {seconds:.1f} s of CPU for {len(content)} bytes")
    if more > MAX_BYTES + 8 * len(content):
        raise AssertionError(f"{label}: {more:,} bytes of memory for {len(content)} bytes")
    return refused


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
