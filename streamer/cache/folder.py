"""Opens the cache folder and its layers, and lists, reads and measures what is in them.

    <cache_dir>/            0700 (0750 with a group)
      streamer-cache        the marker: "streamer cache 1", where another number means another layout
      streamer-cache.lock   0600, locked by the engine that has the folder (`folder_guard.py`)
      streamer-cache.sock   the socket of the engine that a trainer has started here
      streamer-cache.history what the page of a service shows of the time before its restart
      root-id               32 hex digits, by which a client that mounts the folder elsewhere recognises it
      chunks/a/<key>.chunk  0600 (0640 with a group), in 16 folders by the first digit of the key
      manifests/<digest>/   the manifests
      catalog/              diskcache (0700)
      tmp/                  files that are being written, removed at start

The rest of `cache/`, the engine (in threads), `service/`, the commands and `tools/` use it. It is synchronous.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from streamer.base import linux, system_limits
from streamer.errors import CacheError, CacheVersionError, ConfigError, IntegrityError
from streamer.formats.chunkfile import HEADER_BYTES, SUFFIX, ChunkHeader, relative_path
from streamer.manifest.beside import CACHE_MARKER

LAYOUT_VERSION = 1
MARKER = CACHE_MARKER
_MARKER_TEXT = "streamer cache "
_LOST = "\0 \n"  # all that a file has whose text a crash of the machine has lost
# The name begins like the marker: earlier versions take a folder that has no other file for an empty one.
LOCK_NAME = MARKER + ".lock"
ROOT_ID = "root-id"
_UNFINISHED = re.compile(rf"(?:{ROOT_ID}|{MARKER}|{re.escape(LOCK_NAME)})\.[0-9a-f]{{8}}|{MARKER}\.sock\.\d+")
SUBFOLDERS = ("chunks", "manifests", "tmp", "catalog")
_DIGITS = "0123456789abcdef"
_FOLDERS = [*SUBFOLDERS, *(f"chunks/{digit}" for digit in _DIGITS)]
_CHUNK_NAME = re.compile(rf"([0-9a-f]{{32}}){re.escape(SUFFIX)}")

# Filesystems on which a rename is not atomic for readers on other hosts, and locks and SQLite's log do not work: each
# machine needs a cache folder of its own.
NETWORK_FILESYSTEMS = frozenset(
    ["nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "afs", "pvfs2"]
    + ["orangefs", "panfs"]
    + [f"fuse.{name}" for name in ("glusterfs", "sshfs", "s3fs", "gcsfuse", "mountpoint-s3", "juicefs", "ceph")]
    + [f"fuse.{name}" for name in ("rclone", "blobfuse2", "lustre")]
)


class Permissions(msgspec.Struct, frozen=True):
    """Modes of the files and folders of a cache, and the group that may read them (None: only their owner may)."""

    folder_mode: int = 0o700
    file_mode: int = 0o600
    group_id: int | None = None

    def apply_to_file(self, descriptor: int) -> None:
        """Sets mode and group of a new file, whatever the umask is."""
        if self.group_id is not None:
            os.fchown(descriptor, -1, self.group_id)
        os.fchmod(descriptor, self.file_mode)

    @classmethod
    def make(cls, group: str | None) -> Permissions:
        """Returns the permissions for a group, by name or number; with None only the owner may read.

        Raises:
            ConfigError: the group does not exist.
        """
        return cls() if group is None else cls(0o750, 0o640, group_id(group))


def group_id(group: str) -> int:
    """Returns the number of a group given by name or number; in a container most numbers have no name.

    Raises:
        ConfigError: the group does not exist.
    """
    if group.isdecimal():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise ConfigError(f"group={group!r} does not exist on this machine", field="group") from error


class CacheFolder(msgspec.Struct, frozen=True):
    """An opened cache folder, or a layer.

    Attributes:
        path: path of the folder.
        root_id: content of its file root-id, 32 hex digits.
        permissions: permissions of the files and folders that are made in it.
    """

    path: Path
    root_id: str
    permissions: Permissions

    def chunk_path(self, key: bytes) -> Path:
        """Returns the path of a chunk's file, whether or not it exists."""
        return self.path / relative_path(key)

    def temporary_path(self, key: bytes) -> Path:
        """Returns a fresh name in tmp/ that tells which process writes it."""
        return self.path / "tmp" / f"{key.hex()}.{os.getpid()}.{secrets.token_hex(4)}"

    def remove_temporary(self, pid: int) -> None:
        """Removes the files in tmp/ that the process of this id was writing when it ended; raises OSError."""
        for path in (self.path / "tmp").glob(f"*.{pid}.*"):
            path.unlink(missing_ok=True)


