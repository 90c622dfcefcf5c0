"""Token files meet the contract of the formats, on files of Megatron-LM's writer; windows, documents and refusals."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from streamer import StreamingDataLoader, StreamingDataset
from streamer.errors import ConfigError, DecodeError, ManifestError, RecodeError
from streamer.formats.base import Block, Facts, FieldSpec, SampleName
from streamer.formats.detect import detect
from streamer.formats.registry import find_format
from streamer.manifest.blocks import LONGEST_HINT
from streamer.tables.tokens import megatron
from streamer.tables.tokens.format import Tokens
from streamer.tables.tokens.megatron import encode_index
from streamer.tables.tokens.windows import TokenWindowRecoder
from tests.formats.cases import DATA, Case, find, read_case
from tests.formats.contract import FormatContract
from tests.formats.summary import summary

LENGTH = 32
WINDOWS = Tokens(sequence_length=LENGTH)
DOCUMENTS = Tokens(sequence_length=LENGTH, documents=True)
HEAD = "<9sQBQQ"
MAGIC = b"MMIDIDX\0\0"


def with_documents(folder: str) -> Case:
    """Returns a folder's windows, which Megatron has cut: where its documents are, read off the index by hand."""
    made = ("position_ids", "document_ids")
    case = read_case(DOCUMENTS, folder, copied=made, name=f"{folder} with documents")
    samples = iter(case.samples)
    return replace(case, samples=[{**next(samples), **more} for name in ("a", "b") for more in told(case, name)])


def told(case: Case, name: str) -> Iterator[dict[str, object]]:
    index, tokens = case.objects[f"{name}.idx"], len(case.objects[f"{name}.bin"]) // 2
    *_, sequences, documents = struct.unpack_from(HEAD, index)
    lengths = np.frombuffer(index, "<i4", sequences, 34)
    firsts = np.frombuffer(index, "<i8", documents, 34 + 12 * sequences)
    number, place = np.zeros(tokens, int), np.zeros(tokens, int)
    for document, (first, last) in enumerate(pairwise(firsts)):
        begin, end = lengths[:first].sum(), lengths[:last].sum()
        number[begin:end], place[begin:end] = document, np.arange(end - begin)
    for first in range(0, tokens - LENGTH, LENGTH):
        window = number[first : first + LENGTH + 1]
        in_first = window == window[0]
        positions = np.where(in_first, np.arange(LENGTH + 1), place[first : first + LENGTH + 1])
        ids = np.unique(window, return_inverse=True)[1] + 1
        yield {"position_ids": summary(positions.astype("<i4")), "document_ids": summary(ids.astype("<i4"))}


