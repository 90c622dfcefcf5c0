"""HDF5 meets the contract of the formats, on files of h5py with its filters; and which files are refused."""

from __future__ import annotations

import io
from collections.abc import Callable

import h5py
import hdf5plugin
import numpy as np
import pytest

from streamer.errors import ConfigError, ManifestError, RecodeError
from streamer.formats.base import Block
from streamer.tables.hdf5.chunks import fletcher32
from streamer.tables.hdf5.format import HDF5
from tests.formats.cases import Case, block_bytes, find, read_case, recode
from tests.formats.contract import FormatContract, samples_of
from tests.formats.summary import summary

NAMES = ("fields_of_several", "rows_of_one", "packed", "grown")
IMAGES = np.random.default_rng(3).integers(0, 50, (24, 8, 6), np.uint16)


class TestHDF5(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        return [read_case(HDF5(), f"hdf5/{name}") for name in NAMES]


def written(fill: Callable[[h5py.File], object], **options: object) -> bytes:
    """Returns the bytes of a file that `fill` writes by h5py."""
    sink = io.BytesIO()
    with h5py.File(sink, "w", **options) as file:
        fill(file)
    return sink.getvalue()


def dataset(array: np.ndarray = IMAGES, version: str = "earliest", **options: object) -> bytes:
    """Returns a file of one dataset, "x"."""
    return written(lambda file: file.create_dataset("x", data=array, **options), libver=version)


def values(content: bytes, **datasets: str) -> list[object]:
    """Returns the samples of a file."""
    return samples_of(Case("a file", HDF5(datasets=datasets), {"a.h5": content}, []))


@pytest.mark.parametrize("version", ["earliest", "v108", "v110", "latest"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": (5, 8, 6)},
        {"chunks": (5, 3, 6), "compression": "gzip", "shuffle": True, "fletcher32": True},
        {"chunks": (24, 8, 6), "compression": "lzf"},
        {"chunks": (1, 8, 6), "maxshape": (None, 8, 6)},
        {"chunks": (1, 8, 6), "maxshape": (None, 8, 6), "compression": "gzip"},
        {"chunks": (2, 8, 6), "scaleoffset": 0},
        {"chunks": (2, 8, 6), **hdf5plugin.Blosc(cname="zstd")},
        {"chunks": (2, 8, 6), **hdf5plugin.Bitshuffle()},
    ],
    ids=["contiguous", "rows", "tiles", "one", "grows", "grows-gzip", "scaleoffset", "blosc", "bitshuffle"],
)
def test_layouts_and_filters(version: str, options: dict[str, object]):
    """HDF5 files of each layout, filter and version of the library deliver the rows that were written."""
    assert values(dataset(version=version, **options)) == [{"x": summary(row)} for row in IMAGES]


@pytest.mark.parametrize("version", ["earliest", "latest"])
@pytest.mark.parametrize("maxshape", [(3000, 2), (None, 2)])
@pytest.mark.parametrize("filters", [{}, {"shuffle": True}])
def test_many_chunks(version: str, maxshape: tuple[int | None, int], filters: dict[str, object]):
    """The index of 3,000 HDF5 chunks finds all rows in at most four reads, whatever structure lists the chunks."""
    array = np.arange(6000, dtype="<u4").reshape(3000, 2)
    content = dataset(array, version, chunks=(1, 2), maxshape=maxshape, **filters)
    found = find(HDF5(), {"a.h5": content})
    [(_, items)] = found.items
    if filters:
        parts = [recode(HDF5(), found, block, block_bytes(block, content)) for block in items]
        rows = [row for part in parts for row in part]
    else:
        rows = [content[span.start : span.stop] for span in items]
    assert rows == [row.tobytes() for row in array]
    assert all(len(asks) <= 4 for asks in found.needs.values())


def test_an_index_reads_little():
    """The index of HDF5 rows of 128 KB reads at most ten ranges and 1 % of the file."""
    array = np.zeros((400, 256, 256), "<u2")
    content = dataset(array, chunks=(1, 256, 256))
    needs = [need for asks in find(HDF5(), {"a.h5": content}).needs.values() for ask in asks for need in ask]
    assert len(needs) <= 10
    assert sum(need.stop - need.start for need in needs) <= len(content) // 100


def test_datasets_by_path():
    """HDF5 datasets are chosen by path, in groups too; a path without a dataset is refused with those there are."""

    def fill(file: h5py.File) -> None:
        file["train/images"] = IMAGES
        file["train/names"] = np.array(["a"] * 24, h5py.string_dtype())
        file["few"] = IMAGES[:3]

    expected = [{"image": summary(row)} for row in IMAGES]
    for version in ("earliest", "latest"):
        assert values(written(fill, libver=version), image="/train/images") == expected
    with pytest.raises(
        ManifestError, match=r"no dataset '/train/image'; .*; there are /few, /train/images, /train/names"
    ):
        values(written(fill), image="/train/image")
    with pytest.raises(ManifestError, match=r"at '/train' it has no dataset, but a group; .* /train/images, "):
        values(written(fill), image="/train")
    grouped = written(lambda file: file.update({"a/x": IMAGES, "a/b/y": IMAGES, "c/z": IMAGES}))
    with pytest.raises(ManifestError, match=r"no arrays in its root group; .*; there are /a/x, /c/z, /a/b/y \(at"):
        values(grouped)
    texts = written(lambda file: file.update({"a": IMAGES, "b": np.array(["x"] * 24, h5py.string_dtype())}))
    with pytest.raises(ManifestError, match=r"dataset 'b' with values of type vlen.*; there are /a, /b \(at"):
        values(texts)


def test_the_datasets_of_many_groups_are_not_all_named():
    """The error for a root without arrays names twenty datasets of groups, and ends for groups in a cycle."""

    def fill(file: h5py.File) -> None:
        for number in range(30):
            file[f"g/{number:02}"] = IMAGES[:1]
        file["g/self"] = file["g"]

    with pytest.raises(ManifestError, match=r"no arrays in its root group.* /g/00, .*, /g/19 \(at"):
        values(written(fill))
    with pytest.raises(ManifestError, match=r"no arrays in its root group"):
        values(written(lambda file: file.create_group("g").update({"self": file["g"]})))


def _unwritten(file: h5py.File) -> None:
    file.create_dataset("x", (1 << 20, 200), "u1", chunks=(1, 200))[:3] = 1


def _virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((3, 2), "u1")
    layout[:] = h5py.VirtualSource("other.h5", "x", (3, 2))
    file.create_virtual_dataset("x", layout)


def _many(file: h5py.File) -> None:
    for number in range(20):
        file[f"{number}"] = np.arange(3)


def _compact(file: h5py.File) -> None:
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((3, 2))
    h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_UINT8, space, settings)


