"""Selections of a manifest's samples: by indices, sizes, labels, keys and fractions; their files and digests."""

from __future__ import annotations

import errno
import pickle

import numpy as np
import pytest

from streamer.errors import ConfigError, ManifestCorruptError, ManifestError
from streamer.manifest.selection import Selection, Where
from tests.read_only import refuse_writes


def lengths(manifest) -> np.ndarray:
    _, start, stop = manifest.locate(np.arange(manifest.samples))
    return stop - start


def test_indices(tar_manifest):
    """Selected indices are sorted and unique, counted by chunk, and mapped back to the manifest."""
    selection = Selection.create(tar_manifest, Where(indices=[300, 5, 5, 7]))
    assert selection.ordinals.tolist() == [5, 7, 300]
    assert selection.samples == 3
    assert selection.to_base(np.array([2, 0])).tolist() == [300, 5]
    chunk, _, _ = tar_manifest.locate(selection.ordinals)
    expected = np.bincount(chunk, minlength=tar_manifest.chunks)
    assert selection.chunk_samples.tolist() == expected.tolist()
    assert repr(selection).endswith("3 of 360 samples)")


@pytest.mark.parametrize(("least", "most"), [(2048, 2560), (2560, None), (None, 2047)])
def test_sizes(tar_manifest, least, most):
    """Both bounds of `sizes` are inclusive, and each may be open."""
    sizes = lengths(tar_manifest)
    selection = Selection.create(tar_manifest, Where(sizes=(least, most)))
    fits = (sizes >= (least or 0)) & (sizes <= (most or 1 << 40))
    assert selection.ordinals.tolist() == np.flatnonzero(fits).tolist()


def test_labels_and_keys(file_manifest):
    """`labels` selects by class name or number and `keys` by glob; conditions together must all hold."""
    names = [file_manifest.name(i) for i in range(file_manifest.samples)]
    by_name = Selection.create(file_manifest, Where(labels=["c1", 3]))
    assert by_name.ordinals.tolist() == [i for i, n in enumerate(names) if n.label in (1, 3)]
    both = Selection.create(file_manifest, Where(labels=["c1"], keys=["*/00*", "c2/*"]))
    assert both.ordinals.tolist() == [i for i, n in enumerate(names) if n.object_key.startswith("c1/00")]


def test_fractions_share_none_and_miss_none(tar_manifest, file_manifest):
    """Adjacent fractions are disjoint and together the whole, of about their sizes; another seed draws others."""
    for manifest in (tar_manifest, file_manifest):
        parts = [Selection.create(manifest, Where(fraction=f)).ordinals for f in ((0, 0.5), (0.5, 0.9), (0.9, 1))]
        assert sorted(np.concatenate(parts).tolist()) == list(range(manifest.samples))
        assert abs(len(parts[0]) / manifest.samples - 0.5) < 0.12
        other = Selection.create(manifest, Where(fraction=(0, 0.5), seed=1)).ordinals
        assert other.tolist() != parts[0].tolist()


async def test_a_sample_stays_on_its_side_when_files_are_added(build_it, store, files):
    """A sample stays in its fraction when files are added, so that a split does not leak."""
    more = {**files, **{f"s3://b/files/c9/{i}.JPG": b"new" for i in range(100)}}
    sides = []
    for content in (files, more):
        manifest = await build_it(store(content), "s3://b/files/")
        selection = Selection.create(manifest, Where(fraction=(0, 0.8)))
        sides.append({manifest.name(i).object_key for i in selection.ordinals.tolist()})
    before = {url.removeprefix("s3://b/files/") for url in files}
    assert sides[1] & before == sides[0]


def test_it_lies_next_to_the_manifest_and_opens_again(tar_manifest):
    """A selection is one file beside its manifest; opened by digest or unpickled it maps that file."""
    first = Selection.create(tar_manifest, Where(indices=range(10)))
    again = Selection.from_ordinals(tar_manifest, np.arange(10))
    other = Selection.from_ordinals(tar_manifest, np.arange(11))
    assert first.path.parent == tar_manifest.path.parent
    assert (first.digest, first.path) == (again.digest, again.path)
    assert other.digest != first.digest
    for opened in (Selection.open(tar_manifest, first.digest, verify=True), pickle.loads(pickle.dumps(first))):
        assert opened.ordinals.tolist() == list(range(10))
        assert not opened.ordinals.flags.owndata
    assert len(list(tar_manifest.path.parent.iterdir())) == 4


def test_a_selection_of_another_manifest_has_another_digest(tar_manifest, file_manifest):
    """The same indices of another manifest have another digest."""
    assert (
        Selection.from_ordinals(tar_manifest, np.arange(3)).digest
        != Selection.from_ordinals(file_manifest, np.arange(3)).digest
    )