def open_folder(path: Path, group: str | None = None) -> CacheFolder:
    """Opens a cache folder, creates what is missing, sets its permissions, and removes unfinished files.

    Args:
        path: the folder.
        group: name or number of the group that may read it. None means that only this user may.

    Raises:
        CacheError: it is on a network filesystem, cannot be written to, or belongs to another user.
        CacheVersionError: it has another version of the layout, or is no cache folder and not empty.
        ConfigError: the group does not exist.
    """
    permissions = Permissions.make(group)
    try:
        path.mkdir(parents=True, exist_ok=True, mode=permissions.folder_mode)
        kind = filesystem_type(path)
        if kind in NETWORK_FILESYSTEMS:
            raise CacheError(
                f"the cache folder {path} is on {kind}, a network filesystem; choose a cache_dir on a local disk",
                where=str(path),
                filesystem=kind,
            )
        _refuse_foreign(path)
        marker = path / MARKER
        text = marker.read_text(errors="replace") if marker.exists() else ""
        if text.strip(_LOST):
            _check_version(path, text)
        elif not marker.exists() and not is_fresh(path):
            raise CacheVersionError(
                f"{path} is not empty and not a streamer cache (no file {MARKER!r}); choose another cache_dir, or "
                "empty it",
                where=str(path),
            )
        else:
            _write_once(marker, f"{_MARKER_TEXT}{LAYOUT_VERSION}\n")
        _set_permissions(path, permissions)
        _make_subfolders(path, permissions)
        root_id = _read_root_id(path, permissions, secrets.token_hex(16))
        remove_contents(path / "tmp")
        # Markers, probes and sockets that an engine was making when it was killed.
        for entry in path.iterdir():
            if _UNFINISHED.fullmatch(entry.name):
                entry.unlink(missing_ok=True)
    except (CacheError, ConfigError):
        raise
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise CacheError(
            f"cannot use the cache folder {path}: {error.strerror}{where}; choose another cache_dir, or free space or "
            "correct its permissions there",
            where=str(path),
            errno=error.errno,
        ) from error
    return CacheFolder(path, root_id, permissions)


def is_intact(folder: CacheFolder) -> bool:
    """Whether an opened folder is still there, with its id and its subfolders; True if no more files may be opened."""
    try:
        found = (folder.path / ROOT_ID).read_text(errors="replace").strip()
    except OSError as error:
        return system_limits.is_shortage(error)
    return found == folder.root_id and all(os.path.isdir(folder.path / name) for name in _FOLDERS)


def make_again(folder: CacheFolder) -> None:
    """Recreates the missing parts of an opened folder, with the same id, so that readers recognise it.

    Raises:
        CacheError: another engine has created its own folder there meanwhile.
        OSError: the disk refuses a file or a folder.
    """
    path = folder.path
    permissions = folder.permissions
    path.mkdir(parents=True, exist_ok=True, mode=permissions.folder_mode)
    if not (path / MARKER).exists():
        _write_once(path / MARKER, f"{_MARKER_TEXT}{LAYOUT_VERSION}\n")
    _set_permissions(path, permissions)
    _make_subfolders(path, permissions)
    if _read_root_id(path, permissions, folder.root_id) != folder.root_id:
        raise CacheError(
            f"the cache folder {path} was replaced by another one while this engine used it; end one of the two",
            where=str(path),
        )