def _external(file: h5py.File) -> None:
    file.create_dataset("x", (3, 2), "u1", external=[("/dev/null", 0, 6)])


def _typed(file: h5py.File) -> None:
    file["type"] = np.dtype("<u2")
    file.create_dataset("x", (3, 2), file["type"])


GOOD = dataset()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (dataset(np.array(["a"], h5py.string_dtype())), "dataset 'x' with values of type vlen"),
        (dataset(np.array([b"abc"])), "values of type string"),
        (dataset(np.zeros(3, [("a", "u1"), ("b", "u1"), ("c", "u1")])), "compounds of 3 fields"),
        (dataset(np.zeros((3, 0))), "no rows of a byte"),
        (dataset(np.zeros(())), "no arrays in its root group"),
        (written(lambda file: file.create_group("g")), "no arrays in its root group"),
        (written(lambda file: file.update({"a": IMAGES, "b": IMAGES[:3]})), "'a' has 24 rows, array 'b' 3"),
        (written(_unwritten), "1048573 rows from row 3 on, 209714600 bytes, were never written"),
        (written(_virtual), "data in other datasets"),
        (written(_compact), "data in its header"),
        (written(_external), "data in other files"),
        (written(_typed), "committed datatype"),
        (written(_many, libver="latest"), "dense links"),
        (dataset(version="latest", chunks=(2, 8, 6), maxshape=(None, None, 6)), "grow along several axes"),
        (
            dataset(version="latest", chunks=(5, 8, 6), compression="gzip").replace(b"\5\2\0\4", b"\5\2\1\4"),
            "chunks at its edges that are not filtered",
        ),
        (b"", "is damaged"),
        (GOOD[:-1], "so it is cut off"),
        (GOOD[:100], "is damaged"),
        (b"PK" + GOOD[2:], "does not begin as HDF5 does"),
    ],
)
def test_files_that_have_no_rows(content: bytes, reason: str):
    """HDF5 files whose values or layouts are not read are refused with the file's name and the reason."""
    with pytest.raises(ManifestError, match=reason) as caught:
        find(HDF5(), {"a.h5": content})
    assert "a.h5" in str(caught.value)


