"""Manifests whose tables are cut into parts."""

from __future__ import annotations

import numpy as np

from streamer.indexing.rows import ManifestRows
from streamer.manifest.table import Manifest
from streamer.manifest.validation import verify


async def test_many_parts_are_one_manifest(build_it, store, tars, files, tmp_path, monkeypatch):
    """A dataset in parts of 50 samples answers like one in a single part, object by object and sample by sample."""
    for name, content in (("tars", tars), ("files", files)):
        whole = await build_it(store(content), f"s3://b/{name}/", root=tmp_path / "whole")
        with monkeypatch.context() as patch:
            parts = ManifestRows.parts
            patch.setattr(ManifestRows, "parts", lambda rows, of=parts: of(rows, 50))
            split = await build_it(store(content), f"s3://b/{name}/", root=tmp_path / "split")
        assert split.parts >= whole.samples // 50
        assert whole.parts == 1
        assert_same(whole, split)
        verify(split)


def assert_same(left: Manifest, right: Manifest) -> None:
    assert (left.samples, left.chunks, left.objects) == (right.samples, right.chunks, right.objects)
    assert [left.chunk(c) for c in range(left.chunks)] == [right.chunk(c) for c in range(right.chunks)]
    assert [left.object(i) for i in range(left.objects)] == [right.object(i) for i in range(right.objects)]
    assert [left.name(i) for i in range(left.samples)] == [right.name(i) for i in range(right.samples)]
    ordinals = np.arange(left.samples)[::-1]
    for a, b in zip(left.locate(ordinals), right.locate(ordinals), strict=True):
        assert a.tolist() == b.tolist()
    for name in ("chunk_first", "chunk_samples", "chunk_local_bytes", "chunk_keys", "labels"):
        assert getattr(left, name).tolist() == getattr(right, name).tolist()
