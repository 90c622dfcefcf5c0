"""WebDataset meets the contract of the formats, on tars of Python's tarfile."""

from __future__ import annotations

from streamer.formats.webdataset import WebDataset
from tests.formats.cases import Case
from tests.formats.contract import FormatContract
from tests.formats.summary import KEY, summary
from tests.tars import tar_of


def _case() -> Case:
    objects, samples = {}, []
    for tar in range(2):
        entries = []
        for number in range(tar * 12, tar * 12 + 12):
            content = bytes([number]) * (number * 97)
            entries += [(f"{number:02d}.bin", content), (f"{number:02d}.cls", str(number).encode())]
            samples.append({KEY: f"{number:02d}", "bin": summary(content), "cls": number})
        objects[f"{tar}.tar"] = tar_of(entries)
    return Case("tars", WebDataset(), objects, samples)


class TestWebDataset(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        return [_case()]
