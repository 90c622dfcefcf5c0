"""The seam of the formats: bytes of an object in, samples and fields out. No I/O here.

A format is *plain* if each sample is one byte range of an object: `index` yields spans, and chunks are kept as they are
fetched. It is *blocked* if bytes can only be decoded together (a compressed shard): `index` yields blocks, and a
recoder makes one record of each sample, once, between fetch and publish. `opener` serves both. Samples of blocks that
overlap (windows, clips) share the bytes that they have in common: see `Records`.

The parts of a format run in different processes: `survey` and `index` in the engine (or in a task of `streamer index
--executor`), the result of `recoder` in a recoder, which alone imports pyarrow, h5py and their like, and that of
`opener` in the workers. They pass facts, notes and hints on to each other, as JSON or bytes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

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
from streamer.removed import refuse_removed

# Formats of other packages import these from here.
__all__ = ["Answer", "Block", "DecodeCost", "Examine", "Examined", "Facts", "Field", "FieldPacker", "FieldSpec"]
__all__ += ["Format", "Indexer", "Indexing", "Need", "ObjectRecord", "Opener", "Recoder", "Records", "SampleName"]
__all__ += ["Source", "Span", "Survey", "SurveyContext", "Surveying"]


class Field(msgspec.Struct, frozen=True):
    """One field of a sample.

    Attributes:
        name: e.g. "jpg", "image", "mask.png".
        content: bytes of the field.
        kind: how they are decoded; "": by the extension of the name. An extension ("json", "txt", "npy"); "image", a
            image of whatever kind; "bytes", not decoded; a numpy dtype ("<i8", "?"), one number; a dtype with a shape
            ("<f4[3,224,224]", "<i4[]", "<f4[-1,4]", of which one length may be open), an array in C order;
            "nested", see `streamer.decode.values`; "null".
        checked: whether `open` has compared the checksum of the bytes, so that it needs all of them.
    """

    name: str
    content: memoryview
    kind: str = ""
    checked: bool = False


class Opener(Protocol):
    """Opens the samples of one dataset; most formats have one of their own."""

    def open(self, content: memoryview, name: SampleName) -> tuple[str | None, Sequence[Field]]:
        """Returns the key of a sample (None: it has none) and its fields, in order. Copies nothing.

        Raises:
            DecodeError: bytes that are not what this format writes.
        """
        ...


Buffers: TypeAlias = Sequence[memoryview | bytes | NDArray[np.uint8]]


class Records(msgspec.Struct, frozen=True):
    """The samples of a block.

    Samples that have bytes in common, as overlapping windows do, may share them: then `parts` and `lengths` are their
    heads, which each sample has alone and which may be empty, and `shared_parts` what they share. `Opener.open` gets
    one buffer all the same: the head, and behind it the parts of the sample's ranges in the order of `part_ranges`. The
    chunk file has each part once, and a sample is read with one call for its head and one for each range. Part numbers
    count within the block. The index says so with `Block(part_ranges=k, parts=...)`: k is the same in all blocks of a
    dataset, `parts` is how many the recoder will make (about how many, if the index cannot know), and `record_bytes`
    are those of heads and parts together. What a sample reads too much is at the ends of its ranges, so cut parts where
    samples begin and end; each costs 8 bytes in the chunk file, and each sample 8 + 8 * k.

    Attributes:
        parts: buffers that hold the records (or heads) one after the other.
        lengths: int64, shape (samples,): bytes of each record (or head).
        shared_parts: buffers that hold the shared parts one after the other.
        part_lengths: int64, shape (p,): bytes of each part.
        part_ranges: int64, shape (samples, k, 2): half-open ranges of part numbers; an empty one adds nothing.
    """

    parts: Buffers
    lengths: NDArray[np.int64]
    shared_parts: Buffers = ()
    part_lengths: NDArray[np.int64] = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    part_ranges: NDArray[np.int64] = msgspec.field(default_factory=lambda: np.empty((0, 0, 2), np.int64))


class Recoder(Protocol):
    """Makes records of the blocks of one dataset, in a process of its own; each format with blocks has one."""

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Decodes one block.

        Args:
            content: the bytes of its ranges, one after the other.
            samples: Number of records that are expected; -1 if it is unknown and an index asks (`Examine`).
            hint: Hint of the block, as the index made it.

        Raises:
            RecodeError: bytes that cannot be decoded.
        """
        ...


def _plain(value: object) -> object:
    """A path, numbers of numpy or a range as JSON has them."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, range):
        return list(value)
    raise TypeError(f"options are texts, numbers, lists and mappings, not {type(value).__name__}")


def _is_finite(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


# Returns names and values of a field of the sample with this key; None for a field that is written as its kind says.
FieldPacker: TypeAlias = Callable[[Field, str], "Iterable[tuple[str, object]] | None"]


class DecodeCost(Protocol):
    """What decoding a sample takes, for the stall report, `streamer show` and `streamer plan`; its text says it.

    These import no format: video has one, others of other packages may have their own.
    """

    @property
    def work(self) -> float:
        """Effort, in a unit of the format's own: samples of one dataset are compared by it."""
        ...

    @property
    def cheaper(self) -> str:
        """The ways to decode less, with their numbers; "" if there are none."""
        ...

    @property
    def advice(self) -> str:
        """What to do where decoding is too slow; "" if nothing helps much."""
        ...