class TestTokens(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        plain = Tokens(sequence_length=LENGTH, dtype="<u2")
        return [
            read_case(WINDOWS, "tokens/windows"),
            read_case(Tokens(), "tokens/sequences"),
            *(read_case(WINDOWS, f"tokens/{name}") for name in ("wide", "llmc", "llmc3")),
            read_case(plain, "tokens/plain"),
            with_documents("tokens/windows"),
        ]


@pytest.fixture
def files() -> dict[str, bytes]:
    objects = read_case(WINDOWS, "tokens/windows").objects
    return {name: content for name, content in objects.items() if name.startswith("a.")}


def test_windows_need_the_ends_of_the_index_alone(files):
    """The index of windows reads 46 bytes of Megatron's index file, however many documents there are."""
    found = find(WINDOWS, files)
    assert [[need.stop - need.start for need in ask] for ask in found.survey_needs] == [[34]]
    assert [[need.stop - need.start for need in ask] for ask in found.needs["s3://bucket/data/a.bin"]] == [[4, 8]]
    assert found.survey.read_bytes == 12


def test_windows_follow_megatrons_count(files):
    """A file of Megatron has (tokens - 1) // length windows."""
    tokens = np.frombuffer(files["a.bin"], "<u2")
    for length in (1, 7, LENGTH, len(tokens) - 1, len(tokens)):
        ((source, blocks),) = find(Tokens(sequence_length=length), files).items
        assert sum(block.samples for block in blocks) == (len(tokens) - 1) // length
        assert source.record.url.endswith("a.bin")


def test_runs_of_windows_are_as_long_as_chunks():
    """Runs of windows are as long as a chunk, and neighbours have one token in common."""
    tokens = np.arange(100_001, dtype="<u2")
    chosen = Tokens(sequence_length=100, dtype="<u2")
    ((source, _),) = find(chosen, {"a.bin": tokens.tobytes()}).items
    source = type(source)(source.record, source.notes, None, chunk_bytes=20_000)
    blocks = list(chosen.index(source, Facts()))
    assert [block.fetch_bytes for block in blocks] == [19_802] * 10 + [2_002]
    assert {one.ranges[0][1] - other.ranges[0][0] for one, other in pairwise(blocks)} == {2}


def idx(head: tuple[object, ...], lengths=(), pointers=(), documents=()) -> bytes:
    return (
        struct.pack(HEAD, *head)
        + np.array(lengths, "<i4").tobytes()
        + np.array(pointers, "<i8").tobytes()
        + np.array(documents, "<i8").tobytes()
    )


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        (b"", r"a\.idx has no bytes"),
        (b"MMIDIDX", "its head has 7 of 34 bytes"),
        (idx((b"TNTIDX\0\0\0", 1, 8, 0, 0)), "it begins with b'TNTIDX"),
        (idx((MAGIC, 2, 8, 0, 0)), "version 2"),
        (idx((MAGIC, 1, 9, 0, 0)), "dtype number 9; there are 1 to 8"),
        (idx((MAGIC, 1, 0, 0, 0)), "dtype number 0"),
        (idx((MAGIC, 1, 8, 1 << 60, 0)), "take .* bytes, it has 34"),
        (idx((MAGIC, 1, 8, 0, 0)), "it has no sequences"),
        (idx((MAGIC, 1, 8, 2, 1), (3, 4), (0, 6), (0,)), "its last sequence ends at byte 14"),
        (idx((MAGIC, 1, 8, 2, 1), (3, -3), (0, 6), (0,)), "its last sequence ends at byte 0"),
        (idx((MAGIC, 1, 8, 1, 1), (-1,), (22,), (0,)), "its last sequence ends at byte 20"),
    ],
)
def test_an_index_of_another_file(index, reason):
    """An index file of Megatron that does not fit its tokens is refused with what is wrong."""
    with pytest.raises(ManifestError, match=reason):
        find(WINDOWS, {"a.bin": bytes(20), "a.idx": index})


def test_sequences_that_do_not_follow_each_other():
    """Gaps and overlaps of Megatron's sequences are refused where sequences are samples."""
    good = idx((MAGIC, 1, 8, 2, 2), (3, 7), (0, 6), (0, 2))
    ((_, spans),) = find(Tokens(), {"a.bin": bytes(20), "a.idx": good}).items
    assert [(span.start, span.stop) for span in spans] == [(0, 6), (6, 20)]
    modes = find(Tokens(), {"a.bin": bytes(20), "a.idx": good + b"\0\1"}).items
    assert modes[0][1] == spans
    for pointers in ((0, 8), (2, 6), (0, 4)):
        wrong = idx((MAGIC, 1, 8, 2, 2), (3, 7), pointers, (0, 2))
        with pytest.raises(ManifestError, match="do not follow each other"):
            find(Tokens(), {"a.bin": bytes(20), "a.idx": wrong})