def test_a_layout_of_2004():
    """HDF5 datasets with the layout message of libraries before 1.6.3 are read.

    The message of today's is made an older one, which is as long.
    """
    numbers = np.arange(6, dtype="<f8").reshape(3, 2)
    content = dataset(numbers)
    with h5py.File(io.BytesIO(content)) as file:
        place = file["x"].id.get_offset().to_bytes(8, "little")
    newer = b"\x03\x01" + place + numbers.nbytes.to_bytes(8, "little")
    older = b"\x02\x02\x01" + bytes(5) + place + b"\x03\0\0\0\x02\0\0\0"
    assert content.count(newer) == 1
    start = content.index(newer)
    old = content[:start] + older + content[start + len(older) :]
    assert values(old) == [{"x": summary(row)} for row in numbers]


def test_files_of_two_kinds():
    """HDF5 files whose rows differ in type or shape are refused, with both."""
    with pytest.raises(ManifestError, match=r"b\.h5 has rows of .*u1\[2\].*the first file of .*u2\[8,6\]"):
        find(HDF5(), {"a.h5": GOOD, "b.h5": dataset(np.zeros((3, 2), "u1"))})


def test_a_checksum_that_is_wrong():
    """A chunk of HDF5 whose Fletcher32 checksum is wrong is refused."""
    content = dataset(chunks=(24, 8, 6), fletcher32=True)
    found = find(HDF5(), {"a.h5": content})
    [(_, [block])] = found.items
    assert isinstance(block, Block)
    damaged = bytearray(block_bytes(block, content))
    damaged[100] ^= 1
    with pytest.raises(RecodeError, match="checksum of a chunk is wrong"):
        recode(HDF5(), found, block, bytes(damaged))


@pytest.mark.parametrize("content", [b"", b"\x00\x00", b"\xff\xff" * 70_000, bytes(range(255)) * 3, b"\x01\x02\x03"])
def test_fletcher32_is_that_of_hdf5(content: bytes):
    """`fletcher32` gives the checksum that HDF5 stores, for odd lengths, too."""
    if content:
        sink = dataset(np.frombuffer(content, "u1"), chunks=(len(content),), fletcher32=True)
        with h5py.File(io.BytesIO(sink)) as file:
            stored = file["x"].id.read_direct_chunk((0,))[1]
        assert fletcher32(memoryview(content)) == int.from_bytes(stored[-4:], "little")
    else:
        assert fletcher32(memoryview(content)) == 0


def test_a_chunk_that_unpacks_to_more():
    """A chunk of HDF5 that decompresses to more bytes than its shape says is refused."""
    import zlib

    content = dataset(chunks=(24, 8, 6), compression="gzip")
    found = find(HDF5(), {"a.h5": content})
    [(_, [block])] = found.items
    bomb = zlib.compress(bytes(8 << 20))
    with pytest.raises(RecodeError, match=r"tile has|chunk has"):
        recode(HDF5(), found, block, bomb[: block.fetch_bytes].ljust(block.fetch_bytes, b"\0"))