def open_layer(path: Path) -> CacheFolder:
    """Opens a read-only folder of the same layout; writes nothing.

    Raises:
        CacheError: it cannot be read.
        CacheVersionError: it has another layout.
    """
    try:
        version = (path / MARKER).read_text(errors="replace")
        root_id = (path / ROOT_ID).read_text(errors="replace").strip()
    except OSError as error:
        raise CacheError(f"cannot read the cache layer {path}: {error.strerror}") from error
    _check_version(path, version)
    return CacheFolder(path, root_id, Permissions())


def holds_no_cache(path: Path) -> bool:
    """Whether a folder has only harmless entries; raises CacheError if it does not exist or cannot be read."""
    try:
        return all(_is_harmless(entry.name) for entry in path.iterdir())
    except OSError as error:
        raise CacheError(f"cannot read the cache folder {path}: {error.strerror}", where=str(path)) from error


def filesystem_type(path: Path, mountinfo: str | None = None) -> str:
    """Returns the type of the filesystem that a path is on, such as "ext4"; "" if it is unknown.

    Args:
        path: path of a file or folder.
        mountinfo: text of /proc/self/mountinfo, read if None.
    """
    text = linux.mountinfo() if mountinfo is None else mountinfo
    real = os.path.realpath(path)
    best = kind = ""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        # Blanks and backslashes are octal there; other letters are as they are, also those that are not UTF-8.
        mount = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), before.split(" ")[4])
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best = mount
            kind = after.split()[0]
    return kind


def _refuse_foreign(path: Path) -> None:
    """Checks that a folder is this user's and can be used.

    Raises:
        CacheError: it belongs to another user.
        OSError: this user may not read, write and enter it.
    """
    owner = path.stat().st_uid
    if owner != os.geteuid():
        raise CacheError(
            f"the cache folder {path} belongs to user {owner}, this is user {os.geteuid()}; choose another cache_dir",
            where=str(path),
            owner=owner,
            user=os.geteuid(),
        )
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        code = errno.EROFS if os.statvfs(path).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(code, os.strerror(code), str(path))


def is_fresh(path: Path) -> bool:
    """Whether a folder has only harmless entries, so that a new cache destroys nothing; raises OSError."""
    return all(_is_harmless(entry.name) for entry in path.iterdir())


def _is_harmless(name: str) -> bool:
    """Whether an entry of this name comes from a new filesystem, or from an engine killed at its first start."""
    return name == "lost+found" or name.startswith(MARKER + ".")


def _check_version(path: Path, text: str) -> None:
    if text.strip() != f"{_MARKER_TEXT}{LAYOUT_VERSION}":
        found = repr(text.strip()[:40]) if text.strip(_LOST) else "nothing (a crash; the next job there repairs it)"
        raise CacheVersionError(
            f"the cache folder {path} says {found}, this program writes '{_MARKER_TEXT}{LAYOUT_VERSION}'; remove the "
            "folder or choose another cache_dir",
            where=str(path),
            expected=LAYOUT_VERSION,
            actual=text.strip()[:40],
        )