@pytest.mark.parametrize(
    ("chosen", "content", "reason"),
    [
        (WINDOWS, bytes(200), r"type of its tokens is not known; say it: Tokens\(sequence_length=..., dtype='<u2'\)"),
        (Tokens(dtype="<u2"), bytes(200), r"has no index file \(.*a\.idx\).*Tokens\(sequence_length=2048\)"),
        (Tokens(sequence_length=4, dtype="<u2"), bytes(201), "ends inside of a token of 2 bytes"),
        (WINDOWS, b"", "has no bytes"),
        (WINDOWS, struct.pack("<3i", 20240520, 1, 9) + bytes(1012 + 16), "its head says 9 tokens, which take 1042"),
        (WINDOWS, struct.pack("<3i", 20240520, 1, -9) + bytes(1012), "its head says -9 tokens"),
    ],
)
def test_files_without_an_index(chosen, content, reason):
    """Token files whose dtype or ends are not known are refused with what is missing."""
    with pytest.raises(ManifestError, match=reason):
        find(chosen, {"a.bin": content})


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (b"PAR1\x15\0", "is Parquet: format='parquet'"),
        (b"ARROW1\0\0", "is Arrow: format='arrow'"),
        (b"\x93NUMPY\1\0", "is an .npy file by another name"),
        (MAGIC, "is an index file of Megatron: name the .bin"),
        (b"\x89HDF\r\n\x1a\n", "is HDF5"),
        (b"PK\3\4", r"is a zip archive \(.npz"),
        (b"\x28\xb5\x2f\xfd", "is compressed"),
        (b"\x1f\x8b\x08\0", "is compressed"),
    ],
)
@pytest.mark.parametrize("chosen", [Tokens(sequence_length=4, dtype="<u2"), Tokens(sequence_length=4), Tokens()])
def test_files_that_are_no_tokens(chosen, start, reason):
    """Files of other formats named .bin are refused with what reads them (regression: their bytes were tokens)."""
    with pytest.raises(ManifestError, match=reason):
        find(chosen, {"a.bin": start + bytes(100)})


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def test_arrays_of_one_dimension_have_windows():
    """An .npy of one dimension is tokens of its dtype; beside `.bin` files it is none, but a table of Megatron's."""
    tokens = np.arange(100, dtype="<u4")
    chosen = Tokens(sequence_length=9)
    found = find(chosen, {"a.npy": npy(tokens), "b.npy": npy(tokens[:12])})
    assert found.survey.facts.fields == (FieldSpec("tokens", "<u4[10]"),)
    (source, blocks), (_, others) = found.items
    assert sum(block.samples for block in blocks) == 11
    assert others[0].samples == 1
    start = source.record.size - tokens.nbytes
    assert blocks[0].ranges[0] == (start, start + 100 * 4)
    plain = Tokens(sequence_length=9, dtype="<u2")
    assert [source.record.url for source, _ in find(plain, {"a.npy": npy(tokens), "b.bin": bytes(40)}).items] == [
        "s3://bucket/data/b.bin"
    ]


@pytest.mark.parametrize(
    ("chosen", "array", "reason"),
    [
        (WINDOWS, np.zeros((4, 8), "<u2"), r"has rows of <u2\[8\], not tokens.*format='npy'"),
        (WINDOWS, np.zeros(40, "<f4"), "has rows of <f4, not tokens"),
        (Tokens(sequence_length=4, dtype="<u2"), np.zeros(40, "<i4"), "has tokens of <i4, not dtype='<u2'"),
        (
            Tokens(),
            np.zeros(40, "<u2"),
            r"is one array, so where its documents end is not known; Tokens\(sequence_length=",
        ),
    ],
)
def test_arrays_that_are_no_tokens(chosen, array, reason):
    """Files of .npy that are no tokens are refused with what reads them."""
    with pytest.raises(ManifestError, match=reason):
        find(chosen, {"a.npy": npy(array)})


def test_windows_know_their_documents():
    """With `eos=` a document ends with this token; positions begin at 0 in each, and documents count from 1."""
    opener = Tokens(sequence_length=7, eos=9).opener(Facts((FieldSpec("tokens", "<u2[8]"),)))
    tokens = np.array([5, 9, 9, 1, 2, 3, 9, 4], "<u2")
    _, fields = opener.open(memoryview(tokens.view(np.uint8)), SampleName())
    assert [field.name for field in fields] == ["tokens", "position_ids", "document_ids"]
    assert [field.kind for field in fields] == ["<u2[8]", "<i4[8]", "<i4[8]"]
    assert np.frombuffer(fields[1].content, "<i4").tolist() == [0, 1, 0, 0, 1, 2, 3, 0]
    assert np.frombuffer(fields[2].content, "<i4").tolist() == [1, 1, 2, 3, 3, 3, 3, 4]


