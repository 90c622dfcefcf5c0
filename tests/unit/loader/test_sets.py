"""Arguments in which the order counts refuse a set: its order differs between the processes of a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import streamer
from streamer import Annotations, Buckets, Packing, StreamingDataset
from streamer.errors import ConfigError
from streamer.formats.base import Format
from streamer.formats.folder import Folder
from streamer.loader.device import Normalize
from streamer.media.lerobot.format import LeRobot
from streamer.tables.arrow_ipc.format import ArrowIPC
from streamer.tables.lmdb import LMDB
from streamer.tables.npy import RawArrays
from streamer.tables.parquet.format import Parquet

Names = list[str] | set[str] | frozenset[str]


def join(names: Names) -> object:
    return StreamingDataset("s3://b/left/").join(StreamingDataset("s3://b/right/"), on="key", columns=names)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "use",
    [
        lambda names: Annotations("s3://b/x.csv", fields=names),
        lambda names: Packing(1024, lengths="n.npy", fields=names),
        lambda names: Buckets(1024, lengths="n.npy", fields=names),
        lambda names: (
            StreamingDataset([f"s3://b/{name}/" for name in names])
            if isinstance(names, list)
            else StreamingDataset({f"s3://b/{name}/" for name in names})
        ),
        join,
        lambda names: Parquet(columns=names),
        lambda names: ArrowIPC(columns=names),
        lambda names: LMDB(skip=names),
        lambda names: LeRobot(cameras=names),
        lambda names: Folder(classes=names),
    ],
    ids=["annotations", "packing", "buckets", "urls", "join", "parquet", "arrow", "lmdb", "lerobot", "classes"],
)
def test_names_in_a_set_are_refused(use: Callable[[Names], object]) -> None:
    """A set of names is a ConfigError where a list of the same names is accepted."""
    use(["a", "b"])
    for names in ({"a", "b"}, frozenset({"a"})):
        with pytest.raises(ConfigError, match=r"sequence of names|give a list"):
            use(names)


def test_fields_of_a_pack_in_a_set_are_refused(tmp_path: Path) -> None:
    """A set of fields to pack is a ConfigError, before the source is read; the id of a job has their order."""
    with pytest.raises(ConfigError, match=r"fields=.*: give a list of names") as caught:
        streamer.pack(tmp_path / "none", tmp_path / "out", fields={"a", "b"})  # type: ignore[arg-type]
    assert caught.value.details["field"] == "fields"


def test_numbers_in_a_set_are_refused() -> None:
    """A shape, and means of channels, in a set are a ConfigError: a set forgets which is which."""
    with pytest.raises(ConfigError, match=r"RawArrays: shape=\{3, 4\} is a set"):
        RawArrays("<f4", {4, 3})  # type: ignore[arg-type]
    for mean, std in (({0.4, 0.5}, [0.2, 0.3]), ([0.4, 0.5], {0.2, 0.3})):
        with pytest.raises(ConfigError, match="a set has no order of channels"):
            Normalize(mean, std)  # type: ignore[arg-type]


def test_options_whose_order_has_no_meaning_may_be_sets() -> None:
    """Endings of files, and options of a format of another package that are sets, are taken as sets."""
    assert Folder(extensions={"jpg", "png"}).extensions == {"jpg", "png"}

    class Other(Format, frozen=True):
        wanted: frozenset[str] | None = None
        sorts: set[str] = msgspec.field(default_factory=set)

    made = Other(wanted=frozenset({"a"}), sorts={"b"})
    assert (made.wanted, made.sorts) == ({"a"}, {"b"})
