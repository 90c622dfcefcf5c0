"""The format "tfrecord": a sample is a record in its frame.

`formats/registry.py` makes it for engine, recoders and workers. A frame is `u64 length, u32 checksum of the length,
payload, u32 checksum of the payload`, little-endian; the payload is the record. The checksum is CRC-32C, rotated and
offset ("masked"). The checksum of a length is verified when the frames of a file are found, with an index file only
for the first and the last frame. That of a payload is not verified: damage to lengths is noticed anyway, at last when
the record is opened, and chunks have checksums of their own.

Source: https://www.tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from struct import Struct

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import ConfigError, DecodeError, ManifestError, RecodeError
from streamer.formats.base import Facts, Field, Format, Opener, Records, SampleName
from streamer.formats.compressed import (
    CompressedRecoder,
    DecompressError,
    decompress,
    find_compression_of_name,
    index_compressed,
    is_compressed,
)
from streamer.formats.failures import DamagedError, check_not_empty, make_damage_error, make_refusal
from streamer.formats.names import base_name, find_compression_of_bytes, kind_of_bytes
from streamer.formats.reading import Asking, Window, read_range
from streamer.formats.sidecars import pair_sidecars, walk_sidecar
from streamer.manifest.beside import is_hidden
from streamer.manifest.blocks import MOST_FETCH_BYTES, MOST_RECORD_BYTES
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Examine, Examined, Indexing, Source, Span, Surveying
from streamer.tables import tfrecord_example as example

_NAME = re.compile(r".*\.(tfrecords?|tfrec)((-|\.)\d+-of-\d+|-\d+)?(\.(gz|gzip|zlib|zst))?|.+-\d{5}-of-\d{5}(\.gz)?")
_INDEX_ENDINGS = (".idx", "/.idx", ".index", "/.index")
# The words of `features=` for numbers, and their dtypes.
_WORDS = {"int": "<i8", "float": "<f4"}
_RULE = re.compile(r"(int|float)(\[[-\d,]*\])?")
_LIST_RULE = re.compile(r"(bytes|image|txt|json|npy)\[\]")
# Bytes of the first file in which features that are lists are looked for. `_LISTS` is their name in the notes of the
# facts, and the first word of the hint with which a recoder is asked for them.
_PROBE_BYTES = 256 << 10
_LISTS = "lists"


class TFRecord(Format, frozen=True, forbid_unknown_fields=True):
    """Reads TFRecord files, also compressed ones (gzip, Zstandard).

    If there is an index file beside a file (`x.tfrecord.idx` or `x.idx`, as DALI and PyPI's `tfrecord` write it), the
    index comes from it.

    Attributes:
        example: whether the records are tf.train.Example messages. If not, the bytes of a record are the field
            "record".
        features: kinds of some features, by name. For numbers: "int" or "float" (one number), "int[3]", "float[-1,4]"
            (arrays of a shape, of which one length may be open). For bytes: any kind of a field, such as "image",
            "bytes", "txt", "json", "npy", "<f4[64,64]" (numbers as numpy's `tobytes` gives them); and for lists
            "bytes[]", "image[]", "txt[]", "json[]", "npy[]". Other features of numbers are arrays of one dimension.
            Other features of bytes are bytes, or an image if they begin like one. If a record at the beginning of the
            first file has several byte strings in such a feature, or none, the feature is a list in each sample.
    """

    name = "tfrecord"
    example: bool = True
    features: Mapping[str, str] = msgspec.field(default_factory=dict)

    def accepts(self, key: str) -> bool:
        """Whether an object has a name of TFRecord: `.tfrecord` and its spellings, numbered shards, compressed ones."""
        return _NAME.fullmatch(base_name(key).lower()) is not None and not is_hidden(key)

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Pairs files with index files, and finds which features are lists of byte strings; takes all files.

        Raises:
            ConfigError: a library that decompresses the first file is missing.
        """
        survey = pair_sidecars(accepted, others, _INDEX_ENDINGS, 2 * HEAD.size)
        filled = next((record for record in accepted if record.size), None)
        if not self.example or filled is None:
            return survey
        lists = yield from self._lists_in(filled)
        # The facts get no notes if there are no lists, so that they equal those of earlier versions.
        return msgspec.structs.replace(survey, facts=Facts(notes={_LISTS: lists})) if lists else survey

    def _lists_in(self, record: ObjectRecord) -> Asking[list[str]]:
        """Returns the features that have several byte strings, or none, in a record at the beginning of a file.

        Returns [] for a file that cannot be read: its index says what is wrong.
        """
        if not is_compressed(record.url):
            head = yield from read_range(0, min(record.size, _PROBE_BYTES), record)
            if (first := LEAST_BYTES + int.from_bytes(head[:8], "little")) > len(head):
                # The first record is longer than what was read. If its length is absurd, nothing more is read, and the
                # index reports it.
                stop = min(record.size, first) if begins_frame(head[: HEAD.size]) else 0
                head = yield from read_range(0, stop, record)
            return lists_in(head)
        if record.size > MOST_FETCH_BYTES:
            return []
        hint = f"{_LISTS} {find_compression_of_name(record.url)}".encode()
        try:
            found = yield Examine(
                object=record, format=self.name, options=self.options, facts=Facts(), hint=hint, reads=True
            )
        except ManifestError:
            # The index tells what is wrong with the file, and may leave it out.
            return []
        assert isinstance(found, Examined)
        return msgspec.json.decode(found.records, type=list[str])

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the records, by the index file or by their lengths. Of a compressed file it yields one block.

        Raises:
            ManifestError: as `walk` and `walk_sidecar`; the file is compressed with zlib, or as `index_compressed`.
            ConfigError: a library that decompresses the file is missing.
        """
        record = source.record
        if is_compressed(record.url):
            yield from index_compressed(self, source, facts)
        elif record.url.lower().endswith(".zlib"):
            raise make_refusal(record, "is compressed with zlib; decompress it, or write it without compression")
        elif source.sidecar is None:
            yield from walk(record, start)
        else:
            yield from walk_sidecar(
                source=source, start=start, edges_of=_edges, head_bytes=HEAD.size, is_head=begins_frame
            )

    def recoder(self, facts: Facts) -> CompressedRecoder:
        """Returns what decompresses files and makes records of their frames."""
        return _ExampleRecoder(self, facts)

    def opener(self, facts: Facts) -> Opener:
        """Returns what takes Examples apart; without `example` the format itself, which leaves records as they are.

        Raises:
            ConfigError: a rule of `features` is empty.
        """
        lists = msgspec.convert(facts.notes.get(_LISTS, ()), tuple[str, ...])
        return ExampleOpener(self.features, lists) if self.example else self

    def open(self, content: memoryview, name: SampleName) -> tuple[None, Sequence[Field]]:
        """Returns no key, and the payload of a frame as the field "record"; raises DecodeError."""
        return None, [Field("record", payload_of(content), "bytes")]


class _ExampleRecoder(CompressedRecoder):
    """Decompresses files; also finds, for a survey, which of their features are lists."""

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Makes records of the samples of one file; raises RecodeError.

        With a hint "lists <compression>" it makes one record, the JSON of the names of features that are lists.
        """
        word, _, compression = hint.decode("ascii", "replace").partition(" ")
        if word != _LISTS:
            return super().recode(content, samples, hint)
        try:
            decompressed = decompress(compression, content, MOST_RECORD_BYTES)
        except DecompressError as error:
            raise RecodeError(f"{error}; decompress it, or pack it as several files") from error
        found = msgspec.json.encode(lists_in(decompressed[:_PROBE_BYTES]))
        return Records([found], np.array([len(found)], np.int64))


def lists_in(content: memoryview) -> list[str]:
    """Returns the sorted names of features that have several byte strings, or none, in any record of some frames."""
    found = set[str]()
    at = 0
    while at + HEAD.size <= len(content):
        stop = at + LEAST_BYTES + int.from_bytes(content[at : at + 8], "little")
        if stop > len(content):
            break
        try:
            features = example.parse_example(content[at + 12 : stop - 4])
            strings = [(name, content) for name, (tag, content) in features.items() if tag == example.BYTES]
            found |= {name for name, values in strings if len(example.byte_strings(values)) != 1}
        except DamagedError:
            # The record is no Example, which is reported when it is opened.
            break
        at = stop
    return sorted(found)


class ExampleOpener:
    """Opens samples whose records are tf.train.Example messages.

    Args:
        features: option of `TFRecord`.
        lists: names of features that are lists of byte strings, unless `features` says otherwise.

    Raises:
        ConfigError: a rule of `features` is empty.
    """

    def __init__(self, features: Mapping[str, str], lists: Sequence[str] = ()) -> None:
        self._kinds = dict.fromkeys(lists, f"{example.STRINGS}bytes")
        self._kinds |= {name: _kind(name, rule) for name, rule in features.items()}

    def open(self, content: memoryview, name: SampleName) -> tuple[None, Sequence[Field]]:
        """Returns no key, and a field for each feature.

        Raises:
            DecodeError: the bytes are not an Example in its frame, or a feature does not have its kind.
        """
        kinds = self._kinds
        payload = payload_of(content)
        try:
            return None, [
                _field(feature_name, feature, kinds.get(feature_name, ""))
                for feature_name, feature in example.parse_example(payload).items()
            ]
        except DamagedError as error:
            raise DecodeError(
                f"{error} (at byte {error.offset}); records that are not Examples: TFRecord(example=False)",
                offset=error.offset,
            ) from error


def payload_of(content: memoryview) -> memoryview:
    """Returns the payload of a frame; raises DecodeError if the frame says another length."""
    size = len(content)
    length = int.from_bytes(content[:8], "little")
    if size < LEAST_BYTES or length != size - LEAST_BYTES:
        raise DecodeError(f"not a TFRecord frame: {length} bytes of payload in {size}", offset=0)
    return content[12:-4]


def _field(name: str, feature: example.Feature, kind: str) -> Field:
    """Returns the field of a feature; `kind` is "" if neither rule nor survey says it. Raises DecodeError."""
    tag, content = feature
    if tag == example.BYTES:
        if kind.startswith(example.STRINGS):
            return Field(name, content, kind)
        values = example.byte_strings(content)
        if len(values) == 1:
            return Field(name, values[0], kind or kind_of_bytes(values[0]))
        reason = f"as {kind!r} would need" if kind else "as at the beginning of the first file"
        raise DecodeError(
            f"feature {name!r} has {len(values)} byte strings, not one, {reason}; lists in all samples: "
            f"TFRecord(features={{{name!r}: 'bytes[]'}})",
            field=name,
        )
    if tag == example.NOTHING:
        return Field(name, content, "null")
    if tag == example.FLOATS:
        numbers = example.floats(content)
        found = "<f4[]"
    else:
        numbers = example.integers(content)
        found = "<i8[]"
    if kind and kind[:3] != found[:3]:
        raise DecodeError(f"feature {name!r} has numbers of type {found[:3]!r}, not {kind!r}")
    return Field(name, numbers, kind or found)


def _kind(name: str, rule: str) -> str:
    """Returns the kind of a field from a rule of `features=`; raises ConfigError if the rule is empty."""
    if not rule:
        raise ConfigError(f"features[{name!r}] is empty; it is a kind, such as 'int' or 'float[-1,4]'", field="format")
    if found := _LIST_RULE.fullmatch(rule):
        return f"{example.STRINGS}{found[1]}"
    if found := _RULE.fullmatch(rule):
        return f"{_WORDS[found[1]]}{found[2] or ''}"
    return rule


def _edges(content: bytes, size: int) -> list[int]:
    """Returns the bytes at which frames begin, and the length of the file, from the lines of an index file.

    A line is "offset size". Raises ValueError for another content.
    """
    try:
        numbers = [tuple(map(int, line.split())) for line in content.splitlines() if line.strip()]
        starts = [start for start, _ in numbers]
        sizes = [length for _, length in numbers]
    except ValueError as error:
        raise ValueError(f"a line is not 'offset size' ({error})") from error
    stops = [start + length for start, length in numbers]
    if [*starts, size] != [0, *stops] or min(sizes, default=0) < LEAST_BYTES:
        raise ValueError("its records do not follow each other from the first byte to the last")
    return [*starts, size]


# Length of a frame's payload, and the checksum of the length.
HEAD = Struct("<QI")
# Bytes of a frame without payload.
LEAST_BYTES = 16
_REVERSED_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
# Source: https://github.com/google/riegeli, doc/riegeli_records_file_format.md, "File signature".
_RIEGELI = bytes.fromhex("83af70d10d884a3f")


def walk(record: ObjectRecord, start: int) -> Indexing:
    """Yields the frames of a file, one after the other, from byte `start` on.

    Raises:
        ManifestError: the file is empty, damaged, cut off, compressed, or of another format.
    """
    check_not_empty(record)
    window = Window(record.size, start)
    at = start
    size = record.size
    while at < size:
        if at + HEAD.size > size:
            raise make_damage_error(record, f"cut off inside the head of a record, {size - at} bytes", at)
        if not window.covers(at, at + HEAD.size):
            yield from window.reach(at, at + HEAD.size)
        starts, lengths, sums = heads_in(window, at)
        if len(wrong := _wrong_lengths(lengths, sums)):
            first = starts[int(wrong[0])]
            if first == 0 and (compression := find_compression_of_bytes(window.content)):
                raise make_refusal(
                    record, f"is compressed with {compression}; decompress it, or write it without compression"
                )
            if first == 0 and window.take(0, len(_RIEGELI)) == _RIEGELI:
                raise make_refusal(
                    record, "is ArrayRecord or Riegeli, which streamer does not read; write it as TFRecord"
                )
            raise make_damage_error(record, "not a TFRecord frame: the checksum of the length is wrong", first)
        at = starts[-1] + LEAST_BYTES + lengths[-1]
        if at > size:
            raise make_damage_error(record, f"cut off inside a record, which needs {at - size} more bytes", starts[-1])
        for first, stop in zip(starts, [*starts[1:], at], strict=True):
            yield Span(first, stop)


def heads_in(window: Window, at: int) -> tuple[list[int], list[int], list[int]]:
    """Follows the frames from byte `at` on whose heads are in a window.

    Returns, for each, the byte at which it begins, the length of its payload, and the checksum of that length.
    """
    starts = []
    lengths = []
    sums = []
    read_head = HEAD.unpack_from
    content = window.content
    base = window.start
    last = window.stop - HEAD.size
    while at <= last:
        length, checksum = read_head(content, at - base)
        starts.append(at)
        lengths.append(length)
        sums.append(checksum)
        at += LEAST_BYTES + length
    return starts, lengths, sums


def begins_frame(head: memoryview) -> bool:
    """Whether a frame can begin with these bytes: they are a head, and the checksum of the length is right."""
    if len(head) < HEAD.size:
        return False
    length, checksum = HEAD.unpack(head)
    return not len(_wrong_lengths([length], [checksum]))


def _wrong_lengths(lengths: list[int], sums: list[int]) -> NDArray[np.int64]:
    """Returns the places in `lengths` of those whose checksums are wrong."""
    return np.flatnonzero(sum_lengths(np.array(lengths, "<u8")) != np.array(sums, np.uint32))


def sum_lengths(lengths: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Returns the masked CRC-32C of each length. All are computed at once: 40 ns each, where a loop takes 1.5 us."""
    sums = np.full(len(lengths), 0xFFFFFFFF, np.uint32)
    for byte in lengths.view(np.uint8).reshape(-1, 8).T:
        sums = _TABLE[(sums ^ byte) & 0xFF] ^ (sums >> np.uint32(8))
    sums = ~sums
    return (sums >> np.uint32(15) | sums << np.uint32(17)) + np.uint32(_MASK_DELTA)


def _table() -> NDArray[np.uint32]:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = (values >> np.uint32(1)) ^ np.where(values & 1, np.uint32(_REVERSED_POLYNOMIAL), np.uint32(0))
    return values


_TABLE = _table()
