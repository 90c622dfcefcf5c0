"""Makes the files of tests/formats/data/lmdb with the lmdb package (LMDB 0.9), and what it reads of them.

pip install lmdb==1.7.5; PYTHONPATH=. python tests/formats/make/lmdb_entries.py [FOLDER] [ENTRIES]
"""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

import lmdb
import numpy as np

from tests.formats.summary import write_expected

ROOT = Path(__file__).parents[1] / "data" / "lmdb"
LEFT_OUT = (b"__len__", b"__keys__")


def value(number: int, drawn: random.Random) -> bytes:
    """Draws values: some fit in the leaf pages, some need overflow pages; some are images, one is empty."""
    body = drawn.randbytes(drawn.choice((5, 60, 700, 1500)) if number % 9 else drawn.randrange(2000, 6000))
    if number == 3:
        return b""
    return b"\xff\xd8\xff" + body if number % 3 == 1 else body


def write(env: lmdb.Environment, entries: list[tuple[bytes, bytes]]) -> None:
    """Writes in several transactions, the last of which deletes and replaces some, so that pages are free."""
    step = max(1, len(entries) // 4)
    for first in range(0, len(entries), step):
        with env.begin(write=True) as transaction:
            for key, content in entries[first : first + step]:
                transaction.put(key, content)
    with env.begin(write=True) as transaction:
        for key, _ in entries[10::23]:
            transaction.delete(key)
        for key, content in entries[5::17]:
            transaction.put(key, content[: len(content) // 2] + b"again")
        transaction.put(b"__len__", str(len(entries)).encode())
        transaction.put(b"__keys__", b"\x80\x04]\x94.")


def told(env: lmdb.Environment) -> list[dict[str, object]]:
    """Returns what the package reads, in the order of the places in the file."""
    found = []
    with env.begin(buffers=True) as transaction:
        for key, content in transaction.cursor():
            name = bytes(key)
            if name not in LEFT_OUT:
                text = name.decode() if name.isascii() else name.hex()
                place = np.frombuffer(content, np.uint8).ctypes.data if len(content) else np.frombuffer(key, np.uint8)
                found.append((place if len(content) else place.ctypes.data, {"__key__": text, "value": bytes(content)}))
    return [sample for _, sample in sorted(found, key=lambda pair: pair[0])]


def main(root: Path, count: int) -> None:
    shutil.rmtree(root, ignore_errors=True)
    drawn = random.Random(5)
    # Written in another order than that of the keys, as numbers without zeros in front are.
    cases = {
        "entries": [(str(number).encode(), value(number, drawn)) for number in range(count)],
        "deep": [(b"%03d" % number + b"abc"[number % 3 :][:1] * 460, b"%d" % number) for number in range(count + 5)],
        "file": [(b"key-%04d" % number, value(number, drawn)) for number in range(count // 4)],
        "numbers": [(number.to_bytes(8, "big"), b"%d" % number) for number in range(0, 2 * count, 2)],
    }
    for name, entries in cases.items():
        folder = root / name
        folder.mkdir(parents=True)
        path = folder / "data.lmdb" if name == "file" else folder
        with lmdb.open(str(path), map_size=1 << 30, subdir=name != "file", sync=False) as env:
            write(env, entries)
        with lmdb.open(str(path), subdir=name != "file", readonly=True, lock=False) as env:
            print(name, env.stat())
            write_expected(folder, told(env))
        for lock in (folder / "lock.mdb", folder / "data.lmdb-lock"):
            lock.unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT, int(sys.argv[2]) if len(sys.argv) > 2 else 90)
