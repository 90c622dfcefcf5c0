"""The store of manifests in a real folder: which answer belongs to which request, and which manifests are removed.
Clocks are those of the files."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from streamer.base.linux import map_file
from streamer.engine.manifests.manifest_store import LOG_SECONDS, QUIET_SECONDS, ManifestStore
from streamer.manifest import reader_lock
from streamer.manifest.joined import JoinHead, Matched

NOW = 1_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> ManifestStore:
    """Makes a store of manifests in an empty folder."""
    return ManifestStore(tmp_path)


def digest_of(number: int) -> str:
    """Returns a made-up digest of a manifest."""
    return f"{number:032x}"


def place(root: Path, number: int, used_at: float = NOW - 2 * QUIET_SECONDS, size: int = 10_000) -> Path:
    """Makes a folder that counts as a manifest as far as the store looks: a root.json and a time of use."""
    folder = root / digest_of(number)
    folder.mkdir()
    (folder / "root.json").write_bytes(bytes(size))
    os.utime(folder, (used_at, used_at))
    return folder


def test_the_last_answer_to_a_request_stays_and_the_others_leave(tmp_path: Path, store: ManifestStore) -> None:
    """The store keeps the last manifest of each request and removes the earlier ones, as of a bucket that changes."""
    for number in range(100):
        place(tmp_path, number)
        store.remember(("s3://b",), f"listing{number}", digest_of(number))
    place(tmp_path, 777)
    store.remember(("s3://b", "other"), "listing", digest_of(777))
    gone = store.remove_idle([], 1 << 30, NOW)
    assert sorted(gone) == [digest_of(number) for number in range(99)]
    assert store.digests() == {digest_of(99), digest_of(777)}
    assert len(list((tmp_path / "sources").iterdir())) == 2


def test_who_is_used_or_was_lately_stays(tmp_path: Path, store: ManifestStore) -> None:
    """A manifest stays while a session uses it and for a quiet time after it was last used."""
    for number in range(3):
        place(tmp_path, number)
    store.use(digest_of(0))
    now = (tmp_path / digest_of(0)).stat().st_mtime + 1
    assert store.remove_idle([digest_of(1)], 1 << 30, now) == [digest_of(2)]
    assert sorted(store.remove_idle([], 1 << 30, now + 2 * QUIET_SECONDS)) == [digest_of(0), digest_of(1)]


def test_logs_of_an_index_leave_with_its_answer_or_after_a_week(tmp_path: Path, store: ManifestStore) -> None:
    """Logs of an index are removed when its request has an answer, or after a week."""
    one, other, old = (store.log_folder((name,)) for name in ("one", "other", "old"))
    for folder, age in ((one, 0.0), (other, LOG_SECONDS - 1), (old, LOG_SECONDS + 1)):
        folder.mkdir(parents=True)
        (folder / "container").write_bytes(b"log")
        os.utime(folder, (NOW - age, NOW - age))
    store.remember(("one",), "listing", digest_of(1))
    assert store.remove_idle([], 1 << 30, NOW) == []
    assert [folder.exists() for folder in (one, other, old)] == [False, True, False]


def test_who_is_held_by_a_reader_stays(tmp_path: Path, store: ManifestStore) -> None:
    """A manifest that a reader has locked stays: a trainer between two epochs, of which a new engine knows nothing."""
    folder = place(tmp_path, 1)
    reader = os.open(folder, os.O_RDONLY)
    reader_lock.fcntl.flock(reader, reader_lock.fcntl.LOCK_SH)
    assert store.remove_idle([], 0, NOW) == []
    os.close(reader)
    assert store.remove_idle([], 0, NOW) == [digest_of(1)]


def test_unused_manifests_take_their_share(tmp_path: Path, store: ManifestStore) -> None:
    """Unused manifests above their share of bytes are removed, the longest unused first; those in use do not count."""
    for number in range(6):
        place(tmp_path, number, used_at=NOW - (10 - number) * QUIET_SECONDS, size=100_000)
        store.remember((number,), "listing", digest_of(number))
    gone = store.remove_idle([digest_of(0)], 350_000, NOW)
    assert gone == [digest_of(1), digest_of(2)]
    assert len(list((tmp_path / "sources").iterdir())) == 4


def test_what_is_made_of_a_manifest_leaves_after_it(tmp_path: Path, store: ManifestStore) -> None:
    """Files and folders made of a manifest are removed after it, of two manifests after either; mapped ones stay."""
    for number in range(3):
        place(tmp_path, number)
        store.remember((number,), "listing", digest_of(number))
    a, b, c = (digest_of(number) for number in range(3))
    selection, column = tmp_path / f"{a}.{digest_of(7)}.arrows", tmp_path / f"{b}.width.int.column"
    keys, both, other = (tmp_path / name for name in (f"{b}.12.keys", f"{a}-{b}.34.join", f"{a}-{c}.56.join"))
    for file in (selection, column, keys / "high.u64", both / "row.i64", other / "row.i64"):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(range(256)))
    mapped = map_file(both / "row.i64")
    assert store.remove_idle([], 1 << 30, NOW) == []
    store.remember((1,), "a new listing", c)
    assert store.remove_idle([], 1 << 30, NOW) == [b]
    assert [path.exists() for path in (selection, column, keys, both, other)] == [True, False, False, False, True]
    assert bytes(mapped) == bytes(range(256))


def test_what_a_join_has_arranged_stays_with_its_table(tmp_path: Path, store: ManifestStore) -> None:
    """A manifest that a join has made stays with its table, though no source names it, until either side leaves."""
    for number in range(3):
        place(tmp_path, number)
    for number in range(2):
        store.remember((number,), "listing", digest_of(number))
    a, b, part = (digest_of(number) for number in range(3))
    (tmp_path / f"{a}-{b}.34.join").mkdir()
    (tmp_path / f"{a}-{b}.34.join" / "head.json").write_bytes(
        msgspec.json.encode(JoinHead(a, b, part, samples=1, chunks=1, uses=1, matched=Matched()))
    )
    assert store.remove_idle([], 1 << 30, NOW) == []
    store.remember((1,), "a new listing", a)
    assert store.remove_idle([], 1 << 30, NOW) == [b]
    assert store.remove_idle([], 1 << 30, NOW) == [part]


def test_what_is_made_of_a_manifest_counts_with_it(tmp_path: Path, store: ManifestStore) -> None:
    """The bytes of a manifest's tables count with it: a small manifest with a large table is removed first."""
    for number in range(2):
        place(tmp_path, number, used_at=NOW - (10 - number) * QUIET_SECONDS)
        store.remember((number,), "listing", digest_of(number))
    (tmp_path / f"{digest_of(0)}.12.keys").mkdir()
    (tmp_path / f"{digest_of(0)}.12.keys" / "high.u64").write_bytes(bytes(100_000))
    assert store.remove_idle([], 50_000, NOW) == [digest_of(0)]
    assert [path.name for path in tmp_path.iterdir() if path.name != "sources"] == [digest_of(1)]