@pytest.mark.parametrize("version", ["earliest", "latest"])
def test_soft_links_are_followed(version: str):
    """HDF5's soft links are followed as h5py follows them, over groups and other links; cycles are refused."""

    def fill(file: h5py.File) -> None:
        file["entry/detector/images"] = IMAGES
        file["entry/again"] = h5py.SoftLink("detector/images")
        file["group"] = h5py.SoftLink("/entry/./detector")
        file["x"] = h5py.SoftLink("/group/images")
        file["gone"] = h5py.SoftLink("/entry/none")
        file["self"] = h5py.SoftLink("self")

    content = written(fill, libver=version)
    expected = [{"image": summary(row)} for row in IMAGES]
    for path in ("/x", "entry/again", "/group/images"):
        assert values(content, image=path) == expected
    with pytest.raises(ManifestError, match="no dataset 'gone'"):
        values(content, image="gone")
    with pytest.raises(ManifestError, match="at 'self' it has soft links that lead to each other"):
        values(content, image="self")


@pytest.mark.parametrize("version", ["earliest", "latest"])
def test_a_soft_link_of_the_root_is_a_field(version: str):
    """A soft link in HDF5's root is a field, unless it leads to nothing; a link to another file is refused.

    Where the other datasets are named, such a link does not matter.
    """

    def fill(file: h5py.File) -> None:
        file["a"] = IMAGES
        file["b"] = h5py.SoftLink("/a")
        file["c"] = h5py.SoftLink("/gone")

    def fill_more(file: h5py.File) -> None:
        fill(file)
        file["d"] = h5py.ExternalLink("other.h5", "/x")

    assert values(written(fill, libver=version)) == [{"a": summary(row), "b": summary(row)} for row in IMAGES]
    with pytest.raises(ManifestError, match=r"at 'd' a link to another file \(an external link\)"):
        values(written(fill_more, libver="latest"))
    assert values(written(fill_more, libver="latest"), image="b") == [{"image": summary(row)} for row in IMAGES]


LENGTHS = {0: 5, 1: 9, 2: 3, 10: 7}


def _episodes(file: h5py.File, **options: object) -> None:
    """Writes episodes as robomimic has them, in another order than their numbers."""
    file["mask/train"] = np.array([b"demo_0", b"demo_10"])
    for number in (10, 2, 0, 1):
        group = file.create_group(f"data/demo_{number}")
        group.attrs["num_samples"] = LENGTHS[number]
        for name, array in _arrays(number).items():
            group.create_dataset(name, data=array, **options)


def _arrays(number: int) -> dict[str, np.ndarray]:
    length = LENGTHS[number]
    images = np.random.default_rng(number).integers(0, 255, (length, 4, 6, 3), np.uint8)
    return {
        "actions": np.arange(length * 7, dtype="<f8").reshape(length, 7) + 100 * number,
        "obs/agentview_image": images,
        "obs/robot0_eef_pos": images[:, 0, 0].astype("<f4"),
    }


DEMOS = {"image": "data/*/obs/agentview_image", "action": "/data/demo_*/actions"}


@pytest.mark.parametrize("version", ["earliest", "latest"])
@pytest.mark.parametrize("options", [{}, {"compression": "gzip", "chunks": True}], ids=["stored", "gzip"])
@pytest.mark.parametrize("fields", [DEMOS, {"action": "data/*/actions"}, {"image": "data/*/obs/agentview_image"}])
@pytest.mark.parametrize("window", [None, (2, 1), (4, 2), (5, 6)])
def test_groups_that_are_episodes(version, options, fields, window):
    """Groups of robomimic's files are episodes in the order of their numbers, and no window crosses their ends."""
    paths = {name: path.replace("demo_*", "*") for name, path in fields.items()}
    content = written(lambda file: _episodes(file, **options), libver=version)
    wanted = []
    for number, rows_of_episode in LENGTHS.items():
        arrays = {name: _arrays(number)[path.split("*/")[1]] for name, path in paths.items()}
        length, stride = window or (1, 1)
        for first in range(0, rows_of_episode - length + 1, stride):
            rows = {name: array[first : first + length] for name, array in arrays.items()}
            wanted.append({name: summary(row if window else row[0]) for name, row in rows.items()})
    found = samples_of(Case("demos", HDF5(datasets=paths, window=window), {"a.h5": content, "b.h5": content}, []))
    assert found == [*wanted, *wanted]


