"""Builds of manifests over a store in memory: what is read, what is written, and which objects are left out."""

from __future__ import annotations

import json

import pytest

from streamer.errors import ConfigError, ManifestError
from streamer.indexing.build import BuildOptions
from streamer.manifest.protocols import BuildProgress, IndexEstimate
from streamer.manifest.transfer import export_files
from streamer.manifest.validation import verify
from tests.tars import tar_of


async def test_the_result_does_not_depend_on_what_ends_first(build_it, store, tars, tmp_path):
    """A build has the same digest and files with any concurrency, any order of completion and any root."""
    first = await build_it(store(tars), "s3://b/tars/", root=tmp_path / "a")
    slow_first = store(tars, delays=lambda extent: 2000 - 4 * int(extent.object.url[-6:-4]))
    second = await build_it(slow_first, "s3://b/tars/", root=tmp_path / "b", concurrency=12)
    third = await build_it(store(dict(reversed(tars.items()))), "s3://b/tars/", root=tmp_path / "c", concurrency=1)
    assert first.digest == second.digest == third.digest
    assert slow_first.most_in_flight == 12
    for name, content in export_files(first):
        assert content == (second.path / name).read_bytes()


async def test_folders_do_not_depend_on_the_order_of_the_listing(build_it, store, files, tmp_path):
    """A dataset of files has the same digest in whatever order the store lists them."""
    first = await build_it(store(files), "s3://b/files/", root=tmp_path / "a")
    second = await build_it(store(dict(reversed(files.items()))), "s3://b/files/", root=tmp_path / "b")
    assert first.digest == second.digest


async def test_the_spelling_of_the_url_does_not_matter(build_it, store, files):
    """A url with or without its last slash gives the same dataset."""
    with_slash = await build_it(store(files), "s3://b/files/")
    without = await build_it(store(files), "s3://b/files")
    assert with_slash.digest == without.digest
    assert with_slash.urls == ("s3://b/files/",)


async def test_a_changed_object_is_another_dataset(build_it, store, tars):
    """A changed object gives another digest, and other keys for its own chunks only."""
    changed = dict(tars)
    changed["s3://b/tars/03.tar"] = tars["s3://b/tars/03.tar"].replace(b"\x00\x00\x0b\xbd", b"\x01\x00\x0b\xbd")
    before = await build_it(store(tars), "s3://b/tars/")
    after = await build_it(store(changed), "s3://b/tars/")
    assert before.digest != after.digest
    kept = {before.chunk(c).key for c in range(before.chunks)} & {after.chunk(c).key for c in range(after.chunks)}
    others = [c for c in range(after.chunks) if after.chunk(c).extents[0].object.url != "s3://b/tars/03.tar"]
    assert kept == {after.chunk(c).key for c in others}


async def test_nothing_of_time_or_machine_is_written(build_it, store, tars):
    """A manifest's root.json contains only what the dataset is, and nothing of time or machine."""
    manifest = await build_it(store(tars), "s3://b/tars/")
    root = json.loads((manifest.path / "root.json").read_text())
    assert root.keys() == {"magic", "version", "digest", "urls", "file_bytes", "content"}
    assert root["content"].keys() == {
        *("format", "whole_objects", "base", "classes", "chunk_bytes", "total_bytes", "parts")
    }
    assert {p.name for p in manifest.path.parent.iterdir()} == {manifest.digest, f"{manifest.digest}.checked"}


async def test_every_byte_of_a_tar_is_read_once(build_it, store, tars):
    """A build reads each byte of a tar of small members once, in one pass over the object."""
    source = store(tars)
    await build_it(source, "s3://b/tars/")
    assert sum(e.length for e in source.reads) == sum(map(len, tars.values()))
    assert len(source.reads) == len(tars)


async def test_files_are_never_read(build_it, store, files):
    """A build of a dataset of files reads only the listing."""
    source = store(files)
    await build_it(source, "s3://b/files/")
    assert source.reads == []


