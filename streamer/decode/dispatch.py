"""Chooses the decoder of a field, by its name or by the kind that its format names, and reports its errors.

Makers of samples decode each sample with a `SampleDecoder` (`batches/samples/maker.py`), and so do readers of joins and
scans (`batches/samples/joins.py`, `batches/scan.py`), annotations (`annotations/join.py`) and the columns, keys and
members of the loader (`loader/members`). `batches/samples/scatter.py` asks for plain arrays, and packs find decoders of
kinds (`shards/values.py`). `ELSEWHERE` names the modules with the decoders of kinds that only some formats write. They
are imported at their first use.
`streamer.formats.base.Field` says what a kind is.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from importlib import import_module
from struct import Struct

import numpy as np

from streamer.base.extras import explain_import_error
from streamer.base.system_limits import raise_shortage
from streamer.decode import arrays, images, values
from streamer.decode.arrays import NO_ROW, Array, ArrayDecoder, PlainArray, Row
from streamer.decode.base import Draws, TargetDecoder
from streamer.decode.rule import DecodeRule, FieldDecoder, StoredFields, check_rule
from streamer.decode.values import NestedDecoder
from streamer.errors import ConfigError, DecodeError
from streamer.formats.base import Field, FieldSpec
from streamer.formats.names import IMAGES, field_name
from streamer.manifest.model import NESTED

logger = logging.getLogger(__name__)

_Reader = Callable[[memoryview], object]

# Extension of compressed fields. The one before it (`x.json.gz`) chooses the decoder, unless the user's rule names
# `gz`.
_GZIP = "gz"
# Limit of a decompressed field. deflate compresses zeros 1,000 to 1 (zlib.net, "Maximum Compression Factor"): without a
# limit, 10 MB of a tar become 10 GB in every worker. A medical volume has up to 600 MB.
MAX_BYTES = 1 << 30
_GZIP_MAGIC = b"\x1f\x8b"
# Bytes of header and end of a gzip stream without content.
_SMALLEST_BYTES = 18
# A smaller limit for JSON: a document of "{},{},..." takes 24 times its bytes as Python objects.
MAX_JSON_BYTES = 64 << 20
_NO_BYTES = memoryview(b"")


class Raw:
    """The value of a field without a decoder, as a view of its bytes, until a batch is collated (`batches/batch/`).

    Attributes:
        content: view of the bytes. It is valid as long as the memory that the sample was read into is not reused.
    """

    __slots__ = ("content",)

    def __init__(self, content: memoryview) -> None:
        self.content = content


_PICKLES: dict[str, _Reader] = {
    "pt": arrays.decode_torch,
    "pth": arrays.decode_torch,
    "pkl": arrays.decode_pickle,
    "pickle": arrays.decode_pickle,
}
_AUTO: dict[str, _Reader] = {
    **dict.fromkeys(IMAGES, images.decode_image),
    # The integers that WebDataset decodes, too (webdataset.autodecode, "basichandlers").
    **dict.fromkeys(["cls", "cls2", "index", "inx", "id"], values.decode_class),
    **dict.fromkeys(["txt", "text", "transcript"], values.decode_text),
    **dict.fromkeys(["json", "jsn"], values.decode_json),
    "jsonl": values.decode_jsonl,
    "npy": arrays.decode_npy,
    "npz": arrays.decode_npz,
    "safetensors": arrays.decode_safetensors,
    **dict.fromkeys(_PICKLES, arrays.refuse_pickle),
}

# The kind of a field without a value. Its value is None, whatever a rule says about its name.
NULL = "null"
_MEDIA = "streamer.media.decode:find_decoder"
_FOREIGN = "streamer.tables.foreign:find_decoder"
# The function that returns the decoder of a kind, or None, as "module:function", by the beginning of the kind.
ELSEWHERE = {
    **dict.fromkeys(["audio", "clip", "depth:"], _MEDIA),
    **dict.fromkeys(
        ["mds-", "litdata-", "tf-list:", "pil", "jpeg_array", "int-text", "float-text", "decimal-text"], _FOREIGN
    ),
}
# Kinds that are a dtype, with a shape or without: "<f4[3,224,224]", "<i8", "?".
_NUMBERS = re.compile(r"([<>|=]?[?a-z][0-9]*)(?:\[(-?\d*(?:,-?\d+)*)\])?")
_NUMBERS_OF_STRUCT = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_STRUCTS = dict(zip(_NUMBERS_OF_STRUCT, "?bhiqBHIQefd", strict=True))


@lru_cache(maxsize=1000)
def find_decoder_of_kind(kind: str) -> Callable[[memoryview], object] | None:
    """Returns the decoder of a kind that is no extension, or None if there is none.

    By kind, it returns: for "image" an array as of an image file, for "bytes" bytes, for "null" None, for "nested" a
    list or dict, for a dtype a Python number, for a dtype with a shape an array. Other kinds are in `ELSEWHERE`, whose
    modules are imported here.
    """
    if (known := _NAMED.get(kind)) is not None:
        return known
    for beginning, place in ELSEWHERE.items():
        if kind.startswith(beginning):
            module, _, name = place.partition(":")
            found: Callable[[memoryview], object] | None = getattr(import_module(module), name)(kind)
            return found
    if (numbers := _NUMBERS.fullmatch(kind)) is None:
        return None
    try:
        if numbers[2] is not None:
            return ArrayDecoder(numbers[1], tuple(map(int, numbers[2].split(","))) if numbers[2] else (-1,))
        dtype = np.dtype(numbers[1])
        if dtype.kind not in "biufc":
            return None
        # `struct` takes a third of numpy's time for one number.
        code = _STRUCTS.get(f"{dtype.kind}{dtype.itemsize}")
        read_struct = Struct(f"{'>' if dtype.str[0] == '>' else '<'}{code}").unpack if code else None

        def decode_number(content: memoryview) -> object:
            if len(content) != dtype.itemsize:
                raise ValueError(f"{len(content)} bytes are not a {dtype.str}, which has {dtype.itemsize}")
            return read_struct(content)[0] if read_struct is not None else np.frombuffer(content, dtype)[0].item()

        return decode_number
    except (ConfigError, TypeError):
        return None


def decode_null(content: memoryview) -> None:
    """Returns None, the value of a field that has none."""


_NAMED: dict[str, Callable[[memoryview], object]] = {
    "image": images.decode_image,
    "bytes": bytes,
    NULL: decode_null,
    NESTED: values.decode_nested,
}


class SampleDecoder:
    """Decodes the fields of samples by one rule. It does not change after construction: any thread may use it.

    Args:
        rule: the user's rule, see `DecodeRule`.
        allow_pickle: whether to read `.pt` and `.pkl` fields, which runs the code that they contain.

    Attributes:
        rule: the rule.
        allow_pickle: whether pickles are read.

    Raises:
        ConfigError: the rule is invalid.
    """

    def __init__(self, rule: DecodeRule = "auto", *, allow_pickle: bool = False) -> None:
        check_rule(rule)
        self.rule = rule
        self.allow_pickle = allow_pickle
        # The user's rule takes precedence over the format's kind of a field, unless that has no value.
        # Its decoders are by field ("mask.png", which takes precedence) or extension ("png").
        rules = rule if isinstance(rule, Mapping) else {}
        self._given = {field_name(name.lstrip(".")): _pass_bytes(reader) for name, reader in rules.items()}
        self._readers = {**_AUTO, **(_PICKLES if allow_pickle else {}), **self._given} if rule is not None else {}

    def __repr__(self) -> str:
        return f"SampleDecoder({self.rule!r}, allow_pickle={self.allow_pickle})"

    def __call__(
        self,
        key: str,
        fields: Sequence[Field],
        row: Row = NO_ROW,
        in_place: Row = NO_ROW,
        *,
        raw: Callable[[memoryview], object] = bytes,
        draws: Draws | None = None,
    ) -> dict[str, object]:
        """Returns `{"__key__": key, field name: value, ...}`.

        Args:
            key: key of the sample.
            fields: name, bytes and kind of each field.
            row: arrays in the batch, by field: a decoded array of the same dtype and shape is written there.
            in_place: arrays whose bytes are in the batch already, by field. They are returned as they are.
            raw: function that gets the view of a field that stays bytes, and returns the value.
            draws: random numbers for decoders that draw (see `TargetDecoder`), or None.

        Raises:
            DecodeError: the decoder of a field refuses its bytes, or the kind of a field has no decoder. The decoder's
                error is the cause.
            ConfigError: a pickle is not allowed, a library is not installed, or this process has too many files open.
            MemoryError: a decoder gets no memory.
        """
        sample: dict[str, object] = {"__key__": key}
        for field in fields:
            if (known := in_place.get(field.name)) is not None:
                sample[field.name] = known
            elif (reader := self.reader(field)) is bytes:
                sample[field.name] = raw(field.content)
            else:
                sample[field.name] = _decode_field(key, field, reader, (row.get(field.name), draws))
        return sample

    def check(self, fields: Sequence[FieldSpec], codecs: Collection[str] = ()) -> None:
        """Refuses a dataset before its first sample is read: pickles that are not allowed, and missing PyAV.

        Other libraries are missed when a sample is decoded. Logs a warning for each name in the rule that none of
        `fields` has, unless there are no `fields`.

        Args:
            fields: fields of the samples, or () where only the samples say which fields they have.
            codecs: FFmpeg's names of the codecs of the dataset's videos and audio.

        Raises:
            ConfigError: a field is a pickle that is not allowed, or PyAV is needed and missing, or does not decode one
                of `codecs`.
            DecodeError: the kind of a field has no decoder.
        """
        readers = [(spec, self.reader(Field(spec.name, _NO_BYTES, spec.kind))) for spec in fields]
        for reader in [*self._given.values(), *(reader for _, reader in readers)]:
            if isinstance(reader, TargetDecoder):
                reader.check(codecs)
        if fields:
            known = {spec.kind for spec in fields}
            for spec in fields:
                name = field_name(spec.name)
                known |= {name, name.rpartition(".")[2]}
            for name in self._given:
                if name not in known:
                    logger.warning(
                        "decode=%r has no effect: no field has this name or ending; the fields are %s",
                        name,
                        ", ".join(spec.name for spec in fields),
                    )
        for spec, reader in readers:
            if reader is arrays.refuse_pickle:
                raise ConfigError(
                    f"field {spec.name!r} is a pickle, which runs code when it is read; pass "
                    "decode=streamer.Decode(allow_pickle=True) if you wrote the data yourself, or "
                    f"decode={{{spec.name!r}: your_function}} (None: bytes)",
                    field="allow_pickle",
                    name=spec.name,
                )

    @property
    def runs_users_code(self) -> bool:
        """Whether other code than this package's decoders may run: a function of the user, or the code of a pickle."""
        given = self.rule.values() if isinstance(self.rule, Mapping) else [self.rule] if callable(self.rule) else []
        return self.allow_pickle or any(reader is not None and not _is_own(reader) for reader in given)

    def plain_array(self, field: Field) -> PlainArray | None:
        """Returns the layout of a field that is a plain array, which can be read to its row, or None for other fields.

        Raises:
            ValueError: the bytes are not what the rule or the name says.
            DecodeError: the kind of the field has no decoder.
        """
        reader = self.reader(field)
        if type(reader) is ArrayDecoder:
            return reader.plain(len(field.content))
        return arrays.plain_npy(field.content) if reader is arrays.decode_npy else None

    def reader(self, field: Field) -> Callable[[memoryview], object]:
        """Returns the decoder of a field by the rule, its kind and its name, or `bytes` for a field without a decoder.

        The kind "null" counts first, then the rule, then other kinds, then the extension of the name.

        Raises:
            DecodeError: the kind has no decoder.
        """
        name = field.name
        if field.kind == NULL:
            return decode_null
        if self.rule is None:
            return bytes
        if callable(self.rule):
            call = self.rule if not isinstance(self.rule, StoredFields) else partial(self.rule, kind=field.kind)
            return _rename(lambda content: call(name, bytes(content)), self.rule)
        known = field_name(name)
        if known not in self._given:
            known = known.rpartition(".")[2]
        if field.kind and known not in self._given:
            reader = self._readers.get(field.kind) or find_decoder_of_kind(field.kind)
            if reader is None:
                raise DecodeError(f"field {name!r} is of kind {field.kind!r}, which has no decoder", field=name)
            return reader
        given = self._given.get(known)
        if field.kind == NESTED and type(given) is images.ImageDecoder:
            return NestedDecoder(given)
        if known == _GZIP and _GZIP not in self._readers:
            inner = self._readers.get(extension(name.rpartition(".")[0]), bytes)
            return _make_gzip_decoder(
                inner, _name_of(inner), makes_objects=inner in (values.decode_json, values.decode_jsonl)
            )
        return self._readers.get(known, bytes)