def test_what_was_made_since_the_removal_began_stays(tmp_path: Path, store: ManifestStore) -> None:
    """A manifest made after the removal began stays, as that of a join that a rank makes while the engine looks."""
    place(tmp_path, 1, used_at=NOW + 0.5)
    assert store.remove_idle([], 0, NOW) == []


def test_a_clock_that_was_set_back_keeps_nothing_for_ever(tmp_path: Path, store: ManifestStore) -> None:
    """A manifest whose time of use lies in the future is removed like an unused one."""
    place(tmp_path, 1, used_at=NOW + 1e6)
    assert store.remove_idle([], 0, NOW) == [digest_of(1)]


@pytest.mark.parametrize("content", ["", "torn", "listing ../../etc", f"listing {digest_of(5)}", "\udcff x"])
def test_a_source_that_names_nothing_is_removed(tmp_path: Path, store: ManifestStore, content: str) -> None:
    """A source that is torn, foreign or names a missing manifest is removed, and so is what a kill left of one."""
    (tmp_path / "sources").mkdir()
    for name in (digest_of(3), digest_of(3) + ".new"):
        (tmp_path / "sources" / name).write_text(content, errors="surrogateescape")
    store.remove_idle([], 0, NOW)
    assert list((tmp_path / "sources").iterdir()) == []


def test_what_killed_writers_and_removers_left_is_removed(tmp_path: Path, store: ManifestStore) -> None:
    """Folders and locks that a killed writer or remover of manifests left are removed."""
    (tmp_path / ".removed-1").mkdir()
    (tmp_path / ".building-2").mkdir()
    (tmp_path / ".building-2.lock").touch()
    store.remove_idle([], 0, NOW)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_tidy(tmp_path: Path) -> None:
    """A store whose folder does not exist yet has no manifests, and removes none."""
    assert ManifestStore(tmp_path / "none").remove_idle([], 0, NOW) == []
    assert ManifestStore(tmp_path / "none").digests() == set()


def test_a_manifest_that_is_not_there_is_not_found(tmp_path: Path, store: ManifestStore) -> None:
    """`find` returns None for an unknown request and for one whose manifest is not complete."""
    assert store.find(("s3://b",), "listing") is None
    place(tmp_path, 1)
    store.remember(("s3://b",), "listing", digest_of(1))
    assert store.find(("s3://b",), "listing") is None
