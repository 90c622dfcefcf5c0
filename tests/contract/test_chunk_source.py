"""What every chunk source must do: an engine in this process, one with fetch processes, and one behind its socket."""

import time
from pathlib import Path

import numpy as np
import pytest

from streamer.errors import (
    CacheFullError,
    IntegrityError,
    ManifestError,
    ObjectChangedError,
    StateError,
    StreamerError,
)
from streamer.formats import chunkfile
from streamer.wire.messages import OpenSession, Part
from streamer.wire.schedule import EpochSchedule


def one_chunk_a_step(epoch: int, first_step: int, chunks) -> EpochSchedule:
    """Makes a schedule that needs one chunk a step."""
    steps = np.arange(first_step, first_step + len(chunks), dtype=np.int64)
    return EpochSchedule(epoch, np.asarray(chunks, np.uint32), steps, steps)


def source_samples(folder: Path, manifest, chunk: int) -> list[bytes]:
    """Returns the files of a chunk's samples."""
    first = int(manifest.chunk_first[chunk])
    return [
        (folder / manifest.name(first + i).object_key).read_bytes() for i in range(int(manifest.chunk_samples[chunk]))
    ]


def spec_of(manifest, **changes) -> OpenSession:
    """Makes the request for a session over a manifest."""
    return OpenSession(0, "", dataset=manifest.digest, consumer=changes.pop("consumer", "rank 0"), **changes)


def test_every_chunk_is_readable_when_its_step_is_ready(make_source, folder, read_chunk):
    """Each chunk has the bytes of its files when its step is ready, in two epochs through a cache of half the data."""
    source = make_source(cache_bytes=(512 << 10) + 1_800_000)
    manifest = source.manifest(str(folder))
    session = source.open_session(spec_of(manifest))
    for epoch in (0, 1):
        base = epoch * manifest.chunks
        session.extend(one_chunk_a_step(epoch, base, range(manifest.chunks)))
        for chunk in range(manifest.chunks):
            session.wait(base + chunk, 60)
            assert read_chunk(source, manifest, chunk) == source_samples(folder, manifest, chunk)
            session.done(base + chunk + 1)
    counts = source.statistics()
    assert counts["needs"] == 2 * manifest.chunks
    assert 0 < counts["hits"] < manifest.chunks
    # The disk takes more than was fetched, by blocks, headers and checksums of the chunks that were fetched.
    missed = counts["needs"] - counts["hits"]
    extra = counts["needed_bytes"] - counts["hit_bytes"] - counts["store_bytes"]
    assert 0 <= extra <= missed * (4096 + 1024 + chunkfile.HEADER_BYTES + 4 * int(manifest.chunk_samples.max()) + 4096)
    session.close()


def test_a_mix_reads_each_member_as_its_own(make_source, folder, read_chunk):
    """A mix reads each member's own bytes, numbered end to end, and fetches a member of three passes once."""
    small = folder.parent / "small"
    small.mkdir()
    for number in range(3):
        (small / f"{number}.bin").write_bytes(bytes([number]) * 50_000)
    source = make_source()
    members = {url.name: source.manifest(str(url)) for url in (folder, small)}
    large, little = members.values()
    parts = tuple(Part(dataset=one.digest, name=name) for name, one in members.items())
    session = source.open_session(OpenSession(0, "", dataset="mix", consumer="rank 0", parts=parts))
    uses = [(large, chunk, 0) for chunk in range(large.chunks)]
    uses[1:1] = [(little, chunk, turn) for turn in range(3) for chunk in range(little.chunks)]
    numbers = np.array([chunk + (large.chunks if one is little else 0) for one, chunk, _ in uses], np.uint32)
    steps, passes = np.arange(len(uses)), np.array([turn for *_, turn in uses], np.uint32)
    session.extend(EpochSchedule(0, numbers, steps, steps, passes, (1.0, 3.0)))
    for step, (manifest, chunk, _) in enumerate(uses):
        session.wait(step, 60)
        root = folder if manifest is large else small
        assert read_chunk(source, manifest, chunk) == source_samples(root, manifest, chunk)
        session.done(step + 1)
    assert source.statistics()["store_bytes"] == large.total_bytes + little.total_bytes
    rows = {row["member"]: (row["needs"], row["hits"]) for row in source.statistics()["members"]}
    assert rows == {"data": (large.chunks, 0), "small": (3 * little.chunks, 2 * little.chunks)}
    session.close()


