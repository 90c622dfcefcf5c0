"""Makes the files of tests/formats/data/zip with the standard library, and what it reads of them.

PYTHONPATH=. python tests/formats/make/zip_archives.py [FOLDER] [MEMBERS]
"""

from __future__ import annotations

import io
import random
import shutil
import sys
import zipfile
from pathlib import Path

from tests.formats.summary import write_expected

ROOT = Path(__file__).parents[1] / "data" / "zip"


class Pipe(io.RawIOBase):
    """Stands for a pipe, which cannot go back: lengths and checksums come behind the members."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def writable(self) -> bool:
        return True

    def write(self, content: object) -> int:
        return self._file.write(content)  # type: ignore[arg-type]

    def close(self) -> None:
        self._file.close()
        super().close()


def content(number: int, drawn: random.Random) -> bytes:
    return b"" if number == 5 else drawn.randbytes(number * 31 % 400) + b"again " * (number % 50)


def main(root: Path, members: int) -> None:
    shutil.rmtree(root, ignore_errors=True)
    for name, method, wide, pipe in (
        ("stored", zipfile.ZIP_STORED, False, False),
        ("deflated", zipfile.ZIP_DEFLATED, False, False),
        ("wide", zipfile.ZIP_DEFLATED, True, False),
        ("streamed", zipfile.ZIP_DEFLATED, False, True),
        ("streamed_stored", zipfile.ZIP_STORED, True, True),
    ):
        folder = root / name
        folder.mkdir(parents=True)
        drawn = random.Random(2)
        path = folder / "train2017.zip"
        with zipfile.ZipFile(Pipe(path) if pipe else path, "w", method) as archive:
            archive.comment = b"a comment"
            if not pipe:
                archive.writestr("train2017/", b"")
            archive.writestr("__MACOSX/train2017/._0.jpg", b"not a picture")
            for number in range(members):
                info = zipfile.ZipInfo(f"train2017/{'ä' * (number % 3)}{number:012}.bin")
                info.compress_type = method
                with archive.open(info, "w", force_zip64=wide and number % 2 == 0) as member:
                    member.write(content(number, drawn))
        with zipfile.ZipFile(path) as archive:
            infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
            write_expected(
                folder,
                [
                    {"__key__": info.filename, "bin": archive.read(info)}
                    for info in infos
                    if not info.is_dir() and not info.filename.startswith("__MACOSX/")
                ],
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT, int(sys.argv[2]) if len(sys.argv) > 2 else 30)
