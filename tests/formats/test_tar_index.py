"""Tars with index files of Energon and DALI beside them meet the contract of the formats, and are not read through."""

from __future__ import annotations

from struct import pack

import pytest

from streamer.errors import ManifestError
from streamer.formats.webdataset import WebDataset
from tests.formats.cases import Case, find, read_case
from tests.formats.contract import FormatContract

KINDS = ("energon", "dali")


class TestIndexedTars(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        return [read_case(WebDataset(), f"tar_index/{kind}") for kind in KINDS]


@pytest.mark.parametrize("kind", KINDS)
def test_the_samples_of_the_tar_itself(kind):
    """Index files of Energon and DALI give the samples of a walk through the tar, in three reads of it and them."""
    case = read_case(WebDataset(), f"tar_index/{kind}")
    found = find(case.format, case.objects)
    walked = find(case.format, {name: raw for name, raw in case.objects.items() if name.endswith(".tar")})
    assert [len(items) for _, items in found.items] == [len(items) for _, items in walked.items] == [9, 7]
    assert [items for _, items in found.items] == [items for _, items in walked.items]
    for asks in found.needs.values():
        (index,), heads = asks
        assert index.object.url.endswith(".idx")
        assert [need.stop - need.start for need in heads] == [512, 512]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (pack("<3Q", 0, 512, 1100), "multiples of 512"),
        (pack("<3Q", 0, 1024, 1024), "do not ascend"),
        (pack("<2Q", 0, 10**9), "do not ascend"),
        (pack("<Q", 0), "do not ascend"),
        (pack("<3Q", 0, 512, 2048), "no sample begins at byte 512"),
        (b"abc", "neither"),
        (b"v1.2 1\nbin 512\n", "neither"),
        (b"v1.2 1\nbin x y name\n", "neither"),
        (b"v1.2 1\nbin 512 a b 9 name\n", "neither"),
        (b"v1.2 1\n", "do not ascend"),
    ],
)
def test_an_index_file_of_another_tar(content, reason):
    """An index file that does not fit its tar is refused with what to do."""
    case = read_case(WebDataset(), "tar_index/energon")
    with pytest.raises(ManifestError, match=rf"a\.tar\.idx is not an index of .*a\.tar.*{reason}.*delete it"):
        find(case.format, {**case.objects, "a.tar.idx": content})