def test_a_member_without_a_manifest_is_named(make_source, folder):
    """The first wait for a mix with a member that has no manifest is an error that names the member."""
    source = make_source()
    parts = (
        Part(dataset=source.manifest(str(folder)).digest, name="web"),
        Part(dataset="0", name="books"),
    )
    with pytest.raises(ManifestError, match=r"^member books: "):
        source.open_session(OpenSession(0, "", dataset="mix", consumer="rank 0", parts=parts)).wait(0, 60)


def test_two_sessions_share_one_fetch(make_source, folder):
    """Eight sessions over the same chunks fetch the data from the store once."""
    source = make_source()
    manifest = source.manifest(str(folder))
    sessions = [source.open_session(spec_of(manifest, consumer=f"rank {rank}")) for rank in range(8)]
    for session in sessions:
        session.extend(one_chunk_a_step(0, 0, range(manifest.chunks)))
    for session in sessions:
        session.wait(manifest.chunks - 1, 60)
    assert source.statistics()["store_bytes"] == manifest.total_bytes
    for session in sessions:
        session.close()


def test_a_rejected_chunk_is_fetched_again(make_source, folder, read_chunk):
    """A chunk with a flipped byte that is rejected is fetched again, once."""
    source = make_source()
    manifest = source.manifest(str(folder))
    session = source.open_session(spec_of(manifest))
    session.extend(one_chunk_a_step(0, 0, [3]))
    session.wait(0, 60)
    path = source.roots()[0] / chunkfile.relative_path(manifest.chunk_keys[3].tobytes())
    with path.open("r+b") as file:
        file.seek(chunkfile.HEADER_BYTES + 100)
        flipped = bytes([file.read(1)[0] ^ 1])
        file.seek(chunkfile.HEADER_BYTES + 100)
        file.write(flipped)
    with pytest.raises(StreamerError, match="checksum"):
        read_chunk(source, manifest, 3)
    session.reject(3, "checksum")
    session.wait(0, 60)
    assert read_chunk(source, manifest, 3) == source_samples(folder, manifest, 3)
    assert source.statistics()["rejected_chunks"] == 1
    session.close()


def places(source, manifest, chunk: int) -> list[Path]:
    """Returns the files of a chunk in the folders that readers search."""
    paths = [root / chunkfile.relative_path(manifest.chunk_keys[chunk].tobytes()) for root in source.roots()]
    return [path for path in paths if path.exists()]


def damage(source, manifest, chunk: int) -> None:
    """Overwrites the one file of a chunk, which must be on the disk, with zeros."""
    (path,) = places(source, manifest, chunk)
    assert path.is_relative_to(source.roots()[0])
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))


def test_a_chunk_that_is_overwritten_in_each_epoch_stays_on_the_disk(make_source, folder, read_chunk):
    """A chunk that is overwritten once in each epoch is fetched again each time, and stays on the disk."""
    source = make_source()
    manifest = source.manifest(str(folder))
    session = source.open_session(spec_of(manifest))
    for epoch in range(8):
        session.extend(one_chunk_a_step(epoch, epoch, [3]))
        session.wait(epoch, 60)
        damage(source, manifest, 3)
        session.reject(3, "checksum")
        session.wait(epoch, 60)
        assert read_chunk(source, manifest, 3) == source_samples(folder, manifest, 3)
        session.done(epoch + 1)
    assert source.statistics()["rejected_chunks"] == 8
    damage(source, manifest, 3)  # it is on the disk
    session.close()


def test_a_chunk_that_the_disk_loses_at_each_read_goes_to_memory(make_source, folder, read_chunk):
    """A chunk whose file was wrong twice in a row is kept in memory, in later epochs too."""
    source = make_source()
    manifest = source.manifest(str(folder))
    session = source.open_session(spec_of(manifest))
    for epoch in range(3):
        session.extend(one_chunk_a_step(epoch, epoch, [3]))
        session.wait(epoch, 60)
        if epoch == 0:
            for _ in range(2):
                damage(source, manifest, 3)
                session.reject(3, "checksum")
                session.wait(epoch, 60)
        assert read_chunk(source, manifest, 3) == source_samples(folder, manifest, 3)
        session.done(epoch + 1)
    assert source.statistics()["rejected_chunks"] == 2
    (path,) = places(source, manifest, 3)
    assert not path.is_relative_to(source.roots()[0])
    session.close()


