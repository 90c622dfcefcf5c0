"""The options `packing=` of a dataset: how documents are packed into rows (`Packing`) or into buckets (`Buckets`).

They are public. Datasets of the loader take them (`loader/dataset.py`), plans and workers ask them or `NO_PACKING`.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from dataclasses import replace as with_options
from numbers import Real
from pathlib import Path
from typing import ClassVar, Literal, Protocol, Self, TypeAlias, get_args

from msgspec.structs import replace

from streamer.batches import checks
from streamer.errors import ConfigError
from streamer.order.rows.spec import LEAST_LENGTH, Overflow, Policy, RowSpec
from streamer.removed import check_options, replace_arguments

Labels: TypeAlias = Literal["shifted", "same"]

# Names of fields that rows or buckets have besides those of documents.
POSITIONS = "position_ids"
DOCUMENTS = "document_ids"
BOUNDS = "cu_seqlens"
LONGEST = "max_seqlen"
LABELS = "labels"
LENGTHS = "lengths"
# Coefficients of n and of n**2 in the cost of a document of n tokens, for a transformer of hidden size 4,096.
ROW_COST = 24576, 1
# The label of tokens without one, which is the default `ignore_index` of torch's cross_entropy.
IGNORED = -100


@check_options
@dataclass(frozen=True)
class Estimate:
    """Guesses the tokens of a document from its bytes, in place of numbers from `streamer.measure_lengths`.

    Rows are planned less full, and may still get too long: the end of such a row is left out in this epoch, and counted
    (`loader.stats().packing.overflowed`). `measure_lengths` needs one pass over the data, and then nothing is left out.

    Args:
        bytes_per_token: stored bytes of a document for each of its tokens, .01 to 2**30.
        margin: share of a row that is planned to stay empty, 0 to .5. Not for `Balance(lengths=...)`.

    Raises:
        ConfigError: an invalid value.
    """

    bytes_per_token: float
    margin: float = 0.02

    def __post_init__(self) -> None:
        for name, low, high in (("bytes_per_token", 0.01, 1 << 30), ("margin", 0, 0.5)):
            given: object = getattr(self, name)
            if isinstance(given, bool) or not isinstance(given, Real) or not low <= float(given) <= high:
                raise ConfigError(f"Estimate: {name}={given!r} must be a number, {low} to {high}", field=name)
            object.__setattr__(self, name, float(given))

    @property
    def identity(self) -> str:
        """Text that a state keeps to know the estimate again; the margin is in the length that rows are planned for."""
        return f"{self.bytes_per_token!r} bytes a token"


class Packable(Protocol):
    """A dataset whose samples can be packed: `OpenedDataset`, which imports this module and so is not imported here."""

    def plan_rows(self, packing: RowOption, fallback_dir: Path, *, shuffle: bool) -> object:
        """Plans the rows of the samples, see `OpenedDataset.plan_rows`."""
        ...


class RowOption(ABC):
    """What `Packing` and `Buckets` have in common: an option of a dataset whose rows are planned before an epoch.

    Attributes:
        making: Name of what makes its batches, in the table of `batches/samples/units.py`.
        words: Words for what it makes, before its number of tokens, for the log.
        replaces: Whether another sample of the batch replaces one that is skipped.
        joins: Whether such a dataset can be joined to another one.
        lengths: Source of the tokens of each document, or None if the format knows them.
        fields: Names of the fields with one value for each token, or None if the user does not name them.
        pad: Numbers that fields are padded with, by name, or None for the usual ones.
    """

    making: ClassVar[str]
    words: ClassVar[str]
    replaces: ClassVar[bool] = False
    joins: ClassVar[bool] = False

    lengths: str | Estimate | None
    fields: Sequence[str] | None
    pad: Mapping[str, float] | None

    @property
    @abstractmethod
    def room(self) -> int:
        """Largest number of tokens in a row, or in a bucket with its padding."""

    @abstractmethod
    def spec(self, costs: str = "") -> RowSpec:
        """Returns the parts that decide which tokens share a row.

        Args:
            costs: identity of the costs, see `DocumentCosts.identity`.

        Raises:
            ConfigError: an option has a value that is not allowed.
        """

    @abstractmethod
    def check_batch(self, batch_size: int) -> None:
        """Refuses a batch size that cannot be made with the option: raises a ConfigError."""

    def plan_rows(self, data: Packable, fallback_dir: Path, *, shuffle: bool) -> None:
        """Plans the rows of a dataset, in the dataset; errors as of `OpenedDataset.plan_rows`.

        Args:
            data: the dataset.
            fallback_dir: Folder for files if the manifest's folder is read-only for this process.
            shuffle: whether rows are shuffled.
        """
        data.plan_rows(self, fallback_dir, shuffle=shuffle)

    def check(self, shuffle: str) -> None:
        """Refuses the order of single samples: raises a ConfigError if `shuffle` is "sample"."""
        if shuffle == "sample":
            raise ConfigError(
                'packing= with shuffle="sample": a row has the documents of several chunks, which are fetched whole; '
                'leave shuffle out ("block")',
                field="packing",
            )

    def check_lengths(self, lengths: str | Estimate | None) -> None:
        """Refuses the lengths of a `Balance`, since the packing has some: raises a ConfigError if they are not None."""
        if lengths is not None:
            raise ConfigError(
                "Balance(lengths=...) with packing=: the lengths of documents are those of Packing(lengths=...); leave "
                "lengths of Balance out",
                field="lengths",
            )

    def check_ragged(self, ragged: Sequence[str]) -> None:
        """Refuses fields of the loader's `ragged=`, which come as `Ragged` anyway: raises a ConfigError for any."""
        if ragged:
            raise ConfigError(
                f"ragged={tuple(ragged)!r} with packing=: fields without a value for each token come as Ragged anyway",
                field="ragged",
            )

    def drop_source(self) -> Self:
        """Returns the same option without the source of its lengths."""
        return with_options(self, lengths=None)  # type: ignore[type-var]  # The subclasses are dataclasses.

    def find_pad(self, field: str) -> float:
        """Returns the number that a field is padded with."""
        usual = IGNORED if field == LABELS else 0
        return usual if self.pad is None else self.pad.get(field, usual)

    def _settle(self, *numbers: str) -> None:
        """Checks the named whole numbers, `lengths`, `fields` and `pad`, and sets each in the form that is kept."""
        settled: dict[str, object] = {name: checks.whole(name, getattr(self, name)) for name in numbers}
        settled["lengths"] = settle_source("lengths", self.lengths)
        if self.fields is not None:
            settled["fields"] = _settle_fields(self.fields)
        if self.pad is not None:
            settled["pad"] = _settle_pad(self.pad, None if self.fields is None else _settle_fields(self.fields))
        for name, value in settled.items():
            object.__setattr__(self, name, value)