def _decode_field(key: str, field: Field, reader: _Reader, given: tuple[Array | None, Draws | None]) -> object:
    """Decodes one field, into the array of `given` where the result fits. Logs damage that the decoder passed over.

    Args:
        key: key of the sample, for errors.
        field: the field.
        reader: decoder of the field.
        given: array in the batch for the result, and random numbers of the sample. Each may be None.

    Raises:
        DecodeError: the decoder has raised an error that is none of the others.
        ConfigError: the error of the decoder, a package is not installed that it imports, or this process has too many
            files open.
        MemoryError: the decoder gets no memory.
    """
    place, draws = given
    try:
        if isinstance(reader, TargetDecoder):
            return reader.decode(field.content, place, draws)
        if type(reader) is images.ImageDecoder:
            fits = place is not None and place.dtype == np.uint8
            image, damage = reader.decode(field.content, place if fits else None)  # type: ignore[arg-type]
            if damage:
                logger.warning("sample %r: field %r is decoded, but %s", key, field.name, damage)
            return images.place(image, place)
        value = reader(field.content)
        return images.place(value, place) if type(value) is np.ndarray else value
    except ConfigError:
        raise
    except ImportError as error:  # which is wrong for all samples, and none is left out for it
        what = f"decoding field {field.name!r} with {_name_of(reader)}"
        raise explain_import_error(what, error, field="decode") from error
    except Exception as error:  # a decoder, which may be the user's, may raise anything
        try:
            raise_shortage(error)
        except MemoryError:
            error.add_note(f"raised by {_name_of(reader)} for field {field.name!r} of sample {key!r}")
            raise
        raise DecodeError(
            f"sample {key!r}: field {field.name!r} ({len(field.content)} bytes) is refused by {_name_of(reader)}: "
            f"{type(error).__name__}: {error}",
            sample=key,
            field=field.name,
            field_bytes=len(field.content),
            decoder=_name_of(reader),
        ) from error


