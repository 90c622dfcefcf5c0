"""Tar archives for tests, written by Python's tarfile, and answers to their readers' needs as an engine gives them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Generator, Iterable

from streamer.formats.base import Need


def tar_of(entries: Iterable[tuple[str, bytes] | tarfile.TarInfo], kind: int = tarfile.USTAR_FORMAT) -> bytes:
    """Returns an archive of files by name and content; a header alone stands for zeros of its size."""
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


def driven(steps: Generator[object, memoryview | None, None], raw: bytes) -> tuple[list[object], list[Need]]:
    """Answers every Need of a reader from `raw`.

    Returns:
        Everything else that it yielded, and its needs.
    """
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