def test_patterns_of_episodes():
    """One pattern of groups holds for all fields of HDF5; paths that do not fit are refused with what there is."""
    content = written(_episodes)
    assert len(values(content, action="data/demo_1*/actions")) == LENGTHS[1] + LENGTHS[10]
    assert len(values(content, action="data/demo_1/actions")) == LENGTHS[1]
    with pytest.raises(ManifestError, match=r"at 'data' it has no dataset.* 4 numbered objects .*'data/\*/actions'"):
        values(content, actions="data")
    with pytest.raises(ManifestError, match=r"no arrays in its root group.*pattern: .*'actions': '/data/\*/actions'"):
        values(content)
    with pytest.raises(ManifestError, match=r"it has no group 'data/run_\*'"):
        values(content, actions="data/run_*/actions")
    with pytest.raises(ManifestError, match=r"no dataset 'demo_0/rewards'.*there are .*/data/demo_0/actions"):
        values(content, reward="data/*/rewards")
    with pytest.raises(ConfigError, match=r"name datasets of different groups: one part of a path may be a pattern"):
        HDF5(datasets={"action": "data/*/actions", "image": "images"})
    with pytest.raises(ConfigError, match=r"one part of a path may be a pattern"):
        HDF5(datasets={"action": "data/*/*/actions"})

    def fill_more(file: h5py.File) -> None:
        _episodes(file)
        file["data/demo_3/actions"] = np.zeros((2, 8))

    with pytest.raises(ManifestError, match=r"has rows of .*f8\[8\].*, the first file of .*f8\[7\]"):
        values(written(fill_more), action="data/*/actions")


def test_many_episodes_are_read_together():
    """The index of 100 groups of HDF5 takes at most 20 reads, because 64 groups are asked for at once."""

    def fill(file: h5py.File) -> None:
        for number in range(100):
            file[f"data/demo_{number}/actions"] = np.zeros((200, 7))

    content = written(fill)
    (asks,) = find(HDF5(datasets={"action": "data/*/actions"}), {"a.h5": content}).needs.values()
    assert len(asks) <= 20


@pytest.mark.parametrize("version", ["earliest", "latest"])
@pytest.mark.parametrize("fill", [None, 0, 7])
@pytest.mark.parametrize("dtype", ["<f4", ">i2", ">f8"])
@pytest.mark.parametrize("others", [{}, {"y": np.arange(5)}], ids=["alone", "beside others"])
def test_a_dataset_that_was_never_written(others: dict[str, np.ndarray], version: str, fill: int | None, dtype: str):
    """An HDF5 dataset that was never written has its fill value in all rows, as h5py reads it."""

    def make(file: h5py.File) -> None:
        file.create_dataset("x", (5, 2), dtype, fillvalue=fill)
        for name, array in others.items():
            file[name] = array

    content = written(make, libver=version)
    with h5py.File(io.BytesIO(content)) as file:
        wanted = file["x"][:]
    assert [row["x"] for row in values(content)] == [summary(row) for row in wanted]


@pytest.mark.parametrize("dtype", ["u1", "<i2", ">i4", "<u8", "<f4", ">f8"])
@pytest.mark.parametrize("fill", [None, 0, 7])
@pytest.mark.parametrize("more", [{}, {"compression": "gzip", "shuffle": True}])
def test_scale_offset_with_a_fill_value(dtype: str, fill: int | None, more: dict[str, object]):
    """The scale-offset filter of HDF5 delivers fill values, stored or never written, as h5py does."""
    shape = (12, 4)

    def write(file: h5py.File) -> None:
        options = {"chunks": (5, 3), "scaleoffset": 2 if "f" in dtype else 0, "fillvalue": fill, **more}
        file.create_dataset("x", shape, dtype, **options)[:9] = np.arange(36).reshape(9, 4) % 11

    content = written(write)
    with h5py.File(io.BytesIO(content)) as file:
        want = file["x"][()]
    assert values(content) == [{"x": summary(row)} for row in want]