def extension(name: str) -> str:
    """Returns the extension of a field's name ("seg.PNG" -> "png", "jpeg" -> "jpg"), by which the decoder is chosen."""
    return field_name(name).rpartition(".")[2]


def _pass_bytes(reader: FieldDecoder | None) -> _Reader:
    """Returns the user's decoder as one that takes a view, and is called with a copy of it as bytes.

    Every library accepts bytes, and they are never overwritten. None stands for `bytes`. Decoders of this package are
    returned as they are.
    """
    if reader is None:
        return bytes
    if _is_own(reader):
        return reader  # type: ignore[return-value]
    call = reader
    return _rename(lambda content: call(bytes(content)), reader)


def _is_own(reader: object) -> bool:
    """Whether a decoder of a rule is one of this package, which takes views. Subclasses count as the user's."""
    if type(reader) is NestedDecoder:
        return reader.image is bytes or _is_own(reader.image)
    return type(reader) in (images.ImageDecoder, ArrayDecoder) or isinstance(reader, TargetDecoder)


def _rename(reader: _Reader, given: Callable[..., object]) -> _Reader:
    """Gives a decoder the name of the user's function that it calls, for errors; returns the decoder."""
    reader.__qualname__ = _name_of(given)
    return reader


def _name_of(reader: Callable[..., object]) -> str:
    return getattr(reader, "__qualname__", type(reader).__qualname__)


