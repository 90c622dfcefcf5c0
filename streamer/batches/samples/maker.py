"""Makes one sample from its ordinal: locates, reads, opens, decodes and transforms it. Imports no torch.

Readers of batches use it (`batches/samples/recipe.py`), and whatever makes single samples: `dataset[i]`
(`loader/members/member.py`), scans (`loader/scan_reader.py`), `streamer show` and plans (`tools/planning/decoding.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.annotations.join import Joiner, JoinRules
from streamer.batches.samples.seeding import TAG_CLIP, UNSEEDED, SampleDraws, SeededCode, sample_seeds
from streamer.client.chunk_reader import WantedSample
from streamer.decode.arrays import NO_ROW, Row
from streamer.decode.dispatch import SampleDecoder
from streamer.decode.rule import DecodeRule
from streamer.decode.together import WholeStep
from streamer.decode.transforms import OnField, takes
from streamer.decode.watch import SampleWatch
from streamer.errors import DecodeError, WorkerError
from streamer.formats.base import Field, SampleName
from streamer.formats.registry import open_format
from streamer.manifest.table import Manifest
from streamer.order.hashing import fold

Integers = npt.NDArray[np.int64]
Sample = dict[str, object]
# A user's transform, which is called with the sample. It also gets `rng=` and `out=` if it has such parameters.
Transform = Callable[..., object]
# A function that looks at the bytes of a sample and its undecoded fields.
Look = Callable[[memoryview, Sequence[Field]], None]


class SampleLocation(WantedSample, frozen=True):
    """The location of a sample, for one of its uses.

    Attributes:
        ordinal: number of the sample in the manifest.
        chunk: number of its chunk in the manifest.
        code: code of the sample in the stream, see `batches/samples/plans.py`.
        run: number on which the random numbers of this use depend, with the ordinal: the epoch, the pass of a mix's
            member, or the use in a growing dataset.
        member: number of its dataset in the stream.
    """

    ordinal: int
    chunk: int
    code: int = -1
    run: int = 0
    member: int = 0


class ByteSource(Protocol):
    """Reads the bytes of samples: of leased chunks in the cache, or of files that are scattered over chunks.

    Reading raises a ChunkUnreadableError if a chunk of the cache is missing or wrong, or a StreamerError: that of
    the engine, or a CacheError if this process has no files or memory for it.
    """

    def boundaries(self, chunk: int) -> Integers:
        """Returns the boundaries of the records of a recoded chunk, see `RecordTable.bounds`: int64 (samples + 1,)."""
        ...

    def read(self, place: SampleLocation) -> memoryview:
        """Returns the sample's bytes, whose checksum is right."""
        ...

    def read_each(self, places: Sequence[SampleLocation]) -> list[memoryview]:
        """Returns the bytes of several samples in the order of `places`, as `read` does."""
        ...


class RowSource(Protocol):
    """Reads the fields that samples get from another dataset: `JoinReader`, which imports this module."""

    def begin(self, ordinals: Integers) -> None:
        """Begins a batch of these samples; see `JoinReader.begin`."""
        ...

    def values(self, ordinal: int, raw: Callable[[memoryview], object]) -> Mapping[str, object]:
        """Returns the fields of a sample, by its ordinal; arguments and errors as of `JoinReader.values`."""
        ...

    def field_of(self, name: str) -> str:
        """Returns the name that a field of samples has in the other dataset."""
        ...


class SampleRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of making samples from bytes.

    Attributes:
        decode: how fields are decoded, see `streamer.decode`.
        transform: function from a sample's dict to anything, or None to deliver the dict itself.
        allow_pickle: whether fields are read that run code when they are read.
        seed: seed of each sample's `rng`, together with run and ordinal.
        member: name of the dataset in a mix, "" outside one.
        source_key: name of a field that is added to a sample, with the name of its dataset, or None to add no field.
        joined: options of the annotations that samples are joined to, or None.
        leave_out: names of stored fields that samples do not get.
    """

    decode: DecodeRule = "auto"
    transform: Transform | None = None
    allow_pickle: bool = False
    seed: int = 0
    member: str = ""
    source_key: str | None = None
    joined: JoinRules | None = None
    leave_out: frozenset[str] = frozenset()


class SampleMaker:
    """Makes samples of one dataset from their "places", on one thread at a time; errors as of `open_format`, `Joiner`.

    Args:
        manifest: manifest of the dataset.
        content: reads the bytes.
        rules: rules of making samples.
        number: function from an ordinal in the manifest to the number that `dataset[i]` takes, for messages.
        joins: readers of the fields that samples get from other datasets.

    Attributes:
        decoder: decoder of the fields.
    """

    def __init__(
        self,
        manifest: Manifest,
        content: ByteSource,
        rules: SampleRules,
        number: Callable[[int], int] = int,
        joins: Sequence[RowSource] = (),
    ) -> None:
        self._number = number
        self._manifest = manifest
        self._content = content
        self._rules = rules
        self._joins = joins
        self._opener = open_format(manifest)
        self.decoder = SampleDecoder(rules.decode, allow_pickle=rules.allow_pickle)
        self._joiner = Joiner(rules.joined, rules.decode) if rules.joined is not None else None
        self._takes_rng = takes(rules.transform, "rng")
        self._draws = SampleDraws(rules.seed)
        # Clips have draws of their own, apart from those of the transform.
        self._clip_draws = SampleDraws(fold(rules.seed, TAG_CLIP))
        self._takes_out = takes(rules.transform, "out")
        # A function of the user is watched, since it may move the image alone. `OnField` and `WholeStep` refuse that.
        is_unknown = rules.transform is not None and not isinstance(rules.transform, OnField | WholeStep)
        self._watch = SampleWatch(rules.transform) if is_unknown and rules.transform is not None else None
        self._named: tuple[int, SampleName] = (-1, SampleName())
        self._seeded: SeededCode | None = None
        self._nanoseconds = [0, 0, 0]

    def places(
        self, ordinals: Integers, codes: Integers | None = None, runs: Iterable[int] = repeat(0), member: int = 0
    ) -> list[SampleLocation]:
        """Returns the locations of samples, in the order of `ordinals`.

        Args:
            ordinals: Ordinals of the samples in the manifest.
            codes: Codes of the samples in the stream, or None if these are the ordinals.
            runs: Runs for the samples' random numbers, see `SampleLocation`.
            member: number of this dataset in the stream.

        Raises:
            ChunkUnreadableError, StreamerError: the table of a recoded chunk cannot be read.
        """
        columns = locate_samples(self._manifest, self._content, ordinals)
        numbers = columns[3] if codes is None else codes.tolist()
        return [SampleLocation(*row) for row in zip(*columns, numbers, runs, repeat(member), strict=False)]

    def begin(self, places: Iterable[SampleLocation]) -> None:
        """Begins a batch of these samples: locates their rows in other datasets, if joined; errors as of `places`."""
        if self._joins:
            ordinals = np.array([place.ordinal for place in places], np.int64)
            for join in self._joins:
                join.begin(ordinals)

    @property
    def draws(self) -> bool:
        """Whether user code runs that may draw from the global random number generators."""
        transform = self._rules.transform
        own = transform is None or (type(transform) is OnField and transform.is_own) or hasattr(transform, UNSEEDED)
        return not own or self.decoder.runs_users_code

    @property
    def user_code(self) -> tuple[object, ...]:
        """Transform and rules of decoding, which may hold code of the user."""
        return self._rules.transform, self._rules.decode

    @property
    def decodes_into_rows(self) -> bool:
        """Whether decoders may write to rows: only without a transform, which may keep its arguments."""
        return self._rules.transform is None

    @property
    def takes_rows(self) -> bool:
        """Whether decoders, or the transform by its parameter `out`, can write arrays to rows of the slot."""
        return self._takes_out or self.decodes_into_rows

    def make(self, place: SampleLocation) -> object:
        """Reads, opens, decodes and transforms one sample, after seeding the generators that user code holds.

        Raises:
            ChunkUnreadableError, StreamerError: see `ByteSource`.
            DecodeError: the bytes cannot be decoded. The message names sample and object.
            ConfigError: a pickle is not allowed, or a library is missing.
            WorkerError: user code has called `sys.exit`.
            Exception: the error of the transform, with a note that names the sample.
        """
        if not self.draws:
            return self._make(place)
        if self._seeded is None:
            self._seeded = SeededCode(self.user_code, seeds_globals=False)
        seed = sample_seeds(self._rules.seed, place.run, np.array([place.ordinal], np.int64))[0]
        return self._seeded.run(seed, self._make, place)

    def _make(self, place: SampleLocation) -> object:
        return self.transform(place, self.sample(place))

    def sample(
        self,
        place: SampleLocation,
        row: Row = NO_ROW,
        look: Look | None = None,
        *,
        raw: Callable[[memoryview], object] = bytes,
    ) -> Sample:
        """Reads, opens and decodes one sample, without the transform.

        Args:
            place: location of the sample.
            row: memory by field, into which arrays of the same dtype and shape are decoded.
            look: called with the sample's bytes and its undecoded fields, or None.
            raw: function that converts the bytes of fields without a decoder.

        Raises:
            ChunkUnreadableError, StreamerError: see `ByteSource`.
            DecodeError, ConfigError, WorkerError: errors of `decode`.
        """
        started = time.perf_counter_ns()
        content = self._content.read(place)
        self.spent(0, started)
        return self.decode(place, content, row, look, raw=raw)

    def decode(
        self,
        place: SampleLocation,
        content: memoryview,
        row: Row = NO_ROW,
        look: Look | None = None,
        *,
        raw: Callable[[memoryview], object] = bytes,
    ) -> Sample:
        """Makes the dict of a sample from its bytes (`content`); see `sample` for the other arguments.

        Raises:
            ChunkUnreadableError, StreamerError: bytes of a joined row cannot be read.
            DecodeError, ConfigError, WorkerError: as `make`.
        """
        started = time.perf_counter_ns()
        try:
            key, fields = self.open(place, content)
            if look is not None:
                look(content, fields)
            sample = self.build(place, key, fields, row, raw=raw)
        except DecodeError as error:
            where = _where(self._manifest, place.ordinal)
            number = self._number(place.ordinal)
            raise DecodeError(
                f"{error.message} ({self._label(place.ordinal)}, {where})",
                **{**error.details, "ordinal": place.ordinal, "number": number, "object": where},
            ) from error
        except SystemExit as error:
            raise self._refuse_exit(error, "decoder", place, "") from error
        self.spent(1, started)
        return sample

    def open(self, place: SampleLocation, content: memoryview) -> tuple[str, Sequence[Field]]:
        """Splits a sample's bytes into its key (its ordinal, if it has none) and its undecoded fields, but `leave_out`.

        Raises:
            DecodeError: the bytes do not have the format.
        """
        key, fields = self._opener.open(content, self._name(place.ordinal))
        if self._rules.leave_out:
            fields = [field for field in fields if field.name not in self._rules.leave_out]
        return str(place.ordinal) if key is None else key, fields

    def build(
        self,
        place: SampleLocation,
        key: str,
        fields: Sequence[Field],
        row: Row = NO_ROW,
        in_place: Row = NO_ROW,
        *,
        raw: Callable[[memoryview], object] = bytes,
    ) -> Sample:
        """Decodes the fields, and adds label, annotations, fields of joins and the source key.

        `in_place` has the arrays that are in their rows already, by field. See `sample` for `row` and `raw`.

        Raises:
            ChunkUnreadableError, StreamerError: bytes of a joined row cannot be read.
            DecodeError: a decoder refuses a field, two fields have the same name, or annotations are missing.
            ConfigError, SystemExit: a decoder's.
        """
        draws = partial(self._clip_draws.find_generator, place.run, place.ordinal)
        sample = self.decoder(key, fields, row, in_place, raw=raw, draws=draws)
        if (label := self._name(place.ordinal).label) >= 0:
            _refuse_field(sample, "label", "the number of its class folder; name the folder of the files as the url")
            sample["label"] = label
        if self._joiner is not None:
            self._joiner.check_apart(sample.keys())
            sample |= self._joiner.values(key, fields)
        for join in self._joins:
            sample |= refuse_common_fields(sample, join.values(place.ordinal, raw), join.field_of)
        if self._rules.source_key is not None:
            _refuse_field(sample, self._rules.source_key, "the name of its dataset; source_key= names another field")
            sample[self._rules.source_key] = self._rules.member
        return sample

    def fields(self, place: SampleLocation) -> tuple[str, Sequence[Field]]:
        """Reads one sample, and returns its key and undecoded fields; errors as of `sample`."""
        return self.open(place, self._content.read(place))

    def transform(self, place: SampleLocation, sample: Sample, row: Row = NO_ROW) -> object:
        """Returns what the transform makes of a sample, or the sample itself without one.

        The generator that it gets as `rng` depends on seed, run and ordinal only. As `out` it gets `row`.

        Raises:
            WorkerError: the transform has called `sys.exit`.
            Exception: the transform's own error, with a note that names the sample.
        """
        transform = self._rules.transform
        if transform is None:
            return sample
        arguments: dict[str, object] = {}
        if self._takes_rng:
            arguments["rng"] = self._draws.find_generator(place.run, place.ordinal)
        if self._takes_out:
            arguments["out"] = row
        # The key is read before, since the transform may change the sample.
        key = sample["__key__"]
        started = time.perf_counter_ns()
        seen = self._watch.look(sample) if self._watch is not None else None
        try:
            made = transform(sample, **arguments)
        except SystemExit as error:
            raise self._refuse_exit(error, "transform", place, key) from error
        except BaseException as error:
            fields = f"; its fields are {', '.join(sample)}" if isinstance(error, KeyError) else ""
            error.add_note(f"raised by the transform for {self._text(place, key)}{fields}")
            raise
        if seen is not None and self._watch is not None:
            self._watch.compare(seen, made)
        self.spent(2, started)
        return made

    def stage_nanoseconds(self) -> tuple[int, int, int]:
        """Returns the nanoseconds of reading, decoding and transforming so far."""
        read, decode, transform = self._nanoseconds
        return read, decode, transform

    def spent(self, stage: int, started: int) -> None:
        """Adds the nanoseconds since `started` to a stage: 0 read, 1 decode, 2 transform."""
        self._nanoseconds[stage] += time.perf_counter_ns() - started

    def _name(self, ordinal: int) -> SampleName:
        """Returns name and label of a sample that is a file of its own, or empty ones. The last one is kept."""
        if self._named[0] != ordinal and self._manifest.whole_objects:
            self._named = ordinal, self._manifest.name(ordinal)
        return self._named[1]

    def _label(self, ordinal: int) -> str:
        """Returns the sample as a user would ask for it: `dataset[3]`, or `dataset['member'][3]`."""
        member = f"[{self._rules.member!r}]" if self._rules.member else ""
        return f"dataset{member}[{self._number(ordinal)}]"

    def _refuse_exit(self, error: SystemExit, what: str, place: SampleLocation, key: object) -> WorkerError:
        return WorkerError(
            f"the {what} has called sys.exit({error.code!r}) for {self._text(place, key)}; raise an exception to "
            "refuse a sample, and on_error='skip' replaces it",
            ordinal=place.ordinal,
            number=self._number(place.ordinal),
        )

    def _text(self, place: SampleLocation, key: object) -> str:
        """Returns the names of a sample for a message: its number, its key if it has one, its object and bytes."""
        where = _where(self._manifest, place.ordinal)
        return f"{self._label(place.ordinal)}, {f'key {key!r}, ' if key else ''}{where}"


def _refuse_field(sample: Sample, name: str, what: str) -> None:
    """Raises a DecodeError if the sample has a field of this name already; `what` says what would replace it."""
    if name in sample:
        raise DecodeError(f"the sample has a field {name!r} of its own, and so would be called {what}")


def refuse_common_fields(
    sample: Sample, joined: Mapping[str, object], field_of: Callable[[str], str]
) -> Mapping[str, object]:
    """Returns the fields of a join as they are; raises a DecodeError if the sample has a field of the same name."""
    if twice := sample.keys() & joined.keys():
        name = min(twice)
        raise DecodeError(
            f"both sides of the join have the field {name!r}; columns={{{field_of(name)!r}: 'another name'}} renames "
            "that of the right side"
        )
    return joined


def locate_samples(manifest: Manifest, content: ByteSource, ordinals: Integers) -> list[list[int]]:
    """Returns five lists with a value for each sample: number in the chunk, start, stop, ordinal, chunk.

    Start and stop are bytes in the chunk. Raises the errors of `SampleMaker.places`.
    """
    chunks, starts, stops = manifest.locate(ordinals)
    samples = ordinals - manifest.chunk_first[chunks]
    if manifest.recoded and len(chunks):
        order = np.argsort(chunks, kind="stable")
        for some in np.split(order, np.flatnonzero(np.diff(chunks[order])) + 1):
            bounds = content.boundaries(int(chunks[some[0]]))
            starts[some] = bounds[samples[some]]
            stops[some] = bounds[samples[some] + 1]
    return [column.tolist() for column in (samples, starts, stops, ordinals, chunks)]


def describe_key(manifest: Manifest, ordinal: int) -> str:
    """Returns a readable name of a sample: its path below the url, or object and byte range for one in a container."""
    if manifest.whole_objects:
        return manifest.name(ordinal).object_key
    return _where(manifest, ordinal)


def _where(manifest: Manifest, ordinal: int) -> str:
    """Describes object and byte range of a sample."""
    extent = manifest.extent_of(ordinal)
    return f"{extent.object.url} [{extent.start}, {extent.stop})"