def test_damage(tar_manifest):
    """A selection with a missing or foreign file, or a wrong ordinal when verified, raises a typed error."""
    selection = Selection.from_ordinals(tar_manifest, np.arange(10))
    raw = selection.path.read_bytes()
    place = raw.index(np.arange(10, dtype="<i8").tobytes())
    selection.path.write_bytes(raw[:place] + b"\x63" + raw[place + 1 :])
    Selection.open(tar_manifest, selection.digest)
    with pytest.raises(ManifestCorruptError, match="do not have digest"):
        Selection.open(tar_manifest, selection.digest, verify=True)
    selection.path.write_bytes(b"garbage" * 10)
    with pytest.raises(ManifestCorruptError, match="broken message prefix"):
        Selection.open(tar_manifest, selection.digest)
    selection.path.unlink()
    with pytest.raises(ManifestError, match="no selection"):
        Selection.open(tar_manifest, selection.digest)


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        (Where(indices=[]), "has none of the 360 samples"),
        (Where(indices=[360]), r"indices 360\.\.360 of 360"),
        (Where(indices=[-1]), r"indices -1\.\.-1"),
        (Where(fraction=(0.5, 0.5)), "fraction="),
        (Where(fraction=(0, 1.1)), "fraction="),
        (Where(keys=["*"]), "keys= needs names"),
        (Where(labels=[1]), "labels= needs names"),
        (Where(sizes=(1 << 40, None)), "has none"),
    ],
)
def test_what_cannot_be_selected(tar_manifest, where, reason):
    """A selection that is empty or impossible raises ConfigError with the reason."""
    with pytest.raises(ConfigError, match=reason):
        Selection.create(tar_manifest, where)


@pytest.mark.parametrize("label", ["c9", 5, -2])
def test_unknown_labels(file_manifest, label):
    """A label that is not among the classes raises ConfigError, where it could have selected no sample."""
    with pytest.raises(ConfigError, match="are not among the 5 classes"):
        Selection.create(file_manifest, Where(labels=[label]))


def test_no_patterns_select_nothing(file_manifest):
    """An empty list of patterns selects no sample, which is a ConfigError."""
    with pytest.raises(ConfigError, match="has none"):
        Selection.create(file_manifest, Where(keys=[]))


@pytest.mark.parametrize("ordinals", [[], [1, 1], [2, 1], [-1, 0], [360]])
def test_ordinals_must_ascend(tar_manifest, ordinals):
    """`from_ordinals` takes only ascending ordinals of the manifest."""
    with pytest.raises(ConfigError, match="ascending ordinals of the 360 samples"):
        Selection.from_ordinals(tar_manifest, np.array(ordinals, np.int64))


def test_a_folder_mounted_read_only(tar_manifest, tmp_path, monkeypatch):
    """A selection lies in the fallback folder where the manifest's is read-only, as for trainers of a sidecar."""
    fallback_dir = tmp_path / "fallback_dir"
    refuse_writes(monkeypatch, tar_manifest.path.parent, errno.EROFS)
    selection = Selection.from_ordinals(tar_manifest, np.arange(10), fallback_dir)
    assert selection.path.parent == fallback_dir
    assert Selection.open(tar_manifest, selection.digest, fallback_dir, verify=True).samples == 10
    assert pickle.loads(pickle.dumps(selection)).path == selection.path
    refuse_writes(monkeypatch, tar_manifest.path.parent, errno.ENOSPC)
    with pytest.raises(ManifestError, match="cannot write"):
        Selection.from_ordinals(tar_manifest, np.arange(11), fallback_dir)


def test_a_damaged_selection_is_written_again(tar_manifest, caplog):
    """A damaged selection is written again with one warning; an intact one is not."""
    path = Selection.from_ordinals(tar_manifest, np.arange(10)).path
    written = path.stat().st_ino
    assert Selection.from_ordinals(tar_manifest, np.arange(10)).path.stat().st_ino == written
    assert not caplog.messages
    for content in (path.read_bytes()[:-100], path.read_bytes().replace(bytes([7]) + bytes(7), bytes(8))):
        path.write_bytes(content)
        selection = Selection.from_ordinals(tar_manifest, np.arange(10))
        assert Selection.open(tar_manifest, selection.digest, verify=True).samples == 10
        assert len(caplog.messages) == 1
        caplog.clear()


def test_numpy_labels_are_looked_up_as_whole_numbers_are(file_manifest):
    """A label that is one of numpy's integers selects its class, and is refused if there is no such class."""
    of_numpy = Selection.create(file_manifest, Where(labels=[np.int64(3)]))
    assert of_numpy.ordinals.tolist() == Selection.create(file_manifest, Where(labels=[3])).ordinals.tolist()
    with pytest.raises(ConfigError, match="are not among the"):
        Selection.create(file_manifest, Where(labels=[np.int64(99)]))
