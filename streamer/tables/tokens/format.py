"""The format "tokens": samples are windows of one length, cut out of the tokens of a file, or sequences as written.

`formats/registry.py` makes it for engine, recoders and workers, and `shards/outputs/tokens.py` packs samples into such
files. These files are read:

| file | its tokens |
| --- | --- |
| `x.bin` with `x.idx` beside it | the whole file, of the dtype that the index file says (Megatron-LM, NeMo) |
| `x.bin` of llm.c | all behind a head of 1,024 bytes, which says the dtype |
| `x.npy`, if there is no `.bin` | an array of one dimension |
| `x.ds` of datatrove | the whole file, as many as `x.ds.index` beside it says |
| `x.bin` of nanoGPT, `x.npy` of OLMo without a header | the whole file, of the dtype that the user gives |

A window has one token more than the model reads, and begins with the last token of the window before. Megatron cuts
documents in the order of the file in the same way. Because windows overlap, they are made by a recoder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import ConfigError, DecodeError, ManifestError
from streamer.formats.base import Facts, Field, FieldSpec, Format, Opener, Recoder, SampleName
from streamer.formats.failures import make_damage_error, make_refusal
from streamer.formats.reading import read_ranges, spans_between
from streamer.formats.sidecars import contradicts, pair_sidecars
from streamer.formats.table.records import is_dtype
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing, Need, Source, Survey, Surveying
from streamer.tables.npy import read_heads
from streamer.tables.tokens import megatron
from streamer.tables.tokens.windows import PLACE, TokenWindowRecoder, ascends, cut_windows

_NUMPY = b"\x93NUMPY"
FIELD = "tokens"
POSITIONS = "position_ids"
DOCUMENTS = "document_ids"
_CUT = "Tokens(sequence_length=2048) cuts windows"
_EOS = "Tokens(sequence_length=2048, eos=...) tells them by the token that ends one"
# The head of a file of llm.c (dev/data/data_common.py): magic, version, number of tokens; the rest is empty.
_LLM_C = Struct("<iii")
_LLM_C_BYTES = 1024
_LLM_C_DTYPES = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
# Magics of llm.c's files of tokens, and of its files for evaluation.
_LLM_C_MAGICS = frozenset([20240520, 20240801, 20240522])
_LLM_C_MOST_VERSION = 64
# The files of datatrove. Their index files have the end of each document, counted in tokens.
_DATATROVE = ".ds"
_END = np.dtype("<u8")
_WRITE = "; streamer pack --output-format tokens makes files of tokens of its samples"
# First bytes of files that are no plain tokens, and what the refusal says. They are four bytes or more, so that less
# than one of 2**32 files of tokens begins with them by chance.
_STARTS = {
    b"PAR1": f"is Parquet: format='parquet'{_WRITE}",
    b"ARROW1": f"is Arrow: format='arrow'{_WRITE}",
    b"\xff\xff\xff\xff\x10\0\0\0": f"is an Arrow stream: format='arrow'{_WRITE}",
    b"\x89HDF\r\n\x1a\n": "is HDF5: format=HDF5(datasets={'tokens': '/name'})",
    _NUMPY: "is an .npy file by another name: rename it, and Tokens(sequence_length=2048) reads it",
    b"MMIDIDX\0\0": "is an index file of Megatron: name the .bin beside it, or their folder",
    b"LITPKDS": "is a chunk of lit-gpt's PackedDataset: save the tokens behind its head, with array.tofile()",
    b"PK\x03\x04": "is a zip archive (.npz, a checkpoint of torch): save the tokens as .npy, or with array.tofile()",
    b"\x28\xb5\x2f\xfd": "is compressed (Zstandard): store it as it was",
    b"\xfd7zXZ\0": "is compressed (xz): store it as it was",
    b"\x1f\x8b\x08\0": "is compressed (gzip): store it as it was",
    b"\x1f\x8b\x08\x08": "is compressed (gzip): store it as it was",
}


class Stream(msgspec.Struct, frozen=True):
    """Where the tokens of a file are.

    Attributes:
        dtype: dtype of a token.
        start: byte at which the first token begins.
        index: head of the index file of Megatron; None if there is none.
    """

    dtype: str
    start: int = 0
    index: megatron.MegatronHead | None = None


_STREAM = msgspec.msgpack.Decoder(Stream)


class Tokens(Format, frozen=True, forbid_unknown_fields=True):
    """Reads files of tokens: Megatron's (`.bin` with `.idx`), those of llm.c, `.npy` of one dimension, and plain ones.

    Attributes:
        sequence_length: number of tokens of a window that a model reads. A sample has them and the token after them.
            Windows go on over the ends of documents, but not of files. With None a sample is a sequence of Megatron's
            index file.
        dtype: dtype of the tokens of plain files ("<u2" for nanoGPT); other files say it themselves. If it is given,
            files called `.npy` need no header.
        eos: the token that ends a document. A window then also has the fields "position_ids", which count from 0 in
            each document, and "document_ids", which count documents from 1 in each window: int32, one per token.
        documents: whether windows have the same two fields by the documents in Megatron's index file.
    """

    name = "tokens"
    numbered_keys = True
    endings = (".bin", ".npy", _DATATROVE)
    sequence_length: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)] | None = None
    dtype: str = ""
    eos: Annotated[int, msgspec.Meta(ge=0)] | None = None
    documents: bool = False

    def __post_init__(self) -> None:
        """Raises ConfigError for a dtype that is not of integers, and for options that exclude each other."""
        if self.dtype and not is_dtype(self.dtype, "iu"):
            raise ConfigError(f"Tokens: dtype={self.dtype!r} is not a type of integers", field="format")
        given = [name for name, is_given in (("eos", self.eos is not None), ("documents", self.documents)) if is_given]
        if given and self.sequence_length is None:
            raise ConfigError(
                f"Tokens: {given[0]} tells the documents of a window apart; without sequence_length a sample is one "
                f"sequence: leave {given[0]} out, or give sequence_length",
                field="format",
            )
        if len(given) > 1:
            raise ConfigError("Tokens: either eos or the index says where documents end: leave one out", field="format")

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Reads the heads of index files, and of files that have none, to find the dtype and the places of tokens.

        `.npy` files are only taken if there are no others.

        Raises:
            ManifestError: a file is not read, or does not say what the options need, or dtypes differ.
            ConfigError: `eos` is no number of the dtype.
        """
        if accepted and all(map(_is_npy, accepted)):
            starts: Sequence[memoryview] = ()
            if self.dtype:
                starts = yield from read_ranges([_head_of(Source(record)) for record in accepted])
            if not starts or any(start[: len(_NUMPY)] == _NUMPY for start in starts):
                streams = []
                for record, head in (yield from read_heads(accepted)):
                    if np.dtype(head.kind.partition("[")[0]).kind not in "iu" or "[" in head.kind:
                        raise make_refusal(
                            record,
                            f"has rows of {head.kind}, not tokens: integers in one dimension; "
                            "format='npy' reads its rows",
                        )
                    if self.dtype and np.dtype(self.dtype) != np.dtype(head.kind):
                        raise make_refusal(
                            record, f"has tokens of {head.kind}, not dtype={self.dtype!r}: leave dtype out"
                        )
                    self._check_index(record, "is one array")
                    streams.append(Stream(head.kind, head.rows.start))
                return self._make_survey([Source(record) for record in accepted], streams)
        else:
            # Beside other files, `.npy` files are left out: Megatron keeps tables of its own in them.
            accepted = [record for record in accepted if not _is_npy(record)]
        sources = pair_sidecars(accepted, others, ("/.idx",), 0).sources
        contents = yield from read_ranges(list(map(_head_of, sources)))
        # The index file of a file of datatrove says at its end how many tokens there are.
        indexes = {
            record.url: others[f"{record.url}.index"]
            for record in accepted
            if record.url.endswith(_DATATROVE) and f"{record.url}.index" in others
        }
        width = _END.itemsize
        filled = {url: index for url, index in indexes.items() if index.size >= width}
        ends = yield from read_ranges([Need(index.size - width, index.size, index) for index in filled.values()])
        counts = {url: int(np.frombuffer(end, _END)[0]) for url, end in zip(filled, ends, strict=True)}
        streams = [
            self._stream(source, content, counts.get(source.record.url))
            for source, content in zip(sources, contents, strict=True)
        ]
        return self._make_survey(sources, streams)

    def _make_survey(self, sources: Sequence[Source], streams: Sequence[Stream]) -> Survey:
        """Returns the survey of files whose tokens were found; raises ManifestError and ConfigError as `survey`."""
        for source, stream in zip(sources, streams, strict=True):
            if stream.dtype != streams[0].dtype:
                raise ManifestError(
                    f"{source.record.url} has tokens of {stream.dtype}, {sources[0].record.url} of {streams[0].dtype}; "
                    "name them as two datasets",
                    url=source.record.url,
                )
        noted = [
            Source(source.record, msgspec.msgpack.encode(stream), source.sidecar)
            for source, stream in zip(sources, streams, strict=True)
        ]
        facts = Facts()
        if streams:
            dtype = streams[0].dtype
            if self.eos is not None and self.eos > np.iinfo(dtype).max:
                raise ConfigError(f"Tokens: eos={self.eos} is not a token of {dtype}", field="format")
            more = (POSITIONS, DOCUMENTS) if self.eos is not None or self.documents else ()
            fields = (FieldSpec(FIELD, self._kind(dtype)), *(FieldSpec(name, self._kind("<i4")) for name in more))
            facts = Facts(fields)
        return Survey(noted, facts, sum(self._read_bytes(source) for source in sources))

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the windows, or without `sequence_length` the sequences.

        Of an index file, all is read for sequences, the tables for `documents`, and otherwise the last sequence only.

        Raises:
            ManifestError: the index file contradicts itself or the tokens, or the file ends inside of a token.
        """
        stream = _STREAM.decode(source.notes)
        if self.sequence_length is None:
            assert stream.index is not None  # `_stream` refuses files without an index file
            yield from spans_between((yield from megatron.sequence_edges(source, stream.index)), start)
            return
        if stream.index is not None:
            yield from megatron.check_end(source, stream.index)
        documents = stream.index if self.documents else None
        yield from cut_windows(
            source=source, dtype=stream.dtype, start=stream.start, length=self.sequence_length, documents=documents
        )

    def opener(self, facts: Facts) -> Opener:
        """Returns what opens windows or sequences, and adds the fields about documents."""
        return TokenOpener(facts.fields[0].kind, self.eos, documents=self.documents)

    def recoder(self, facts: Facts) -> Recoder:
        """Returns what cuts windows."""
        assert self.sequence_length is not None
        return TokenWindowRecoder(self.sequence_length, np.dtype(facts.fields[0].kind.partition("[")[0]))

    def find_token_bytes(self, facts: Facts) -> int:
        """Returns the bytes of a token if samples are sequences, which are tokens only; else 0."""
        kinds = [spec.kind for spec in facts.fields]
        return np.dtype(kinds[0].removesuffix("[]")).itemsize if len(kinds) == 1 and kinds[0].endswith("[]") else 0

    def _kind(self, dtype: str) -> str:
        return f"{dtype}[]" if self.sequence_length is None else f"{dtype}[{self.sequence_length + 1}]"

    def _read_bytes(self, source: Source) -> int:
        if source.sidecar is None:
            return 0
        return source.sidecar.size if self.sequence_length is None or self.documents else 12

    def _stream(self, source: Source, content: memoryview, count: int | None = None) -> Stream:
        """Finds the tokens of a file; raises ManifestError if it cannot, or if the options need an index file.

        Args:
            source: the file, and its index file if there is one.
            content: the first bytes of the index file, or of the file itself if there is none.
            count: number of tokens by datatrove's index file, or None if there is none.
        """
        record = source.record
        if source.sidecar is not None:
            head = megatron.read_head(content, source)
            if self.documents and not head.documents:
                raise contradicts(source, "it has no documents")
            return Stream(head.dtype, 0, head)
        check_plain(record, content)
        self._check_index(record, f"has no index file ({record.url.rpartition('.')[0]}.idx)")
        if found := _llm_c(record, content):
            return found
        if count is not None:
            wide = {2: "<u2", 4: "<u4"}.get(record.size // count if count and record.size % count == 0 else 0)
            if wide is None:
                raise make_damage_error(
                    record, f"{record.size} bytes, and {record.url}.index says {count} tokens of 2 or 4", 0
                )
            if self.dtype and np.dtype(self.dtype).itemsize != np.dtype(wide).itemsize:
                raise make_refusal(record, f"has {count} tokens of {wide}, not dtype={self.dtype!r}: leave dtype out")
            return Stream(np.dtype(self.dtype or wide).str)
        if not self.dtype:
            raise make_refusal(
                record,
                "has neither an index file (.idx) nor a head of llm.c, so the type of its tokens is not known; say it: "
                "Tokens(sequence_length=..., dtype='<u2')",
            )
        return Stream(np.dtype(self.dtype).str.replace("|", ""))

    def _check_index(self, record: ObjectRecord, what: str) -> None:
        """Raises ManifestError for a file without an index file, which `what` says, if the options need one."""
        if self.sequence_length is None:
            raise make_refusal(record, f"{what}, so where its documents end is not known; {_CUT}")
        if self.documents:
            raise make_refusal(record, f"{what}, so nothing says where its documents end; {_EOS}")


def _is_npy(record: ObjectRecord) -> bool:
    return record.url.lower().endswith(".npy")


def _head_of(source: Source) -> Need:
    """Returns the need for the first bytes of the index file or file, which may say the dtype; raises ManifestError."""
    target, length = (source.sidecar, megatron.HEAD_BYTES) if source.sidecar else (source.record, _LLM_C.size)
    if not target.size:
        raise make_refusal(target, "has no bytes")
    return Need(0, min(length, target.size), target)


def _llm_c(record: ObjectRecord, content: memoryview) -> Stream | None:
    """Returns the tokens of a file of llm.c from its first bytes; None if it is another file.

    Raises ManifestError for a kind that is not read, or another length.
    """
    if len(content) < _LLM_C.size:
        return None
    magic, version, tokens = _LLM_C.unpack(content)
    dtype = _LLM_C_DTYPES.get((magic, version))
    if magic in _LLM_C_MAGICS and dtype is None and 0 <= version <= _LLM_C_MOST_VERSION:
        raise make_refusal(
            record,
            f"begins as a file of llm.c of kind {magic}, version {version}, does, which is not read: save its tokens "
            "with array.tofile(), and name their dtype",
        )
    if dtype is None:
        return None
    expected = _LLM_C_BYTES + tokens * np.dtype(dtype).itemsize
    if record.size != expected:
        raise make_damage_error(record, f"its head says {tokens} tokens, which take {expected} bytes", 8)
    return Stream(dtype, _LLM_C_BYTES)


class TokenOpener:
    """Opens samples that are tokens; records of windows may have behind them the places at which documents begin.

    Args:
        kind: kind of the field "tokens": "<u2[2049]" for windows, "<u2[]" for sequences.
        eos: the token that ends a document, or None if none is given.
        documents: whether records have places of documents.
    """

    def __init__(self, kind: str, eos: int | None = None, *, documents: bool = False) -> None:
        self._kind = kind
        self._eos = eos
        self._documents = documents
        dtype, _, count = kind.removesuffix("]").partition("[")
        self._dtype = np.dtype(dtype)
        self._token_bytes = self._dtype.itemsize
        self._bytes = int(count) * self._token_bytes if count else None

    def open(self, content: memoryview, name: SampleName) -> tuple[None, Sequence[Field]]:
        """Returns no key, and the field "tokens"; with `eos` or `documents` also "position_ids" and "document_ids".

        Raises:
            DecodeError: the bytes are not such tokens, or not the places of documents.
        """
        tokens = content[: self._bytes] if self._documents else content
        length = len(tokens)
        if length % self._token_bytes or self._bytes not in {None, length}:
            raise DecodeError(f"{length} bytes are not tokens of {self._kind}", offset=0)
        starts: NDArray[np.integer]
        if self._documents:
            # Behind the tokens are the places at which documents begin.
            rest = content[length:]
            starts = np.frombuffer(rest[: len(rest) // PLACE.itemsize * PLACE.itemsize], PLACE)
            if len(rest) % PLACE.itemsize or not ascends(starts, length // self._token_bytes - 1):
                what = f"{len(rest)} bytes behind the {length // self._token_bytes} tokens"
                raise DecodeError(f"{what} do not say where documents begin", offset=length)
        elif self._eos is not None:
            starts = np.flatnonzero(np.frombuffer(tokens, self._dtype)[:-1] == self._eos) + 1
        else:
            return None, [Field(FIELD, tokens, self._kind)]
        positions, documents = documents_of(length // self._token_bytes, starts)
        kind = f"<i4[{len(positions)}]"
        return None, [
            # The tokens have been looked at if `eos` is given. Then they must not be read again, straight into a batch.
            Field(FIELD, tokens, self._kind, checked=self._eos is not None),
            Field(POSITIONS, positions.view(np.uint8).data, kind),
            Field(DOCUMENTS, documents.view(np.uint8).data, kind),
        ]


def documents_of(tokens: int, starts: NDArray[np.integer]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Returns, for each token of a window, its place in its document, and the number of the document, from 1.

    A document that began before the window counts as beginning with it.

    Args:
        tokens: number of tokens of the window.
        starts: the places, ascending, of tokens other than the first at which a document begins.
    """
    numbers = np.arange(tokens, dtype=np.int32)
    begun = np.zeros_like(numbers)
    documents = np.zeros_like(numbers)
    begun[starts] = starts
    documents[starts] = 1
    return numbers - np.maximum.accumulate(begun), np.cumsum(documents, dtype=np.int32) + np.int32(1)


def check_plain(record: ObjectRecord, content: memoryview) -> None:
    """Raises ManifestError for a file that is something else than tokens by its first bytes, and says what reads it."""
    start = bytes(content[:12])
    for magic, what in _STARTS.items():
        if start.startswith(magic):
            raise make_refusal(record, what)
