"""Makes the files of tests/formats/data/recordio with MXNet, and what MXNet reads of them.

pip install mxnet==1.9.1 'numpy<1.24'; PYTHONPATH=. python tests/formats/make/recordio.py [FOLDER] [RECORDS]
"""

from __future__ import annotations

import random
import shutil
import struct
import sys
from pathlib import Path

import mxnet as mx
import numpy as np

from tests.formats.summary import write_expected

ROOT = Path(__file__).parents[1] / "data" / "recordio"
MAGIC = struct.pack("<I", 0xCED7230A)


def content(number: int, drawn: random.Random) -> bytes:
    """Draws contents: some have the magic number, aligned or not, at the end too; some are images, one is empty."""
    body = drawn.randbytes(number * 61 % 700)
    if number % 10 == 7:
        return body + MAGIC * (number % 3) + b"ab"
    if number % 10 == 8:
        return body + bytes((-len(body)) % 4) + MAGIC + b"xyz" + bytes(13) + MAGIC
    if number % 5 == 1:
        return b"\xff\xd8\xff" + body
    return b"" if number == 4 else body


def write(folder: Path, numbers: range, name: str, drawn: random.Random) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / name
    writer = mx.recordio.MXIndexedRecordIO(f"{stem}.idx", f"{stem}.rec", "w")
    for number in numbers:
        label = [float(number), 0.5, -2.0][: 1 + number % 3] if number % 4 == 0 else number / 3
        header = mx.recordio.IRHeader(0, label, number, 0)
        writer.write_idx(number, mx.recordio.pack(header, content(number, drawn)))
    writer.close()


def told(folder: Path) -> list[dict[str, object]]:
    """Returns what MXNet reads, one after the other."""
    samples = []
    for path in sorted(folder.glob("*.rec")):
        reader = mx.recordio.MXRecordIO(str(path), "r")
        while (record := reader.read()) is not None:
            header, body = mx.recordio.unpack(record)
            label = np.array(header.label, np.float32) if header.flag else float(np.float32(header.label))
            samples.append({"__key__": str(header.id), "image": body, "label": label})
        reader.close()
    return samples


def main(root: Path, records: int) -> None:
    for name in ("indexed", "plain"):
        drawn = random.Random(5)
        folder = root / name
        shutil.rmtree(folder, ignore_errors=True)
        write(folder, range(records * 2 // 3), "a", drawn)
        write(folder, range(records * 2 // 3, records), "b", drawn)
        write_expected(folder, told(folder))
        if name == "plain":
            for path in folder.glob("*.idx"):
                path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT, int(sys.argv[2]) if len(sys.argv) > 2 else 60)
