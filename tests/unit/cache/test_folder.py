"""The cache folder on a real filesystem: layout, modes, owners, versions, and network filesystems that are refused."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from streamer.cache import folder as module
from streamer.cache.folder import Permissions, filesystem_type, is_intact, measure_usage, open_folder, open_layer
from streamer.errors import CacheError, CacheVersionError, ConfigError


def test_a_new_folder_is_private_and_complete(tmp_path: Path) -> None:
    """A new cache folder has mode 0700, marker, root id and subfolders; opened again it has the same root id."""
    path = tmp_path / "deep" / "cache"
    first = open_folder(path)
    assert path.stat().st_mode & 0o777 == 0o700
    assert (path / "streamer-cache").read_text() == "streamer cache 1\n"
    assert {entry.name for entry in path.iterdir()} == {
        "streamer-cache", "root-id", "chunks", "manifests", "tmp", "catalog",
    }  # fmt: skip
    assert len(list((path / "chunks").iterdir())) == 16
    assert len(first.root_id) == 32
    assert open_folder(path).root_id == first.root_id


def test_with_a_group_it_is_readable_by_it(tmp_path: Path) -> None:
    """With a group, folders have 0750 and files 0640, and the catalog stays private; an unknown group is an error."""
    group = os.getgid()
    name = next(line.split(":")[0] for line in Path("/etc/group").read_text().splitlines() if f":{group}:" in line)
    folder = open_folder(tmp_path / "cache", name)
    assert (tmp_path / "cache" / "chunks" / "a").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "cache" / "catalog").stat().st_mode & 0o777 == 0o700
    assert folder.permissions == Permissions(0o750, 0o640, group)
    with pytest.raises(ConfigError, match="does not exist"):
        open_folder(tmp_path / "cache", "nobody-has-this-group")


def test_leftovers_in_tmp_are_removed(tmp_path: Path) -> None:
    """Opening a cache folder removes half-written files and folders of a killed engine from tmp."""
    open_folder(tmp_path)
    (tmp_path / "tmp" / "half").write_bytes(b"x")
    (tmp_path / "tmp" / "folder").mkdir()
    (tmp_path / "tmp" / "folder" / "file").touch()
    open_folder(tmp_path)
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("text", ["streamer cache 2\n", "something else"])
@pytest.mark.parametrize("opener", [open_folder, open_layer], ids=["folder", "layer"])
def test_another_version_is_refused(tmp_path: Path, text: str, opener: Callable[[Path], object]) -> None:
    """A cache folder or layer of another version is refused with both versions in the error, and stays unchanged."""
    open_folder(tmp_path)
    (tmp_path / "streamer-cache").write_text(text)
    (tmp_path / "tmp" / "theirs").touch()
    with pytest.raises(CacheVersionError, match="streamer cache 1"):
        opener(tmp_path)
    assert (tmp_path / "tmp" / "theirs").exists()


@pytest.mark.parametrize("text", ["", "\n", "\0" * 17])
def test_a_marker_that_a_crash_has_emptied_is_written_again(tmp_path: Path, text: str) -> None:
    """A folder whose marker and id were emptied by a crash of the machine keeps its chunks, and gets both again."""
    open_folder(tmp_path)
    (tmp_path / "chunks" / "a" / "kept").touch()
    for name in ("streamer-cache", "root-id"):
        (tmp_path / name).write_text(text)
    with pytest.raises(CacheVersionError, match="says nothing \\(a crash"):
        open_layer(tmp_path)
    folder = open_folder(tmp_path)
    assert (tmp_path / "streamer-cache").read_text() == "streamer cache 1\n"
    assert (tmp_path / "root-id").read_text().strip() == folder.root_id == open_layer(tmp_path).root_id
    assert len(folder.root_id) == 32
    assert (tmp_path / "chunks" / "a" / "kept").exists()


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    """A folder with other files is refused; a fresh disk's lost+found and a half-written marker are accepted."""
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "streamer-cache.0a1b2c3d").touch()
    open_folder(tmp_path)
    (tmp_path / "streamer-cache").unlink()
    with pytest.raises(CacheVersionError, match="not a streamer cache"):
        open_folder(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """A cache folder of another user is refused even when it could be written: that user wrote its contents."""
    open_folder(tmp_path)
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(CacheError, match="belongs to user 12345"):
        open_folder(tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder that is a file, or that cannot be written, is refused.
    Root has all permissions, so `os.access` is replaced."""
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match="cannot use the cache folder"):
        open_folder(tmp_path / "file")
    with pytest.raises(CacheError, match="cannot use the cache folder"):
        open_folder(tmp_path / "file" / "below")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(CacheError, match="Permission denied"):
        open_folder(tmp_path / "cache")


MOUNTS = """22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:41 / /data rw,relatime shared:1 - nfs4 server:/export rw
31 30 0:42 / /data/with\\040space rw - ext4 /dev/vdb rw
32 22 0:43 / /dev/shm rw - tmpfs tmpfs rw
33 22 0:44 / /bucket rw - fuse.mountpoint-s3 mountpoint-s3 rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/x", "ext4"), ("/data/cache", "nfs4"), ("/data/with space/c", "ext4"), ("/database", "ext4"),
     ("/dev/shm/c", "tmpfs"), ("/bucket", "fuse.mountpoint-s3")],
)  # fmt: skip
def test_the_filesystem_is_that_of_the_longest_mount(path: str, kind: str) -> None:
    """The filesystem of a path is that of its longest mount, also of escaped names and beside similar names."""
    assert filesystem_type(Path(path), MOUNTS) == kind


