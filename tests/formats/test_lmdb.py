"""LMDB meets the contract of the formats, on files of its own library; what its index reads, and which it refuses."""

from __future__ import annotations

import asyncio
import struct
from itertools import pairwise

import pytest

from streamer.errors import DecodeError, ManifestError, RecodeError
from streamer.formats.base import Facts, SampleName
from streamer.formats.detect import detect
from streamer.tables.lmdb import LMDB
from tests.formats.cases import Case, MemoryStore, built, find, read_case
from tests.formats.contract import FormatContract, samples_of

PAGE = 4096
# In a meta page, behind its head: magic, format, address, map size; two databases; last page, transaction.
META, MAIN, LAST, TRANSACTION = 16, 16 + 24 + 48, 16 + 120, 16 + 128


class TestLMDB(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        return [read_case(LMDB(), f"lmdb/{name}", raw=["value"]) for name in ("entries", "deep", "file", "numbers")]


@pytest.fixture
def entries() -> Case:
    return read_case(LMDB(), "lmdb/entries", raw=["value"])


@pytest.fixture
def content(entries: Case) -> bytearray:
    return bytearray(entries.objects["data.mdb"])


def find_in(content: bytes, **options: object):
    return find(LMDB(**options), {"data.mdb": bytes(content)})


def on_meta_pages(content: bytearray, at: int, layout: str, value: int) -> bytes:
    for page in (0, PAGE):
        struct.pack_into(layout, content, page + at, value)
    return bytes(content)


def root_of(content: bytes) -> int:
    """Returns where the root page is."""
    newer = max((0, PAGE), key=lambda page: struct.unpack_from("<Q", content, page + TRANSACTION)[0])
    return PAGE * struct.unpack_from("<Q", content, newer + MAIN + 40)[0]


def nodes_of(content: bytes, page: int) -> list[int]:
    """Returns where the nodes of a page are."""
    (lower,) = struct.unpack_from("<H", content, page + 12)
    return [page + at for at in struct.unpack_from(f"<{(lower - 16) // 2}H", content, page + 16)]


def leaves_of(content: bytes) -> list[int]:
    """Returns where the leaf pages are; the root is above them."""
    return [PAGE * struct.unpack_from("<H", content, node)[0] for node in nodes_of(content, root_of(content))]


def test_keys_that_are_no_samples(entries, content):
    """`LMDB(skip=...)` leaves out keys by patterns, in place of the default ones, such as __len__ and __keys__."""
    every = {sample["__key__"] for sample in entries.samples}
    some = read_case(LMDB(skip=("1*", "?")), "lmdb/entries", raw=["value"])
    found = {sample["__key__"] for sample in samples_of(some)}
    assert found == {key for key in every if key[0] != "1" and len(key) > 1} | {"__len__", "__keys__"}


def test_reads_pages_of_keys_level_by_level(content):
    """The index of LMDB reads a level of pages of keys at once, and less than it estimated."""
    found = find_in(content)
    (asks,) = found.needs.values()
    assert len(found.survey_needs) == 1
    assert len(asks) == 2
    read = sum(need.stop - need.start for ask in asks for need in ask)
    assert found.survey.read_bytes is not None
    assert read <= found.survey.read_bytes < 20 * (PAGE + (16 << 10))


def test_values_are_fetched_in_the_order_of_the_file(content):
    """LMDB blocks fetch values in the order of the file, in few ranges, whatever the order of keys."""
    ((_, blocks),) = find_in(content).items
    for one, other in pairwise(block.ranges for block in blocks):
        assert one[-1][1] <= other[0][0]
    assert sum(len(block.ranges) for block in blocks) <= 3


async def test_pages_are_read_many_at_once(tmp_path):
    """Pages of a level that are far apart in an LMDB are read in as many requests at once."""
    case = read_case(LMDB(), "lmdb/deep", raw=["value"])
    store = _Counting(_spread(case.objects["data.mdb"]))
    manifest = await built(LMDB(), store, tmp_path)
    assert manifest.samples == len(case.samples)
    assert store.most == 14


class _Counting(MemoryStore):
    """Stands for an object store whose reads take a while; counts the reads that are under way together."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(objects)
        self.now = self.most = 0

    async def read(self, extent):
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(100):
            await asyncio.sleep(0)
        self.now -= 1
        return await super().read(extent)


def _spread(content: bytes) -> dict[str, bytes]:
    """Returns a database with 20 pages between any two, as those of large values have."""
    apart = 21

    def place(number: int) -> int:
        return number if number < 2 else 2 + (number - 2) * apart

    pages = len(content) // PAGE
    out = bytearray(PAGE * place(pages))
    for number in range(pages):
        page = bytearray(content[number * PAGE : (number + 1) * PAGE])
        (flags, lower) = struct.unpack_from("<HH", page, 10)
        if flags == 8:
            (root,) = struct.unpack_from("<Q", page, MAIN + 40)
            (last,) = struct.unpack_from("<Q", page, LAST)
            struct.pack_into("<Q", page, MAIN + 40, place(root))
            struct.pack_into("<Q", page, LAST, place(last))
        else:
            struct.pack_into("<Q", page, 0, place(number))
        for at in struct.unpack_from(f"<{(lower - 16) // 2}H", page, 16) if flags == 1 else ():
            low, high, top = struct.unpack_from("<HHH", page, at)
            child = place(low | high << 16 | top << 32)
            struct.pack_into("<HHH", page, at, child & 0xFFFF, child >> 16 & 0xFFFF, child >> 32)
        out[place(number) * PAGE : (place(number) + 1) * PAGE] = page
    return {"data.mdb": bytes(out)}


@pytest.mark.parametrize(
    ("at", "layout", "value", "reason"),
    [
        (META, "<I", 0, r"is damaged: not an LMDB of 64 bits: the magic number is missing \(at byte 16 of"),
        (META, ">I", 0xBEEFC0DE, "big-endian machine, which is not read"),
        (META + 4, "<I", 2, "is an LMDB of data format 2; only 1 is read"),
        (META + 24, "<I", 0, "is damaged: pages of 0 bytes"),
        (META + 24, "<I", 3, "is damaged: pages of 3 bytes"),
        (10, "<H", 2, "is damaged: no meta page"),
        (MAIN + 4, "<H", 4, r"several values for a key \(DUPSORT\), which is not read"),
        (MAIN + 6, "<H", 99, "a tree of 99 levels"),
        (MAIN + 32, "<Q", 7, "entries, its head says 7"),
        (MAIN + 40, "<Q", 1, "whose root is page 1 of"),
        (MAIN + 40, "<Q", 1 << 40, "whose root is page"),
        (MAIN + 40, "<Q", 2, "no branch page where page 2 should be"),
        (LAST, "<Q", 3, "page"),
    ],
)
def test_a_head_that_is_another(content, at, layout, value, reason):
    """An LMDB with another header is refused as damaged or as not read, with what is wrong."""
    with pytest.raises(ManifestError, match=reason) as caught:
        find_in(on_meta_pages(content, at, layout, value))
    assert caught.value.details["url"].endswith("data.mdb")


def test_an_empty_database(content):
    """An empty LMDB has no samples; a file of no bytes, or of a few, is refused as damaged."""
    no_root = on_meta_pages(bytearray(on_meta_pages(content, MAIN + 40, "<Q", (1 << 64) - 1)), MAIN + 32, "<Q", 0)
    assert find_in(no_root).items[0][1] == []
    for short in (b"", no_root[:100], no_root[:PAGE]):
        with pytest.raises(ManifestError, match="damaged"):
            find_in(short)


def test_a_file_that_is_cut_off(content):
    """An LMDB that is cut off is refused as damaged."""
    with pytest.raises(ManifestError, match="cut off"):
        find_in(content[: len(content) // 2])
    with pytest.raises(ManifestError, match=r"damaged: cut off: .*at byte \d+ of \d+"):
        find_in(content[: 20 * PAGE])


@pytest.mark.parametrize(
    ("flag", "reason"), [(2, "named databases"), (4, "several values for a key")], ids=["named", "duplicates"]
)
def test_entries_that_are_databases(content, flag, reason):
    """Entries of LMDB that are named databases, or several values of a key, are refused."""
    content[nodes_of(content, leaves_of(content)[-1])[0] + 4] |= flag
    with pytest.raises(ManifestError, match=reason):
        find_in(content)


@pytest.mark.parametrize(("at", "value"), [(0, 1), (12, 0xFFF0), (14, 9), (16, 0xFFFF)])
def test_pages_that_contradict(content, at, value):
    """Pages of LMDB with wrong bounds, numbers or places of nodes are refused as damaged."""
    for page in leaves_of(content):
        wrong = bytearray(content)
        struct.pack_into("<H", wrong, page + at, value)
        with pytest.raises(ManifestError, match="is damaged"):
            find_in(wrong)


def test_a_page_that_is_its_own_ancestor(content):
    """LMDB pages that refer to an ancestor are refused, so that the index ends."""
    root = root_of(content)
    for node in nodes_of(content, root):
        struct.pack_into("<HHH", content, node, root // PAGE, 0, 0)
    with pytest.raises(ManifestError, match="a page is below several others"):
        find_in(content)


def test_records_of_others():
    """Hints of another LMDB block are a RecodeError, and records that are cut off a DecodeError."""
    recoder, opener = LMDB().recoder(Facts()), LMDB().opener(Facts())
    for hint in (b"", b"\x93\x91\x00\x91\x05\x90", b"\x93\x91\xff\x91\x06\x91\xc4\x01a"):
        with pytest.raises(RecodeError, match="are not 1 values of LMDB"):
            recoder.recode(memoryview(b"12345"), 1, hint)
    for record in (b"", b"\x01", b"\x05\x00abc"):
        with pytest.raises(DecodeError, match="its key alone takes"):
            opener.open(memoryview(record), SampleName())


def test_names():
    """LMDB is detected by data.mdb or .lmdb, and its lock file is not a sample."""
    assert detect(["train/data.mdb", "train/lock.mdb"]) == "lmdb"
    assert detect(["a.lmdb", "b.lmdb"]) == "lmdb"
    assert [LMDB().accepts(key) for key in ("x/data.mdb", "x/lock.mdb", "a.lmdb", "a.lmdb-lock", ".a.lmdb")] == [
        *(True, False, True, False, False)
    ]
