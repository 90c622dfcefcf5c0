"""Defines the interface of a format: its base class `Format`, and the types that its methods take and return.

Every format derives from `Format`. Engine, recoders, workers and commands call its methods, none of which does I/O.

A format is *plain* if each sample is one byte range of an object: `index` yields spans, and chunks are kept as they are
fetched. It is *blocked* if bytes can only be decoded together (a compressed shard): `index` yields blocks, and a
recoder makes one record of each sample, once, between fetch and publish. Both kinds have an `opener`. Samples of blocks
that overlap (windows, clips) share the bytes that they have in common: see `Records`.

The parts of a format run in different processes: `survey` and `index` in the engine (or in a task of `streamer index
--executor`), the result of `recoder` in a recoder, and that of `opener` in the workers. Only the recoder imports
pyarrow, h5py and the like. The parts pass facts, notes and hints on to each other, as JSON or bytes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, Union, get_args, get_origin

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import ConfigError
from streamer.manifest.beside import is_hidden
from streamer.manifest.blocks import Block
from streamer.manifest.model import Facts, FieldSpec, ObjectRecord, SampleName
from streamer.manifest.protocols import (
    Answer,
    Examine,
    Examined,
    Indexer,
    Indexing,
    Need,
    Source,
    Span,
    Survey,
    SurveyContext,
    Surveying,
)

if TYPE_CHECKING:
    from streamer.manifest.table import Manifest
from streamer.removed import refuse_old_names

# Formats of other packages import these from here.
__all__ = ["Answer", "Block", "DecodeCost", "Examine", "Examined", "Facts", "Field", "FieldPacker", "FieldSpec"]
__all__ += ["Format", "Indexer", "Indexing", "Need", "ObjectRecord", "Opener", "Recoder", "Records", "SampleName"]
__all__ += ["Source", "Span", "Survey", "SurveyContext", "Surveying"]


class Field(msgspec.Struct, frozen=True):
    """One field of a sample.

    Attributes:
        name: name of the field, such as "jpg", "image", "mask.png".
        content: bytes of the field.
        kind: how the bytes are decoded. "" means by the extension in the name. Otherwise it is an extension ("json",
            "txt", "npy"), "image" (an image of any kind), "bytes" (not decoded), "nested" (see
            `streamer.decode.values`), "null" (no value), a numpy dtype for one number ("<i8", "?"), or a dtype with a
            shape for an array in C order. One length of a shape may be open: "<f4[3,224,224]", "<i4[]", "<f4[-1,4]".
        checked: whether `open` looks at all bytes of the content, for example to compare a checksum. The content is
            then not read straight into a batch.
    """

    name: str
    content: memoryview
    kind: str = ""
    checked: bool = False


class Opener(Protocol):
    """Opens the samples of one dataset: takes their bytes apart into fields. Most formats have one of their own."""

    def open(self, content: memoryview, name: SampleName) -> tuple[str | None, Sequence[Field]]:
        """Returns the key of a sample, or None if it has none, and its fields in order.

        Args:
            content: bytes of the sample: its range of the object, or its record. The fields refer to them.
            name: what is known of the sample besides its bytes.

        Raises:
            DecodeError: the bytes are not a sample of this format.
        """
        ...


Buffers: TypeAlias = Sequence[memoryview | bytes | NDArray[np.uint8]]


class Records(msgspec.Struct, frozen=True):
    """The records of a block's samples, which a recoder has made.

    Samples that have bytes in common, as overlapping windows do, may share them. Each sample then has a head of its
    own, which may be empty, and ranges of shared parts. `parts` and `lengths` are the heads, `shared_parts` and
    `part_lengths` the shared parts. `Opener.open` gets one buffer all the same: the head, and behind it the parts of
    the sample's ranges in the order of `part_ranges`. The chunk file has each shared part once, and a sample is read
    with one call for its head and one for each range.

    The index announces shared parts with `Block(part_ranges=k, parts=...)`. k is the same in all blocks of a dataset,
    `parts` is the number of shared parts that the recoder will make (an estimate where the index cannot know it), and
    `record_bytes` are the bytes of heads and shared parts together. Cut shared parts where samples begin and end: a
    sample is read with whole parts. Each part costs 8 bytes in the chunk file, and each sample 8 + 8 * k.

    Attributes:
        parts: buffers that hold the records (or heads) one after the other.
        lengths: int64, shape (samples,): bytes of each record (or head).
        shared_parts: buffers that hold the shared parts one after the other.
        part_lengths: int64, shape (p,): bytes of each part.
        part_ranges: int64, shape (samples, k, 2): half-open ranges of shared parts, which are numbered within the
            block. An empty range adds nothing.
    """

    parts: Buffers
    lengths: NDArray[np.int64]
    shared_parts: Buffers = ()
    part_lengths: NDArray[np.int64] = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    part_ranges: NDArray[np.int64] = msgspec.field(default_factory=lambda: np.empty((0, 0, 2), np.int64))


class Recoder(Protocol):
    """Makes records of the blocks of one dataset, in a process of its own. Each format with blocks has such a class."""

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Decodes one block and returns the records of its samples.

        Args:
            content: the bytes of its ranges, one after the other.
            samples: Number of records that are expected; -1 if it is unknown and an index asks (`Examine`).
            hint: Hint of the block, as the index made it.

        Raises:
            RecodeError: the bytes cannot be decoded, or hold another number of samples.
            ConfigError: a library that decodes them is not installed.
        """
        ...