def test_a_good_chunk_that_is_rejected_stays(make_source, folder, read_chunk):
    """A good chunk that is rejected is checked by the engine and kept: nothing is fetched, and its readers go on."""
    source = make_source()
    manifest = source.manifest(str(folder))
    sessions = [source.open_session(spec_of(manifest, consumer=f"rank {rank}")) for rank in range(2)]
    for session in sessions:
        session.extend(one_chunk_a_step(0, 0, [3]))
        session.wait(0, 60)
    fetched = source.statistics()["store_bytes"]
    for _ in range(4):  # as four workers of one rank do
        sessions[0].reject(3, "checksum")
    sessions[0].wait(0, 60)
    assert read_chunk(source, manifest, 3) == source_samples(folder, manifest, 3)
    counts = source.statistics()
    assert (counts["store_bytes"], counts["rejected_chunks"], counts["unfounded_rejects"]) == (fetched, 0, 1)
    for session in sessions:
        session.close()


def reject_for_ever(session, chunk: int) -> None:
    """Rejects a chunk until a wait raises an error, or for a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        session.reject(chunk, "checksum")
        session.wait(0, 60)


def test_who_goes_on_rejecting_good_chunks_gets_an_error(make_source, folder):
    """A session that goes on rejecting a good chunk gets an IntegrityError; nothing is fetched, others read on."""
    source = make_source()
    manifest = source.manifest(str(folder))
    stubborn, other = (source.open_session(spec_of(manifest, consumer=f"rank {rank}")) for rank in range(2))
    for session in (stubborn, other):
        session.extend(one_chunk_a_step(0, 0, [3]))
        session.wait(0, 60)
    fetched = source.statistics()["store_bytes"]
    with pytest.raises(IntegrityError, match=r"rank 0 found chunk 3 wrong 4 times .*mount"):
        reject_for_ever(stubborn, 3)
    other.wait(0, 60)
    counts = source.statistics()
    assert (counts["store_bytes"], counts["rejected_chunks"], counts["unfounded_rejects"]) == (fetched, 0, 4)
    for session in (stubborn, other):
        session.close()


def test_a_chunk_whose_file_is_gone_is_fetched_again(make_source, folder, read_chunk):
    """A chunk whose file was removed behind the engine's back is fetched again."""
    source = make_source()
    manifest = source.manifest(str(folder))
    session = source.open_session(spec_of(manifest))
    session.extend(one_chunk_a_step(0, 0, [3]))
    session.wait(0, 60)
    (source.roots()[0] / chunkfile.relative_path(manifest.chunk_keys[3].tobytes())).unlink()
    session.reject(3, "no file")
    session.wait(0, 60)
    assert read_chunk(source, manifest, 3) == source_samples(folder, manifest, 3)
    assert source.statistics()["rejected_chunks"] == 1
    session.close()


def test_a_reject_of_what_one_does_not_hold_changes_nothing(make_source, folder):
    """A session that rejects a chunk which it has finished changes nothing, and goes on."""
    source = make_source()
    manifest = source.manifest(str(folder))
    session = source.open_session(spec_of(manifest))
    session.extend(one_chunk_a_step(0, 0, [3, 4]))
    session.wait(0, 60)
    session.done(1)
    fetched = source.statistics()["store_bytes"]
    session.reject(3, "late")
    session.wait(1, 60)
    counts = source.statistics()
    assert (counts["rejected_chunks"], counts["unfounded_rejects"]) == (0, 0)
    # Each of both was fetched once.
    assert (counts["needs"], counts["hits"]) == (2, 0)
    assert counts["store_bytes"] == sum(manifest.chunk(number).fetch_bytes for number in (3, 4)) >= fetched
    session.close()


def test_a_changed_object_is_an_error_of_its_reader(make_source, folder):
    """An object that changed since it was indexed is an error that names it, and its bytes are not delivered."""
    source = make_source()
    manifest = source.manifest(str(folder))
    victim = manifest.name(0).object_key
    (folder / victim).write_bytes(b"another version")
    session = source.open_session(spec_of(manifest))
    session.extend(one_chunk_a_step(0, 0, [0]))
    with pytest.raises(ObjectChangedError, match=victim):
        session.wait(0, 60)
    session.close()