class FormatType(msgspec.StructMeta):
    """Makes formats of options that users give; refuses those of earlier releases by their new names."""

    def __call__(self, *values: object, **options: object) -> Any:  # noqa: ANN401 - checkers then ask the class
        """Makes a format."""
        # A format of another package may have an option that is called like an old one here.
        if getattr(self, "stored_names", None):
            refuse_removed(self.__name__, options)
        return super().__call__(*values, **options)


class Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True, metaclass=FormatType):
    """A format, whose options are the fields of this struct. Where samples say everything, it is its own opener.

    The attributes, and the methods from `narrow` on, say what the format can do; their defaults fit any format. The
    other parts of the package ask them, not the name.

    Attributes:
        name: as the user writes it.
        revision: see `Indexer.revision`.
        whole_objects: whether every object is one sample.
        endings: endings of the names of objects that hold samples, in lower case.
        reads_tables: whether its files may belong to a table whose log says which of their rows are valid.
        part_mark: what is between the name of a file and that of its part in the keys of samples, "#t=" in
            "a.wav#t=10,20": a row of annotations for the file is for all its parts. "" if samples are no such parts.
        numbered_keys: whether samples without a field "__key__" have no key but their number.
        stored_names: Names of options in manifests and requests, where users write others.
        recuts: whether an index for chunks of another size reads little, because the objects say where blocks begin.
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
            ConfigError: a value that JSON does not have.
        """
        given = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            try:
                plain: object = msgspec.to_builtins(value, enc_hook=_plain)
            except TypeError as error:
                raise ConfigError(f"{type(self).__name__}: {name}={value!r}: {error}", field="format") from error
            if not _is_finite(plain):
                # JSON has null in their place, which is the default of many options.
                raise ConfigError(f"{type(self).__name__}: {name}={value!r}: give finite numbers", field="format")
            given[name] = plain
        defaults = msgspec.to_builtins(type(self)())
        changed = {name: value for name, value in given.items() if value != defaults[name]}
        return {self.stored_names.get(name, name): value for name, value in changed.items()}

    @property
    def class_names(self) -> Sequence[str] | None:
        """Names of the classes of files, in the order of their numbers; None if they are the folders, sorted."""
        return None

    @property
    def requested_name(self) -> str:
        """The name with which the engine is asked for the dataset: "auto" where its listing says what is beside it."""
        return self.name

    @property
    def chosen_extensions(self) -> Collection[str] | None:
        """The extensions of the files that are samples, if the user says them and the format leaves out others."""
        return None

    @property
    def metadata_file(self) -> str:
        """The path below the dataset's url of the annotations found among the files; "" if there are none."""
        return ""

    def accepts(self, key: str) -> bool:
        """Whether an object of this name holds samples: it has one of the `endings`, and is not hidden."""
        return key.lower().endswith(self.endings) and not is_hidden(key)

    def explain_empty(self, keys: Sequence[str]) -> str:
        """Returns why none of the objects of these names holds samples, where the format knows; else ""."""
        return ""

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Returns all accepted objects, without facts; see `Indexer.survey`."""
        yield from ()
        return Survey([Source(record) for record in accepted])

    def survey_with(
        self, context: SurveyContext, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]
    ) -> Surveying:
        """Surveys objects where the format needs to know more than them; see `ContextSurveyor`."""
        return self.survey(accepted, others)

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the samples of one object; see `Indexer.index`."""
        raise NotImplementedError

    def opener(self, facts: Facts) -> Opener:
        """Returns what opens the samples of the dataset with these facts."""
        return self

    def open(self, content: memoryview, name: SampleName) -> tuple[str | None, Sequence[Field]]:
        """Takes a sample apart; see `Opener.open`."""
        raise NotImplementedError

    def recoder(self, facts: Facts) -> Recoder:
        """Returns what makes records of the blocks of the dataset; called in the recoder's process only.

        Raises:
            ConfigError: a library that is not installed.
        """
        raise NotImplementedError

    # ------------------------------------------------------------ what a format can do besides

    def narrow(self, facts: Facts, fields: Collection[str]) -> Format | None:
        """Returns the format with which the same samples have these fields, and bytes of others are not fetched.

        Conditions (`where=`) and joins then read their columns without an index of them. None if that would fetch as
        much as before. Fields that alone are no dataset, so that its survey raises ManifestError, are read with the
        others.
        """
        return None

    def find_codecs(self, hint: bytes) -> Iterable[str]:
        """Returns FFmpeg's names of the codecs in which the samples of a block are, from its hint.

        A dataset whose codecs cannot be decoded is refused when it is opened.
        """
        return ()

    def find_token_bytes(self, facts: Facts) -> int:
        """Returns the bytes of a token where a sample is its tokens and nothing else; 0 if it is something else.

        Packing then knows the length of each sample that is a range of an object.
        """
        return 0

    def find_sample_bytes(self, manifest: Manifest) -> NDArray[np.int64] | None:
        """Returns the bytes of each sample of blocks, shape (samples,); None if the index does not know them."""
        return None

    def find_decode_cost(self, manifest: Manifest, ordinal: int | None = None) -> DecodeCost | None:
        """Returns what decoding takes by the index, of a sample or on average; None if the index does not say."""
        return None

    def find_packer(self, manifest: Manifest) -> FieldPacker | None:
        """Returns what makes values of fields for `streamer pack`; None if all are written as their kinds say.

        The function is sent to the tasks of the pack.
        """
        return None
