"""Writes shards of tokens in Megatron-LM's format: `.bin` has the tokens, `.idx` the lengths of the samples.

`registry.py` names it as an output. Each sample is a document of one sequence, of which only the tokens are kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import ConfigError, PackError
from streamer.formats.base import Field
from streamer.formats.checksum import crc32
from streamer.shards.outputs.base import MAX_TOKENS, Output, ShardWriter, refuse_vocab_size
from streamer.shards.outputs.columns import FIRST_SAMPLES, JsonText, field_value, plain_values
from streamer.shards.receipts import Written, encode_numbers
from streamer.shards.values import KEY, Sample
from streamer.tables.tokens.format import Tokens
from streamer.tables.tokens.megatron import encode_index

_SHORT = "<u2"
_WIDE = "<i4"
# A smaller vocabulary has tokens of 2 bytes. Megatron-LM's `DType.optimal_dtype` has the same limit, so that its own
# files have the same dtype.
_SHORT_VOCABULARY = 65_500
_LIMITS = {_SHORT: 1 << 16, _WIDE: MAX_TOKENS}
# A piece, which has one checksum, ends with the document that reaches this length.
_PIECE_BYTES = 1 << 20
_JSON_LIST = msgspec.json.Decoder(list[int])


class TokenOutput(Output):
    """Tokens in Megatron-LM's format, with an index of the lengths of samples."""

    name = "tokens"
    extension = "bin"
    format = Tokens.name

    def open_writer(self, path: Path, described: Mapping[str, Any]) -> ShardWriter:
        """Opens a file for the field that the job describes; see `Output.open_writer`."""
        return TokenShard(path, msgspec.convert(described["tokens"], TokenField))

    def field_value(self, field: Field) -> tuple[str, object]:
        """Returns the value that its kind says; see `Output.field_value`."""
        return field_value(field)

    def check(self, vocab_size: int | None = None) -> None:
        """Refuses a vocabulary of no tokens, or too many; see `Output.check`."""
        if vocab_size is not None and not 0 < vocab_size <= MAX_TOKENS:
            raise refuse_vocab_size(self.name, vocab_size)

    def find_kinds(self, values: Mapping[str, object]) -> dict[str, str]:
        """Returns the dtype of each field that is a list of integers, "" for others; see `Output.find_kinds`."""
        return kinds_of(values)

    def describe(
        self, kinds: Sequence[Mapping[str, str]], known: Mapping[str, str], vocab_size: int | None
    ) -> dict[str, Any]:
        """Returns {"tokens": the `TokenField`}; see `Output.describe` and `token_field`."""
        return {"tokens": msgspec.to_builtins(token_field(kinds, vocab_size))}


class TokenField(msgspec.Struct, frozen=True, array_like=True):
    """The field of each sample that has the tokens.

    Attributes:
        name: name of the field.
        dtype: dtype of the written tokens: "<u2" or "<i4".
        limit: upper bound of all tokens, exclusive.
    """

    name: str
    dtype: str
    limit: int

    def tokens(self, sample: Sample) -> NDArray[np.generic]:
        """Returns the tokens of a sample: shape (n,), in the dtype of the shards.

        Raises:
            PackError: the field is not a list of integers, or one of them is not a token.
        """
        numbers = _integers(plain_values({self.name: sample.get(self.name)})[self.name])
        if numbers is None:
            raise PackError(f"field {self.name!r} is not a list of integers, as the first samples have it")
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self.limit:
            place = int(np.argmax((numbers < 0) | (numbers >= self.limit)))
            raise PackError(
                f"number {place} of field {self.name!r} is {numbers[place]}, tokens are 0 to {self.limit - 1}; "
                "vocab_size= says how many there are"
            )
        return numbers.astype(self.dtype)