def test_batches_have_the_bounds_of_documents(tmp_path, monkeypatch):
    """Positions in batches give the `cu_seqlens` of documents, as flash-attn's functions take them."""
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    tokens = np.random.default_rng(0).integers(0, 12, 4000).astype("<i8")
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "train.npy", tokens)
    chosen = Tokens(sequence_length=99, eos=0)
    dataset = StreamingDataset(
        tmp_path / "data", format=chosen, cache_dir=tmp_path / "cache", cache_bytes="1GB", shuffle=False
    )
    with closing(dataset), StreamingDataLoader(dataset, 4, 2, report_every=None) as loader:
        number = -1
        for number, batch in enumerate(loader):
            read = batch["tokens"][:, :-1].numpy()
            first = 4 * number * 99
            assert np.array_equal(read.reshape(-1), tokens[first : first + read.size])
            positions = batch["position_ids"][:, :-1].reshape(-1)
            starts = (positions == 0).nonzero().reshape(-1).int()
            cu_seqlens = torch.cat([starts, starts.new_tensor([positions.numel()])])
            max_seqlen = int(cu_seqlens.diff().max())
            documents = np.split(read.reshape(-1), cu_seqlens.numpy()[1:-1])
            assert max(map(len, documents)) == max_seqlen
            assert all((document[:-1] != 0).all() for document in documents)
            inside = batch["document_ids"].diff(dim=1) == 0
            assert np.array_equal(~inside.numpy(), read == 0)
        assert number + 1 == -(-(len(tokens) // 99) // 4)


def documents_in(lengths: list[int], *, length: int, chunk_bytes: int = 8 << 20) -> tuple[list[list[int]], list[Block]]:
    """Returns the documents' numbers in each window of a file with documents of these lengths, and its blocks."""
    tokens = np.arange(sum(lengths), dtype="<i4")
    firsts = np.cumsum([0, *lengths], dtype="<i8")
    index = idx((MAGIC, 1, 4, len(lengths), len(firsts)), lengths, firsts[:-1] * 4, range(len(firsts)))
    chosen = Tokens(sequence_length=length, documents=True)
    found = find(chosen, {"a.bin": tokens.tobytes(), "a.idx": index}, chunk_bytes=chunk_bytes)
    facts, ((_, blocks),) = found.survey.facts, found.items
    opener, recoder = chosen.opener(facts), chosen.recoder(facts)
    windows = []
    for block in blocks:
        begin, end = (at // 4 for at in block.ranges[0])
        records = recoder.recode(memoryview(tokens[begin:end].view(np.uint8)), block.samples, block.hint)
        assert sum(map(len, records.parts)) == records.lengths.sum() == block.record_bytes
        whole = np.concatenate(records.parts)
        for stop, count in zip(np.cumsum(records.lengths), records.lengths, strict=True):
            fields = opener.open(memoryview(whole[stop - count : stop]), SampleName())[1]
            read, positions, numbers = (np.frombuffer(field.content, "<i4") for field in fields)
            starts = firsts[np.searchsorted(firsts, read, "right") - 1]
            assert np.array_equal(positions, read - np.maximum(starts, read[0]))
            windows.append(numbers.tolist())
    return windows, blocks


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 12), st.integers(8, 200))
def test_windows_of_any_documents(lengths, length, chunk_bytes):
    """Each token of a window has its document's number and its position in it, also after documents of no token."""
    assume(sum(lengths) > length)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    windows, _ = documents_in(lengths, length=length, chunk_bytes=chunk_bytes)
    cuts = range(0, sum(lengths) - length, length)
    assert windows == [(np.unique(owner[at : at + length + 1], return_inverse=True)[1] + 1).tolist() for at in cuts]


def test_many_documents(monkeypatch):
    """A run has as many windows as its hint holds documents; a window of more than 16,384 is refused."""
    monkeypatch.setattr(megatron, "_PIECE", 1000)
    windows, blocks = documents_in([3] * 50_000, length=1000)
    assert len(windows) == 149
    assert [block.samples for block in blocks] == [49, 49, 49, 2]
    assert max(len(block.hint) for block in blocks) <= LONGEST_HINT
    with pytest.raises(ManifestError, match="windows of 60000 tokens with more than 16384 documents"):
        documents_in([3] * 50_000, length=60_000)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        (idx((MAGIC, 1, 8, 2, 0), (4, 6), (0, 8)), "it has no documents"),
        (idx((MAGIC, 1, 8, 2, 2), (4, 6), (0, 8), (0, 1)), "its documents do not follow each other"),
        (idx((MAGIC, 1, 8, 2, 3), (4, 6), (0, 8), (0, 3, 2)), "its documents do not follow each other"),
        (idx((MAGIC, 1, 8, 2, 3), (4, 6), (0, 8), (-1, 1, 2)), "its documents do not follow each other"),
        (idx((MAGIC, 1, 8, 2, 2), (4, 6), (0, 8), (0, 1 << 60)), "its documents do not follow each other"),
        (idx((MAGIC, 1, 8, 3, 2), (-4, 8, 6), (0, 0, 8), (0, 3)), "its sequences do not follow each other"),
        (idx((MAGIC, 1, 8, 2, 2), (5, 6), (0, 8), (0, 2)), "its last sequence ends at byte 22"),
    ],
)
def test_documents_of_another_file(index, reason):
    """An index of Megatron whose documents or sequences do not follow each other is refused."""
    with pytest.raises(ManifestError, match=reason):
        find(Tokens(sequence_length=4, documents=True), {"a.bin": bytes(20), "a.idx": index})


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.bin", bytes(40), r"no index file \(.*a\.idx\), so nothing says where its documents end; .*eos="),
        ("a.npy", npy(np.zeros(40, "<u2")), "is one array, so nothing says where its documents end; .*eos="),
    ],
)
def test_documents_without_an_index(name, content, reason):
    """`documents=True` is refused without an index file, with `eos=` as what else tells documents apart."""
    with pytest.raises(ManifestError, match=reason):
        find(Tokens(sequence_length=4, dtype="<u2", documents=True), {name: content})


