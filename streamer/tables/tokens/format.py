"""Tokens: windows of one length, cut out of the tokens of a file one after the other; or sequences as written.

| file | tokens |
| --- | --- |
| `x.bin` with `x.idx` beside it | Megatron-LM, NeMo: of the dtype that the index says |
| `x.bin` of llm.c | behind a head of 1,024 bytes, which says the dtype |
| `x.npy` | one array of one dimension; where there is no `.bin` |
| `x.ds` of datatrove | nothing else: `x.ds.index` beside it says how many |
| `x.bin` of nanoGPT, `x.npy` of OLMo without a header | nothing else: the user says the dtype |

A window has one token more than the model reads, and begins with the last token of the one before: so Megatron cuts an
epoch of documents that are in the order of the file. Because windows overlap they are made by a recoder.
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
# llm.c, dev/data/data_common.py: magic, version, tokens; the rest of the head is empty.
_LLM_C = Struct("<iii")
_LLM_C_BYTES = 1024
_LLM_C_DTYPES = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
# Magics of its files of tokens, and of those of its evaluations.
_LLM_C_MAGICS = frozenset([20240520, 20240801, 20240522])
_LLM_C_MOST_VERSION = 64
# datatrove: the ends of the documents, in tokens.
_DATATROVE = ".ds"
_END = np.dtype("<u8")
_WRITE = "; streamer pack --output-format tokens makes files of tokens of its samples"
# Four bytes or more: tokens of two begin with the same ones less than once in 2**32 files.
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
    """The tokens of a file: dtype, byte at which the first begins, and the head of the index file, if there is one."""

    dtype: str
    start: int = 0
    index: megatron.MegatronHead | None = None


_STREAM = msgspec.msgpack.Decoder(Stream)


class Tokens(Format, frozen=True, forbid_unknown_fields=True):
    """Files of tokens: Megatron's (`.bin` with `.idx`), those of llm.c, `.npy` of one dimension, and plain ones.

    Attributes:
        sequence_length: a sample is a window of this many tokens and the one after them; windows go on over the ends of
            documents, not of files. None: a sample is a sequence, as Megatron's index has it.
        dtype: dtype of the tokens of plain files ("<u2" for nanoGPT's); the others say it. With it, files called `.npy`
            need no header.
        eos: the token that ends a document. A window then also has "position_ids", from 0 in each document, and
            "document_ids", 1, 2, ... in each window: int32, one per token.
        documents: the same, with documents that begin where Megatron's index says.
    """

    name = "tokens"
    numbered_keys = True
    endings = (".bin", ".npy", _DATATROVE)
    sequence_length: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)] | None = None
    dtype: str = ""
    eos: Annotated[int, msgspec.Meta(ge=0)] | None = None
    documents: bool = False

    def __post_init__(self) -> None:
        """Refuses a dtype that is not of integers, and documents of sequences."""
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
        """Reads the heads of all index files, and of files that have none; all tokens must have one dtype."""
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
            # Megatron keeps its own tables beside the tokens, as .npy.
            accepted = [record for record in accepted if not _is_npy(record)]
        sources = pair_sidecars(accepted, others, ("/.idx",), 0).sources
        contents = yield from read_ranges(list(map(_head_of, sources)))
        # Files of datatrove say at the ends of their indexes how many tokens they have.
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
        """Finds the windows, for which only the end of the index file is read; or its sequences."""
        stream = _STREAM.decode(source.notes)
        if self.sequence_length is None:
            assert stream.index is not None  # `_stream` refuses the others
            yield from spans_between((yield from megatron.sequence_edges(source, stream.index)), start)
            return
        if stream.index is not None:
            yield from megatron.check_end(source, stream.index)
        documents = stream.index if self.documents else None
        yield from cut_windows(
            source=source, dtype=stream.dtype, start=stream.start, length=self.sequence_length, documents=documents
        )

    def opener(self, facts: Facts) -> Opener:
        """Opens arrays of tokens, and tells their documents apart."""
        return TokenOpener(facts.fields[0].kind, self.eos, documents=self.documents)

    def recoder(self, facts: Facts) -> Recoder:
        """Cuts windows."""
        assert self.sequence_length is not None
        return TokenWindowRecoder(self.sequence_length, np.dtype(facts.fields[0].kind.partition("[")[0]))

    def find_token_bytes(self, facts: Facts) -> int:
        """Returns the width of a token of sequences, which have nothing else; see `Format.find_token_bytes`."""
        kinds = [spec.kind for spec in facts.fields]
        return np.dtype(kinds[0].removesuffix("[]")).itemsize if len(kinds) == 1 and kinds[0].endswith("[]") else 0

    def _kind(self, dtype: str) -> str:
        return f"{dtype}[]" if self.sequence_length is None else f"{dtype}[{self.sequence_length + 1}]"

    def _read_bytes(self, source: Source) -> int:
        if source.sidecar is None:
            return 0
        return source.sidecar.size if self.sequence_length is None or self.documents else 12

    def _stream(self, source: Source, content: memoryview, count: int | None = None) -> Stream:
        """Finds the tokens of a file by its first bytes, and by how many a file beside it says there are."""
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
        """Refuses a file without an index of documents, if the options need one."""
        if self.sequence_length is None:
            raise make_refusal(record, f"{what}, so where its documents end is not known; {_CUT}")
        if self.documents:
            raise make_refusal(record, f"{what}, so nothing says where its documents end; {_EOS}")


def _is_npy(record: ObjectRecord) -> bool:
    return record.url.lower().endswith(".npy")


def _head_of(source: Source) -> Need:
    """Asks for the bytes that say the dtype."""
    target, length = (source.sidecar, megatron.HEAD_BYTES) if source.sidecar else (source.record, _LLM_C.size)
    if not target.size:
        raise make_refusal(target, "has no bytes")
    return Need(0, min(length, target.size), target)


def _llm_c(record: ObjectRecord, content: memoryview) -> Stream | None:
    """Returns the tokens of a file of llm.c; None if it is another file."""
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
    """Opens samples: the tokens, and behind those of a window the places at which its documents begin.

    Args:
        kind: kind of the field: "<u2[2049]", or "<u2[]" for sequences.
        eos: the token that ends a document of a window; None: not said.
        documents: whether records say where documents begin.
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
        """Returns one field, "tokens"; two more where documents are told apart."""
        tokens = content[: self._bytes] if self._documents else content
        length = len(tokens)
        if length % self._token_bytes or self._bytes not in {None, length}:
            raise DecodeError(f"{length} bytes are not tokens of {self._kind}", offset=0)
        starts: NDArray[np.integer]
        if self._documents:
            # Documents begin at the places behind the tokens.
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
            # The checksum of tokens that have been looked at is compared: they are not read past this.
            Field(FIELD, tokens, self._kind, checked=self._eos is not None),
            Field(POSITIONS, positions.view(np.uint8).data, kind),
            Field(DOCUMENTS, documents.view(np.uint8).data, kind),
        ]


def documents_of(tokens: int, starts: NDArray[np.integer]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Returns for each token of a window its place in its document, and the number of the document, from 1.

    `starts` are the tokens at which documents begin, ascending; one that began before the window begins with it.
    """
    numbers = np.arange(tokens, dtype=np.int32)
    begun = np.zeros_like(numbers)
    documents = np.zeros_like(numbers)
    begun[starts] = starts
    documents[starts] = 1
    return numbers - np.maximum.accumulate(begun), np.cumsum(documents, dtype=np.int32) + np.int32(1)


def check_plain(record: ObjectRecord, content: memoryview) -> None:
    """Refuses a file whose first bytes say that it is something else, and names what reads it."""
    start = bytes(content[:12])
    for magic, what in _STARTS.items():
        if start.startswith(magic):
            raise make_refusal(record, what)