def _write_once(path: Path, text: str) -> None:
    """Writes a whole file or none: a kill in between leaves no partial marker."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_text(text)
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _set_permissions(path: Path, permissions: Permissions) -> None:
    if permissions.group_id is not None:
        os.chown(path, -1, permissions.group_id)
    os.chmod(path, permissions.folder_mode)


def _make_subfolders(path: Path, permissions: Permissions) -> None:
    for name in _FOLDERS:
        folder = path / name
        folder.mkdir(exist_ok=True)
        if name == "catalog":
            os.chmod(folder, 0o700)
        else:
            _set_permissions(folder, permissions)


def _read_root_id(path: Path, permissions: Permissions, new: str) -> str:
    """Returns the id of a folder, which becomes `new` if there is none; sets mode and group of the file root-id."""
    file = path / ROOT_ID
    if not file.exists() or not file.read_text(errors="replace").strip(_LOST):
        _write_once(file, new + "\n")
    if permissions.group_id is not None:
        os.chown(file, -1, permissions.group_id)
    os.chmod(file, permissions.file_mode)
    return file.read_text(errors="replace").strip()


def remove_contents(folder: Path) -> None:
    """Removes the content of a folder, but not the folder.

    Raises:
        OSError: it does not exist, or something in it cannot be removed.
    """
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def list_chunk_files(folder: CacheFolder) -> Iterator[tuple[bytes, int]]:
    """Yields key and length (bytes) of every chunk file; ignores anything else below chunks/. Raises OSError."""
    for digit in _DIGITS:
        try:
            entries = os.scandir(folder.path / "chunks" / digit)
        except FileNotFoundError:
            continue
        with entries:
            for entry in entries:
                match = _CHUNK_NAME.fullmatch(entry.name)
                if match and entry.name[0] == digit and entry.is_file(follow_symlinks=False):
                    yield bytes.fromhex(match[1]), entry.stat(follow_symlinks=False).st_size


def read_header(folder: CacheFolder, key: bytes, length: int) -> ChunkHeader:
    """Returns the header of a chunk's file, which must name this key and this length of the file (bytes).

    Raises:
        IntegrityError: the header is no header, or names another key or length.
        OSError: the file cannot be read.
    """
    path = os.fspath(folder.chunk_path(key))
    # System calls without a file object, which costs twice as much: a start without a catalog reads all headers.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        header = ChunkHeader.decode(os.pread(descriptor, HEADER_BYTES, 0), path)
    finally:
        os.close(descriptor)
    if header.key != key or header.file_bytes != length:
        raise IntegrityError(
            f"{path}: the header is of chunk {header.key.hex()} with {header.file_bytes} bytes,"
            f" the file has {length} bytes",
            where=path,
            expected=header.file_bytes,
            actual=length,
        )
    return header


def measure_usage(path: Path, *, chunks: bool = True) -> int:
    """Returns the bytes that a file, or a folder with its content, occupies on the disk (`st_blocks`); 0 if missing.

    Files that are renamed or removed meanwhile do not count, such as a manifest that another request has just built.
    If not `chunks`, chunk files do not count either. Raises OSError if a folder cannot be read.
    """
    total = 0
    stack = [path]
    while stack:
        folder = stack.pop()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            total += folder.lstat().st_blocks * 512
            for entry in os.scandir(folder):
                if entry.is_dir(follow_symlinks=False):
                    stack.append(Path(entry.path))
                elif chunks or not entry.name.endswith(SUFFIX):
                    with contextlib.suppress(FileNotFoundError):
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


class Layers:
    """Finds chunks in the read-only layers of one cache. They are opened and listed once, when the object is made.

    A chunk that several layers have comes from the first of them.

    Args:
        paths: folders of the layers, in order.

    Raises:
        CacheError: a layer cannot be read.
        CacheVersionError: a layer has another layout.
        OSError: the chunk files of a layer cannot be listed.
    """

    def __init__(self, paths: Sequence[Path] = ()) -> None:
        self._folders: list[CacheFolder] = [open_layer(path) for path in paths]
        self._of: dict[bytes, CacheFolder] = {}
        for folder in self._folders:
            for key, _ in list_chunk_files(folder):
                self._of.setdefault(key, folder)

    def __repr__(self) -> str:
        return f"Layers({[str(root) for root in self.roots]})"

    def __contains__(self, key: bytes) -> bool:
        return key in self._of

    @property
    def roots(self) -> tuple[Path, ...]:
        """The folders, in order."""
        return tuple(folder.path for folder in self._folders)

    @property
    def keys(self) -> list[bytes]:
        """The keys of the chunks of all layers."""
        return list(self._of)

    def path(self, key: bytes) -> Path | None:
        """Returns the file of a chunk, or None if no layer has it."""
        folder = self._of.get(key)
        return None if folder is None else folder.chunk_path(key)
