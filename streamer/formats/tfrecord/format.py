"""TFRecord: a sample is a record with its length and checksums."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from streamer.errors import ConfigError, DecodeError
from streamer.formats.base import Facts, Field, Format, Indexing, Opener, SampleName, Source, Surveying
from streamer.formats.failures import contradicts, refused
from streamer.formats.names import base_name, kind_of_bytes
from streamer.formats.packed.whole import PackedRecoder, index_packed, is_packed
from streamer.formats.sidecars import read_heads, read_sidecar, spans_between, with_sidecars
from streamer.formats.tfrecord import framing
from streamer.formats.tfrecord.example import (
    BYTES,
    FLOATS,
    NOTHING,
    ExampleError,
    Feature,
    byte_strings,
    floats,
    integers,
    parse_example,
)
from streamer.manifest.model import ObjectRecord

_NAME = re.compile(r".*\.(tfrecords?|tfrec)((-|\.)\d+-of-\d+|-\d+)?(\.(gz|gzip|zlib|zst))?|.+-\d{5}-of-\d{5}(\.gz)?")
_INDEX_ENDINGS = (".idx", "/.idx", ".index", "/.index")
# The words of `features=`, with the shape behind them.
_WORDS = {"int": "<i8", "float": "<f4"}
_RULE = re.compile(r"(int|float)(\[[-\d,]*\])?")


class TFRecord(Format, frozen=True, forbid_unknown_fields=True):
    """TFRecord files, also compressed ones (gzip, Zstandard).

    An index file beside one (`x.tfrecord.idx` or `x.idx`, as DALI and PyPI's `tfrecord` write it) is read instead.

    Attributes:
        example: the records are tf.train.Example messages; False: their bytes are the field "record".
        features: what is known of some features: "int" or "float" (one number), "int[3]", "float[-1,4]" (arrays of a
            shape, of which one length may be open), and of bytes any kind of a field: "image", "bytes", "txt", "json",
            "npy", "<f4[64,64]" (numbers as numpy's `tobytes` gives them). Others are arrays of one dimension, or bytes,
            or a list of bytes; what begins as a picture is decoded as one.
    """

    name = "tfrecord"
    example: bool = True
    features: Mapping[str, str] = msgspec.field(default_factory=dict)

    def accepts(self, key: str) -> bool:
        """`.tfrecord` and its spellings, numbered shards, and packed ones."""
        return _NAME.fullmatch(base_name(key).lower()) is not None

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Finds the index files."""
        yield from ()
        return with_sidecars(accepted, others, _INDEX_ENDINGS, 2 * framing.HEAD.size)

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the records, by the index file or by their lengths.

        Raises:
            ManifestError: compressed under a plain name, damaged, or an index file of another object.
        """
        record = source.record
        if is_packed(record.url):
            yield from index_packed(self, source, facts)
            return
        if record.url.lower().endswith(".zlib"):
            raise refused(record, "is compressed with zlib; unpack it, or write it without compression")
        if source.sidecar is None:
            yield from framing.walk(record, start)
            return
        content = yield from read_sidecar(source)
        edges = _edges(content, source, source.sidecar)
        ends = sorted({edges[0], edges[-2]})
        for at, head in zip(ends, (yield from read_heads(source, ends, framing.HEAD.size)), strict=True):
            length, checksum = framing.HEAD.unpack(head)
            if len(framing.wrong_lengths([length], [checksum])):
                raise contradicts(source.sidecar, record, f"no record begins at byte {at}")
        yield from spans_between(edges, start)

    def recoder(self, facts: Facts) -> PackedRecoder:
        """Of compressed files."""
        return PackedRecoder(self, facts)

    def opener(self, facts: Facts) -> Opener:
        """Takes Examples apart, or leaves records as they are."""
        return ExampleOpener(self.features) if self.example else RecordOpener()


class RecordOpener:
    """Opens records whose content is not known."""

    def open(self, content: memoryview, name: SampleName) -> tuple[None, Sequence[Field]]:
        """One field, "record".

        Raises:
            DecodeError: another length than the frame says.
        """
        return None, [Field("record", payload_of(content), "bytes")]


class ExampleOpener:
    """Opens tf.train.Example messages.

    Args:
        features: see `TFRecord`.

    Raises:
        ConfigError: a rule that has no meaning.
    """

    def __init__(self, features: Mapping[str, str]) -> None:
        self._kinds = {name: _kind(name, rule) for name, rule in features.items()}

    def open(self, content: memoryview, name: SampleName) -> tuple[None, Sequence[Field]]:
        """A field for each feature.

        Raises:
            DecodeError: not an Example, or a feature of another type than the options say.
        """
        kinds = self._kinds
        payload = payload_of(content)
        try:
            return None, [
                _field(feature_name, feature, kinds.get(feature_name, ""))
                for feature_name, feature in parse_example(payload).items()
            ]
        except ExampleError as error:
            raise DecodeError(
                f"{error}; records that are no Examples: TFRecord(example=False)", offset=error.offset
            ) from error


def payload_of(content: memoryview) -> memoryview:
    """The content of a frame.

    Raises:
        DecodeError: the frame says another length.
    """
    size = len(content)
    length = int.from_bytes(content[:8], "little")
    if size < framing.LEAST_BYTES or length != size - framing.LEAST_BYTES:
        raise DecodeError(f"not a TFRecord frame: {length} bytes of payload in {size}", offset=0)
    return content[12:-4]


def _field(name: str, feature: Feature, kind: str) -> Field:
    tag, content = feature
    if tag == BYTES:
        values = byte_strings(content)
        if len(values) == 1:
            return Field(name, values[0], kind or kind_of_bytes(values[0]))
        if kind:
            raise DecodeError(f"feature {name!r} has {len(values)} byte strings, not one, as {kind!r} would need")
        return Field(name, content, "tf-bytes")
    if tag == NOTHING:
        return Field(name, content, "null")
    numbers, found = (floats(content), "<f4[]") if tag == FLOATS else (integers(content), "<i8[]")
    if kind and kind[:3] != found[:3]:
        raise DecodeError(f"feature {name!r} has numbers of type {found[:3]!r}, not {kind!r}")
    return Field(name, numbers, kind or found)


def _kind(name: str, rule: str) -> str:
    """The kind of a field, by a rule of `features=`."""
    if not rule:
        raise ConfigError(f"features[{name!r}] is empty; it is a kind, such as 'int' or 'float[-1,4]'", field="format")
    if found := _RULE.fullmatch(rule):
        return f"{_WORDS[found[1]]}{found[2] or ''}"
    return rule


def _edges(content: bytes, source: Source, sidecar: ObjectRecord) -> list[int]:
    """Where the records begin, and the end, of lines "offset size"."""
    try:
        numbers = [tuple(map(int, line.split())) for line in content.splitlines() if line.strip()]
        starts, sizes = [start for start, _ in numbers], [size for _, size in numbers]
    except ValueError as error:
        raise contradicts(sidecar, source.record, f"a line is not 'offset size' ({error})") from error
    stops = [start + size for start, size in numbers]
    if [*starts, source.record.size] != [0, *stops] or min(sizes, default=0) < framing.LEAST_BYTES:
        raise contradicts(
            sidecar, source.record, "its records do not follow each other from the first byte to the last"
        )
    return [*starts, source.record.size]