class TokenShard(ShardWriter):
    """Writes a file of tokens, and makes its index.

    Args:
        path: the file of tokens, which is overwritten.
        field: the field with the tokens.
    """

    def __init__(self, path: Path, field: TokenField) -> None:
        self._file = path.open("wb")
        self._field = field
        self._lengths = array("i")
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._pieces: list[tuple[int, int, int]] = []

    def close(self) -> None:
        """Closes the file; idempotent."""
        self._file.close()

    def add(self, sample: Sample, ordinal: int) -> None:
        """Adds a document; copies its tokens.

        Raises:
            PackError: see `TokenField.tokens`.
        """
        tokens = self._field.tokens(sample)
        self._lengths.append(len(tokens))
        self._held.append(tokens.tobytes())
        self._held_bytes += tokens.nbytes
        self.filled += tokens.nbytes
        if self._held_bytes >= _PIECE_BYTES:
            self._write_piece()

    def finish(self) -> Written:
        """Writes the rest, closes the file, and sets `index`; returns the facts about the file.

        Raises:
            PackError: there are no tokens. Megatron-LM cannot open such a file.
        """
        if not self.filled:
            raise PackError(
                f"a shard would have no tokens: all of its {len(self._lengths)} samples are empty, or the transform "
                "leaves all of them out; make shards larger (shard_bytes)"
            )
        if self._held:
            self._write_piece()
        self._file.close()
        self.index = encode_index(self._field.dtype, np.array(self._lengths, np.int32))
        lengths, sums, rows = map(encode_numbers, zip(*self._pieces, strict=True))
        return Written(
            size=self.filled,
            blocks=lengths,
            sums=sums,
            unit=1,
            rows=rows,
            index_size=len(self.index),
            index_sum=crc32(self.index),
        )

    def _write_piece(self) -> None:
        """Writes the documents in memory as one piece, and notes its length, checksum and number of samples."""
        content = b"".join(self._held)
        self._file.write(content)
        self._pieces.append((len(content), crc32(content), len(self._held)))
        self._held = []
        self._held_bytes = 0


def kinds_of(values: Mapping[str, object]) -> dict[str, str]:
    """Returns the dtype of each field that is a list of integers, such as "<u2", and "" for other fields."""
    found = {name: _integers(value) for name, value in values.items() if name != KEY}
    return {name: "" if numbers is None else numbers.dtype.str for name, numbers in found.items()}


def token_field(kinds: Sequence[Mapping[str, str]], vocab_size: int | None) -> TokenField:
    """Returns the field with the tokens, and the dtype of all shards.

    Args:
        kinds: kinds of the first samples, from `kinds_of`.
        vocab_size: number of different tokens. If it is None, tokens have 2 bytes where the samples have unsigned
            arrays of 1 or 2 bytes, else 4.

    Raises:
        PackError: no field is a list of integers in all samples.
        ConfigError: several fields are.
    """
    names = dict.fromkeys(name for sample in kinds for name in sample)
    lists = [name for name in names if all(sample.get(name) for sample in kinds)]
    if not lists:
        raise PackError(
            f"no field is a list of integers in all of the first {FIRST_SAMPLES} samples, which have "
            f"{', '.join(names) or 'no fields'}; make one of them in a transform"
        )
    if len(lists) > 1:
        raise ConfigError(f"{' and '.join(lists)} are lists of integers; name the one with the tokens", field="fields")
    if vocab_size is None:
        is_short = all(np.dtype(sample[lists[0]]) in (np.uint8, np.uint16) for sample in kinds)
    else:
        is_short = vocab_size < _SHORT_VOCABULARY
    dtype = _SHORT if is_short else _WIDE
    return TokenField(lists[0], dtype, vocab_size or _LIMITS[dtype])


def _integers(value: object) -> NDArray[np.integer] | None:
    """Returns a value of a field as an array of integers with one axis, or None if it is something else."""
    if isinstance(value, JsonText):
        try:
            value = _JSON_LIST.decode(value)
        except msgspec.MsgspecError:
            return None
    if isinstance(value, list | tuple):
        try:
            value = np.array(value) if value else np.empty(0, np.int64)
        except ValueError:  # nested lists of several lengths
            return None
    return value if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu" else None