async def test_all_chunks_of_small_members_are_offered(build_it, store, tars):
    """A build offers each chunk of small members with the key, offsets and bytes that the manifest names."""
    offered = {}

    async def on_chunk(chunk, parts):
        offered[chunk.key] = (chunk, b"".join(parts))

    source = store(tars)
    manifest = await build_it(source, "s3://b/tars/", on_chunk=on_chunk)
    assert offered.keys() == {manifest.chunk(c).key for c in range(manifest.chunks)}
    for c in range(manifest.chunks):
        chunk, content = offered[manifest.chunk(c).key]
        assert content == source.bytes_of(manifest.chunk(c).extents)
        assert chunk.sample_offsets.tolist() == manifest.sample_offsets(c).tolist()
        assert chunk.extents == manifest.chunk(c).extents


async def test_an_error_of_on_chunk_stops_the_build(build_it, store, tars):
    """An error of `on_chunk` stops the build and is raised."""

    async def on_chunk(chunk, parts):
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        await build_it(store(tars), "s3://b/tars/", on_chunk=on_chunk)


async def test_estimate_and_progress(build_it, store, tars, files):
    """The estimate after the listing is an upper bound of the cost, and progress rises to the whole."""
    estimates: list[IndexEstimate] = []
    steps: list[BuildProgress] = []
    total = sum(map(len, tars.values()))
    source = store(tars)
    manifest = await build_it(source, "s3://b/tars/", on_estimate=estimates.append, on_progress=steps.append)
    assert estimates == [IndexEstimate(12, total, total, 12, 8192)]
    assert steps[-1] == BuildProgress(12, 12, total, total, total, manifest.samples)
    assert len(steps) == 24
    for name in ("objects_done", "bytes_done", "read_bytes", "samples"):
        course = [getattr(step, name) for step in steps]
        assert course == sorted(course)
    await build_it(store(files), "s3://b/files/", on_estimate=estimates.append, on_progress=steps.append)
    assert (estimates[-1].read_bytes, estimates[-1].requests) == (0, 0)
    assert (steps[-1].objects_done, steps[-1].samples) == (401, 401)


async def test_bytes_that_are_jumped_over_count_as_done(build_it, store):
    """Bytes of large members that are skipped count as done but not as read."""
    size = 20 << 20
    content = tar_of([(f"{i}.bin", bytes(size)) for i in range(3)])
    steps: list[BuildProgress] = []
    await build_it(store({"s3://b/a.tar": content}), "s3://b/", on_progress=steps.append)
    assert steps[-1].bytes_done == len(content)
    assert steps[-1].read_bytes < size
    assert steps[1].bytes_done > size


async def test_an_estimate_may_stop_the_build(build_it, store, tars):
    """An error of `on_estimate` stops the build before anything is read."""
    source = store(tars)

    def refuse(estimate: IndexEstimate) -> None:
        raise ManifestError("too dear")

    with pytest.raises(ManifestError, match="too dear"):
        await build_it(source, "s3://b/tars/", on_estimate=refuse)
    assert source.reads == []


async def test_a_truncated_tar_names_itself(build_it, store, tars, tmp_path):
    """A truncated tar raises ManifestError with its url and offset, and leaves no manifest."""
    url = "s3://b/tars/05.tar"
    with pytest.raises(ManifestError, match=r"s3://b/tars/05\.tar is damaged: cut off") as caught:
        await build_it(store({**tars, url: tars[url][:10_000]}), "s3://b/tars/")
    assert caught.value.details["url"] == url
    assert caught.value.details["offset"] == 10_000
    assert not (tmp_path / "manifests").exists()


async def test_damaged_tars_can_be_left_out(build_it, store, tars, tmp_path):
    """Damaged tars can be left out with a note for each; the dataset is the same as without their urls."""
    bad = {f"s3://b/tars/{t:02d}.tar": tars[f"s3://b/tars/{t:02d}.tar"][: 10_000 + t] for t in (9, 5)}
    notes: list[str] = []
    manifest = await build_it(store({**tars, **bad}), "s3://b/tars/", on_damage=notes.append)
    assert notes[0] == "2 of 12 objects cannot be read and are left out, with all their samples"
    assert [note.split(": cut off")[0] for note in notes[1:]] == [f"left out: s3://b/tars/0{t}.tar" for t in (5, 9)]
    assert notes[1].endswith("(at byte 10005 of 10005)")
    good = store({url: raw for url, raw in tars.items() if url not in bad})
    assert manifest.digest == (await build_it(good, "s3://b/tars/", root=tmp_path / "good")).digest


