"""Which buckets and servers a manifest names: found without splitting every url."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.engine.datasets import _find_examples, find_roots
from streamer.manifest.columns import BinaryColumn
from streamer.store.addresses.urls import split


class Content:
    """Stands for the content of a manifest: the common beginning of its urls and nothing else."""

    def __init__(self, base: str) -> None:
        self.base = base


class FakeManifest:
    """Stands for a manifest: the columns of its tables of objects that are looked at, without files or samples."""

    def __init__(self, base: str, urls: list[str], parts: int = 1) -> None:
        self.content = Content(base)
        self.urls = ("s3://asked/",)
        keys = [url.removeprefix(base).encode() for url in urls]
        cut = len(keys) // parts
        ends = [*(cut * number for number in range(parts)), len(keys)]
        self.tables = [
            {"objects": {"key": BinaryColumn.of(keys[start:stop]), "size": np.zeros(stop - start, np.int64)}}
            for start, stop in pairwise(ends)
        ]
        self.objects = len(urls)
        self._urls = urls

    def object(self, number: int) -> object:
        return type("Record", (), {"url": self._urls[number]})()


ROOTS = st.sampled_from(["s3://b", "s3://bb", "https://host:81", "gs://" + "x" * 90, "s3://a", "abfs://c@a"])
KEYS = st.sampled_from(["", "k", "a/b", "x" * 100, "ab/c" * 30, "é/ü"])


@given(st.lists(st.tuples(ROOTS, KEYS), min_size=1, max_size=40), st.sampled_from(["", "common"]), st.integers(1, 3))
def test_each_root_once(parts: list[tuple[str, str]], base: str, tables: int) -> None:
    """`find_roots` returns one url of each bucket or server, whatever the order, lengths and tables of the urls."""
    urls = [f"{root}/{key}" for root, key in parts]
    if base:
        urls = [url.replace(url.partition("://")[0], "s3", 1) for url in urls]
        base = "s3://"
    found = find_roots(FakeManifest(base, urls, tables))  # type: ignore[arg-type]
    assert sorted(split(url).root for url in found) == sorted({split(url).root for url in urls})
    assert set(found) <= set(urls)


def test_examples_have_bytes() -> None:
    """The examples are one object with bytes of each root that has one, since a store is asked for its first byte."""
    urls = ["s3://a/0", "s3://a/1", "s3://b/0", "s3://c/0", "s3://c/1"]
    manifest = FakeManifest("s3://", urls, 2)
    manifest.tables[0]["objects"]["size"][1] = 1
    manifest.tables[1]["objects"]["size"][[1, 2]] = 1
    found = _find_examples(manifest)  # type: ignore[arg-type]
    assert [record.url for record in found] == ["s3://a/1", "s3://c/0"]


@pytest.mark.slow
def test_a_million_objects_are_looked_at_in_time() -> None:
    """The roots of a million objects are found in less than a second, so other clients do not wait longer."""
    keys = [f"bucket-{number // 500_000}/{number:09}.tar" for number in range(1_000_000)]
    manifest = FakeManifest("s3://", ["s3://" + key for key in keys])
    started = time.process_time()
    assert len(find_roots(manifest)) == 2  # type: ignore[arg-type]
    assert time.process_time() - started < 1.0