@check_options
@dataclass(frozen=True)
class Packing(RowOption):
    """Packs documents into rows of `length` tokens. A row is the sample: batch_size, len, order and state count rows.

    Every token of every document is once in an epoch, unless `overflow` or an `Estimate` leaves it out: a document in
    one row, or in several if it is longer than a row. Transforms run on documents, before packing. See
    docs/sequences.md.

    Args:
        length: tokens of a row, 16 to 2**24.
        policy: "best_fit" cuts no document that fits into a row. "concat" puts documents one after the other, and cuts
            them at the end of each row.
        overflow: what becomes of documents longer than a row: "split" into pieces, "truncate" to the first `length`
            tokens, "drop", or "error".
        lengths: Path of an .npy file with the tokens of each document, a whole number for each sample in the order of
            the dataset, from `streamer.measure_lengths`; or an `Estimate`. By default as the format knows them.
        fields: Fields with one value for each token, by default all that are as long as the document. Of each other
            field a row has a list, with one entry for each document. In a batch, arrays among them come as `Ragged`.
        pad: What fields are padded with, by name: `pad={"input_ids": 2}`. Fields that are not in it are padded with 0,
            "labels" with -100.
        labels: How the field "labels" is made of the tokens. "shifted" takes the next token of the document, and -100
            at its end. "same" takes the token itself, and -100 at the first one of each document (each piece of
            a longer one), for models that shift labels themselves. None makes no labels.
        multiple_of: Every document takes a multiple of this in its row. It must divide `length`.
        rows_per_set: rows that are planned together, on average. Half a row of them stays empty, and all their chunks
            must be local before the first of them is made.

    Raises:
        ConfigError: an invalid value.
    """

    making: ClassVar[str] = "rows"
    words: ClassVar[str] = "rows of"

    length: int
    policy: Policy = "best_fit"
    overflow: Overflow = "split"
    lengths: str | Estimate | None = None
    fields: Sequence[str] | None = None
    labels: Labels | None = None
    multiple_of: int = 1
    rows_per_set: int = 256
    pad: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        self._settle("length", "multiple_of", "rows_per_set")
        checks.one_of("labels", self.labels, (None, *get_args(Labels)))
        if self.policy not in ("best_fit", "concat"):
            raise ConfigError(f'policy={self.policy!r} must be "best_fit" or "concat"', field="policy")
        if self.overflow == "error" and isinstance(self.lengths, Estimate):
            raise ConfigError(
                'overflow="error" with an Estimate: which documents are longer than a row is not known; count their '
                "tokens with streamer.measure_lengths",
                field="overflow",
            )
        self.spec()

    @property
    def room(self) -> int:
        """Number of tokens in a row."""
        return self.length

    def spec(self, costs: str = "") -> RowSpec:
        """Returns the parts that decide which tokens share a row. With an `Estimate` its length leaves out the margin.

        Args:
            costs: identity of the costs, see `DocumentCosts.identity`.

        Raises:
            ConfigError: an option has a value that is not allowed.
        """
        spec = RowSpec(
            length=self.length,
            policy=self.policy,
            overflow=self.overflow,
            multiple_of=self.multiple_of,
            set_rows=self.rows_per_set,
            costs=costs,
        )
        if not isinstance(self.lengths, Estimate):
            return spec
        least = max(LEAST_LENGTH, self.length - math.ceil(self.length * self.lengths.margin))
        planned = -(-least // self.multiple_of) * self.multiple_of
        return replace(spec, length=planned, costs=f"{costs}, rows of {self.length}")

    def check_batch(self, batch_size: int) -> None:
        """Refuses nothing: a batch has so many rows."""


@check_options
@dataclass(frozen=True)
class Buckets(RowOption):
    """Makes batches of whole samples of like length, as many as `max_tokens` allows. Needs `batch_size=1`.

    A batch has the fields padded to the longest of its samples, [samples, longest, ...], and "lengths", int32
    [samples]. Every sample that `overflow` does not drop is once in an epoch. All ranks make the same number of steps.

    Args:
        max_tokens: Limit of samples x the longest of them, in the unit of `lengths`, 16 to 2**24.
        max_samples: Limit of the samples of a batch, by default as many as `max_tokens` allows.
        overflow: What becomes of samples longer than `max_tokens`: "error", or "drop".
        lengths: Length of each sample, as for `Packing`, but for an `Estimate`: `max_tokens` is a limit of memory.
        fields: Fields that are padded along their first axis, by default all that are as long as `lengths` says.
        pad: What fields are padded with, by name, as for `Packing`.
        rows_per_set: batches that are planned together, on average: the more, the more alike the lengths of a batch.

    Raises:
        ConfigError: an invalid value.
    """

    making: ClassVar[str] = "buckets"
    words: ClassVar[str] = "batches of at most"

    max_tokens: int
    max_samples: int | None = None
    overflow: Literal["error", "drop"] = "error"
    lengths: str | None = None
    fields: Sequence[str] | None = None
    rows_per_set: int = 256
    pad: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        self._settle("max_tokens", "rows_per_set")
        if self.max_samples is not None:
            object.__setattr__(self, "max_samples", checks.at_least("max_samples", self.max_samples, 1))
        checks.one_of("overflow", self.overflow, ("error", "drop"))
        if isinstance(self.lengths, Estimate):
            raise ConfigError(
                "Buckets(lengths=Estimate(...)): max_tokens is a limit of memory, which batches of longer samples than "
                "estimated would break; count the samples once: streamer.measure_lengths",
                field="lengths",
            )
        self.spec()

    @property
    def room(self) -> int:
        """Largest number of tokens in a bucket, with its padding."""
        return self.max_tokens

    def spec(self, costs: str = "") -> RowSpec:
        """Returns the parts that decide which samples share a batch; see `Packing.spec`."""
        return RowSpec(
            length=self.max_tokens,
            policy="buckets",
            overflow=self.overflow,
            multiple_of=1,
            set_rows=self.rows_per_set,
            costs=costs,
            most=self.max_tokens if self.max_samples is None else self.max_samples,
        )

    def check_batch(self, batch_size: int) -> None:
        """Refuses batches of several buckets: raises a ConfigError if the batch size is not 1."""
        if batch_size > 1:
            raise ConfigError(
                f"batch_size={batch_size} of a dataset with Buckets: a bucket is a batch; give batch_size=1",
                field="batch_size",
            )


@dataclass(frozen=True, repr=False)
class NoPacking:
    """Stands for `packing=None`. It has those methods of `RowOption` that need no rows, and they refuse nothing."""

    # See the attributes of `RowOption`.
    making: ClassVar[str] = "samples"
    replaces: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    def __repr__(self) -> str:
        return "None"

    def check(self, shuffle: str) -> None:
        """Refuses nothing: any order is allowed."""

    def check_lengths(self, lengths: str | Estimate | None) -> None:
        """Refuses nothing: `Balance` may have lengths."""

    def check_ragged(self, ragged: Sequence[str]) -> None:
        """Refuses nothing: any field may be ragged."""

    def drop_source(self) -> NoPacking:
        """Returns itself, since it has no lengths."""
        return self

    def plan_rows(self, data: Packable, fallback_dir: Path, *, shuffle: bool) -> None:
        """Does nothing: the samples of the dataset stay as they are."""

    def check_batch(self, batch_size: int) -> None:
        """Refuses nothing: any batch size is allowed."""


NO_PACKING = NoPacking()
AnyPacking: TypeAlias = RowOption | NoPacking


def read_packing(given: object) -> AnyPacking:
    """Returns the argument `packing=` of a dataset, or `NO_PACKING` for None.

    A mapping becomes the `Buckets` or `Packing` with these arguments, since a file of options can only have a mapping.

    Raises:
        ConfigError: the argument is something else, or has an invalid value.
    """
    if given is None:
        return NO_PACKING
    if isinstance(given, RowOption):
        return given
    is_buckets = isinstance(given, Mapping) and not {"max_tokens", "budget"}.isdisjoint(given)
    required = "max_tokens" if is_buckets else "length"
    option: type[Buckets | Packing] = Buckets if is_buckets else Packing
    names = [one.name for one in fields(option)]
    if isinstance(given, Mapping):
        given = replace_arguments(option.__name__, given)
    if not isinstance(given, Mapping) or required not in given or not set(given) <= set(names):
        raise ConfigError(
            f"packing={given!r} is not a streamer.Packing or Buckets, nor the arguments of {option.__name__}: "
            f"{', '.join(names)}",
            field="packing",
        )
    return option(**given)


def settle_source(name: str, given: object) -> str | Estimate | None:
    """Returns the argument `lengths=`: None, an estimate, or the absolute path of a file with measured numbers.

    A mapping becomes the `Estimate` with these arguments, since a file of options can only have a mapping.

    Raises:
        ConfigError: the argument is something else, or has an invalid value. `name` is its name for the message.
    """
    if given is None or isinstance(given, Estimate):
        return given
    if isinstance(given, Mapping):
        given = replace_arguments("Estimate", given)
        names = [one.name for one in fields(Estimate)]
        if "bytes_per_token" not in given or not set(given) <= set(names):
            raise ConfigError(f"{name}={given!r}: the arguments of an Estimate are {', '.join(names)}", field=name)
        return Estimate(**given)
    return os.path.abspath(str(checks.path(name, given)))  # type: ignore[arg-type]


def _settle_fields(given: object) -> tuple[str, ...]:
    """Returns the argument `fields=` as a tuple; a ConfigError if it is no sequence of names of documents' fields."""
    if isinstance(given, Mapping):
        raise ConfigError(
            f"fields={given!r}: fields= takes names; what fields are padded with is pad={dict(given)!r}", field="fields"
        )
    named = () if isinstance(given, str) or not isinstance(given, Sequence) else tuple(given)
    if not named or not all(isinstance(name, str) for name in named):
        raise ConfigError(f"fields={given!r}: give a sequence of names", field="fields")
    _check_names("fields", named)
    return named


def _settle_pad(given: object, named: Sequence[str] | None) -> dict[str, float]:
    """Returns the argument `pad=` as a dict; a ConfigError if it has no numbers, or names what is not to be padded."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigError(f"pad={given!r}: give a mapping of fields to what they are padded with", field="pad")
    if not all(isinstance(value, int | float) for value in given.values()):
        raise ConfigError(f"pad={given!r}: fields are padded with numbers", field="pad")
    _check_names("pad", tuple(given))
    others = [name for name in given if named is not None and name not in (*named, LABELS)]
    if others:
        raise ConfigError(f"pad={given!r}: {others[0]!r} is not in fields={named!r}", field="pad")
    return dict(given)


def _check_names(option: str, named: Sequence[str]) -> None:
    if taken := {POSITIONS, DOCUMENTS, BOUNDS, LONGEST, LENGTHS}.intersection(named):
        raise ConfigError(f"{option}= names {', '.join(sorted(taken))}, which rows have of their own", field=option)