def test_a_network_filesystem_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder on a network filesystem is refused by its name before anything is written there."""
    monkeypatch.setattr(module, "filesystem_type", lambda path: "nfs4")
    with pytest.raises(CacheError, match="nfs4, a network filesystem"):
        open_folder(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_used_bytes_counts_blocks_and_folders(tmp_path: Path) -> None:
    """`measure_usage` counts blocks of files and folders, and leaves chunk files out on request."""
    before = measure_usage(tmp_path)
    (tmp_path / "a.chunk").write_bytes(bytes(5000))
    (tmp_path / "b").write_bytes(bytes(100))
    assert measure_usage(tmp_path) - before == 8192 + 4096
    assert measure_usage(tmp_path, chunks=False) - before == 4096


def test_a_layer_that_is_missing_is_refused(tmp_path: Path) -> None:
    """A missing cache layer raises CacheError when it is opened."""
    with pytest.raises(CacheError, match="cannot read the cache layer"):
        open_layer(tmp_path / "none")


def test_used_bytes_leaves_out_what_is_removed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`measure_usage` leaves out a folder that is renamed meanwhile, as when two manifests are built at once."""
    (tmp_path / "building").mkdir()
    (tmp_path / "building" / "file").write_bytes(bytes(10_000))
    before = measure_usage(tmp_path)
    scandir = os.scandir

    def renaming(folder: Path) -> object:
        found = list(scandir(folder))
        if folder == tmp_path:
            (tmp_path / "building").rename(tmp_path / "built")
        return iter(found)

    monkeypatch.setattr(os, "scandir", renaming)
    assert 0 < measure_usage(tmp_path) < before


def test_mounts_of_any_name_are_told_apart() -> None:
    """Mounts are told apart by names with blanks, letters beyond ASCII, and bytes that are not UTF-8."""
    lines = [
        "30 1 254:0 / / rw - ext4 /dev/vda rw",
        r"31 30 0:40 / /data\040sets/\134x rw - nfs4 server:/a rw",
        "32 30 0:41 / /données rw - fuse.sshfs server:/b rw",
        "33 30 0:42 / /donn\udce9es rw - cifs //server/c rw",
    ]
    names = [r"/data sets/\x/cache", "/données/cache", "/donn\udce9es/cache", "/data/cache"]
    found = [filesystem_type(Path(name), "\n".join(lines)) for name in names]
    assert found == ["nfs4", "fuse.sshfs", "cifs", "ext4"]


@pytest.mark.parametrize(("code", "intact"), [(errno.EMFILE, True), (errno.ENFILE, True), (errno.ENOENT, False)])
def test_a_folder_that_cannot_be_looked_at_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, intact: bool
) -> None:
    """A folder is not taken for removed while this process or the machine may open no more files."""
    folder = open_folder(tmp_path)

    def refuse(*_: object, **__: object) -> str:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "read_text", refuse)
    assert is_intact(folder) is intact
