"""TFRecord: a sample is a record with its length and checksums."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from streamer.errors import ConfigError, DecodeError
from streamer.formats.base import Facts, Field, Format, Opener, SampleName
from streamer.formats.failures import DamagedError, refused
from streamer.formats.names import base_name, kind_of_bytes
from streamer.formats.packed.whole import PackedRecoder, index_packed, is_packed
from streamer.formats.sidecars import listed_samples, with_sidecars
from streamer.formats.tfrecord import example, framing
from streamer.manifest.beside import is_hidden
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing, Source, Surveying

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
        features: kinds of some features: "int" or "float" (one number), "int[3]", "float[-1,4]" (arrays of a shape, of
            which one length may be open), and of bytes any kind of a field: "image", "bytes", "txt", "json", "npy",
            "<f4[64,64]" (numbers as numpy's `tobytes` gives them). Others are arrays of one dimension, or bytes, or a
            list of bytes; bytes that begin as a picture are decoded as one.
    """

    name = "tfrecord"
    example: bool = True
    features: Mapping[str, str] = msgspec.field(default_factory=dict)

    def accepts(self, key: str) -> bool:
        """Accepts `.tfrecord` and its spellings, numbered shards, and packed ones."""
        return _NAME.fullmatch(base_name(key).lower()) is not None and not is_hidden(key)

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Finds the index files."""
        yield from ()
        return with_sidecars(accepted, others, _INDEX_ENDINGS, 2 * framing.HEAD.size)

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the records, by the index file or by their lengths."""
        record = source.record
        if is_packed(record.url):
            yield from index_packed(self, source, facts)
        elif record.url.lower().endswith(".zlib"):
            raise refused(record, "is compressed with zlib; unpack it, or write it without compression")
        elif source.sidecar is None:
            yield from framing.walk(record, start)
        else:
            yield from listed_samples(source, start, _edges, framing.HEAD.size, framing.begins_frame)

    def recoder(self, facts: Facts) -> PackedRecoder:
        """Unpacks compressed files."""
        return PackedRecoder(self, facts)

    def opener(self, facts: Facts) -> Opener:
        """Takes Examples apart, or leaves records as they are."""
        return ExampleOpener(self.features) if self.example else self

    def open(self, content: memoryview, name: SampleName) -> tuple[None, Sequence[Field]]:
        """Returns the content of a record as the field "record"."""
        return None, [Field("record", payload_of(content), "bytes")]


class ExampleOpener:
    """Opens tf.train.Example messages, with the features of `TFRecord`; raises ConfigError if a rule has no meaning."""

    def __init__(self, features: Mapping[str, str]) -> None:
        self._kinds = {name: _kind(name, rule) for name, rule in features.items()}

    def open(self, content: memoryview, name: SampleName) -> tuple[None, Sequence[Field]]:
        """Returns a field for each feature."""
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
    """Returns the content of a frame; raises DecodeError if the frame says another length."""
    size = len(content)
    length = int.from_bytes(content[:8], "little")
    if size < framing.LEAST_BYTES or length != size - framing.LEAST_BYTES:
        raise DecodeError(f"not a TFRecord frame: {length} bytes of payload in {size}", offset=0)
    return content[12:-4]


def _field(name: str, feature: example.Feature, kind: str) -> Field:
    tag, content = feature
    if tag == example.BYTES:
        values = example.byte_strings(content)
        if len(values) == 1:
            return Field(name, values[0], kind or kind_of_bytes(values[0]))
        if kind:
            raise DecodeError(f"feature {name!r} has {len(values)} byte strings, not one, as {kind!r} would need")
        return Field(name, content, "tf-bytes")
    if tag == example.NOTHING:
        return Field(name, content, "null")
    if tag == example.FLOATS:
        numbers, found = example.floats(content), "<f4[]"
    else:
        numbers, found = example.integers(content), "<i8[]"
    if kind and kind[:3] != found[:3]:
        raise DecodeError(f"feature {name!r} has numbers of type {found[:3]!r}, not {kind!r}")
    return Field(name, numbers, kind or found)


def _kind(name: str, rule: str) -> str:
    """Returns the kind of a field, from a rule of `features=`."""
    if not rule:
        raise ConfigError(f"features[{name!r}] is empty; it is a kind, such as 'int' or 'float[-1,4]'", field="format")
    if found := _RULE.fullmatch(rule):
        return f"{_WORDS[found[1]]}{found[2] or ''}"
    return rule


def _edges(content: bytes, size: int) -> list[int]:
    """Returns where the records begin, and the end, from lines "offset size"."""
    try:
        numbers = [tuple(map(int, line.split())) for line in content.splitlines() if line.strip()]
        starts, sizes = [start for start, _ in numbers], [length for _, length in numbers]
    except ValueError as error:
        raise ValueError(f"a line is not 'offset size' ({error})") from error
    stops = [start + length for start, length in numbers]
    if [*starts, size] != [0, *stops] or min(sizes, default=0) < framing.LEAST_BYTES:
        raise ValueError("its records do not follow each other from the first byte to the last")
    return [*starts, size]
