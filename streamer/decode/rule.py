"""Defines the option `decode=` of a dataset, which says how fields are decoded, and what packs read in its place.

Datasets of the loader take the option (`loader/dataset.py`), makers of samples, joins and annotations hand its rule on,
and `decode/dispatch.py` follows it. Scans yield `StoredSample` (`batches/samples/stored.py`), and packs write them
(`streamer/shards`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal, NamedTuple

from streamer.errors import ConfigError
from streamer.formats.base import Field

FieldDecoder = Callable[[bytes], object]
# "auto" decodes by extension, and None gives bytes. A mapping has decoders for some fields or extensions (None for
# bytes), and the others are decoded as by "auto". A function gets (field name, bytes) of each field.
DecodeRule = Literal["auto"] | None | Mapping[str, FieldDecoder | None] | Callable[[str, bytes], object]


class StoredFields:
    """A rule for packs, which write samples again: a sample gets each field as it is stored, as a `Field`."""

    def __call__(self, name: str, content: bytes, kind: str = "") -> Field:
        """Returns a `Field` with name, bytes and kind in place of a decoded value."""
        return Field(name, memoryview(content), kind)


class StoredSample(NamedTuple):
    """A sample that a pack is to write or leave out. The sources of a pack yield these.

    Attributes:
        ordinal: Number of the sample in the manifest of its source.
        where: Text that names the sample in errors.
        key: Key of the sample, or None if it has none.
        fields: Name and value of each field: a `Field` with the name that it is stored under, a list of them where
            several rows are joined, or a plain value.
        annotations: Fields from a file beside the data, which are written whatever `fields=` of the pack says.
        is_file: Whether the key is the path of a file.
        is_left_out: Whether the sample is not to be written, because the file of annotations has none for it.
    """

    ordinal: int
    where: str
    key: str | None
    fields: Sequence[tuple[str, object]]
    annotations: Sequence[Field] = ()
    is_file: bool = False
    is_left_out: bool = False


@dataclass(frozen=True)
class Decode:
    """Says how fields are decoded, and whether pickles are allowed.

        StreamingDataset(url, decode=Decode(allow_pickle=True))

    Args:
        rule: "auto" (by extension), None (bytes), a function of (field name, bytes), or a dict of functions by
            extension or field; see `streamer.decode`.
        allow_pickle: decode pickles (.pt, .pkl, and columns of MDS and LitData that are pickled), which runs the code
            that they contain. Only for data that you wrote yourself.

    Raises:
        ConfigError: an invalid value.
    """

    rule: DecodeRule = "auto"
    _: KW_ONLY
    allow_pickle: bool = False

    def __post_init__(self) -> None:
        check_rule(self.rule)
        if not isinstance(self.allow_pickle, bool):
            raise ConfigError(f"allow_pickle={self.allow_pickle!r} is neither True nor False", field="allow_pickle")

    @classmethod
    def from_rule(cls, given: DecodeRule | Decode) -> Decode:
        """Returns the argument `decode=` of a user as `Decode`; raises a ConfigError if it is no valid rule."""
        return given if isinstance(given, Decode) else cls(given)


def check_rule(rule: DecodeRule) -> None:
    """Raises a ConfigError if a rule is not valid. Imports no decoder."""
    if rule is None or rule == "auto" or callable(rule):
        return
    if not isinstance(rule, Mapping):
        raise ConfigError(
            f"decode={rule!r}: use 'auto', None (raw bytes), a function of (field name, bytes), or a dict from "
            "extension or field to function",
            field="decode",
        )
    for name, reader in rule.items():
        if reader is not None and not callable(reader):
            raise ConfigError(f"decode[{name!r}]={reader!r} is neither a function of bytes nor None", field="decode")