def test_documents_that_are_not_in_their_window():
    """Starts of documents outside their window, or out of order, are refused, in a hint and in a record."""
    recoder = TokenWindowRecoder(4, np.dtype("<u2"))
    for places in ([0], [9], [3, 3], [5, 2]):
        with pytest.raises(RecodeError, match="does not say where documents begin in 8 tokens"):
            recoder.recode(memoryview(bytes(18)), 2, np.array(places, "<u4").tobytes())
    with pytest.raises(RecodeError, match="a hint of 3 bytes"):
        recoder.recode(memoryview(bytes(18)), 2, bytes(3))
    opener = Tokens(sequence_length=4, documents=True).opener(Facts((FieldSpec("tokens", "<u2[5]"),)))
    for rest in (bytes(3), *(np.array(places, "<i4").tobytes() for places in ([0], [5], [-1], [2, 2]))):
        with pytest.raises(DecodeError, match="behind the 5 tokens do not say where documents begin"):
            opener.open(memoryview(bytes(10) + rest), SampleName())


def test_the_index_and_the_last_token_say_the_same(tmp_path, monkeypatch):
    """Batches are the same by Megatron's index file and by `eos=`, where each document ends with this token."""
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    drawn = np.random.default_rng(0)
    documents = [np.append(drawn.integers(1, 12, size), 0) for size in drawn.integers(0, 90, 200)]
    (tmp_path / "data").mkdir()
    np.concatenate(documents).astype("<u2").tofile(tmp_path / "data" / "a.bin")
    (tmp_path / "data" / "a.idx").write_bytes(encode_index("<u2", np.array([*map(len, documents)], np.int32)))
    read = []
    for chosen in (Tokens(sequence_length=64, documents=True), Tokens(sequence_length=64, eos=0)):
        dataset = StreamingDataset(
            tmp_path / "data", format=chosen, cache_dir=tmp_path / "cache", cache_bytes="1GB", seed=3
        )
        with closing(dataset), StreamingDataLoader(dataset, 4, 2, report_every=None) as loader:
            names = ("tokens", "position_ids", "document_ids")
            read.append([[batch[name].tolist() for name in names] for batch in loader])
    assert read[0] == read[1]
    assert len(read[0]) > 30


