"""MDS meets the contract of the formats; what its index reads."""

from __future__ import annotations

from streamer.tables.mds import MDS
from tests.formats.cases import Case, find, read_case
from tests.formats.contract import FormatContract


class TestMds(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        packed = [read_case(MDS(), f"mds/{name}") for name in ("zstd", "gz", "br", "bz2", "snappy")]
        return [read_case(MDS(), "mds/plain"), *packed]


def test_what_the_index_reads():
    """The index of MDS reads index.json and the header of each raw shard, and nothing of compressed ones."""
    case = read_case(MDS(), "mds/plain")
    found = find(MDS(), case.objects)
    ((index,),) = found.survey_needs
    assert (index.start, index.stop) == (0, len(case.objects["index.json"]))
    for (_, spans), asked in zip(found.items, found.needs.values(), strict=True):
        ((head,),) = asked
        assert (head.start, head.stop) == (0, 4 * (len(spans) + 2))
    packed = find(MDS(), read_case(MDS(), "mds/gz").objects)
    assert len(packed.survey_needs) == 1
    assert not any(packed.needs.values())