def _make_gzip_decoder(
    reader: Callable[[memoryview], object], name: str, *, makes_objects: bool = False
) -> Callable[[memoryview], object]:
    """Makes a decoder of a field that is compressed with gzip: `txt.gz` is decoded as `txt`, as WebDataset does.

    Args:
        reader: decoder of the decompressed bytes.
        name: name of the decoder, for messages.
        makes_objects: whether `reader` makes Python objects of the bytes, which may then be 64 MiB instead of 1 GiB.
    """

    def decode(content: memoryview) -> object:
        # Imported here, since few datasets have such fields: others need none of the three decompressors.
        from streamer.formats.compressed import DecompressError, decompress

        max_bytes = min(MAX_JSON_BYTES, MAX_BYTES) if makes_objects else MAX_BYTES
        # The end of a gzip file says how long its last stream is: most files that are too long are refused by it.
        is_gzip = len(content) > _SMALLEST_BYTES and bytes(content[:2]) == _GZIP_MAGIC
        if is_gzip and int.from_bytes(content[-4:], "little") > max_bytes:
            raise DecompressError(f"decompresses to more than {max_bytes} bytes, or is cut off")
        return reader(decompress("gz", content, max_bytes))

    decode.__qualname__ = f"gunzip + {name}"
    return decode