def test_documents_are_those_of_megatron():
    """Windows with `eos=` are those of Megatron with reset_position_ids (tests/formats/make/row_fields.py)."""
    opener = Tokens(sequence_length=31, eos=0).opener(Facts((FieldSpec("tokens", "<u2[32]"),)))
    rows = json.loads((DATA / "rows" / "megatron.json").read_text())
    assert len(rows) >= 9
    for row in rows:
        _, fields = opener.open(memoryview(np.array(row["tokens"], "<u2").tobytes()), SampleName())
        assert {field.name: np.frombuffer(field.content, field.kind[:3]).tolist() for field in fields} == row


def test_an_eos_that_is_no_token():
    """An `eos=` that is no token of the files' dtype is a ConfigError."""
    with pytest.raises(ConfigError, match="eos=70000 is not a token of <u2"):
        find(Tokens(sequence_length=9, dtype="<u2", eos=70_000), {"a.bin": bytes(40)})


def test_files_of_two_dtypes(files):
    """Token files of two dtypes are refused as one dataset."""
    other = {"b.bin": bytes(40), "b.idx": idx((MAGIC, 1, 4, 1, 0), (10,), (0,))}
    with pytest.raises(ManifestError, match=r"b\.bin has tokens of <i4, .*a\.bin of <u2"):
        find(WINDOWS, {**files, **other})


@pytest.mark.parametrize(
    "options",
    [
        *({"dtype": "<f4"}, {"dtype": "x"}, {"sequence_length": 0}, {"length": 3}),
        *({"eos": 3}, {"documents": True}, {"sequence_length": 3, "eos": 3, "documents": True}),
    ],
)
def test_options_without_meaning(options):
    """Options of Tokens without a meaning, or that exclude each other, are a ConfigError."""
    with pytest.raises(ConfigError, match=r"tokens|Tokens"):
        find_format("tokens", options)


def test_runs_and_windows_of_another_length():
    """Runs and windows of another length than the index found are refused."""
    recoder = TokenWindowRecoder(4, np.dtype("<u2"))
    for content, samples in ((b"", 0), (bytes(17), 2), (bytes(18), 3), (bytes(18), -1)):
        with pytest.raises(RecodeError, match="windows of 4 tokens"):
            recoder.recode(memoryview(content), samples, b"")
    for kind, content in (("<u2[5]", 8), ("<u2[]", 5)):
        opener = Tokens().opener(Facts((FieldSpec("tokens", kind),)))
        with pytest.raises(DecodeError, match="are not tokens"):
            opener.open(memoryview(bytes(content)), SampleName())


def test_names(files):
    """A `.bin` is detected as tokens if an `.idx` is beside it, else it is a file of bytes."""
    assert detect([*files, "b.bin", "b.idx", "README.md"]) == "tokens"
    assert detect(["train.bin", "val.bin"]) == "folder"


def test_batches_are_tensors(tmp_path, monkeypatch):
    """Batches of windows of nanoGPT's file are tensors of what a model reads and what it predicts."""
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    tokens = np.arange(1000, dtype="<u2")
    (tmp_path / "data").mkdir()
    tokens.tofile(tmp_path / "data" / "train.bin")
    chosen = Tokens(sequence_length=9, dtype="<u2")
    dataset = StreamingDataset(tmp_path / "data", format=chosen, cache_dir=tmp_path / "cache", cache_bytes="1GB")
    with closing(dataset), StreamingDataLoader(dataset, 4, 0, report_every=None) as loader:
        batches = [batch["tokens"].long() for batch in loader]
    rows = np.sort(np.concatenate([batch.numpy() for batch in batches]), axis=0)
    assert {batch.shape[1:] for batch in batches} == {(10,)}
    assert np.array_equal(rows[:, :-1].reshape(-1), tokens[: 111 * 9])
    assert np.array_equal(rows[:, 1:].reshape(-1), tokens[1 : 111 * 9 + 1])
