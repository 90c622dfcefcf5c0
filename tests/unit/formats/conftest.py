"""Archives made by the standard library, and a driver for generators that ask for bytes."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Generator, Iterable

import pytest

from streamer.formats.base import Need

Entry = tuple[str, bytes]
MakeTar = Callable[..., bytes]


@pytest.fixture(scope="session")
def make_tar() -> MakeTar:
    def make(entries: Iterable[Entry | tarfile.TarInfo], kind: int = tarfile.USTAR_FORMAT) -> bytes:
        sink = io.BytesIO()
        with tarfile.open(fileobj=sink, mode="w", format=kind) as archive:
            for entry in entries:
                if isinstance(entry, tarfile.TarInfo):
                    archive.addfile(entry, io.BytesIO(bytes(entry.size)))
                    continue
                name, content = entry
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return sink.getvalue()

    return make


@pytest.fixture(scope="session")
def drive() -> Callable[..., tuple[list[object], list[Need]]]:
    """Answers every Need from `raw`; returns everything else that was yielded, and the needs."""

    def run(steps: Generator[object, memoryview | None, None], raw: bytes) -> tuple[list[object], list[Need]]:
        found: list[object] = []
        needs: list[Need] = []
        answer: memoryview | None = None
        while True:
            try:
                item = steps.send(answer)
            except StopIteration:
                return found, needs
            answer = None
            if isinstance(item, Need):
                needs.append(item)
                answer = memoryview(raw)[item.start : item.stop]
            else:
                found.append(item)

    return run
