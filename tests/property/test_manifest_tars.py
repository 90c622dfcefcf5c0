"""Whatever is in a tar, and however it is read: the samples are its members, grouped by key."""

from __future__ import annotations

import io
import tarfile
from itertools import groupby, pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamer.errors import ManifestError
from streamer.formats import reading
from streamer.formats.base import Facts, Need, SampleName, Source
from streamer.formats.webdataset import WebDataset
from streamer.manifest.model import ObjectRecord
from tests.tars import driven, tar_of

stems = st.text(st.sampled_from("abü/ "), min_size=1, max_size=150).filter(lambda s: not s.endswith("/"))
members = st.lists(st.tuples(stems, st.binary(max_size=2000), st.sampled_from([1, 2, 3])), max_size=20)
kinds = st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(members, kinds, st.integers(1, 20), st.integers(1, 20), st.integers(1, 4))
def test_samples_are_the_members(monkeypatch, entries, kind, window, jump, probe):
    """The samples of a tar are its members grouped by key, whatever the sizes of windows and jumps.
    No byte is asked for twice, and an index can begin at any sample.
    """
    monkeypatch.setattr(reading, "READ_BYTES", 512 * window)
    monkeypatch.setattr(reading, "JUMP_BYTES", 512 * jump)
    monkeypatch.setattr(reading, "PROBE_BYTES", 512 * probe)
    flat = [(f"{stem}.x{i}", content) for stem, content, fields in entries for i in range(fields)]
    # A key that follows itself would have fields twice: the writer of a dataset cannot do that.
    keys = [stem for stem, _, _ in entries]
    if any(a == b for a, b in pairwise(keys)):
        return
    raw = tar_of(flat, kind)
    found, needs = indexed(raw)
    with tarfile.open(fileobj=io.BytesIO(raw)) as reference:
        read = [(m.name.rpartition(".x"), reference.extractfile(m).read()) for m in reference if m.isfile()]
    expected = [
        (key, [(f"x{name[2]}", content) for name, content in group])
        for key, group in groupby(read, key=lambda item: item[0][0])
    ]
    assert found == [e for e in expected if e[0].rsplit("/", 1)[-1]]
    assert all(a.stop <= b.start for a, b in pairwise(needs))
    record = ObjectRecord("s3://b/x.tar", len(raw), "")
    spans, _ = driven(WebDataset().index(Source(record), Facts()), raw)
    for number, span in enumerate(spans):
        assert driven(WebDataset().index(Source(record), Facts(), span.start), raw)[0] == spans[number:]


def indexed(raw: bytes) -> tuple[list[tuple[str, list[tuple[str, bytes]]]], list[Need]]:
    spans, needs = driven(WebDataset().index(Source(ObjectRecord("s3://b/x.tar", len(raw), "")), Facts()), raw)
    found = []
    for span in spans:
        key, fields = WebDataset().open(memoryview(raw)[span.start : span.stop], SampleName())
        found.append((key, [(field.name, bytes(field.content)) for field in fields]))
    return found, needs


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_any_cut_of_an_archive_is_refused(kind):
    """A tar that is cut before its end mark is refused at every length."""
    raw = tar_of([("a" * 120 + ".jpg", b"1" * 700), ("b.jpg", b""), ("b.cls", b"1")], kind)
    end = raw.rstrip(b"\0")
    mark = -(-len(end) // 512) * 512 + 512
    for stop in range(0, mark, 64):
        with pytest.raises(ManifestError, match="is damaged"):
            indexed(raw[:stop])
    assert len(indexed(raw[:mark])[0]) == 2