async def test_of_many_damaged_tars_some_are_named(build_it, store, tars):
    """Of many damaged tars ten are named, and the others are counted."""
    bad = {f"s3://b/tars/{t}.tar": b"x" * 600 for t in range(100, 170)}
    notes: list[str] = []
    await build_it(store({**tars, **bad}), "s3://b/tars/", on_damage=notes.append)
    assert notes[0].startswith("70 of 82 objects")
    assert (len(notes), notes[-1]) == (12, "left out: 60 more")


async def test_where_nothing_is_left_there_is_an_error(build_it, store, tars):
    """A dataset of which no object is left is an error even if damage is skipped; a compressed tar is damage."""
    notes: list[str] = []
    with pytest.raises(ManifestError, match=r"a\.tar is damaged: .*Index\(damaged='skip'\)"):
        await build_it(store({"s3://b/a.tar": b"x" * 600}), "s3://b/", on_damage=notes.append)
    assert notes == []
    objects = store({**tars, "s3://b/tars/x.tar.lz4": b"x"})
    with pytest.raises(ManifestError, match=r"x\.tar\.lz4 is compressed"):
        await build_it(objects, "s3://b/tars/")
    await build_it(objects, "s3://b/tars/", on_damage=notes.append)
    assert notes[0] == "1 of 13 objects cannot be read and are left out, with all their samples"
    assert notes[1].startswith("left out: s3://b/tars/x.tar.lz4: s3://b/tars/x.tar.lz4 is compressed")


async def test_files_in_the_order_of_their_keys(build_it, store, files, tmp_path):
    """With `in_key_order` ordinals follow the keys below a prefix, or a list of urls; the samples are the same."""
    manifest = await build_it(store(files), "s3://b/files/", in_key_order=True)
    keys = [manifest.name(ordinal).object_key for ordinal in range(manifest.samples)]
    assert keys == sorted(keys)
    hashed = await build_it(store(files), "s3://b/files/", root=tmp_path / "hashed")
    assert {hashed.name(ordinal) for ordinal in range(401)} == {manifest.name(ordinal) for ordinal in range(401)}
    verify(manifest)
    urls = [url for url in files if url.endswith(".JPG")][::-7]
    listed = await build_it(store(files), urls, in_key_order=True, root=tmp_path / "listed")
    assert [listed.object(number).url for number in range(listed.objects)] == urls


async def test_containers_know_no_other_order(build_it, store, tars):
    """A dataset of tars has one manifest, with or without `in_key_order`."""
    found = {(await build_it(store(tars), "s3://b/tars/", in_key_order=order)).digest for order in (False, True)}
    assert len(found) == 1


async def test_archives_without_a_sample(build_it, store):
    """Archives without a sample raise ManifestError that counts them."""
    with pytest.raises(ManifestError, match="1 objects below s3://b/ have no sample in them"):
        await build_it(store({"s3://b/a.tar": bytes(10240)}), "s3://b/")


async def test_no_urls(build_it, store):
    """An empty list of urls raises ConfigError."""
    with pytest.raises(ConfigError, match="urls is empty"):
        await build_it(store({}), [])


async def test_a_root_that_cannot_be_written(build_it, store, tars, tmp_path):
    """A root that is a file raises ManifestError."""
    (tmp_path / "file").touch()
    with pytest.raises(ManifestError, match="cannot write a manifest below"):
        await build_it(store(tars), "s3://b/tars/", root=tmp_path / "file")


def test_defaults():
    """By default a build reads with a concurrency of 16 and at most 256 MiB of memory."""
    assert (BuildOptions().concurrency, BuildOptions().memory_bytes) == (16, 256 << 20)
