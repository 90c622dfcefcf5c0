"""Raw files meet the contract of the formats."""

from __future__ import annotations

from streamer.formats.folder import Folder
from tests.formats.cases import Case
from tests.formats.contract import FormatContract
from tests.formats.summary import KEY, summary

FILES = {f"{number:02d}.bin": bytes([number]) * (number * 37) for number in range(24)}


class TestFolder(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        samples = [{KEY: name, "bin": summary(content)} for name, content in FILES.items()]
        return [Case("files", Folder(), FILES, samples)]