def test_an_error_ahead_does_not_stop_what_is_before_it(make_source, folder, read_chunk):
    """An error of a chunk that is read ahead is raised when its reader gets there; those before it are delivered."""
    source = make_source()
    manifest = source.manifest(str(folder))
    last = manifest.chunks - 1
    victim = manifest.name(int(manifest.chunk_first[last])).object_key
    (folder / victim).unlink()
    session = source.open_session(spec_of(manifest))
    session.extend(one_chunk_a_step(0, 0, range(manifest.chunks)))
    for chunk in range(last):
        session.wait(chunk, 60)
        assert read_chunk(source, manifest, chunk) == source_samples(folder, manifest, chunk)
        session.done(chunk + 1)
    with pytest.raises(StreamerError, match=victim):
        session.wait(last, 60)
    session.close()


def test_sessions_of_one_job_that_disagree_are_refused(make_source, folder):
    """Sessions of one job with different orders are refused with the field, as samples would be repeated."""
    source = make_source()
    manifest = source.manifest(str(folder))
    first = source.open_session(spec_of(manifest, consumer="rank 0", order_id="a" * 32))
    other = spec_of(manifest, consumer="rank 1", order_id="b" * 32)
    with pytest.raises(StateError, match="order_id"):
        source.open_session(other).wait(0, 60)
    first.close()


def test_loaders_of_one_rank_may_differ(make_source, folder):
    """Several loaders of one rank may have different orders, as when one goes on from a state."""
    source = make_source()
    manifest = source.manifest(str(folder))
    sessions = [
        source.open_session(spec_of(manifest, consumer="rank 0", order_id=letter * 32, start=start))
        for letter, start in (("a", 16), ("b", 64))
    ]
    for session in sessions:
        session.extend(one_chunk_a_step(0, 0, [1]))
        session.wait(0, 60)
    for session in sessions:
        session.close()


def test_a_session_that_cannot_fit_is_refused_with_the_numbers(make_source, folder):
    """A session whose open chunks exceed the cache is refused by an error with the sizes."""
    source = make_source(cache_bytes=(512 << 10) + 1_000_000)
    manifest = source.manifest(str(folder))
    session = source.open_session(spec_of(manifest))
    steps = np.zeros(manifest.chunks, np.int64)
    session.extend(EpochSchedule(0, np.arange(manifest.chunks, dtype=np.uint32), steps, steps))
    with pytest.raises(CacheFullError, match="MB"):
        session.wait(0, 60)
    session.close()


def test_a_reader_waits_for_room_that_another_will_give_back(make_source, folder):
    """A session waits for space that another session holds and will free, and is not refused."""
    source = make_source(cache_bytes=(512 << 10) + 1_800_000)
    manifest = source.manifest(str(folder))
    greedy, late = (source.open_session(spec_of(manifest, consumer=f"rank {rank}")) for rank in range(2))
    greedy.extend(one_chunk_a_step(0, 0, range(manifest.chunks)))
    greedy.wait(1, 60)
    greedy.want(manifest.chunks - 1)
    late.extend(one_chunk_a_step(0, 0, [manifest.chunks - 1]))
    late.want(0)
    for step in range(manifest.chunks):
        greedy.wait(step, 60)
        greedy.done(step + 1)
    late.wait(0, 60)
    greedy.close()
    late.close()


def test_single_samples_come_straight_from_the_store(make_source, folder):
    """Reading a single sample fetches its bytes from the store and nothing else."""
    source = make_source()
    manifest = source.manifest(str(folder))
    chunk, start, stop = (int(column[0]) for column in manifest.locate(np.array([7])))
    before = source.statistics()["store_bytes"]
    assert source.read(manifest.digest, chunk, start, stop) == (folder / manifest.name(7).object_key).read_bytes()
    assert source.statistics()["store_bytes"] - before == stop - start


@pytest.mark.parametrize("dataset", ["0" * 32, "../../etc", ""])
def test_an_unknown_dataset_is_a_manifest_error(make_source, dataset):
    """An unknown dataset, or a digest that is none, is a ManifestError."""
    source = make_source()
    with pytest.raises(ManifestError, match=r"is not the digest of a manifest|no manifest 0{32} in"):
        source.open_session(OpenSession(0, "", dataset=dataset, consumer="rank 0")).wait(0, 60)


def test_the_same_prefix_is_not_indexed_twice(make_source, folder):
    """A listing that has not changed is not indexed again, and one that has changed is."""
    source = make_source()
    first = source.manifest(str(folder))
    assert source.manifest(str(folder)).digest == first.digest
    (folder / "class0" / "new.bin").write_bytes(b"new")
    assert source.manifest(str(folder)).samples == first.samples + 1