def _plain(value: object) -> object:
    """Returns a path, numbers of numpy or a range as JSON has them; raises TypeError for any other value."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, range):
        return list(value)
    raise TypeError(f"options are texts, numbers, lists and mappings, not {type(value).__name__}")


def _encode_option(owner: str, name: str, value: object) -> object:
    """Returns the value of an option as JSON has it; raises ConfigError if JSON cannot hold it."""
    try:
        plain: object = msgspec.to_builtins(value, enc_hook=_plain)
    except (TypeError, RecursionError) as error:
        raise ConfigError(f"{owner}: {name}={value!r:.200}: {error}", field="format") from error
    if not _is_finite(plain):
        # JSON has null in their place, which is the default of many options.
        raise ConfigError(f"{owner}: {name}={value!r}: give finite numbers", field="format")
    return plain


def _may_be_set(kind: object) -> bool:
    """Whether an option of this type may be a set, because the order of its items has no meaning."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return any((get_origin(each) or each) in (set, frozenset, Set, Collection) for each in kinds)


def _is_finite(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


# Gets a field and the key of its sample, and returns the names and values to write in its place. None means that the
# field is written as its kind says.
FieldPacker: TypeAlias = Callable[[Field, str], "Iterable[tuple[str, object]] | None"]


class DecodeCost(Protocol):
    """Effort of decoding a sample, which the stall report, `streamer show` and `streamer plan` print by `str`.

    They import no format. Of the built-in formats those of video have a cost. Formats of other packages may have one.
    """

    @property
    def work(self) -> float:
        """Effort, in a unit of the format's own: samples of one dataset are compared by it."""
        ...

    @property
    def cheaper(self) -> str:
        """Text that names the ways to decode less, with their numbers; "" if there are none."""
        ...

    @property
    def advice(self) -> str:
        """Text that says what to do where decoding is too slow; "" if nothing helps much."""
        ...


class FormatType(msgspec.StructMeta):
    """Makes a format from the options that a user gives, and refuses the names that options had in earlier releases."""

    def __call__(self, *values: object, **options: object) -> Any:  # noqa: ANN401 - checkers then ask the class
        """Makes a format.

        Raises:
            ConfigError: a value has another type than its option, or an option of an earlier release is given.
        """
        # A format of another package may have an option that is called like an old one here.
        if getattr(self, "stored_names", None):
            refuse_old_names(self.__name__, options)
        try:
            made = super().__call__(*values, **options)
        except (AttributeError, TypeError):
            # A value of another type may be the reason.
            self._check_types(values, options)
            raise
        self._check_types(values, options)
        return made

    def _check_types(self, values: Sequence[object], options: Mapping[str, object]) -> None:
        """Makes sure that values have the types of their options; raises ConfigError."""
        types = {field.name: field.type for field in msgspec.structs.fields(self)}  # type: ignore[arg-type]
        given = {**dict(zip(types, values, strict=False)), **options}
        for name in given.keys() & types.keys():
            if isinstance(given[name], set | frozenset) and not _may_be_set(types[name]):
                raise ConfigError(
                    f"{self.__name__}: {name}={given[name]!r} is a set, which has no order that is the same in all "
                    "processes: give a list",
                    field="format",
                )
            plain = _encode_option(self.__name__, name, given[name])
            # The engine gets it in this form, and makes the format of it.
            try:
                msgspec.convert(plain, types[name])
            except (TypeError, ValueError) as error:
                raise ConfigError(f"{self.__name__}: {name}={given[name]!r}: {error}", field="format") from error


class Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True, metaclass=FormatType):
    """The base class of formats, whose options are the fields of the struct.

    A format is its own opener where no facts are needed to open a sample. The attributes, and the methods from `narrow`
    on, say what the format can do; their defaults fit any format. The rest of the package asks them, and never the name
    of the format.

    Attributes:
        name: name of the format as the user writes it.
        revision: number that grows when the format changes its records or hints (see `Indexer.revision`).
        whole_objects: whether every object is one sample.
        endings: endings of the names of objects that hold samples, in lower case and with the dot.
        reads_tables: whether its files may belong to a table whose log says which of their rows are valid.
        part_mark: text between the name of a file and that of its part in the keys of samples, "#t=" in
            "a.wav#t=10,20". A row of annotations for the file is then for all its parts. "" if keys have no such parts.
        numbered_keys: whether samples without a field "__key__" have no key but their number.
        recuts: whether an index for chunks of another size reads little, because the objects say where blocks begin.
        stored_names: names in manifests and requests of those options that users write with other names.
    """

    name: ClassVar[str]
    endings: ClassVar[tuple[str, ...]] = ()
    revision: ClassVar[int] = 0
    whole_objects: ClassVar[bool] = False
    reads_tables: ClassVar[bool] = False
    part_mark: ClassVar[str] = ""
    numbered_keys: ClassVar[bool] = False
    recuts: ClassVar[bool] = False
    stored_names: ClassVar[Mapping[str, str]] = {}

    def __hash__(self) -> int:
        # Options may be mappings, which have no hash: their JSON has one.
        return hash((type(self), msgspec.json.encode(self, order="sorted", enc_hook=_plain)))

    @property
    def options(self) -> dict[str, Any]:
        """Options that differ from the defaults, as JSON has them, by the names that are stored.

        Raises:
            ConfigError: an option has a value that JSON cannot hold, such as NaN.
        """
        owner = type(self).__name__
        given = {name: _encode_option(owner, name, getattr(self, name)) for name in self.__struct_fields__}
        defaults = msgspec.to_builtins(type(self)())
        changed = {name: value for name, value in given.items() if value != defaults[name]}
        return {self.stored_names.get(name, name): value for name, value in changed.items()}

    @property
    def class_names(self) -> Sequence[str] | None:
        """Names of the classes of files, in the order of their numbers; None if they are the folders, sorted."""
        return None

    @property
    def requested_name(self) -> str:
        """The format's name in a request to the engine: `name`, or "auto" if the engine is to look for annotations."""
        return self.name

    @property
    def chosen_extensions(self) -> Collection[str] | None:
        """The extensions of the files that are samples, if the user has chosen some; None if not."""
        return None

    @property
    def metadata_file(self) -> str:
        """The path below the dataset's url of the annotations found among the files; "" if there are none."""
        return ""

    def accepts(self, key: str) -> bool:
        """Whether an object with this path holds samples: it has one of the `endings`, and is not hidden."""
        return key.lower().endswith(self.endings) and not is_hidden(key)

    def explain_empty(self, keys: Sequence[str]) -> str:
        """Returns a text that says why none of these paths holds samples; "" if the format does not know."""
        return ""

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Chooses the objects with samples and finds the facts, as `Indexer.survey`. Here all objects, and no facts."""
        yield from ()
        return Survey([Source(record) for record in accepted])

    def survey_with(
        self, context: SurveyContext, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]
    ) -> Surveying:
        """Surveys objects as `survey` does, with a context that some formats use (see `ContextSurveyor`)."""
        return self.survey(accepted, others)

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the samples of one object; see `Indexer.index`."""
        raise NotImplementedError

    def opener(self, facts: Facts) -> Opener:
        """Returns what opens the samples of the dataset with these facts. The default is the format itself."""
        return self

    def open(self, content: memoryview, name: SampleName) -> tuple[str | None, Sequence[Field]]:
        """Takes a sample apart; see `Opener.open`."""
        raise NotImplementedError

    def recoder(self, facts: Facts) -> Recoder:
        """Returns what makes records of the blocks of the dataset. Only the process of a recoder calls it.

        Raises:
            ConfigError: a library that decodes the blocks is not installed.
            NotImplementedError: the format is plain.
        """
        raise NotImplementedError

    # ------------------------------------------------------------ what a format can do besides

    def narrow(self, facts: Facts, fields: Collection[str]) -> Format | None:
        """Returns a format that reads the same samples with these fields only, and fetches no bytes of the others.

        Conditions (`where=`) and joins read their columns with it. None means that it would fetch as much as this
        format. If the survey of the narrowed format raises ManifestError, the caller reads the fields with the others.
        """
        return None

    def find_codecs(self, hint: bytes) -> Iterable[str]:
        """Returns FFmpeg's names of the codecs of the samples of a block, from its hint. The default is no names.

        A dataset whose codecs cannot be decoded is refused when it is opened.
        """
        return ()

    def find_token_bytes(self, facts: Facts) -> int:
        """Returns the bytes of a token if a sample consists of tokens only; else 0.

        `packing=` then knows the tokens of each sample that is a range of an object.
        """
        return 0

    def find_sample_bytes(self, manifest: Manifest) -> NDArray[np.int64] | None:
        """Returns the bytes of each sample of blocks, shape (samples,); None if the index does not know them."""
        return None

    def find_decode_cost(self, manifest: Manifest, ordinal: int | None = None) -> DecodeCost | None:
        """Returns what decoding takes, by the index, or None if the index does not say.

        Args:
            manifest: manifest of the dataset.
            ordinal: ordinal of a sample, or None for the mean over all samples.
        """
        return None

    def find_packer(self, manifest: Manifest) -> FieldPacker | None:
        """Returns the function that changes fields for `streamer pack`; None if all are written as their kinds say.

        The function is sent to the tasks of the pack.
        """
        return None
