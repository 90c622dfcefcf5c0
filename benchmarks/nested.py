"""Nested columns of Parquet beside flat columns of the same bytes: CPU per sample of recoding and decoding.

    python benchmarks/nested.py [--rows 1500] [--rounds 5] [--before FOLDER] [--quick]

Four shapes; a flat column has one item of all lists. Lists of pictures, as Hugging Face's `List(Image)`: 3 of 30 KB in
a row. Documents: a list of 12 structs of a text (600 bytes) or a picture (30 KB), in turns. Addresses, as OBELICS has
them: a list of 12 texts and one of 12 addresses, with nulls where the other has a value. Vectors: a list of 8 lists of
64 float32. The recoder, the opener and the decoder run in one
process, one after the other, over chunks in memory; pictures stay bytes. `--before` names a checkout of an earlier
version, which is measured in turns with this one; the medians of the rounds are printed. Results are kept in
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from bounds import Bounds
from formats import Disk, content_of
from report import kept

from streamer.decode import SampleDecoder
from streamer.formats import Parquet
from streamer.formats.base import Field, SampleName
from streamer.indexing.build import build
from streamer.manifest.blocks import decode_hints

PICTURES, PARTS, VECTORS = 3, 12, 8
ROW_GROUP = 250
SHAPES = ("pictures", "documents", "addresses", "vectors")
_PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write(folder: Path, rows: int) -> None:
    drawn = random.Random(7)

    def pictures(count: int) -> list[dict[str, object]]:
        return [{"bytes": b"\xff\xd8\xff" + drawn.randbytes(30_000), "path": None} for _ in range(count)]

    def texts(width: int, turn: int) -> list[str | None]:
        return [drawn.randbytes(width // 2).hex() if n % 2 == turn else None for n in range(PARTS)]

    image = {"_type": "Image"}
    made = [pictures(PICTURES) for _ in range(rows)]
    save(folder / "pictures-nested", {"images": pa.array(made, pa.list_(_PICTURE))}, {"images": [image]})
    flat = columns("image", made, _PICTURE)
    save(folder / "pictures-flat", flat, dict.fromkeys(flat, image))

    made_texts = [texts(600, 0) for _ in range(rows)]
    made = [[None if n % 2 == 0 else one for n, one in enumerate(pictures(PARTS))] for _ in range(rows)]
    part = pa.struct([("text", pa.string()), ("image", _PICTURE)])
    parts = [
        [{"text": text, "image": one} for text, one in zip(*row, strict=True)]
        for row in zip(made_texts, made, strict=True)
    ]
    features = [{"text": {"_type": "Value", "dtype": "string"}, "image": image}]
    save(folder / "documents-nested", {"parts": pa.array(parts, pa.list_(part))}, {"parts": features})
    flat = columns("image", made, _PICTURE)
    save(folder / "documents-flat", columns("text", made_texts, pa.string()) | flat, dict.fromkeys(flat, image))

    addresses = [texts(80, 1) for _ in range(rows)]
    lists = {"texts": made_texts, "images": addresses}
    save(folder / "addresses-nested", {name: pa.array(each, pa.list_(pa.string())) for name, each in lists.items()})
    both = columns("text", made_texts, pa.string()) | columns("image", addresses, pa.string())
    save(folder / "addresses-flat", both)

    vectors = [[[drawn.random() for _ in range(64)] for _ in range(VECTORS)] for _ in range(rows)]
    vector = pa.list_(pa.float32())
    save(folder / "vectors-nested", {"vectors": pa.array(vectors, pa.list_(vector))})
    save(folder / "vectors-flat", columns("vector", vectors, vector))


def columns(name: str, rows: Sequence[Sequence[object]], kind: pa.DataType) -> dict[str, pa.Array]:
    """A column of the first items, one of the second ones, and so on."""
    return {f"{name}{n}": pa.array([row[n] for row in rows], kind) for n in range(len(rows[0]))}


def save(folder: Path, found: dict[str, pa.Array], features: object = None) -> None:
    folder.mkdir(parents=True)
    table = pa.table(found)
    metadata = {"huggingface": json.dumps({"info": {"features": features}})} if features else {}
    pq.write_table(table.replace_schema_metadata(metadata), folder / "a.parquet", row_group_size=ROW_GROUP)


def as_bytes(value: object) -> object:
    """Decodes Base64 in the pictures of a nested value."""
    if isinstance(value, list):
        return [as_bytes(each) for each in value]
    if isinstance(value, dict):
        return {
            name: b64decode(each) if name == "bytes" and each else as_bytes(each) if name != "__key__" else each
            for name, each in value.items()
        }
    return value


def decoder(name: str) -> Callable[[str, Sequence[Field]], object]:
    """Decodes all but pictures."""
    if name.endswith("-flat"):
        return SampleDecoder({f"image{n}": None for n in range(PARTS)} if name != "addresses-flat" else "auto")
    try:
        from streamer.decode import NestedDecoder
    except ImportError:  # of an earlier version, whose users decode Base64
        decode = SampleDecoder()
        return lambda key, fields: as_bytes(decode(key, fields))
    return SampleDecoder(dict.fromkeys(["images", "parts"], NestedDecoder(image=bytes)))


def measure(folder: Path) -> float:
    """CPU seconds of a sample, in the second time through all chunks."""
    chosen, reader = Parquet(), Disk()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "manifest"
        manifest = asyncio.run(build(str(folder), root, lister=reader, reader=reader, choose_format=lambda _: chosen))
        recoder, opener, decode = chosen.recoder(manifest.facts), chosen.opener(manifest.facts), decoder(folder.name)
        chunks = [manifest.chunk(number) for number in range(manifest.chunks)]
    fetched = [memoryview(b"".join(map(content_of, chunk.extents))) for chunk in chunks]
    for _ in range(2):
        begun = time.process_time()
        for chunk, content in zip(chunks, fetched, strict=True):
            rest = content
            for block in decode_hints(chunk.hint):
                made = recoder.recode(rest[: block.fetch_bytes], block.samples, block.hint)
                rest = rest[block.fetch_bytes :]
                records, at = memoryview(made.parts[0]).cast("B"), 0
                for length in made.lengths.tolist():
                    key, fields = opener.open(records[at : at + length], SampleName())
                    decode(key or "", fields)
                    at += length
        spent = time.process_time() - begun
    return spent / manifest.samples


def measured_by(checkout: Path, folder: Path) -> float:
    """The same with the package in another checkout, in a process of its own."""
    here = Path(__file__).parent
    paths = os.pathsep.join(map(str, [checkout, here]))
    command = [sys.executable, __file__, "--measure", str(folder)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True, cwd=checkout
    )
    return float(done.stdout)


def report(folder: Path, options: argparse.Namespace, bounds: Bounds) -> None:
    trees = {"now": Path(__file__).parents[1], **({"before": Path(options.before)} if options.before else {})}
    names = [f"{shape}-{layout}" for shape in SHAPES for layout in ("nested", "flat")]
    found: dict[tuple[str, str], list[float]] = {(tree, name): [] for tree in trees for name in names}
    for _ in range(options.rounds):
        for name in names:
            for tree, checkout in trees.items():
                found[tree, name].append(measured_by(checkout, folder / name))
    medians = {which: statistics.median(each) * 1e6 for which, each in found.items()}
    print(f"{'CPU us per sample':20}{'nested':>10}{'flat':>10}{'ratio':>8}{'before':>10}{'times':>8}")
    for shape in SHAPES:
        nested, flat = medians["now", f"{shape}-nested"], medians["now", f"{shape}-flat"]
        before = medians.get(("before", f"{shape}-nested"))
        earlier = f"{before:10.1f}{before / nested:8.1f}" if before else ""
        print(f"{shape:20}{nested:10.1f}{flat:10.1f}{nested / flat:8.2f}{earlier}")
        bounds.add(f"{shape}: CPU of nested beside flat", nested / flat, 1.5)
        if before:
            bounds.add(f"{shape}: rate beside the earlier version", before / nested, 5, least=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(measure(Path(options.measure)))
        return
    if options.quick:
        options.rows, options.rounds = 300, 1
    bounds = Bounds()
    with kept("nested", keep=not options.quick), tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch), options.rows)
        report(Path(scratch), options, bounds)
        bounds.report()


if __name__ == "__main__":
    main()
