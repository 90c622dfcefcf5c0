"""LitData meets the contract of the formats, in all its layouts; what its index reads."""

from __future__ import annotations

import pytest

from streamer.errors import ManifestError
from streamer.tables.litdata.format import LitData
from tests.formats.cases import Case, find, read_case
from tests.formats.contract import FormatContract

# All leaves of an item that is packed alone are unpacked anew.
LEAVES = (
    *("photo", "pixels", "raw", "text", "number", "score", "even", "row", "matrix", "line", "table"),
    "box",
)


class TestLitData(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        names = ("items", "items-0.2.51", "packed", "packed-0.2.51", "frames", "arrow", "arrow-zstd")
        return [
            *(read_case(LitData(), f"litdata/{name}") for name in names),
            read_case(LitData(), "litdata/packed-items", copied=LEAVES),
            read_case(LitData(block_size=8), "litdata/tokens"),
        ]


@pytest.mark.parametrize(
    ("name", "surveyed", "indexed"),
    [("items", 2, 1), ("arrow", 2, 1), ("frames", 1, 1), ("packed", 1, 0), ("packed-items", 1, 1), ("tokens", 1, 1)],
)
def test_what_the_index_reads(name: str, surveyed: int, indexed: int):
    """The index of LitData reads index.json, the end of one chunk where it must, and a place of each chunk."""
    case = read_case(LitData(), f"litdata/{name}")
    found = find(LitData(), case.objects)
    assert len(found.survey_needs) == surveyed
    assert [len(asked) for asked in found.needs.values()] == [indexed] * (len(case.objects) - 1)


def test_a_packed_chunk_of_no_bytes():
    """A compressed LitData chunk of no bytes is refused as damaged.

    It was taken for a block of no bytes (2,000 mutations, 2026-11-23).
    """
    case = read_case(LitData(), "litdata/packed-0.2.51")
    name = next(name for name in case.objects if LitData().accepts(name))
    with pytest.raises(ManifestError, match=rf"{name} is damaged: no bytes, index.json says \d+ items"):
        find(LitData(), {**case.objects, name: b""})


def test_blocks_of_tokens_are_not_looked_for():
    """Blocks of tokens follow from LitData's index.json, so that no chunk is read for them."""
    found = find(LitData(block_size=8), read_case(LitData(), "litdata/tokens").objects)
    assert not any(found.needs.values())
